/* SPDX-License-Identifier: MIT */
/*
 * One query block by cblas_sgemm: for each tile of keys, scores of a strip of
 * queries, softmax, and the weighted values added to the output.
 *
 * With a BLAS core that has a small-matrix path (PATH_TILES) the key tile is
 * transposed once for all strips and heads of the block, and both products are
 * NN and at most SMALL_PRODUCT multiply-adds: nothing is packed, no buffer and
 * no thread of BLAS's is used. Elsewhere (PATH_TILES_NT) K is read in place.
 */
#include "blas.h"
#include "job.h"

static int64_t tile_ld(const struct block *blk)
{
    return round_up(blk->cut->tile_keys, LANES_MAX);
}

static void score_product(const struct block *blk, const struct kv_state *tile,
                          const struct strip *t)
{
    const attn_op *op = blk->job->op;
    int64_t skip = t->j0 - tile->kv.j0;
    struct product p = {
        .m = t->rows,
        .n = t->cols,
        .k = op->Dk,
        .alpha = attn_i_alpha(op),
        .beta = 0.0f,
        .a = attn_i_queries(blk, t->h - blk->h0, t->i0),
        .lda = blk->job->q.sl,
        .c = t->s,
        .ldc = t->lds,
    };
    if (blk->cut->path == PATH_TILES) {
        p.n = round_up(t->cols, LANES_MAX); /* see attend_strip */
        p.b = blk->scratch->kt + skip;
        p.ldb = tile_ld(blk);
    } else {
        p.b = tile->kv.k + skip * tile->kv.ldk;
        p.ldb = tile->kv.ldk;
        p.b_transposed = true;
    }
    attn_i_sgemm(&p);
}

/* o = p v, or o += p v. Where the columns of V would make the small-matrix kernels call malloc
   (see attend_strip), both V and the product have zeros behind them, and the product is added to
   o afterwards. */
static void value_product(const struct block *blk, const struct kv_tile *kv,
                          const struct strip *t, float *o, bool first)
{
    const attn_op *op = blk->job->op;
    bool pad = attn_i_pads_values(op, blk->cut);
    struct product p = {
        .m = t->rows,
        .n = op->Dv,
        .k = t->cols,
        .alpha = 1.0f,
        .beta = first ? 0.0f : 1.0f,
        .a = t->s,
        .lda = t->lds,
        .b = kv->v + (t->j0 - kv->j0) * kv->ldv,
        .ldb = kv->ldv,
        .c = o,
        .ldc = blk->o_row,
    };
    if (pad) {
        p.n = p.ldc = kv->ldv;
        p.beta = 0.0f;
        p.c = blk->scratch->o_tile;
    }
    attn_i_sgemm(&p);
    for (int64_t r = 0; r < t->rows && pad; r++) {
        float *to = o + r * blk->o_row, *from = p.c + r * p.ldc;
        if (first)
            memcpy(to, from, (size_t)op->Dv * sizeof *to);
        else
            op->kernels->merge_row(op->Dv, to, 1.0f, from, 1.0f);
    }
}

/* Strip s of head h0 + g against a tile. */
static void attend_strip(const struct block *blk, struct kv_state *tile, int64_t g, int64_t s)
{
    int64_t i0 = s * blk->strip_rows, i1 = min64(i0 + blk->strip_rows, blk->item.Lq);
    struct span all = {tile->kv.j0, tile->kv.j0 + tile->kv.count};
    struct span keys = span_and(attn_i_rows_span(blk->job, &blk->item, i0, i1), all);
    if (keys.lo >= keys.hi) return;
    /* The small-matrix kernels of OpenBLAS call malloc for 1 to 8 columns more than a multiple
       of 16; the transposed tile has columns to spare, so the products begin and end on one. */
    if (blk->cut->path == PATH_TILES) keys.lo -= (keys.lo - tile->kv.j0) % LANES_MAX;
    struct strip t = {
        .b = blk->b,
        .h = blk->h0 + g,
        .i0 = i0,
        .rows = i1 - i0,
        .j0 = keys.lo,
        .cols = keys.hi - keys.lo,
        .s = blk->scratch->s,
        .lds = tile_ld(blk),
    };
    t.sight = attn_i_strip_sight(blk->job, &blk->item, &t);
    if (t.sight == SEES_NONE) {
        attn_i_strip_skip(blk, &t);
        return;
    }
    uint8_t *started = blk->scratch->started + g * blk->cut->block_strips + (s - blk->s0);
    float *o = blk->o + g * blk->o_head + (i0 - blk->i0) * blk->o_row;

    score_product(blk, tile, &t);
    attn_i_strip_softmax(blk, &t, g * blk->nq + i0 - blk->i0, *started ? o : NULL);
    bool repair = t.sight != SEES_ALL && attn_i_has_nan(blk, tile);
    value_product(blk, attn_i_values_for(blk, tile, repair), &t, o, !*started);
    if (repair) {
        struct grid weights = {t.s, t.lds, 1}, out = {o, blk->o_row, 1};
        attn_i_strip_repair(blk, &t, &tile->kv, &weights, &out);
    }
    *started = 1;
}

/* All keys of the range, seen or not, for the RAW and CAPPED outputs: a product of its own, so
   that asking changes no bit of the output. */
static void raw_scores(const struct block *blk)
{
    const attn_op *op = blk->job->op;
    int64_t begin = blk->item.begin, n = blk->item.range_end - begin;
    if (n <= 0) return;
    struct kv_tile kv = attn_i_kv_tile(blk, begin, n);
    for (int64_t g = 0; g < blk->heads; g++) {
        struct product p = {
            .m = blk->nq,
            .n = n,
            .k = op->Dk,
            .alpha = attn_i_alpha(op),
            .a = attn_i_queries(blk, g, blk->i0),
            .lda = blk->job->q.sl,
            .b = kv.k,
            .ldb = kv.ldk,
            .b_transposed = true,
            .c = attn_i_raw_scores(blk, g, 0) + begin,
            .ldc = blk->job->Lk,
        };
        attn_i_sgemm(&p);
    }
    attn_i_finish_raw(blk);
}

/* The key tile, transposed into scratch, when that is how this path wants it; columns up to a
   multiple of LANES_MAX are 0, and their scores never looked at. */
static void prepare_keys(const struct block *blk, const struct kv_tile *kv)
{
    const attn_op *op = blk->job->op;
    if (blk->cut->path != PATH_TILES) return;
    int64_t ld = tile_ld(blk), end = round_up(kv->count, LANES_MAX);
    op->kernels->transpose(kv->count, op->Dk, kv->k, kv->ldk, blk->scratch->kt, ld);
    for (int64_t d = 0; d < op->Dk && kv->count < end; d++)
        for (int64_t j = kv->count; j < end; j++) blk->scratch->kt[d * ld + j] = 0.0f;
}

void attn_i_blas_attend(const struct block *blk)
{
    int64_t tile_keys = blk->cut->tile_keys, strips = blk->heads * (blk->s1 - blk->s0);
    struct span keys = attn_i_rows_span(blk->job, &blk->item, blk->i0, blk->i0 + blk->nq);
    keys = span_and(keys, blk->keys);
    for (int64_t i = 0; i < blk->heads * blk->cut->block_strips; i++)
        blk->scratch->started[i] = 0;
    if (attn_i_raw_scores(blk, 0, 0)) raw_scores(blk);
    if (keys.lo >= keys.hi) return;
    int64_t skipped = (keys.lo - blk->keys.lo) / tile_keys;
    for (int64_t j = blk->keys.lo + skipped * tile_keys; j < keys.hi; j += tile_keys) {
        struct kv_state tile = {.kv = attn_i_kv_tile(blk, j, min64(tile_keys, keys.hi - j))};
        prepare_keys(blk, &tile.kv);
        for (int64_t s = 0; s < strips; s++)
            attend_strip(blk, &tile, s / (blk->s1 - blk->s0), blk->s0 + s % (blk->s1 - blk->s0));
    }
}
