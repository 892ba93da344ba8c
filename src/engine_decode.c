/* SPDX-License-Identifier: MIT */
/*
 * One query block of few queries: all rows of all heads of a kv head together,
 * by the vector products of decode.c, so that K and V are read once.
 */
#include "job.h"

static struct few_rows score_product(const struct block *blk, const struct kv_tile *kv)
{
    struct few_rows p = {
        .rows = blk->heads * blk->nq,
        .keys = kv->count,
        .D = blk->job->op->Dk,
        .q = blk->scratch->q_rows,
        .x = kv->k,
        .ldx = kv->ldk,
        .scale = attn_i_alpha(blk->job->op),
        .s = blk->scratch->s,
        .lds = round_up(blk->cut->tile_keys, LANES_MAX),
    };
    return p;
}

/* One strip of a tile: the rows of head h0 + g. */
static struct strip head_strip(const struct block *blk, const struct kv_tile *kv, int64_t g,
                               enum sight sight)
{
    int64_t lds = round_up(blk->cut->tile_keys, LANES_MAX);
    struct strip t = {
        .b = blk->b,
        .h = blk->h0 + g,
        .i0 = blk->i0,
        .rows = blk->nq,
        .j0 = kv->j0,
        .cols = kv->count,
        .s = blk->scratch->s + g * blk->nq * lds,
        .lds = lds,
        .sight = sight,
    };
    return t;
}

/* What the rows of all heads see together; for each of them SOME is then right, too. */
static enum sight tile_sight(const struct block *blk, const struct kv_tile *kv)
{
    enum sight both = SEES_SOME;
    for (int64_t g = 0; g < blk->heads && (g == 0 || both != SEES_SOME); g++) {
        struct strip t = head_strip(blk, kv, g, SEES_SOME);
        enum sight sight = attn_i_strip_sight(blk->job, &blk->item, &t);
        both = g == 0 ? sight : sight_of_both(both, sight);
    }
    return both;
}

/* The weighted values of a tile, added to the rows. */
static void add_values(const struct block *blk, const struct kv_tile *kv, struct few_rows *p,
                       enum sight sight)
{
    const struct kernels *kn = blk->job->op->kernels;
    bool copy = sight != SEES_ALL && !attn_i_values_finite(blk, kv);
    struct kv_tile values = copy ? attn_i_copy_values(blk, kv, blk->job->op->Dv, true) : *kv;
    p->D = blk->job->op->Dv;
    p->o = blk->scratch->o_rows;
    p->x = values.v;
    p->ldx = values.ldv;
    kn->add_rows(p);
    for (int64_t g = 0; g < blk->heads && copy; g++) {
        struct strip t = head_strip(blk, kv, g, sight);
        struct grid weights = {t.s, t.lds, 1};
        struct grid o = {blk->scratch->o_rows[g * blk->nq], blk->o_row, 1};
        attn_i_strip_repair(blk, &t, kv, &weights, &o);
    }
}

/* Returns false when nothing was to be seen. */
static bool attend_tile(const struct block *blk, const struct kv_tile *kv, bool first)
{
    const struct job *job = blk->job;
    enum sight sight = tile_sight(blk, kv);
    if (sight == SEES_NONE) {
        for (int64_t g = 0; g < blk->heads; g++) {
            struct strip t = head_strip(blk, kv, g, sight);
            attn_i_strip_skip(blk, &t);
        }
        return false;
    }
    struct few_rows p = score_product(blk, kv);
    job->op->kernels->dot_rows(&p);
    for (int64_t g = 0; g < blk->heads; g++) {
        struct strip t = head_strip(blk, kv, g, sight);
        attn_i_strip_softmax(blk, &t, g * blk->nq,
                             first ? NULL : blk->scratch->o_rows[g * blk->nq]);
    }
    p.first = first;
    add_values(blk, kv, &p, sight);
    return true;
}

void attn_i_decode_attend(const struct block *blk)
{
    int64_t tile_keys = blk->cut->tile_keys;
    struct span keys = attn_i_rows_span(blk->job, &blk->item, blk->i0, blk->i0 + blk->nq);
    keys = span_and(keys, blk->keys);
    attn_i_point_at_rows(blk);
    if (attn_i_raw_scores(blk, 0, 0) && blk->first_part) attn_i_raw_by_rows(blk);
    if (keys.lo >= keys.hi) return;
    bool first = true;
    int64_t skipped = (keys.lo - blk->keys.lo) / tile_keys;
    for (int64_t j = blk->keys.lo + skipped * tile_keys; j < keys.hi; j += tile_keys) {
        int64_t from = max64(j, keys.lo), to = min64(j + tile_keys, keys.hi);
        struct kv_tile kv = attn_i_kv_tile(blk, from, to - from);
        if (attend_tile(blk, &kv, first)) first = false;
    }
}
