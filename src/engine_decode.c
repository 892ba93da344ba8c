/* SPDX-License-Identifier: MIT */
/*
 * One query block of few queries: all rows of all heads of a kv head together,
 * by the vector products of decode.c, so that K and V are read once. What comes
 * next in memory is prefetched: the tile's values while its keys are in use,
 * the next tile's keys while its values are.
 */
#include "job.h"

/* Row pointers of q and of the block's output. */
static void point_at_rows(const struct block *blk)
{
    for (int64_t g = 0; g < blk->heads; g++)
        for (int64_t i = 0; i < blk->nq; i++) {
            int64_t r = g * blk->nq + i;
            blk->scratch->q_rows[r] = attn_i_queries(blk, g, blk->i0 + i);
            blk->scratch->o_rows[r] = blk->o + g * blk->o_head + i * blk->o_row;
        }
}

static struct few_rows score_product(const struct block *blk, const struct kv_tile *kv, float *s,
                                     int64_t lds)
{
    const attn_op *op = blk->job->op;
    struct few_rows p = {
        .rows = blk->heads * blk->nq,
        .keys = kv->count,
        .D = op->Dk,
        .q = blk->scratch->q_rows,
        .x = kv->k,
        .ldx = kv->ldk,
        .scale = attn_i_alpha(op),
        .s = s,
        .lds = lds,
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
    bool all = true, none = true;
    for (int64_t g = 0; g < blk->heads && (all || none); g++) {
        struct strip t = head_strip(blk, kv, g, SEES_SOME);
        enum sight sight = attn_i_strip_sight(blk->job, &blk->item, &t);
        all = all && sight == SEES_ALL;
        none = none && sight == SEES_NONE;
    }
    return none ? SEES_NONE : all ? SEES_ALL : SEES_SOME;
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
        attn_i_strip_repair(blk, &t, kv, blk->scratch->o_rows[g * blk->nq]);
    }
}

/* more: another tile follows in memory. Returns false when nothing was to be seen. */
static bool attend_tile(const struct block *blk, const struct kv_tile *kv, bool first, bool more)
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
    struct few_rows p =
        score_product(blk, kv, blk->scratch->s, round_up(blk->cut->tile_keys, LANES_MAX));
    p.next = kv->v;
    p.ld_next = kv->ldv;
    job->op->kernels->dot_rows(&p);
    for (int64_t g = 0; g < blk->heads; g++) {
        struct strip t = head_strip(blk, kv, g, sight);
        attn_i_strip_softmax(blk, &t, g * blk->nq,
                             first ? NULL : blk->scratch->o_rows[g * blk->nq]);
    }
    p.first = first;
    p.next = more ? kv->k + kv->count * kv->ldk : NULL;
    p.ld_next = kv->ldk;
    add_values(blk, kv, &p, sight);
    return true;
}

/* As in engine_blas.c. */
static void raw_scores(const struct block *blk)
{
    int64_t begin = blk->item.begin, n = blk->item.range_end - begin;
    if (n <= 0) return;
    struct kv_tile kv = attn_i_kv_tile(blk, begin, n);
    for (int64_t r = 0; r < blk->heads * blk->nq; r++) {
        struct few_rows p =
            score_product(blk, &kv, attn_i_raw_scores(blk, r / blk->nq, r % blk->nq) + begin, 0);
        p.rows = 1;
        p.q += r;
        blk->job->op->kernels->dot_rows(&p);
    }
    attn_i_finish_raw(blk);
}

void attn_i_decode_attend(const struct block *blk)
{
    int64_t tile_keys = blk->cut->tile_keys;
    struct span keys = attn_i_rows_span(blk->job, &blk->item, blk->i0, blk->i0 + blk->nq);
    keys = span_and(keys, blk->keys);
    point_at_rows(blk);
    if (attn_i_raw_scores(blk, 0, 0) && blk->first_part) raw_scores(blk);
    if (keys.lo >= keys.hi) return;
    bool first = true;
    int64_t skipped = (keys.lo - blk->keys.lo) / tile_keys;
    for (int64_t j = blk->keys.lo + skipped * tile_keys; j < keys.hi; j += tile_keys) {
        int64_t from = max64(j, keys.lo), to = min64(j + tile_keys, keys.hi);
        struct kv_tile kv = attn_i_kv_tile(blk, from, to - from);
        if (attend_tile(blk, &kv, first, to < keys.hi)) first = false;
    }
}
