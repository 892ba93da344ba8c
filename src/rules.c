/* SPDX-License-Identifier: MIT */
/*
 * Which keys a query sees. Every boolean rule that is an interval of keys per
 * query (key range, causal, window, a mask's length) is folded into one span
 * whose ends never decrease with the query; masks are looked up element by
 * element. Engines, weights and the NaN repair all ask here.
 */
#include "internal.h"

#include <math.h>

/* a + b, saturating: positions may be any int64. */
static int64_t add_sat(int64_t a, int64_t b)
{
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return a < 0 ? INT64_MIN : INT64_MAX;
    return sum;
}

struct item attn_i_item(const struct job *job, int64_t b)
{
    const attn_args *args = job->args;
    struct item it = {.begin = 0, .end = job->Lk};
    if (args->key_begin)
        it.begin = args->key_begin[b];
    if (args->key_end)
        it.end = args->key_end[b];
    if (args->positions)
        it.off = args->positions[b];
    else if (job->op->causal != ATTN_CAUSAL_TOP_LEFT)
        it.off = it.end - job->Lq;
    it.range_end = it.end; /* a mask shorter than the keys hides the rest, and moves no index */
    if (args->mask_bool.data)
        it.end = min64(it.end, args->mask_bool.dims[3]);
    if (args->mask_add.data)
        it.end = min64(it.end, args->mask_add.dims[3]);
    return it;
}

struct span attn_i_row_span(const struct job *job, const struct item *it, int64_t i)
{
    const attn_op *op = job->op;
    struct span keys = {it->begin, it->end};
    int64_t at = add_sat(i, it->off);
    if (op->causal != ATTN_CAUSAL_NONE)
        keys.hi = min64(keys.hi, add_sat(at, 1));
    if (op->left >= 0)
        keys.lo = max64(keys.lo, add_sat(at, -op->left));
    if (op->right >= 0)
        keys.hi = min64(keys.hi, add_sat(add_sat(at, op->right), 1));
    return keys;
}

struct span attn_i_rows_span(const struct job *job, const struct item *it, int64_t i0, int64_t i1)
{
    struct span keys = {attn_i_row_span(job, it, i0).lo, attn_i_row_span(job, it, i1 - 1).hi};
    return keys;
}

static bool has_masks(const struct job *job)
{
    return job->args->mask_bool.data || job->args->mask_add.data;
}

/* Do all rows of the strip see all its columns? Ends of spans never decrease. */
static bool all_visible(const struct job *job, const struct item *it, const struct strip *t)
{
    return !has_masks(job) && attn_i_row_span(job, it, t->i0 + t->rows - 1).lo <= t->j0 &&
           attn_i_row_span(job, it, t->i0).hi >= t->j0 + t->cols;
}

/* Element (b, h, i, j) of a mask, as an offset from its data. */
static int64_t mask_at(const struct mask *m, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return (m->dims[0] == 1 ? 0 : b * m->strides[0]) + (m->dims[1] == 1 ? 0 : h * m->strides[1]) +
           (m->dims[2] == 1 ? 0 : i * m->strides[2]) + j * m->strides[3];
}

bool attn_i_visible(const struct job *job, const struct item *it, int64_t b, int64_t h, int64_t i,
                    int64_t j)
{
    const struct mask *mb = &job->args->mask_bool, *ma = &job->args->mask_add;
    struct span keys = attn_i_row_span(job, it, i);
    if (j < keys.lo || j >= keys.hi)
        return false;
    if (mb->data && !((const uint8_t *)mb->data)[mask_at(mb, b, h, i, j)])
        return false;
    return !ma->data || ((const float *)ma->data)[mask_at(ma, b, h, i, j)] != -INFINITY;
}

/* Masks along one row, columns [lo, hi) of the strip. */
static void apply_masks(const struct job *job, const struct strip *t, int64_t r, int64_t lo,
                        int64_t hi)
{
    const struct kernels *kn = job->op->kernels;
    const struct mask *mb = &job->args->mask_bool, *ma = &job->args->mask_add;
    int64_t i = t->i0 + r, j = t->j0 + lo;
    float *s = t->s + r * t->lds + lo;
    if (ma->data)
        kn->mask_add_row(hi - lo, s, (const float *)ma->data + mask_at(ma, t->b, t->h, i, j),
                         ma->strides[3]);
    if (mb->data)
        kn->mask_bool_row(hi - lo, s, (const uint8_t *)mb->data + mask_at(mb, t->b, t->h, i, j),
                          mb->strides[3]);
}

bool attn_i_apply_rules(const struct job *job, const struct item *it, const struct strip *t,
                        int32_t (*sight)[2])
{
    const attn_op *op = job->op;
    for (int64_t r = 0; r < t->rows; r++) {
        float *s = t->s + r * t->lds;
        if (op->scale == 0.0f) /* the product was made with 1: BLAS skips it for 0, NaN and all */
            op->kernels->scale_row(t->cols, s, 0.0f);
        if (op->softcap > 0.0f)
            op->kernels->softcap_row(t->cols, s, op->softcap);
    }
    if (all_visible(job, it, t))
        return false;
    bool masks = has_masks(job);
    for (int64_t r = 0; r < t->rows; r++) {
        struct span keys = attn_i_row_span(job, it, t->i0 + r);
        int64_t lo = max64(keys.lo, t->j0) - t->j0, hi = min64(keys.hi, t->j0 + t->cols) - t->j0;
        if (lo >= hi)
            lo = hi = 0;
        else if (masks)
            apply_masks(job, t, r, lo, hi);
        sight[r][0] = (int32_t)lo;
        sight[r][1] = (int32_t)hi;
    }
    return true;
}
