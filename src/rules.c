/* SPDX-License-Identifier: MIT */
/*
 * Which keys a query sees. Every boolean rule that is an interval of keys per
 * query (key range, causal, window, chunk, a mask's length) is folded into one
 * span whose ends never decrease with the query, on which rows_span and
 * strip_sight rely; masks and segment ids are looked up element by element.
 * Engines, weights and the NaN repair all ask here.
 */
#include "job.h"

#include <math.h>

/* a + b, saturating: positions may be any int64. */
static int64_t add_sat(int64_t a, int64_t b)
{
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) return a < 0 ? INT64_MIN : INT64_MAX;
    return sum;
}

struct item attn_i_item(const struct job *job, int64_t b)
{
    const attn_args *args = job->args;
    struct item it = {.Lq = job->Lq, .end = job->Lk};
    if (args->offsets_q) {
        it.q0 = args->offsets_q[b];
        it.Lq = args->offsets_q[b + 1] - it.q0;
    }
    if (args->offsets_k) {
        it.k0 = args->offsets_k[b];
        it.end = args->offsets_k[b + 1] - it.k0;
    }
    if (args->key_begin) it.begin = args->key_begin[b];
    if (args->key_end) it.end = args->key_end[b];
    if (args->positions)
        it.off = args->positions[b];
    else if (job->op->causal != ATTN_CAUSAL_TOP_LEFT)
        it.off = it.end - it.Lq;
    it.range_end = it.end; /* a mask shorter than the keys hides the rest, and moves no index */
    if (args->mask_bool.data) it.end = min64(it.end, args->mask_bool.dims[3]);
    if (args->mask_add.data) it.end = min64(it.end, args->mask_add.dims[3]);
    return it;
}

/* The first key of the chunk that key index `at` lies in; chunks begin at 0. */
static int64_t chunk_start(int64_t at, int64_t chunk)
{
    int64_t rest = at % chunk;
    return add_sat(at, rest < 0 ? -rest - chunk : -rest);
}

struct span attn_i_row_span(const struct job *job, const struct item *it, int64_t i)
{
    const attn_op *op = job->op;
    struct span keys = {it->begin, it->end};
    int64_t at = add_sat(i, it->off);
    if (op->causal != ATTN_CAUSAL_NONE) keys.hi = min64(keys.hi, add_sat(at, 1));
    if (op->left >= 0) keys.lo = max64(keys.lo, add_sat(at, -op->left));
    if (op->right >= 0) keys.hi = min64(keys.hi, add_sat(add_sat(at, op->right), 1));
    if (op->chunk > 0) {
        int64_t start = chunk_start(at, op->chunk);
        keys.lo = max64(keys.lo, start);
        keys.hi = min64(keys.hi, add_sat(start, op->chunk));
    }
    return keys;
}

struct span attn_i_rows_span(const struct job *job, const struct item *it, int64_t i0, int64_t i1)
{
    struct span keys = {attn_i_row_span(job, it, i0).lo, attn_i_row_span(job, it, i1 - 1).hi};
    return keys;
}

/* Element (b, h, i, j) of a mask, as an offset from its data. */
static int64_t mask_at(const struct mask *m, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return b * m->strides[0] + h * m->strides[1] + i * m->strides[2] + j * m->strides[3];
}

const uint8_t *attn_i_bool_at(const struct job *job, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const struct mask *m = &job->args->mask_bool;
    return (const uint8_t *)m->data + mask_at(m, b, h, i, j);
}

const float *attn_i_add_at(const struct job *job, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const struct mask *m = &job->args->mask_add;
    return (const float *)m->data + mask_at(m, b, h, i, j);
}

int32_t attn_i_query_segment(const struct job *job, const struct item *it, int64_t b, int64_t i)
{
    return job->args->segments_q[(job->args->offsets_q ? 0 : b * job->Lq) + it->q0 + i];
}

const int32_t *attn_i_key_segments(const struct job *job, const struct item *it, int64_t b,
                                   int64_t j)
{
    return job->args->segments_k + (job->args->offsets_k ? 0 : b * job->Lk) + it->k0 + j;
}

bool attn_i_visible(const struct job *job, const struct item *it, int64_t b, int64_t h, int64_t i,
                    int64_t j)
{
    const attn_args *args = job->args;
    struct span keys = attn_i_row_span(job, it, i);
    if (j < keys.lo || j >= keys.hi) return false;
    if (args->mask_bool.data && !*attn_i_bool_at(job, b, h, i, j)) return false;
    if (args->segments_q &&
        *attn_i_key_segments(job, it, b, j) != attn_i_query_segment(job, it, b, i))
        return false;
    return !args->mask_add.data || *attn_i_add_at(job, b, h, i, j) != -INFINITY;
}

/* ---------------------------------------------------- strips: all, some, none */

/* Columns of the strip that row r may see by the rules that are intervals. */
static struct span row_columns(const struct job *job, const struct item *it,
                               const struct strip *t, int64_t r)
{
    struct span tile = {t->j0, t->j0 + t->cols};
    struct span keys = span_and(attn_i_row_span(job, it, t->i0 + r), tile);
    if (keys.lo >= keys.hi) return (struct span){0, 0};
    return (struct span){keys.lo - t->j0, keys.hi - t->j0};
}

static enum sight bool_sight(const struct job *job, const struct strip *t, int64_t r,
                             struct span c)
{
    const struct mask *m = &job->args->mask_bool;
    const uint8_t *row = attn_i_bool_at(job, t->b, t->h, t->i0 + r, t->j0 + c.lo);
    int64_t n = c.hi - c.lo, count = 0;
    if (m->strides[3] == 1) return job->op->kernels->mask_sight(n, row);
    for (int64_t j = 0; j < n; j++) count += row[j * m->strides[3]] != 0;
    return count == n ? SEES_ALL : count ? SEES_SOME : SEES_NONE;
}

/* What a row sees, as far as one rule tells: the least of all. An additive mask is not looked
   through: its -inf are found when it is added. */
static enum sight row_sight(const struct job *job, const struct item *it, const struct strip *t,
                            int64_t r)
{
    const attn_args *args = job->args;
    struct span c = row_columns(job, it, t, r);
    int64_t n = c.hi - c.lo;
    enum sight least = n == t->cols && !args->mask_add.data ? SEES_ALL : SEES_SOME;
    if (n == 0) return SEES_NONE;
    if (args->mask_bool.data) {
        enum sight sight = bool_sight(job, t, r, c);
        least = sight < least ? sight : least;
    }
    if (args->segments_q && least != SEES_NONE) {
        enum sight sight =
            job->op->kernels->segment_sight(n, attn_i_key_segments(job, it, t->b, t->j0 + c.lo),
                                            attn_i_query_segment(job, it, t->b, t->i0 + r));
        least = sight < least ? sight : least;
    }
    return least;
}

enum sight attn_i_strip_sight(const struct job *job, const struct item *it, const struct strip *t)
{
    const attn_args *args = job->args;
    bool all = attn_i_row_span(job, it, t->i0 + t->rows - 1).lo <= t->j0 &&
               attn_i_row_span(job, it, t->i0).hi >= t->j0 + t->cols && !args->mask_add.data;
    if (!args->mask_bool.data && !args->segments_q) return all ? SEES_ALL : SEES_SOME;
    enum sight both = row_sight(job, it, t, 0);
    for (int64_t r = 1; r < t->rows && both != SEES_SOME; r++)
        both = sight_of_both(both, row_sight(job, it, t, r));
    return both;
}

/* ------------------------------------------------------------- applying */

/* Exact where the difference is, whatever the two are. */
float attn_i_distance(const struct item *it, int64_t i, int64_t j)
{
    int64_t at = add_sat(i, it->off), far;
    return __builtin_sub_overflow(at, j, &far) ? (float)at : (float)far;
}

/* Rows of an additive mask that are fetched ahead. */
#define MASK_ROWS_AHEAD 4

/* All rules along one row, columns [c.lo, c.hi) of the strip. */
static void apply_row(const struct job *job, const struct item *it, const struct strip *t,
                      int64_t r, struct span c)
{
    const attn_args *args = job->args;
    const struct kernels *kn = job->op->kernels;
    int64_t i = t->i0 + r, j = t->j0 + c.lo, n = c.hi - c.lo;
    float *s = t->s + r * t->lds + c.lo;
    attn_i_scale_row(job->op, n, s);
    attn_i_cap_row(job->op, n, s);
    if (args->slopes) kn->alibi_row(n, s, args->slopes[t->h], attn_i_distance(it, i, j));
    if (args->mask_add.data)
        kn->mask_add_row(n, s, attn_i_add_at(job, t->b, t->h, i, j), args->mask_add.strides[3],
                         MASK_ROWS_AHEAD * args->mask_add.strides[2]);
    if (t->sight == SEES_ALL) return;
    if (args->mask_bool.data)
        kn->mask_bool_row(n, s, attn_i_bool_at(job, t->b, t->h, i, j),
                          args->mask_bool.strides[3]);
    if (args->segments_q)
        kn->segment_row(n, s, attn_i_key_segments(job, it, t->b, j),
                        attn_i_query_segment(job, it, t->b, i));
}

void attn_i_apply_rules(const struct job *job, const struct item *it, const struct strip *t,
                        int32_t (*columns)[2])
{
    const attn_op *op = job->op;
    bool all = t->sight == SEES_ALL;
    if (all && op->scale != 0.0f && op->softcap == 0.0f && !job->args->slopes) return;
    for (int64_t r = 0; r < t->rows; r++) {
        struct span c = all ? (struct span){0, t->cols} : row_columns(job, it, t, r);
        columns[r][0] = (int32_t)c.lo;
        columns[r][1] = (int32_t)c.hi;
        if (c.lo < c.hi) apply_row(job, it, t, r, c);
    }
}

/* BLAS skips a product with alpha 0, NaN and all: it is made with 1, and scaled here. */
float attn_i_alpha(const attn_op *op) { return op->scale == 0.0f ? 1.0f : op->scale; }

void attn_i_scale_row(const attn_op *op, int64_t n, float *s)
{
    if (op->scale == 0.0f) op->kernels->scale_row(n, s, 0.0f);
}

void attn_i_cap_row(const attn_op *op, int64_t n, float *s)
{
    if (op->softcap > 0.0f) op->kernels->softcap_row(n, s, op->softcap);
}
