/* SPDX-License-Identifier: MIT */
/*
 * The fused row-wise softmax and the other vector loops between the products.
 * Compiled once per instruction set; ATTN_ISA_NAME is its name.
 */
#include "kernel_isa.h"
#include "vec.h"

/* Lanes [from, to) of a row become x. */
INLINE void fill(float *s, int64_t from, int64_t to, float x)
{
    for (int64_t j = from; j < to; j++) s[j] = x;
}

struct range {
    int64_t from, to;
};

/* The maximum of n scores, n a multiple of W; NaN is dropped. */
INLINE float row_max(const float *s, int64_t n)
{
    vf top[4];
    UNROLL for (int i = 0; i < 4; i++) top[i] = splat(-INFINITY);
    int64_t j = 0;
    for (; j + 4 * W <= n; j += 4 * W)
        UNROLL for (int i = 0; i < 4; i++) top[i] = vmax(load(s + j + i * W), top[i]);
    for (; j < n; j += W) top[0] = vmax(load(s + j), top[0]);
    return hmax(vmax(vmax(top[0], top[1]), vmax(top[2], top[3])));
}

/* n scores into exp(s - base), n a multiple of W; returns their sum. */
INLINE float row_exp(float *s, int64_t n, float base)
{
    vf part[2] = {splat(0.0f), splat(0.0f)}, e[2];
    int64_t j = 0;
    for (; j + 2 * W <= n; j += 2 * W) {
        UNROLL for (int i = 0; i < 2; i++) e[i] = load(s + j + i * W) - base;
        vexps(e, 2, LEAST_WEIGHT);
        UNROLL for (int i = 0; i < 2; i++) store(s + j + i * W, e[i]);
        UNROLL for (int i = 0; i < 2; i++) part[i] += e[i];
    }
    if (j < n) {
        vf last = vexp(load(s + j) - base, LEAST_WEIGHT);
        store(s + j, last);
        part[0] += last;
    }
    return hsum(part[0] + part[1]);
}

/* Lanes [from, to) of a vector of scores become -inf. As a vector: what is stored in pieces would
   be waited for when it is loaded as a whole. */
INLINE void hide(float *s, int64_t from, int64_t to)
{
    vi lane = lanes();
    store(s, sel((lane >= (int32_t)from) & (lane < (int32_t)to), splat(-INFINITY), load(s)));
}

/* What row r sees, as whole vectors: from the one that holds its first key to the one that holds
   its last; what lies outside becomes 0, what else it does not see -inf. */
INLINE struct range visible_range(const struct softmax_rows *t, int64_t r)
{
    float *s = t->s + r * t->lds;
    int64_t lo = t->sight ? t->sight[r][0] : 0;
    int64_t hi = t->sight ? t->sight[r][1] : t->cols;
    struct range range = {lo / W * W, (hi + W - 1) / W * W};
    if (lo >= hi) range.from = range.to = 0;
    fill(s, 0, range.from, 0.0f);
    fill(s, range.to, t->cols, 0.0f);
    if (lo >= hi) return range;
    if (lo > range.from) hide(s + range.from, 0, lo - range.from);
    if (hi < range.to) hide(s + range.to - W, hi - (range.to - W), W);
    return range;
}

/*
 * The maximum of this tile and all before it into m; l and o are rescaled where
 * it grew.
 *
 * The maximum is taken by comparison, which drops NaN: a NaN score then makes
 * its own exponential NaN, and through the sum the row. m = -inf (nothing but
 * -inf so far) is subtracted as 0, so that -inf - -inf never happens; a row
 * with m = -inf holds o = 0 or NaN, and both stay what they are.
 */
INLINE void raise_max(const struct softmax_rows *t, int64_t r, float max)
{
    float *m = t->m + r;
    if (!(max > *m)) return;
    float c = *m == -INFINITY ? 0.0f : vexp(splat(*m - max), LEAST_WEIGHT)[0];
    t->l[r] *= c;
    if (t->o && *m != -INFINITY) KERNEL(scale_row)(t->Dv, t->o + r * t->ldo, c);
    *m = max;
}

/* Rows whose maxima are taken before the first exponential: what comes out of one row across the
   lanes is waited for while others are at work. */
#define TOGETHER 4

void KERNEL(softmax_rows)(const struct softmax_rows *t)
{
    for (int64_t r0 = 0; r0 < t->rows; r0 += TOGETHER) {
        int64_t n = t->rows - r0 < TOGETHER ? t->rows - r0 : TOGETHER;
        struct range range[TOGETHER];
        for (int64_t r = 0; r < n; r++) {
            range[r] = visible_range(t, r0 + r);
            const float *s = t->s + (r0 + r) * t->lds + range[r].from;
            raise_max(t, r0 + r, row_max(s, range[r].to - range[r].from));
        }
        for (int64_t r = 0; r < n; r++) {
            float m = t->m[r0 + r], *s = t->s + (r0 + r) * t->lds + range[r].from;
            t->l[r0 + r] += row_exp(s, range[r].to - range[r].from, m == -INFINITY ? 0.0f : m);
        }
    }
}

void KERNEL(scale_row)(int64_t n, float *o, float c)
{
    int64_t d = 0;
    for (; d + W <= n; d += W) store(o + d, load(o + d) * c);
    for (; d < n; d++) o[d] *= c;
}

void KERNEL(finish_rows)(int64_t rows, int64_t Dv, float *o, int64_t ldo, const float *factor)
{
    for (int64_t r = 0; r < rows; r++, o += ldo) {
        if (factor[r] == EMPTY_ROW)
            fill(o, 0, Dv, 0.0f);
        else
            KERNEL(scale_row)(Dv, o, factor[r]);
    }
}

void KERNEL(merge_row)(int64_t n, float *acc, float a, const float *part, float b)
{
    int64_t d = 0;
    for (; d + W <= n; d += W) store(acc + d, load(acc + d) * a + load(part + d) * b);
    for (; d < n; d++) acc[d] = acc[d] * a + part[d] * b;
}

void KERNEL(weights_row)(int64_t n, float *s, float m, float l)
{
    float base = m == -INFINITY ? 0.0f : m;
    float c = l == 0.0f ? 0.0f : 1.0f / l;
    int64_t j = 0;
    for (; j + W <= n; j += W) {
        vf x = load(s + j);
        /* -inf is "not visible" and stays 0 even in a row of NaN */
        store(s + j, sel(x == -INFINITY, splat(0.0f), vexp(x - base, LEAST_NORMAL) * c));
    }
    if (j < n) {
        vf x = load_n(s + j, n - j);
        store_n(s + j, sel(x == -INFINITY, splat(0.0f), vexp(x - base, LEAST_NORMAL) * c), n - j);
    }
}

void KERNEL(exp_row)(int64_t n, float *x)
{
    int64_t j = 0;
    for (; j + W <= n; j += W) store(x + j, vexp(load(x + j), LEAST_NORMAL));
    if (j < n) store_n(x + j, vexp(load_n(x + j, n - j), LEAST_NORMAL), n - j);
}

void KERNEL(softcap_row)(int64_t n, float *s, float cap)
{
    const float inv = 1.0f / cap;
    int64_t j = 0;
    for (; j + 4 * W <= n; j += 4 * W) {
        vf x[4];
        UNROLL for (int i = 0; i < 4; i++) x[i] = load(s + j + i * W);
        vsoftcaps(x, 4, cap, inv);
        UNROLL for (int i = 0; i < 4; i++) store(s + j + i * W, x[i]);
    }
    for (; j < n; j += W) {
        int64_t rest = n - j < W ? n - j : W;
        vf x = load_n(s + j, rest);
        vsoftcaps(&x, 1, cap, inv);
        store_n(s + j, x, rest);
    }
}

void KERNEL(mask_add_row)(int64_t n, float *s, const float *mask, int64_t stride, int64_t ahead)
{
    int64_t j = 0;
    if (stride == 1)
        for (; j + W <= n; j += W) {
            prefetch(mask, ahead + j);
            store(s + j, add_mask(load(s + j), load(mask + j)));
        }
    for (; j < n; j++) {
        float x = mask[j * stride];
        s[j] = x == -INFINITY ? -INFINITY : s[j] + x;
    }
}

void KERNEL(mask_bool_row)(int64_t n, float *s, const uint8_t *mask, int64_t stride)
{
    int64_t j = 0;
    if (stride == 1)
        for (; j + W <= n; j += W)
            store(s + j, sel(load_bytes(mask + j) != 0, load(s + j), splat(-INFINITY)));
    for (; j < n; j++)
        if (!mask[j * stride]) s[j] = -INFINITY;
}

void KERNEL(segment_row)(int64_t n, float *s, const int32_t *ids, int32_t id)
{
    int64_t j = 0;
    for (; j + W <= n; j += W)
        store(s + j, sel(load_ints(ids + j) == id, load(s + j), splat(-INFINITY)));
    for (; j < n; j++)
        if (ids[j] != id) s[j] = -INFINITY;
}

void KERNEL(alibi_row)(int64_t n, float *s, float slope, float at)
{
    vf lane = __builtin_convertvector(lanes(), vf);
    int64_t j = 0;
    for (; j + W <= n; j += W) store(s + j, load(s + j) - slope * vabs(at - (float)j - lane));
    for (; j < n; j++) s[j] -= slope * fabsf(at - (float)j);
}

INLINE bool any_lane(vi x)
{
    int32_t any = 0;
    UNROLL for (int i = 0; i < W; i++) any |= x[i];
    return any != 0;
}

static enum sight sight_of(bool some_seen, bool some_hidden)
{
    return !some_seen ? SEES_NONE : some_hidden ? SEES_SOME : SEES_ALL;
}

enum sight KERNEL(mask_sight)(int64_t n, const uint8_t *mask)
{
    vi seen = {0}, hidden = {0};
    int64_t j = 0;
    for (; j + W <= n; j += W) {
        vi x = load_bytes(mask + j);
        seen |= x;
        hidden |= x == 0;
    }
    bool some_seen = any_lane(seen), some_hidden = any_lane(hidden);
    for (; j < n; j++) {
        some_seen |= mask[j] != 0;
        some_hidden |= mask[j] == 0;
    }
    return sight_of(some_seen, some_hidden);
}

enum sight KERNEL(segment_sight)(int64_t n, const int32_t *ids, int32_t id)
{
    vi seen = {0}, hidden = {0};
    int64_t j = 0;
    for (; j + W <= n; j += W) {
        vi x = load_ints(ids + j);
        seen |= x == id;
        hidden |= x != id;
    }
    bool some_seen = any_lane(seen), some_hidden = any_lane(hidden);
    for (; j < n; j++) {
        some_seen |= ids[j] == id;
        some_hidden |= ids[j] != id;
    }
    return sight_of(some_seen, some_hidden);
}

/* Rows that are fetched ahead: W streams at once are more than the hardware follows. 32 of 16,
   32, 64, 256 best: 12 x 1024 x 64 x1.02, 4 x 4096 x 64 and 128 x1.012 (Zen 4). */
#define ROWS_AHEAD 32

void KERNEL(transpose)(int64_t rows, int64_t cols, const float *x, int64_t ldx, float *y,
                       int64_t ldy)
{
    int64_t full_r = rows / W * W, full_c = cols / W * W;
    for (int64_t r = 0; r < full_r; r += W)
        for (int64_t c = 0; c < full_c; c += W) {
            vf t[W];
            UNROLL for (int i = 0; i < W; i++) prefetch(x, (r + ROWS_AHEAD + i) * ldx + c);
            UNROLL for (int i = 0; i < W; i++) t[i] = load(x + (r + i) * ldx + c);
            transpose_vectors(t);
            UNROLL for (int i = 0; i < W; i++) store(y + (c + i) * ldy + r, t[i]);
        }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = r < full_r ? full_c : 0; c < cols; c++) y[c * ldy + r] = x[r * ldx + c];
}

/* Exponent bits all ones: NaN or Inf, whatever the compiler thinks of x != x. */
#define EXPONENT 0x7f800000

bool KERNEL(all_finite)(int64_t rows, int64_t cols, const float *x, int64_t ldx)
{
    for (int64_t r = 0; r < rows; r++, x += ldx) {
        vi bad = {0};
        int64_t c = 0;
        for (; c + W <= cols; c += W) bad |= ((vi)load(x + c) & EXPONENT) == EXPONENT;
        if (c < cols) bad |= ((vi)load_n(x + c, cols - c) & EXPONENT) == EXPONENT;
        if (any_lane(bad)) return false;
    }
    return true;
}

void KERNEL(add_bias)(int64_t rows, int64_t cols, const float *x, int64_t ldx, const float *bias,
                      float *y, int64_t ldy)
{
    for (int64_t r = 0; r < rows; r++, x += ldx, y += ldy) {
        int64_t c = 0;
        for (; c + W <= cols; c += W)
            store(y + c, bias ? load(x + c) + load(bias + c) : load(x + c));
        for (; c < cols; c++) y[c] = bias ? x[c] + bias[c] : x[c];
    }
}
