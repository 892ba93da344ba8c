/* SPDX-License-Identifier: MIT */
/*
 * What rules make of the scores of a panel, see panel.c: each says something of
 * a query, which is a lane. Masks lie along rows of keys and are transposed, a
 * square at a time. Compiled once per instruction set; ATTN_ISA_NAME is its
 * name.
 */
#include "kernel_isa.h"
#include "vec.h"

/* Keys at once: so many chains. 2 is slower even where there are 16 registers. */
#define RULE_KEYS 4
_Static_assert(RULE_KEYS <= VECTORS_MAX, "their softcaps are formed at once");

/* What rules know of the lanes of one vector, and the maxima so far. */
struct lanes {
    vf slope, at, top[RULE_KEYS];
    vi id, lo, hi;
    float inv_cap;
};

/* The masks of W lanes for W keys, transposed; keys past the last n hold anything. */
struct masks {
    vf keep[W], add[W]; /* keep: bits of integers, 0 hides */
};

INLINE void keep_of_lanes(const struct panel_rules *r, int64_t lane, int64_t key, int64_t n,
                          struct masks *m)
{
    if (n == W && r->keep_stride == 1) {
        UNROLL for (int i = 0; i < W; i++) m->keep[i] = (vf)load_bytes(r->keep[lane + i] + key);
    } else {
        for (int64_t i = 0; i < W; i++) {
            const uint8_t *row = r->keep[lane + i] + key * r->keep_stride;
            int32_t some[W] = {0};
            for (int64_t k = 0; k < n; k++) some[k] = row[k * r->keep_stride];
            memcpy(&m->keep[i], some, sizeof some);
        }
    }
    transpose_vectors(m->keep);
}

/* Additive masks go through a copy of W rows of so many keys. Rows of 1024 floats share one set of
   L1, where a line that is not used up at once is gone: a mask 16 bytes off the lines cost 17 % of
   12 x 1024 x 64 in place, and costs 13 (on the lines 12 and 11; Zen 4). */
#define MASK_KEYS 64
typedef float mask_rows[W][MASK_KEYS];

INLINE void copy_add(const struct panel_rules *r, int64_t lane, int64_t key, int64_t n,
                     mask_rows to)
{
    for (int64_t i = 0; i < W; i++) {
        const float *row = r->add[lane + i] + key * r->add_stride;
        int64_t k = 0;
        for (; k + W <= n && r->add_stride == 1; k += W) store(to[i] + k, load(row + k));
        if (n % W) store(to[i] + n / W * W, splat(0.0f)); /* the last vector is read whole */
        for (; k < n; k++) to[i][k] = row[k * r->add_stride];
    }
}

INLINE void add_of_lanes(mask_rows rows, int64_t k, struct masks *m)
{
    UNROLL for (int i = 0; i < W; i++) m->add[i] = load(rows[i] + k);
    transpose_vectors(m->add);
}

/* The rules that there are. Mostly it is one, which has a loop of its own, without the questions
   for others: segments take 3.4 % of the products' time instead of 5.8, ALiBi 6.9 instead of 7.7
   (AVX-512, Emerald Rapids). */
enum { SCALE = 1, CAP = 2, SLOPES = 4, ADD = 8, KEEP = 16, IDS = 32, SEVERAL = 63 };

static int rules_there(const struct panel_rules *r)
{
    return (r->scale != 1.0f ? SCALE : 0) | (r->cap > 0.0f ? CAP : 0) | (r->slopes ? SLOPES : 0) |
           (r->add ? ADD : 0) | (r->keep ? KEEP : 0) | (r->ids ? IDS : 0);
}

/* Does this rule apply? loop: the one that a loop is for, or SEVERAL. */
#define HAS(rule) (loop == (rule) || (loop == SEVERAL && (there & (rule))))

/* All rules for `count` keys from key on; s: the first one's scores, in memory a row apart. The
   masks begin with number k. */
INLINE void rules_of_keys(int loop, int there, int count, const struct panel *t,
                          const struct panel_rules *r, int64_t key, const struct masks *m,
                          int64_t k, struct lanes *v, float *s)
{
    int64_t row = (int64_t)t->vectors * W;
    vf x[VECTORS_MAX];
    const vf hidden = splat(-INFINITY);
    EACH x[i] = load(s + i * row);
    if (HAS(SCALE)) EACH x[i] = x[i] * r->scale;
    if (HAS(CAP)) vsoftcaps(x, count, r->cap, v->inv_cap);
    const vf first = splat((float)key); /* of a tile: its sums are exact */
    if (HAS(SLOPES)) EACH x[i] = x[i] - v->slope * vabs(v->at - (first + (float)i));
    if (HAS(ADD)) EACH x[i] = add_mask(x[i], m->add[k + i]);
    if (HAS(KEEP)) EACH x[i] = sel((vi)m->keep[k + i] != 0, x[i], hidden);
    if (HAS(IDS)) EACH x[i] = sel(v->id == r->ids[key + i], x[i], hidden);
    if (t->lo && !(key >= t->all.lo && key + count <= t->all.hi))
        EACH x[i] =
            sel((v->lo <= (int32_t)(key + i)) & (v->hi > (int32_t)(key + i)), x[i], hidden);
    EACH v->top[i] = vmax(x[i], v->top[i]);
    EACH store(s + i * row, x[i]);
}

/* The rules for the lanes of one vector and their keys. */
INLINE void rules_of_vector(int loop, int there, const struct panel *t,
                            const struct panel_rules *r, int64_t lane)
{
    int64_t row = (int64_t)t->vectors * W, start = t->starts[lane / W], end = t->ends[lane / W];
    struct lanes v = {.inv_cap = HAS(CAP) ? 1.0f / r->cap : 0.0f};
    UNROLL for (int i = 0; i < RULE_KEYS; i++) v.top[i] = splat(-INFINITY);
    struct masks m;
    mask_rows add;
    if (HAS(SLOPES)) v.slope = load(r->slopes + lane), v.at = load(r->at + lane);
    if (HAS(IDS)) v.id = load_ints(r->id + lane);
    if (t->lo) v.lo = load_ints(t->lo + lane), v.hi = load_ints(t->hi + lane);
    for (int64_t key = start; key < end; key += W) {
        int64_t n = end - key < W ? end - key : W, k = 0;
        int64_t left = t->keys - key, at = (key - start) % MASK_KEYS;
        if (HAS(KEEP)) keep_of_lanes(r, lane, key, left < W ? left : W, &m);
        if (HAS(ADD) && at == 0) copy_add(r, lane, key, left < MASK_KEYS ? left : MASK_KEYS, add);
        if (HAS(ADD)) add_of_lanes(add, at, &m);
        float *s = t->s + key * row + lane;
        for (; k + RULE_KEYS <= n; k += RULE_KEYS)
            rules_of_keys(loop, there, RULE_KEYS, t, r, key + k, &m, k, &v, s + k * row);
        for (; k < n; k++) rules_of_keys(loop, there, 1, t, r, key + k, &m, k, &v, s + k * row);
    }
    UNROLL for (int i = 1; i < RULE_KEYS; i++) v.top[0] = vmax(v.top[i], v.top[0]);
    store(t->top + lane, v.top[0]);
}

#define FOR_LANES(loop)                                               \
    for (int64_t lane = 0; lane < (int64_t)t->vectors * W; lane += W) \
        rules_of_vector(loop, there, t, r, lane);                     \
    break

void KERNEL(panel_rules)(const struct panel *t, const struct panel_rules *r)
{
    int there = rules_there(r);
    switch (there) {
    case CAP:
        FOR_LANES(CAP);
    case SLOPES:
        FOR_LANES(SLOPES);
    case ADD:
        FOR_LANES(ADD);
    case KEEP:
        FOR_LANES(KEEP);
    case IDS:
        FOR_LANES(IDS);
    default:
        FOR_LANES(SEVERAL);
    }
}
