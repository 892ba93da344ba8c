/* SPDX-License-Identifier: MIT */
/*
 * The rules of the vector engine: whatever a rule says of a row is put into its
 * lane. Masks, which lie along rows of keys, are transposed on their way in,
 * scores that are asked for on their way out.
 */
#include "vector.h"

#include <math.h>

struct strip attn_i_head_strip(const struct block *blk, const struct panel_span *p,
                               const struct kv_tile *kv, int64_t r)
{
    int64_t row = p->row0 + r, g = row / blk->nq, i = row % blk->nq;
    struct strip t = {
        .b = blk->b,
        .h = blk->h0 + g,
        .i0 = blk->i0 + i,
        .rows = min64(p->rows - r, blk->nq - i),
        .j0 = kv->j0,
        .cols = kv->count,
        .s = blk->scratch->strip + r * STRIP_KEYS,
        .lds = STRIP_KEYS,
    };
    return t;
}

static bool has_masks(const attn_args *args)
{
    return args->mask_add.data || args->mask_bool.data;
}

static bool gives_scores(const attn_args *args)
{
    return args->scores[ATTN_STAGE_MASKED] || args->scores[ATTN_STAGE_WEIGHTS];
}

float attn_i_query_scale(const attn_op *op)
{
    /* none overflows, and only what is below 2^-102 becomes a denormal */
    float size = fabsf(op->scale);
    return size >= 0x1p-24f && size <= 1.0f ? op->scale : 1.0f;
}

bool attn_i_has_rules(const struct job *job)
{
    const attn_args *args = job->args;
    return attn_i_query_scale(job->op) != job->op->scale || job->op->softcap > 0.0f ||
           args->slopes || args->segments_q || has_masks(args) || gives_scores(args);
}

enum sight attn_i_panel_sight(const struct block *blk, const struct panel_span *p,
                              const struct kv_tile *kv)
{
    enum sight both = SEES_SOME;
    for (int64_t r = 0; r < p->rows && (r == 0 || both != SEES_SOME);) {
        struct strip t = attn_i_head_strip(blk, p, kv, r);
        enum sight sight = attn_i_strip_sight(blk->job, &blk->item, &t);
        both = r == 0 ? sight : sight_of_both(both, sight);
        r += t.rows;
    }
    return both;
}

void attn_i_panel_keys(const struct block *blk, const struct panel_span *p,
                       const struct kv_tile *kv, struct panel *t)
{
    int32_t *lo = blk->scratch->lo, *hi = blk->scratch->hi;
    int64_t i = p->row0 % blk->nq;
    for (int64_t lane = 0; lane < p->lanes; lane++) {
        struct span keys = attn_i_row_span(blk->job, &blk->item, blk->i0 + i);
        if (lane + 1 < p->rows) i = i + 1 < blk->nq ? i + 1 : 0; /* spare lanes as the last */
        lo[lane] = (int32_t)min64(max64(keys.lo - kv->j0, 0), kv->count);
        hi[lane] = (int32_t)min64(max64(keys.hi - kv->j0, 0), kv->count);
    }
    t->lo = lo;
    t->hi = hi;
}

/* What ALiBi and segments say of each lane's query. */
static void lanes_of_queries(const struct block *blk, const struct panel_span *p,
                             const struct kv_tile *kv)
{
    const struct job *job = blk->job;
    const attn_args *args = job->args;
    for (int64_t lane = 0; lane < p->lanes; lane++) {
        int64_t row = p->row0 + min64(lane, p->rows - 1); /* spare lanes as the last */
        int64_t h = blk->h0 + row / blk->nq, i = blk->i0 + row % blk->nq;
        if (args->slopes) {
            blk->scratch->slopes[lane] = args->slopes[h];
            blk->scratch->at[lane] = attn_i_distance(&blk->item, i, kv->j0);
        }
        if (args->segments_q)
            blk->scratch->id[lane] = attn_i_query_segment(job, &blk->item, blk->b, i);
    }
}

/* Where the masks of each lane begin. */
static struct mask_rows rows_of_masks(const struct block *blk, const struct panel_span *p,
                                      const struct kv_tile *kv)
{
    const struct job *job = blk->job;
    const struct mask *keep = &job->args->mask_bool, *add = &job->args->mask_add;
    for (int64_t lane = 0; lane < p->lanes; lane++) {
        int64_t row = p->row0 + min64(lane, p->rows - 1); /* spare lanes as the last */
        int64_t h = blk->h0 + row / blk->nq, i = blk->i0 + row % blk->nq;
        if (keep->data) blk->scratch->keep[lane] = attn_i_bool_at(job, blk->b, h, i, kv->j0);
        if (add->data) blk->scratch->add[lane] = attn_i_add_at(job, blk->b, h, i, kv->j0);
    }
    struct mask_rows m = {
        .keep = keep->data ? blk->scratch->keep : NULL,
        .add = add->data ? blk->scratch->add : NULL,
        .keep_stride = keep->strides[3],
        .add_stride = add->strides[3],
        .contiguous =
            (!keep->data || keep->strides[3] == 1) && (!add->data || add->strides[3] == 1),
    };
    return m;
}

/* The scores of n keys from key j of the tile, to who asked for them; s: NULL, none is seen. */
static void hand_out_keys(const struct block *blk, const struct panel_span *p,
                          const struct kv_tile *kv, int64_t j, int64_t n, const float *s)
{
    struct kv_tile keys = {.j0 = kv->j0 + j, .count = n};
    if (s)
        blk->job->op->kernels->transpose(n, p->lanes, s + j * p->lanes, p->lanes,
                                         blk->scratch->strip, STRIP_KEYS);
    for (int64_t r = 0; r < p->rows;) {
        struct strip strip = attn_i_head_strip(blk, p, &keys, r);
        if (s)
            attn_i_strip_hand_out(blk, &strip, NULL);
        else
            attn_i_strip_skip(blk, &strip);
        r += strip.rows;
    }
}

void attn_i_panel_skip(const struct block *blk, const struct panel_span *p,
                       const struct kv_tile *kv)
{
    if (!gives_scores(blk->job->args)) return;
    for (int64_t j = 0; j < kv->count; j += STRIP_KEYS)
        hand_out_keys(blk, p, kv, j, min64(STRIP_KEYS, kv->count - j), NULL);
}

void attn_i_apply_to_panel(const struct block *blk, const struct panel_span *p,
                           const struct kv_tile *kv, struct panel *t, enum sight sight)
{
    const struct job *job = blk->job;
    const attn_args *args = job->args;
    struct panel_rules r = {.to = kv->count};
    bool masks = has_masks(args) && sight != SEES_ALL;
    int64_t n = kv->count * p->lanes;
    if (attn_i_query_scale(job->op) != job->op->scale)
        job->op->kernels->scale_row(n, t->s, job->op->scale);
    attn_i_cap_row(job->op, n, t->s);
    if (args->slopes || args->segments_q) lanes_of_queries(blk, p, kv);
    if (t->all.lo > 0 || t->all.hi < kv->count) attn_i_panel_keys(blk, p, kv, t);
    if (args->slopes) {
        r.slopes = blk->scratch->slopes;
        r.at = blk->scratch->at;
    }
    if (args->segments_q && sight != SEES_ALL) {
        r.ids = attn_i_key_segments(job, &blk->item, blk->b, kv->j0);
        r.id = blk->scratch->id;
    }
    struct mask_rows m = {0};
    if (masks) m = rows_of_masks(blk, p, kv);
    for (; r.from < kv->count; r.from = r.to) {
        r.to = masks ? min64(r.from + STRIP_KEYS, kv->count) : kv->count;
        if (masks) job->op->kernels->panel_bias(t->vectors, &m, r.from, r.to, blk->scratch->bias);
        if (masks) r.bias = blk->scratch->bias;
        job->op->kernels->panel_rules(t, &r);
    }
    for (int64_t j = 0; j < kv->count && gives_scores(args); j += STRIP_KEYS)
        hand_out_keys(blk, p, kv, j, min64(STRIP_KEYS, kv->count - j), t->s);
}
