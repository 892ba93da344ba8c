/* SPDX-License-Identifier: MIT */
/*
 * Products of a few rows with many keys, without GEMM: each key and value row
 * is read once for four query rows at a time. Compiled once per instruction
 * set; ATTN_ISA_NAME is its name.
 *
 * A row's result does not depend on the rows beside it: the same bits whether
 * one, two or four of them are taken together.
 *
 * Rows that are shorter than a vector go to the set whose vectors are half as
 * long: with AVX-512, 8 queries of 8 floats by 8 keys take 0.7 us so, and took
 * 2.2 us where each row filled a part of a vector (Zen 4). What is here for
 * D < W is for 1 to 3 floats, and for a base set that CFLAGS make wider.
 */
#include "kernel_isa.h"
#include "vec.h"

/* Elsewhere a constant, or the code for it would stay there: 30 KiB. As what is not expected, since
   GCC else has less for the loops of D >= W: 4 % of 10 x 10 x 512 with SSE2. */
#ifdef ATTN_ISA_BELOW
#define IS_NARROW(t) false
#else
#define IS_NARROW(t) __builtin_expect((t)->D < W, 0)
#endif

/* A row is fetched into L2 so many floats before it is read: without it, beyond the caches, half
   the speed; the other of K and V instead, one tile ahead: 0.8 to 0.9 (Zen 4; 8 to 32 KiB are
   alike). As a distance in memory, so that the address costs no instruction. The first rows fetch
   for all; for the others the distance is 0 and not a condition: with a branch between a product
   and its sum they would not become one instruction, and bits depend on the rows beside. */
#define FLOATS_AHEAD 4096
INLINE int64_t fetch_distance(const struct few_rows *t, int64_t r0)
{
    return r0 == 0 ? (FLOATS_AHEAD / t->D + 1) * t->ldx : 0;
}

/* The last D % W floats of a row of D >= W as the upper lanes of a vector: memcpy of a variable
   size is a call. */
INLINE vf load_end(const float *row, int64_t D)
{
    return (vf)((vi)load(row + D - W) & (lanes() >= (int32_t)(W - D % W)));
}

/* All of a row of D < W and nothing behind it, lane by lane for the same reason: 8 queries of 2
   floats by 8 keys take 0.8 us, 1.4 with memcpy. */
INLINE vf load_narrow(const float *row, int64_t D)
{
    vf x = splat(0.0f);
    UNROLL for (int i = 0; i < W - 1; i++) x[i] = row[i < D ? i : D - 1];
    return (vf)((vi)x & (lanes() < (int32_t)D));
}

/* Vectors of a query that are held at once when there is one: 2 of 1, 2, 4, 8 best in cache (Zen
   4). */
#define DOT_VECTORS 2

/* Scores of nr rows by nk keys from j0, of which n are there, as sums() leaves them. */
INLINE void store_scores(int nr, const struct few_rows *t, int64_t r0, int64_t j0, int64_t n,
                         vf s)
{
    const int nk = W / nr;
    float lane[W];
    store(lane, s * t->scale);
    for (int r = 0; r < nr && r0 + r < t->rows; r++) {
        float *to = t->s + (r0 + r) * t->lds + j0;
        if (n == nk)
            memcpy(to, lane + r * nk, (size_t)nk * sizeof(float)); /* of a size that is known */
        else
            memcpy(to, lane + r * nk, (size_t)n * sizeof(float));
    }
}

/* acc[r][k] += q[r] x[k] over nd vectors: key after key in memory, as prefetching likes it, as
   far as there are registers for the queries. */
INLINE void dot_columns(int nr, int nd, vf *acc, const float *const *q, const float *x,
                        int64_t ldx, int64_t d, int64_t ahead)
{
    const int nk = W / nr;
    vf y[4][DOT_VECTORS];
    UNROLL for (int r = 0; r < nr; r++) UNROLL for (int i = 0; i < nd; i++) y[r][i] =
        load(q[r] + d + i * W);
    x += d;
    UNROLL for (int k = 0; k < nk; k++, x += ldx) UNROLL for (int i = 0; i < nd; i++)
    {
        vf v = load(x + i * W);
        prefetch(x, ahead + i * W);
        UNROLL for (int r = 0; r < nr; r++) acc[r * nk + k] += v * y[r][i];
    }
}

/*
 * s[r][j] = scale * sum_d q[r][d] x[j][d] for nr rows (those past the last are
 * the last once more) by nk = W / nr keys, ldx apart, of which the first n are
 * wanted, and D >= W: W partial sums in W registers, reduced together by sums().
 *
 * No branch stands between a product and its sum: they would not become one
 * instruction, and the bits of a row depend on how many are taken together.
 */
INLINE void dots(int nr, const struct few_rows *t, int64_t r0, int64_t j0, int64_t ldx, int64_t n)
{
    const int nk = W / nr, nd = nr == 1 ? DOT_VECTORS : 1;
    const float *q[4], *x = t->x + j0 * t->ldx;
    vf acc[W];
    UNROLL for (int r = 0; r < nr; r++) q[r] = t->q[r0 + r < t->rows ? r0 + r : t->rows - 1];
    UNROLL for (int i = 0; i < W; i++) acc[i] = splat(0.0f);
    int64_t d = 0, ahead = fetch_distance(t, r0);
    for (; d + nd * W <= t->D; d += nd * W) dot_columns(nr, nd, acc, q, x, ldx, d, ahead);
    for (; d + W <= t->D; d += W) dot_columns(nr, 1, acc, q, x, ldx, d, ahead);
    if (d < t->D) {
        vf y[4];
        UNROLL for (int r = 0; r < nr; r++) y[r] = load_end(q[r], t->D);
        UNROLL for (int k = 0; k < nk; k++, x += ldx)
        {
            vf v = load_end(x, t->D);
            UNROLL for (int r = 0; r < nr; r++) acc[r * nk + k] += v * y[r];
        }
    }
    store_scores(nr, t, r0, j0, n, sums(acc));
}

/* The same for D < W: nothing to add up before sums(). The last key is taken once more for those
   that are not there. */
INLINE void dots_narrow(int nr, const struct few_rows *t, int64_t r0, int64_t j0)
{
    const int nk = W / nr;
    int64_t n = t->keys - j0 < nk ? t->keys - j0 : nk;
    const float *x = t->x + j0 * t->ldx;
    vf y[4], acc[W];
    UNROLL for (int r = 0; r < nr; r++) y[r] =
        load_narrow(t->q[r0 + r < t->rows ? r0 + r : t->rows - 1], t->D);
    UNROLL for (int k = 0; k < nk; k++)
    {
        vf v = load_narrow(x + (k < n ? k : n - 1) * t->ldx, t->D);
        UNROLL for (int r = 0; r < nr; r++) acc[r * nk + k] = v * y[r];
    }
    store_scores(nr, t, r0, j0, n, sums(acc));
}

/* All keys for rows [from, to), nk at a time, where the last group may overlap the one before;
   fewer than nk one by one, each as nk times the same, so that one piece of code makes all. */
INLINE void dot_keys(int nr, const struct few_rows *t, int64_t from, int64_t to)
{
    const int nk = W / nr;
    bool many = t->keys >= nk, narrow = IS_NARROW(t);
    int64_t step = many || narrow ? nk : 1, ldx = many ? t->ldx : 0;
    for (int64_t j = 0; j < t->keys; j += step)
        for (int64_t r = from; r < to; r += nr)
            if (narrow)
                dots_narrow(nr, t, r, j);
            else
                dots(nr, t, r, j + step <= t->keys ? j : t->keys - step, ldx, step);
}

void KERNEL(dot_rows)(const struct few_rows *t)
{
#ifdef ATTN_ISA_BELOW
    if (t->D < W) {
        KERNEL_BELOW(dot_rows)(t);
        return;
    }
#endif
    int64_t fours = t->rows % 4 == 3 ? t->rows : t->rows / 4 * 4;
    int64_t twos = fours + (t->rows - fours) / 2 * 2;
    if (fours > 0) dot_keys(4, t, 0, fours);
    if (twos > fours) dot_keys(2, t, fours, twos);
    if (twos < t->rows) dot_keys(1, t, twos, t->rows);
}

/* o[r][d .. d + nv * W) (+)= sum_j s[r][j] x[j][d ..], nr rows. A tile is summed up by itself:
   rounding then grows with the tile and the number of tiles, and not with the keys. */
INLINE void sum_values(int nr, int nv, const struct few_rows *t, int64_t r0, int64_t d,
                       int64_t ahead)
{
    vf acc[4][8];
    UNROLL for (int r = 0; r < nr; r++) UNROLL for (int i = 0; i < nv; i++) acc[r][i] =
        splat(0.0f);
    const float *x = t->x + d, *s = t->s + r0 * t->lds;
    for (int64_t j = 0; j < t->keys; j++, x += t->ldx) {
        UNROLL for (int i = 0; i < nv; i++)
        {
            vf v = load(x + i * W);
            prefetch(x, ahead + i * W);
            UNROLL for (int r = 0; r < nr; r++) acc[r][i] += v * s[r * t->lds + j];
        }
    }
    UNROLL for (int r = 0; r < nr; r++) UNROLL for (int i = 0; i < nv; i++)
    {
        float *o = t->o[r0 + r] + d + i * W;
        store(o, t->first ? acc[r][i] : load(o) + acc[r][i]);
    }
}

/* The last D % W columns, of D >= W, as the upper lanes of a vector. */
INLINE void sum_values_end(int nr, const struct few_rows *t, int64_t r0)
{
    const vi end = lanes() >= (int32_t)(W - t->D % W);
    vf acc[4];
    UNROLL for (int r = 0; r < nr; r++) acc[r] = splat(0.0f);
    for (int64_t j = 0; j < t->keys; j++) {
        vf v = load_end(t->x + j * t->ldx, t->D);
        UNROLL for (int r = 0; r < nr; r++) acc[r] += v * t->s[(r0 + r) * t->lds + j];
    }
    UNROLL for (int r = 0; r < nr; r++)
    {
        float *o = t->o[r0 + r] + t->D - W;
        store(o, sel(end, t->first ? acc[r] : load(o) + acc[r], load(o)));
    }
}

/* All of D < W columns. */
INLINE void sum_values_narrow(int nr, const struct few_rows *t, int64_t r0)
{
    vf acc[4];
    UNROLL for (int r = 0; r < nr; r++) acc[r] = splat(0.0f);
    for (int64_t j = 0; j < t->keys; j++) {
        vf v = load_narrow(t->x + j * t->ldx, t->D);
        UNROLL for (int r = 0; r < nr; r++) acc[r] += v * t->s[(r0 + r) * t->lds + j];
    }
    UNROLL for (int r = 0; r < nr; r++)
    {
        float *o = t->o[r0 + r];
        store_n(o, t->first ? acc[r] : load_narrow(o, t->D) + acc[r], t->D);
    }
}

/* nr * nv accumulators: 16 of 32 registers, or 8 of 16, but at most 8 for a row. */
#define ACCUMULATORS (W == 16 ? 16 : 8)

INLINE void sum_rows(int nr, const struct few_rows *t, int64_t r0)
{
    const int nv = ACCUMULATORS / nr < 8 ? ACCUMULATORS / nr : 8;
    int64_t d = 0;
    int64_t ahead = fetch_distance(t, r0);
    for (; d + nv * W <= t->D; d += nv * W) sum_values(nr, nv, t, r0, d, ahead);
    for (; d + 4 * W <= t->D && nv > 4; d += 4 * W) sum_values(nr, 4, t, r0, d, ahead);
    for (; d + W <= t->D; d += W) sum_values(nr, 1, t, r0, d, ahead);
    if (IS_NARROW(t))
        sum_values_narrow(nr, t, r0);
    else if (d < t->D)
        sum_values_end(nr, t, r0);
}

void KERNEL(add_rows)(const struct few_rows *t)
{
#ifdef ATTN_ISA_BELOW
    if (t->D < W) {
        KERNEL_BELOW(add_rows)(t);
        return;
    }
#endif
    int64_t r = 0;
    for (; r + 4 <= t->rows; r += 4) sum_rows(4, t, r);
    if (r + 2 <= t->rows) {
        sum_rows(2, t, r);
        r += 2;
    }
    if (r < t->rows) sum_rows(1, t, r);
}
