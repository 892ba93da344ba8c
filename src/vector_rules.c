/* SPDX-License-Identifier: MIT */
/*
 * The rules of the vector engine: whatever a rule says of a row is put into its
 * lane, see panel_rules.c. Scores that are asked for are transposed on their way
 * out.
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

bool attn_i_gives_scores(const struct job *job)
{
    return job->args->scores[ATTN_STAGE_MASKED] || job->args->scores[ATTN_STAGE_WEIGHTS];
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
           args->slopes || args->segments_q || args->mask_add.data || args->mask_bool.data ||
           attn_i_gives_scores(job);
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

struct ahead attn_i_masks_ahead(const struct job *job, const struct strip *t)
{
    const struct mask *add = &job->args->mask_add, *keep = &job->args->mask_bool;
    const struct mask *m = add->data ? add : keep; /* of both the larger */
    if (!m->data || t->rows < 2 || m->strides[2] == 0 || m->strides[3] != 1)
        return (struct ahead){0};
    const void *at = m == add ? (const void *)attn_i_add_at(job, t->b, t->h, t->i0, t->j0)
                              : attn_i_bool_at(job, t->b, t->h, t->i0, t->j0);
    int64_t bytes = m == add ? sizeof(float) : 1;
    return (struct ahead){at, t->rows, m->strides[2] * bytes, t->cols * bytes};
}

/* What the rules say of each lane's query. */
static void lanes_of_rules(const struct block *blk, const struct panel_span *p,
                           const struct kv_tile *kv, const struct panel_rules *r)
{
    const struct job *job = blk->job;
    const struct thread_scratch *scratch = blk->scratch;
    for (int64_t lane = 0; lane < p->lanes; lane++) {
        int64_t row = p->row0 + min64(lane, p->rows - 1); /* spare lanes as the last */
        int64_t h = blk->h0 + row / blk->nq, i = blk->i0 + row % blk->nq;
        if (r->slopes) {
            scratch->slopes[lane] = job->args->slopes[h];
            scratch->at[lane] = attn_i_distance(&blk->item, i, kv->j0);
        }
        if (r->add) scratch->add[lane] = attn_i_add_at(job, blk->b, h, i, kv->j0);
        if (r->keep) scratch->keep[lane] = attn_i_bool_at(job, blk->b, h, i, kv->j0);
        if (r->ids) scratch->id[lane] = attn_i_query_segment(job, &blk->item, blk->b, i);
    }
}

/* sight: what the panel sees of the tile by all rules. */
static struct panel_rules rules_of(const struct block *blk, const struct kv_tile *kv,
                                   enum sight sight)
{
    const struct job *job = blk->job;
    const attn_args *args = job->args;
    const struct thread_scratch *scratch = blk->scratch;
    bool hides = sight != SEES_ALL;
    float scale = job->op->scale;
    struct panel_rules r = {
        .scale = attn_i_query_scale(job->op) != scale ? scale : 1.0f,
        .cap = job->op->softcap,
        .slopes = args->slopes ? scratch->slopes : NULL,
        .at = scratch->at,
        .add = hides && args->mask_add.data ? scratch->add : NULL,
        .keep = hides && args->mask_bool.data ? scratch->keep : NULL,
        .add_stride = args->mask_add.strides[3],
        .keep_stride = args->mask_bool.strides[3],
        .id = scratch->id,
    };
    if (hides && args->segments_q) r.ids = attn_i_key_segments(job, &blk->item, blk->b, kv->j0);
    return r;
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
    if (!attn_i_gives_scores(blk->job)) return;
    for (int64_t j = 0; j < kv->count; j += STRIP_KEYS)
        hand_out_keys(blk, p, kv, j, min64(STRIP_KEYS, kv->count - j), NULL);
}

void attn_i_apply_to_panel(const struct block *blk, const struct panel_span *p,
                           const struct kv_tile *kv, struct panel *t, enum sight sight)
{
    struct panel_rules r = rules_of(blk, kv, sight);
    lanes_of_rules(blk, p, kv, &r);
    if (t->all.lo > 0 || t->all.hi < kv->count) attn_i_panel_keys(blk, p, kv, t);
    blk->job->op->kernels->panel_rules(t, &r);
    for (int64_t j = 0; j < kv->count && attn_i_gives_scores(blk->job); j += STRIP_KEYS)
        hand_out_keys(blk, p, kv, j, min64(STRIP_KEYS, kv->count - j), t->s);
}
