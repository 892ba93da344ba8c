/* SPDX-License-Identifier: MIT */
/*
 * Ops and runs: the exported functions around the job. Each checks its
 * arguments and calls inward; attn.h is their manual. (Those of attn_args are
 * in args.c, those of attn_layer in layer.c.)
 */
#include "blas.h"
#include "job.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* ------------------------------------------------------------------- op */

static attn_status check_shape(int64_t heads, int64_t kv_heads, int64_t head_dim,
                               int64_t value_dim)
{
    REQUIRE(heads >= 1 && kv_heads >= 1 && head_dim >= 1 && value_dim >= 1, ATTN_EINVAL);
    REQUIRE(heads % kv_heads == 0, ATTN_EINVAL);
    REQUIRE(heads <= INT32_MAX && head_dim <= INT32_MAX && value_dim <= INT32_MAX,
            ATTN_EOVERFLOW);
    return ATTN_OK;
}

attn_status attn_op_create(attn_op **op, int64_t heads, int64_t kv_heads, int64_t head_dim,
                           int64_t value_dim)
{
    REQUIRE(op, ATTN_EINVAL);
    *op = NULL;
    TRY(check_shape(heads, kv_heads, head_dim, value_dim));
    TRY(attn_i_blas_init());
    attn_op *made = calloc(1, sizeof *made);
    REQUIRE(made, ATTN_ENOMEM);
    made->Hq = heads;
    made->Hk = kv_heads;
    made->Dk = head_dim;
    made->Dv = value_dim;
    made->scale = (float)(1.0 / sqrt((double)head_dim));
    made->left = -1;
    made->right = -1;
    made->threads = attn_i_cpu_count();
    made->kernels = attn_i_kernels(ATTN_ISA_ALL);
    *op = made;
    return ATTN_OK;
}

attn_status attn_op_copy(attn_op **copy, const attn_op *op)
{
    REQUIRE(copy, ATTN_EINVAL);
    *copy = NULL;
    REQUIRE(op, ATTN_EINVAL);
    attn_op *made = calloc(1, sizeof *made);
    REQUIRE(made, ATTN_ENOMEM);
    attn_i_op_settings(made, op);
    *copy = made;
    return ATTN_OK;
}

void attn_op_destroy(attn_op *op)
{
    if (op) attn_i_scratch_destroy(&op->scratch);
    free(op);
}

attn_status attn_op_set_scale(attn_op *op, double scale)
{
    REQUIRE(op && isfinite((float)scale), ATTN_EINVAL);
    op->scale = (float)scale;
    return ATTN_OK;
}

attn_status attn_op_set_causal(attn_op *op, int32_t causal)
{
    REQUIRE(op && causal >= ATTN_CAUSAL_NONE && causal <= ATTN_CAUSAL_BOTTOM_RIGHT, ATTN_EINVAL);
    op->causal = causal;
    return ATTN_OK;
}

attn_status attn_op_set_window(attn_op *op, int64_t left, int64_t right)
{
    REQUIRE(op && left >= -1 && right >= -1, ATTN_EINVAL);
    op->left = left;
    op->right = right;
    return ATTN_OK;
}

attn_status attn_op_set_chunk(attn_op *op, int64_t size)
{
    REQUIRE(op && size >= 0, ATTN_EINVAL);
    op->chunk = size;
    return ATTN_OK;
}

attn_status attn_op_set_softcap(attn_op *op, double cap)
{
    REQUIRE(op && (cap == 0.0 || cap >= (double)FLT_MIN) && isfinite((float)cap), ATTN_EINVAL);
    op->softcap = (float)cap;
    return ATTN_OK;
}

attn_status attn_op_set_layout(attn_op *op, int32_t layout)
{
    REQUIRE(op && (layout == ATTN_LAYOUT_BHLD || layout == ATTN_LAYOUT_BLHD), ATTN_EINVAL);
    op->layout = layout;
    return ATTN_OK;
}

attn_status attn_op_set_engine(attn_op *op, int32_t engine)
{
    REQUIRE(op, ATTN_EINVAL);
    REQUIRE(engine == ATTN_ENGINE_BLAS || engine == ATTN_ENGINE_VECTOR, ATTN_EUNSUPPORTED);
    op->engine = engine;
    return ATTN_OK;
}

attn_status attn_op_set_threads(attn_op *op, int32_t n)
{
    REQUIRE(op && n >= 0 && n <= 4096, ATTN_EINVAL);
    op->threads = n ? n : attn_i_cpu_count();
    return ATTN_OK;
}

attn_status attn_op_set_isa(attn_op *op, int32_t mask)
{
    REQUIRE(op, ATTN_EINVAL);
    op->kernels = attn_i_kernels(mask);
    return ATTN_OK;
}

attn_status attn_op_trim(attn_op *op)
{
    REQUIRE(op, ATTN_EINVAL);
    attn_i_scratch_trim(&op->scratch);
    return ATTN_OK;
}

void attn_i_op_test_tiles(attn_op *op, struct tiles t) { op->tiles = t; }

/* ----------------------------------------------------------------- runs */

attn_status attn_run_args(const attn_op *op, int64_t B, int64_t Lq, int64_t Lk, const void *q,
                          const void *k, const void *v, void *out, const attn_args *args)
{
    struct job job;
    struct plan plan;
    TRY(attn_i_check_run(op, B, Lq, Lk, q, k, v, out, args, &job, NULL));
    if (B == 0 || Lq == 0) return ATTN_OK;
    TRY(attn_i_plan(&job, &plan));
    return attn_i_run(&job, &plan, attn_i_scratch_of(op));
}

attn_status attn_run(const attn_op *op, int64_t B, int64_t Lq, int64_t Lk, const float *q,
                     const float *k, const float *v, float *out)
{
    return attn_run_args(op, B, Lq, Lk, q, k, v, out, NULL);
}

/* rows x Dv floats, and every array there unless there are no rows. */
static attn_status check_rows(int64_t rows, int64_t Dv, bool arrays)
{
    int64_t n;
    REQUIRE(rows >= 0 && Dv >= 1 && (rows == 0 || arrays), ATTN_EINVAL);
    REQUIRE(!__builtin_mul_overflow(rows, Dv, &n) && n <= PTRDIFF_MAX / (int64_t)sizeof(float),
            ATTN_EOVERFLOW);
    return ATTN_OK;
}

/* A part with a log-sum-exp of -inf is empty; NaN goes on into the sum. */
static void merge_row(const struct kernels *kn, int64_t Dv, float *o, float *lse,
                      const float *o_part, float lse_part)
{
    bool first = *lse == -INFINITY, none = lse_part == -INFINITY;
    if (first && none)
        memset(o, 0, (size_t)Dv * sizeof *o);
    else if (first)
        memcpy(o, o_part, (size_t)Dv * sizeof *o);
    if (first) *lse = lse_part;
    if (first || none) return;
    float top = lse_part > *lse ? lse_part : *lse;
    float a = expf(*lse - top), b = expf(lse_part - top), sum = a + b;
    *lse = top + logf(sum);
    kn->merge_row(Dv, o, a / sum, o_part, b / sum);
}

attn_status attn_merge(int64_t rows, int64_t Dv, float *o_acc, float *lse_acc,
                       const float *o_part, const float *lse_part)
{
    TRY(check_rows(rows, Dv, o_acc && lse_acc && o_part && lse_part));
    const struct kernels *kn = attn_i_kernels(ATTN_ISA_ALL);
    for (int64_t r = 0; r < rows; r++)
        merge_row(kn, Dv, o_acc + r * Dv, lse_acc + r, o_part + r * Dv, lse_part[r]);
    return ATTN_OK;
}

attn_status attn_merge_sinks(int64_t B, int64_t Hq, int64_t Lq, int64_t Dv, float *o,
                             const float *lse, const float *sinks)
{
    int64_t rows;
    REQUIRE(B >= 0 && Hq >= 1 && Lq >= 0, ATTN_EINVAL);
    REQUIRE(!__builtin_mul_overflow(B, Hq, &rows) && !__builtin_mul_overflow(rows, Lq, &rows),
            ATTN_EOVERFLOW);
    TRY(check_rows(rows, Dv, o && lse && sinks));
    const struct kernels *kn = attn_i_kernels(ATTN_ISA_ALL);
    for (int64_t r = 0; r < rows; r++) {
        float far = lse[r] - sinks[r / Lq % Hq]; /* 1 / (1 + exp(-far)) without overflow */
        float e = expf(far > 0.0f ? -far : far);
        if (lse[r] != -INFINITY) /* an empty row stays 0 */
            kn->scale_row(Dv, o + r * Dv, (far > 0.0f ? 1.0f : e) / (1.0f + e));
    }
    return ATTN_OK;
}

/* -------------------------------------------------------------- helpers */

attn_status attn_alibi_slopes(int64_t heads, float *slopes)
{
    REQUIRE(heads >= 1 && slopes, ATTN_EINVAL);
    int64_t power = 1;
    while (power <= heads / 2) power *= 2;
    for (int64_t h = 0; h < heads; h++) {
        /* beyond a power of two: every other slope of twice as many heads */
        double step = h < power ? 8.0 / (double)power : 4.0 / (double)power;
        double index = h < power ? (double)(h + 1) : (double)(2 * (h - power) + 1);
        slopes[h] = (float)exp2(-step * index);
    }
    return ATTN_OK;
}

attn_status attn_mask_dims(int64_t rank, const int64_t *shape, int64_t Lk, int64_t dims[4],
                           int64_t strides[4])
{
    REQUIRE(rank >= 0 && rank <= 4 && (shape || rank == 0) && Lk >= 0, ATTN_EINVAL);
    REQUIRE(dims && strides, ATTN_EINVAL);
    int64_t packed = 1, new_dims[4], new_strides[4];
    for (int a = 3; a >= 0; a--) {
        int64_t from = a - 4 + rank; /* right-aligned */
        int64_t extent = from >= 0 ? shape[from] : 1;
        REQUIRE(extent >= 0, ATTN_EINVAL);
        bool broadcast = a == 3 && extent == 1; /* along keys: the full extent, stride 0 */
        new_dims[a] = broadcast ? Lk : extent;
        new_strides[a] = extent == 1 ? 0 : packed;
        REQUIRE(!__builtin_mul_overflow(packed, max64(extent, 1), &packed), ATTN_EOVERFLOW);
    }
    memcpy(dims, new_dims, sizeof new_dims);
    memcpy(strides, new_strides, sizeof new_strides);
    return ATTN_OK;
}

/* --------------------------------------------------------------- asking */

attn_status attn_workspace_bytes(const attn_op *op, int64_t B, int64_t Lq, int64_t Lk,
                                 const attn_args *args, size_t *bytes)
{
    struct job job;
    REQUIRE(bytes, ATTN_EINVAL);
    TRY(attn_i_check_sizes(op, B, Lq, Lk, args, &job, NULL));
    return attn_i_workspace(&job, bytes);
}

const char *attn_version(void)
{
    return TEXT(ATTN_VERSION_MAJOR) "." TEXT(ATTN_VERSION_MINOR) "." TEXT(ATTN_VERSION_PATCH);
}

const char *attn_status_string(attn_status status)
{
    switch (status) {
    case ATTN_OK:
        return "success";
    case ATTN_EINVAL:
        return "invalid argument";
    case ATTN_ENOMEM:
        return "out of memory";
    case ATTN_EOVERFLOW:
        return "a size is too large";
    case ATTN_ESTATE:
        return "the handle is not ready for this call";
    case ATTN_EUNSUPPORTED:
        return "not supported by this build or CPU";
    case ATTN_EBLAS:
        return "the BLAS library is unusable";
    case ATTN_EINTERNAL:
        return "internal error of libattn";
    default:
        return "unknown status";
    }
}
