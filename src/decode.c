/* SPDX-License-Identifier: MIT */
/*
 * Products of a few rows with many keys, without GEMM: each key and value row
 * is read once for four query rows at a time. Compiled once per instruction
 * set; ATTN_ISA_NAME is its name.
 *
 * A row's result does not depend on the rows beside it: the same bits whether
 * one, two or four of them are taken together.
 */
#include "kernel_isa.h"
#include "vec.h"

/* The other of K and V comes while this one is in use, a line for each vector that is multiplied.
   Beyond the caches this decides the speed: without it half; all lines of a few rows at once
   instead, 0.7 to 0.8 for groups of four heads (32/8 x 4096 and 32768 x 128, Zen 4). */
INLINE void prefetch_next(const struct few_rows *t, int64_t j, int64_t d)
{
    prefetch(t->next, j * t->ld_next + d);
}

/* The last D % W floats of a row of D >= W as the upper lanes of a vector: memcpy of a variable
   size is a call. */
INLINE vf load_end(const float *row, int64_t D)
{
    return (vf)((vi)load(row + D - W) & (lanes() >= (int32_t)(W - D % W)));
}

struct operands {
    const float *x[W], *q[4]; /* nk keys, nr rows; those past the last are the last once more */
};

INLINE struct operands point(int nr, int nk, const struct few_rows *t, int64_t r0, int64_t j0)
{
    struct operands at;
    UNROLL for (int k = 0; k < nk; k++) at.x[k] =
        t->x + (j0 + k < t->keys ? j0 + k : t->keys - 1) * t->ldx;
    UNROLL for (int r = 0; r < nr; r++) at.q[r] = t->q[r0 + r < t->rows ? r0 + r : t->rows - 1];
    return at;
}

/* Scores of nr rows by nk keys, as sums() leaves them. */
INLINE void store_scores(int nr, int nk, const struct few_rows *t, int64_t r0, int64_t j0, vf s)
{
    float lane[W];
    store(lane, s * t->scale);
    int64_t n = t->keys - j0 < nk ? t->keys - j0 : nk;
    for (int r = 0; r < nr && r0 + r < t->rows; r++) {
        float *to = t->s + (r0 + r) * t->lds + j0;
        if (n == nk)
            memcpy(to, lane + r * nk, (size_t)nk * sizeof(float)); /* of a size that is known */
        else
            memcpy(to, lane + r * nk, (size_t)n * sizeof(float));
    }
}

/*
 * s[r][j] = scale * sum_d q[r][d] x[j][d] for nr rows by nk = W / nr keys and
 * D >= W: W partial sums in W registers (or nearly), reduced together by sums().
 */
INLINE void dots(int nr, const struct few_rows *t, int64_t r0, int64_t j0)
{
    const int nk = W / nr;
    const struct operands at = point(nr, nk, t, r0, j0);
    vf acc[W], y[4];
    UNROLL for (int i = 0; i < W; i++) acc[i] = splat(0.0f);
    bool ahead = t->next && r0 == 0;
    int64_t d = 0;
    for (; d + W <= t->D; d += W) {
        UNROLL for (int r = 0; r < nr; r++) y[r] = load(at.q[r] + d);
        UNROLL for (int k = 0; k < nk; k++)
        {
            vf v = load(at.x[k] + d);
            if (ahead) prefetch_next(t, j0 + k, d);
            UNROLL for (int r = 0; r < nr; r++) acc[r * nk + k] += v * y[r];
        }
    }
    if (d < t->D) {
        UNROLL for (int r = 0; r < nr; r++) y[r] = load_end(at.q[r], t->D);
        UNROLL for (int k = 0; k < nk; k++)
        {
            vf v = load_end(at.x[k], t->D);
            UNROLL for (int r = 0; r < nr; r++) acc[r * nk + k] += v * y[r];
        }
    }
    store_scores(nr, nk, t, r0, j0, sums(acc));
}

/* The same for D < W. */
INLINE void dots_narrow(int nr, const struct few_rows *t, int64_t r0, int64_t j0)
{
    const int nk = W / nr;
    const struct operands at = point(nr, nk, t, r0, j0);
    vf acc[W] = {{0}};
    for (int k = 0; k < nk && j0 + k < t->keys; k++)
        for (int r = 0; r < nr && r0 + r < t->rows; r++)
            acc[r * nk + k] = load_n(at.x[k], t->D) * load_n(at.q[r], t->D);
    store_scores(nr, nk, t, r0, j0, sums(acc));
}

INLINE void dot_group(int nr, const struct few_rows *t, int64_t j0)
{
    for (int64_t r = 0; r < t->rows; r += nr)
        if (t->D < W)
            dots_narrow(nr, t, r, j0);
        else
            dots(nr, t, r, j0);
}

void KERNEL(dot_rows)(const struct few_rows *t)
{
    if (t->rows == 1)
        for (int64_t j = 0; j < t->keys; j += W) dot_group(1, t, j);
    else if (t->rows == 2)
        for (int64_t j = 0; j < t->keys; j += W / 2) dot_group(2, t, j);
    else
        for (int64_t j = 0; j < t->keys; j += W / 4) dot_group(4, t, j);
}

/* o[r][d .. d + nv * W) (+)= sum_j s[r][j] x[j][d ..], nr rows */
INLINE void sum_values(int nr, int nv, const struct few_rows *t, int64_t r0, int64_t d,
                       bool ahead)
{
    vf acc[4][8];
    UNROLL for (int r = 0; r < nr; r++) UNROLL for (int i = 0; i < nv; i++) acc[r][i] =
        t->first ? splat(0.0f) : load(t->o[r0 + r] + d + i * W);
    const float *x = t->x + d, *s = t->s + r0 * t->lds;
    for (int64_t j = 0; j < t->keys; j++, x += t->ldx) {
        UNROLL for (int i = 0; i < nv; i++)
        {
            vf v = load(x + i * W);
            if (ahead) prefetch_next(t, j, d + i * W);
            UNROLL for (int r = 0; r < nr; r++) acc[r][i] += v * s[r * t->lds + j];
        }
    }
    UNROLL for (int r = 0; r < nr; r++) UNROLL for (int i = 0; i < nv; i++)
        store(t->o[r0 + r] + d + i * W, acc[r][i]);
}

/* The last D % W columns, of D >= W, as the upper lanes of a vector. */
INLINE void sum_values_end(int nr, const struct few_rows *t, int64_t r0)
{
    const vi end = lanes() >= (int32_t)(W - t->D % W);
    vf acc[4];
    UNROLL for (int r = 0; r < nr; r++) acc[r] =
        t->first ? splat(0.0f) : load_end(t->o[r0 + r], t->D);
    for (int64_t j = 0; j < t->keys; j++) {
        vf v = load_end(t->x + j * t->ldx, t->D);
        UNROLL for (int r = 0; r < nr; r++) acc[r] += v * t->s[(r0 + r) * t->lds + j];
    }
    UNROLL for (int r = 0; r < nr; r++)
    {
        float *o = t->o[r0 + r] + t->D - W;
        store(o, sel(end, acc[r], load(o)));
    }
}

/* All of a row of D < W. */
INLINE void sum_values_narrow(const struct few_rows *t, int64_t r)
{
    vf acc = t->first ? splat(0.0f) : load_n(t->o[r], t->D);
    for (int64_t j = 0; j < t->keys; j++)
        acc += load_n(t->x + j * t->ldx, t->D) * t->s[r * t->lds + j];
    store_n(t->o[r], acc, t->D);
}

/* nr * nv accumulators: 16 of 32 registers, or 8 of 16, but at most 8 for a row. */
#define ACCUMULATORS (W == 16 ? 16 : 8)

INLINE void sum_rows(int nr, const struct few_rows *t, int64_t r0)
{
    const int nv = ACCUMULATORS / nr < 8 ? ACCUMULATORS / nr : 8;
    int64_t d = 0;
    bool ahead = t->next && r0 == 0;
    for (; d + nv * W <= t->D; d += nv * W) sum_values(nr, nv, t, r0, d, ahead);
    for (; d + 4 * W <= t->D && nv > 4; d += 4 * W) sum_values(nr, 4, t, r0, d, ahead);
    for (; d + W <= t->D; d += W) sum_values(nr, 1, t, r0, d, ahead);
    if (t->D < W)
        for (int r = 0; r < nr; r++) sum_values_narrow(t, r0 + r);
    else if (d < t->D)
        sum_values_end(nr, t, r0);
}

void KERNEL(add_rows)(const struct few_rows *t)
{
    int64_t r = 0;
    for (; r + 4 <= t->rows; r += 4) sum_rows(4, t, r);
    if (r + 2 <= t->rows) {
        sum_rows(2, t, r);
        r += 2;
    }
    if (r < t->rows) sum_rows(1, t, r);
}
