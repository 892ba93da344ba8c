/* SPDX-License-Identifier: MIT */
/*
 * What engines share: where keys and values lie, the way from raw scores to
 * weights of those that hold a strip of scores row by row, the score outputs,
 * and values that are NaN or Inf.
 */
#include "job.h"

#include <math.h>
#include <string.h>

struct kv_tile attn_i_kv_tile(const struct block *blk, int64_t j0, int64_t count)
{
    const struct tensor *k = &blk->job->k, *v = &blk->job->v;
    int64_t row = blk->item.k0 + j0;
    struct kv_tile tile = {
        .k = k->data + blk->b * k->sb + blk->hk * k->sh + row * k->sl,
        .v = v->data + blk->b * v->sb + blk->hk * v->sh + row * v->sl,
        .ldk = k->sl,
        .ldv = v->sl,
        .j0 = j0,
        .count = count,
    };
    return tile;
}

const float *attn_i_queries(const struct block *blk, int64_t g, int64_t i0)
{
    const struct tensor *q = &blk->job->q;
    return q->data + blk->b * q->sb + (blk->h0 + g) * q->sh + (blk->item.q0 + i0) * q->sl;
}

/* Scores after all rules, for the MASKED output and, finished later, the WEIGHTS. */
static void hand_out(const struct block *blk, const struct strip *t, int32_t stage,
                     const int32_t (*columns)[2])
{
    if (!blk->scores[stage]) return;
    float *to = blk->scores[stage] + (t->h - blk->h0) * blk->scores_head +
                (t->i0 - blk->i0) * blk->job->Lk + t->j0;
    for (int64_t r = 0; r < t->rows; r++, to += blk->job->Lk) {
        int64_t lo = columns ? columns[r][0] : 0, hi = columns ? columns[r][1] : t->cols;
        memcpy(to + lo, t->s + r * t->lds + lo, (size_t)(hi - lo) * sizeof(float));
    }
}

void attn_i_strip_hand_out(const struct block *blk, const struct strip *t,
                           const int32_t (*columns)[2])
{
    hand_out(blk, t, ATTN_STAGE_MASKED, columns);
    hand_out(blk, t, ATTN_STAGE_WEIGHTS, columns);
}

void attn_i_strip_skip(const struct block *blk, const struct strip *t)
{
    if (!blk->scores[ATTN_STAGE_MASKED] && !blk->scores[ATTN_STAGE_WEIGHTS]) return;
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t j = 0; j < t->cols; j++) t->s[r * t->lds + j] = -INFINITY;
    attn_i_strip_hand_out(blk, t, NULL);
}

const int32_t (*attn_i_strip_rules(const struct block *blk, const struct strip *t))[2]
{
    int32_t(*columns)[2] = blk->scratch->columns;
    attn_i_apply_rules(blk->job, &blk->item, t, columns);
    const int32_t(*seen)[2] =
        t->sight == SEES_ALL ? NULL : (const int32_t(*)[2])(uintptr_t)columns;
    attn_i_strip_hand_out(blk, t, seen);
    return seen;
}

void attn_i_strip_softmax(const struct block *blk, const struct strip *t, int64_t row0, float *o)
{
    struct softmax_rows rows = {
        .rows = t->rows,
        .cols = t->cols,
        .s = t->s,
        .lds = t->lds,
        .sight = attn_i_strip_rules(blk, t),
        .m = blk->m + row0,
        .l = blk->l + row0,
        .o = o,
        .ldo = blk->o_row,
        .Dv = blk->job->op->Dv,
    };
    blk->job->op->kernels->softmax_rows(&rows);
}

bool attn_i_values_finite(const struct block *blk, const struct kv_tile *tile)
{
    return blk->job->op->kernels->all_finite(tile->count, blk->job->op->Dv, tile->v, tile->ldv);
}

struct kv_tile attn_i_copy_values(const struct block *blk, const struct kv_tile *tile, int64_t ld,
                                  bool finite)
{
    int64_t Dv = blk->job->op->Dv;
    struct kv_tile copy = *tile;
    float *to = blk->scratch->v_copy;
    copy.v = to;
    copy.ldv = ld;
    for (int64_t j = 0; j < tile->count; j++, to += ld) {
        memcpy(to, tile->v + j * tile->ldv, (size_t)Dv * sizeof *to);
        for (int64_t d = 0; d < Dv && finite; d++)
            if (!isfinite(to[d])) to[d] = 0.0f;
        for (int64_t d = Dv; d < ld; d++) to[d] = 0.0f;
    }
    return copy;
}

/* Rows that are a multiple of 2 KiB apart share few sets of L1: of a tile of them none is there
   when it is read again. So lie packed sequences and (L, heads, size) with 8 heads of 64, 8 of
   128. A copy is worth it from about a hundred queries on, and where no BLAS packs anyway. Heads x
   size of 1024 to 4096: BLAS engine x1.4 to 1.6, vector engine x1.1 to 1.25; 1536 x1.08; 512 x1.08
   and 1.0; 768, 256 x1.0, not copied (Emerald Rapids). */
#define ALIAS_FLOATS 512
#define COPY_ROWS 96

bool attn_i_rows_alias(const struct block *blk, int64_t ld, int64_t size)
{
    return ld % ALIAS_FLOATS == 0 && ld > size && blk->heads * blk->nq >= COPY_ROWS &&
           blk->cut->path != PATH_TILES_NT;
}

bool attn_i_has_nan(const struct block *blk, struct kv_state *tile)
{
    if (tile->values == UNKNOWN)
        tile->values = attn_i_values_finite(blk, &tile->kv) ? FINITE : NOT_FINITE;
    return tile->values == NOT_FINITE;
}

const struct kv_tile *attn_i_values_for(const struct block *blk, struct kv_state *tile,
                                        bool without_nan)
{
    bool pad = attn_i_pads_values(blk->job->op, blk->cut);
    bool alias = attn_i_rows_alias(blk, tile->kv.ldv, blk->job->op->Dv);
    enum copied want = without_nan ? WITHOUT_NAN : pad || alias ? AS_IS : NOTHING;
    if (want == NOTHING) return &tile->kv;
    if (tile->copied != want) {
        int64_t Dv = blk->job->op->Dv;
        tile->copy =
            attn_i_copy_values(blk, &tile->kv, pad ? round_up(Dv, LANES_MAX) : Dv, without_nan);
        tile->copied = want;
    }
    return &tile->copy;
}

/* The values of one key that are NaN or Inf, for row r that sees it. */
static void repair_row(int64_t Dv, const float *v, float weight, const struct grid *o, int64_t r)
{
    for (int64_t d = 0; d < Dv; d++)
        if (!isfinite(v[d])) o->at[r * o->row + d * o->column] += weight * v[d];
}

void attn_i_strip_repair(const struct block *blk, const struct strip *t,
                         const struct kv_tile *tile, const struct grid *weights,
                         const struct grid *o)
{
    const struct job *job = blk->job;
    int64_t Dv = job->op->Dv;
    for (int64_t j = 0; j < t->cols; j++) {
        const float *v = tile->v + (t->j0 + j - tile->j0) * tile->ldv;
        if (job->op->kernels->all_finite(1, Dv, v, Dv)) continue;
        for (int64_t r = 0; r < t->rows; r++)
            if (attn_i_visible(job, &blk->item, t->b, t->h, t->i0 + r, t->j0 + j))
                repair_row(Dv, v, weights->at[r * weights->row + j * weights->column], o, r);
    }
}

void attn_i_point_at_rows(const struct block *blk)
{
    for (int64_t g = 0; g < blk->heads; g++)
        for (int64_t i = 0; i < blk->nq; i++) {
            int64_t r = g * blk->nq + i;
            blk->scratch->q_rows[r] = attn_i_queries(blk, g, blk->i0 + i);
            blk->scratch->o_rows[r] = blk->o + g * blk->o_head + i * blk->o_row;
        }
}

float *attn_i_raw_scores(const struct block *blk, int64_t g, int64_t i)
{
    float *raw = blk->scores[ATTN_STAGE_RAW] ? blk->scores[ATTN_STAGE_RAW]
                                             : blk->scores[ATTN_STAGE_CAPPED];
    return raw ? raw + g * blk->scores_head + i * blk->job->Lk : NULL;
}

void attn_i_finish_raw(const struct block *blk)
{
    const attn_op *op = blk->job->op;
    int64_t Lk = blk->job->Lk, begin = blk->item.begin, n = blk->item.range_end - begin;
    for (int64_t g = 0; g < blk->heads; g++)
        for (int64_t i = 0; i < blk->nq; i++) {
            float *raw = attn_i_raw_scores(blk, g, i);
            attn_i_scale_row(op, n, raw + begin);
            if (!blk->scores[ATTN_STAGE_CAPPED]) continue;
            float *capped = blk->scores[ATTN_STAGE_CAPPED] + g * blk->scores_head + i * Lk;
            if (capped != raw) memcpy(capped + begin, raw + begin, (size_t)n * sizeof(float));
            attn_i_cap_row(op, n, capped + begin);
        }
}

void attn_i_raw_by_rows(const struct block *blk)
{
    const attn_op *op = blk->job->op;
    int64_t begin = blk->item.begin, n = blk->item.range_end - begin;
    if (n <= 0) return;
    struct kv_tile kv = attn_i_kv_tile(blk, begin, n);
    for (int64_t r = 0; r < blk->heads * blk->nq; r++) {
        struct few_rows p = {
            .rows = 1,
            .keys = n,
            .D = op->Dk,
            .q = blk->scratch->q_rows + r,
            .x = kv.k,
            .ldx = kv.ldk,
            .scale = attn_i_alpha(op),
            .s = attn_i_raw_scores(blk, r / blk->nq, r % blk->nq) + begin,
        };
        op->kernels->dot_rows(&p);
    }
    attn_i_finish_raw(blk);
}
