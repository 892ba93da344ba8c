/* SPDX-License-Identifier: MIT */
/*
 * Attention of a panel of queries with a tile of keys, without BLAS. Compiled
 * once per instruction set; ATTN_ISA_NAME is its name.
 *
 * Everything is formed transposed: queries lie along the lanes of one to
 * PANEL_VECTORS vectors, S^T = K Q^T and O^T += V^T P^T. So K and V are read in
 * place, one broadcast an element, and nothing is packed; the softmax over the
 * keys is vertical; one microkernel serves both products. Only Q is transposed
 * on its way in, and O on its way out.
 *
 * A lane's result does not depend on the lanes beside it, nor on their number.
 */
#include "kernel_isa.h"
#include "vec.h"

/* The register tile: TILE_ROWS x PANEL_VECTORS sums, that many vectors of b, and one broadcast. */
#if W == 16 || defined(__aarch64__)
#define TILE_ROWS 8 /* 24 of 32 registers */
#else
#define TILE_ROWS 4 /* 12 of 16 registers */
#endif

#define LINE 64 /* bytes of a cache line */

_Static_assert(ENDS_UNIT % TILE_ROWS == 0, "starts and ends are those of register tiles");
_Static_assert(PANEL_VECTORS <= VECTORS_MAX, "a key's exponentials are formed at once");

typedef vf tile[TILE_ROWS][PANEL_VECTORS];

/* c[i] += sum_k a[i * row + k * step] b[k], mr rows, vectors j0 to j1 of the panel's nv */
INLINE void multiply(int mr, int j0, int j1, int nv, tile c, int64_t n, const float *a,
                     int64_t row, int64_t step, const float *b)
{
    for (int64_t k = 0; k < n; k++, a += step, b += nv * W) {
        vf y[PANEL_VECTORS];
        UNROLL for (int j = j0; j < j1; j++) y[j] = load(b + j * W);
        UNROLL for (int i = 0; i < mr; i++)
        {
            UNROLL for (int j = j0; j < j1; j++) c[i][j] += y[j] * a[i * row];
        }
    }
}

/* Calls step(mr, i) for the rows [from, to): whole tiles, then smaller ones. */
#define FOR_TILES(from, to, step)                                            \
    do {                                                                     \
        int64_t i_ = (from);                                                 \
        for (; i_ + TILE_ROWS <= (to); i_ += TILE_ROWS) step(TILE_ROWS, i_); \
        for (; i_ + 2 <= (to); i_ += 2) step(2, i_);                         \
        if (i_ < (to)) step(1, i_);                                          \
    } while (0)

/* Calls step(j0, j1, from, to): the keys [from, to) that concern vectors j0 to j1 only, in their
   order. Where j1 is not nv, they are whole register tiles: no code is made for the rest of one. */
#define FOR_KEYS(nv, t, step)                                         \
    do {                                                              \
        if ((nv) > 1 && (t)->starts[(nv)-1] > 0) {                    \
            step(0, 1, 0, (t)->starts[1]);                            \
            if ((nv) > 2) step(0, 2, (t)->starts[1], (t)->starts[2]); \
        }                                                             \
        step(0, nv, (t)->starts[(nv)-1], (t)->ends[0]);               \
        if ((nv) > 1) step(1, nv, (t)->ends[0], (t)->ends[1]);        \
        if ((nv) > 2) step(2, nv, (t)->ends[1], (t)->ends[2]);        \
    } while (0)

/* Calls function(nv, ...) with the number of vectors of the panel as a constant. */
#define FOR_VECTORS(nv, function, ...)      \
    ((nv) == 3   ? function(3, __VA_ARGS__) \
     : (nv) == 2 ? function(2, __VA_ARGS__) \
                 : function(1, __VA_ARGS__))

/* -inf where lane's query does not see key i of the tile */
INLINE vf hide_unseen(const struct panel *t, int64_t i, int j, vf s)
{
    vi see = (load_ints(t->lo + j * W) <= (int32_t)i) & (load_ints(t->hi + j * W) > (int32_t)i);
    return sel(see, s, splat(-INFINITY));
}

/* Which row is to be fetched next, and how many beside each register tile. */
struct fetching {
    const struct ahead *ahead;
    int64_t row, rows;
};

INLINE struct fetching fetch_beside(const struct ahead *ahead, int64_t tiles)
{
    struct fetching f = {ahead, 0, ahead->n > 0 ? ahead->n / (tiles + 1) + 1 : 0};
    return f;
}

INLINE void fetch(struct fetching *f)
{
    const struct ahead *a = f->ahead;
    int64_t end = f->row + f->rows < a->n ? f->row + f->rows : a->n;
    for (; f->row < end; f->row++)
        for (int64_t d = 0; d < a->size; d += LINE) prefetch_line(a->rows, f->row * a->ld + d);
}

/* ---------------------------------------------------------------- scores */

INLINE void score_tile(int mr, int j0, int j1, int nv, const struct panel *t, int64_t i, vf *top,
                       struct fetching f[2])
{
    tile c = {{{0}}};
    fetch(f);
    fetch(f + 1);
    multiply(mr, j0, j1, nv, c, t->Dk, t->k + i * t->ldk, t->ldk, 1, t->q);
    bool all = !t->lo || (i >= t->all.lo && i + mr <= t->all.hi);
    UNROLL for (int r = 0; r < mr; r++)
    {
        UNROLL for (int j = j0; j < j1; j++)
        {
            vf s = all ? c[r][j] : hide_unseen(t, i + r, j, c[r][j]);
            top[j] = vmax(s, top[j]);
            store(t->s + ((i + r) * nv + j) * W, s);
        }
    }
}

INLINE void scores_of_keys(int j0, int j1, int nv, const struct panel *t, int64_t from,
                           int64_t to, vf *top, struct fetching f[2])
{
    if (j1 < nv) {
        for (int64_t i = from; i < to; i += TILE_ROWS)
            score_tile(TILE_ROWS, j0, j1, nv, t, i, top, f);
        return;
    }
#define STEP(mr, i) score_tile(mr, j0, j1, nv, t, i, top, f)
    FOR_TILES(from, to, STEP);
#undef STEP
}

INLINE void scores(int nv, const struct panel *t)
{
    vf top[PANEL_VECTORS];
    UNROLL for (int j = 0; j < nv; j++) top[j] = splat(-INFINITY);
    int64_t tiles = t->keys / TILE_ROWS;
    struct fetching f[2] = {fetch_beside(&t->ahead[0], tiles), fetch_beside(&t->masks, tiles)};
#define KEYS(j0, j1, from, to) scores_of_keys(j0, j1, nv, t, from, to, top, f)
    FOR_KEYS(nv, t, KEYS);
#undef KEYS
    UNROLL for (int j = 0; j < nv; j++) store(t->top + j * W, top[j]);
}

void KERNEL(panel_scores)(const struct panel *t) { FOR_VECTORS(t->vectors, scores, t); }

/* --------------------------------------------------------------- softmax */

/* One key's scores into exp(s - base), and to their sums. */
INLINE void exp_of_key(int j0, int j1, float *s, const vf *base, vf *sum)
{
    vf e[PANEL_VECTORS];
    UNROLL for (int j = j0; j < j1; j++) e[j] = load(s + j * W) - base[j];
    vexps(e + j0, j1 - j0, LEAST_WEIGHT);
    UNROLL for (int j = j0; j < j1; j++) store(s + j * W, e[j]);
    UNROLL for (int j = j0; j < j1; j++) sum[j] += e[j];
}

/* from is even: the key says which of the two sums it goes to. */
INLINE void exp_of_keys(int j0, int j1, int nv, const struct panel *t, int64_t from, int64_t to,
                        const vf *base, vf sum[2][PANEL_VECTORS])
{
    float *s = t->s + from * nv * W;
    int64_t i = from;
    for (; i + 2 <= to; i += 2, s += 2 * nv * W) {
        exp_of_key(j0, j1, s, base, sum[0]);
        exp_of_key(j0, j1, s + nv * W, base, sum[1]);
    }
    if (j1 == nv && i < to) exp_of_key(j0, j1, s, base, sum[0]);
}

/*
 * As softmax_rows has it, lane by lane: the maximum drops NaN, whose own
 * exponential is NaN; a maximum of -inf is subtracted as 0, and what such a
 * lane holds, 0 or NaN, stays as it is. A tile is summed up by itself, in two
 * halves: rounding then grows with the tile and the number of tiles, and not
 * with the keys.
 */
INLINE void softmax(int nv, const struct panel *t)
{
    vf base[PANEL_VECTORS], sum[2][PANEL_VECTORS];
    UNROLL for (int j = 0; j < nv; j++)
    {
        vf old = load(t->m + j * W), new = vmax(load(t->top + j * W), old);
        base[j] = sel(new == -INFINITY, splat(0.0f), new);
        vf fix = sel(old == -INFINITY, splat(1.0f), vexp(old - base[j], LEAST_WEIGHT));
        store(t->l + j * W, load(t->l + j * W) * fix);
        store(t->top + j * W, fix);
        store(t->m + j * W, new);
        sum[0][j] = sum[1][j] = splat(0.0f);
    }
#define KEYS(j0, j1, from, to) exp_of_keys(j0, j1, nv, t, from, to, base, sum)
    FOR_KEYS(nv, t, KEYS);
#undef KEYS
    UNROLL for (int j = 0; j < nv; j++)
        store(t->l + j * W, load(t->l + j * W) + (sum[0][j] + sum[1][j]));
}

void KERNEL(panel_softmax)(const struct panel *t) { FOR_VECTORS(t->vectors, softmax, t); }

/* ---------------------------------------------------------------- values */

INLINE void value_tile(int mr, int nv, const struct panel *t, int64_t d, struct fetching *f)
{
    tile c = {{{0}}};
    fetch(f);
#define KEYS(j0, j1, from, to)                                                      \
    multiply(mr, j0, j1, nv, c, (to) - (from), t->v + d + (from)*t->ldv, 1, t->ldv, \
             t->s + (from)*nv * W)
    FOR_KEYS(nv, t, KEYS);
#undef KEYS
    UNROLL for (int r = 0; r < mr; r++)
    {
        UNROLL for (int j = 0; j < nv; j++)
        {
            float *o = t->o + ((d + r) * nv + j) * W;
            store(o, t->first ? c[r][j] : load(o) * load(t->top + j * W) + c[r][j]);
        }
    }
}

INLINE void values(int nv, const struct panel *t)
{
    struct fetching f = fetch_beside(&t->ahead[1], t->Dv / TILE_ROWS);
#define STEP(mr, d) value_tile(mr, nv, t, d, &f)
    FOR_TILES(0, t->Dv, STEP);
#undef STEP
}

void KERNEL(panel_values)(const struct panel *t) { FOR_VECTORS(t->vectors, values, t); }

/* ---------------------------------------------------------- in and out */

/* Columns from at: the last vector of a row ends with it, and may overlap the one before. */
INLINE int64_t last_start(int64_t d, int64_t D) { return d + W <= D ? d : D - W; }

void KERNEL(panel_in)(int64_t rows, int32_t vectors, int64_t D, const float *const *x,
                      float scale, float *y)
{
    int64_t lanes = (int64_t)vectors * W;
    for (int64_t r0 = 0; r0 < lanes; r0 += W)
        for (int64_t d = 0; d < D; d += W) {
            int64_t at = D < W ? 0 : last_start(d, D), n = D < W ? D : W;
            vf t[W];
            UNROLL for (int i = 0; i < W; i++)
            {
                const float *row = x[r0 + i < rows ? r0 + i : rows - 1] + at;
                t[i] = (D < W ? load_n(row, D) : load(row)) * scale;
            }
            transpose_vectors(t);
            for (int64_t i = 0; i < n; i++) store(y + (at + i) * lanes + r0, t[i]);
        }
}

/* What goes out for W lanes; those of EMPTY_ROW never enter arithmetic. */
INLINE vf finished(const float *y, vf factor)
{
    vi empty = factor == EMPTY_ROW;
    return sel(empty, splat(0.0f), load(y)) * sel(empty, splat(1.0f), factor);
}

/* A square of W rows by W columns. Apart from those that are not whole, where an index into t puts
   it into memory: half the time, 8 x 32 x 64 x1.05 and 12 x 128 x 64 x1.02 (Zen 4). */
INLINE void square_out(int64_t d, const float *y, int64_t ldy, vf factor, float *const *x)
{
    vf t[W];
    UNROLL for (int i = 0; i < W; i++) t[i] = finished(y + (d + i) * ldy, factor);
    transpose_vectors(t);
    UNROLL for (int i = 0; i < W; i++) store(x[i] + d, t[i]);
}

/* One of n rows and, where D < W, D columns. */
static void part_out(int64_t n, int64_t D, int64_t d, const float *y, int64_t ldy, vf factor,
                     float *const *x)
{
    vf t[W];
    for (int64_t i = 0; i < W; i++)
        t[i] = d + i < D ? finished(y + (d + i) * ldy, factor) : splat(0.0f);
    transpose_vectors(t);
    for (int64_t i = 0; i < n; i++)
        if (D < W)
            store_n(x[i] + d, t[i], D);
        else
            store(x[i] + d, t[i]);
}

void KERNEL(panel_out)(int64_t rows, int32_t vectors, int64_t D, const float *y,
                       const float *factor, float *const *x)
{
    int64_t lanes = (int64_t)vectors * W;
    for (int64_t r = 0; r < rows; r += W) {
        vf c = load(factor + r);
        for (int64_t d = 0; d < D; d += W)
            if (rows - r >= W && D >= W)
                square_out(last_start(d, D), y + r, lanes, c, x + r);
            else
                part_out(rows - r < W ? rows - r : W, D, D < W ? 0 : last_start(d, D), y + r,
                         lanes, c, x + r);
    }
}
