/* SPDX-License-Identifier: MIT */
/* The setters of attn_args. Small arrays are copied, large ones borrowed. */
#include "internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const attn_args attn_i_no_args;

attn_status attn_args_create(attn_args **args)
{
    REQUIRE(args, ATTN_EINVAL);
    *args = calloc(1, sizeof **args);
    return *args ? ATTN_OK : ATTN_ENOMEM;
}

attn_status attn_args_clear(attn_args *args)
{
    REQUIRE(args, ATTN_EINVAL);
    free(args->key_begin);
    free(args->key_end);
    free(args->positions);
    free(args->offsets_q);
    free(args->offsets_k);
    free(args->slopes);
    free(args->sinks);
    *args = attn_i_no_args;
    return ATTN_OK;
}

void attn_args_destroy(attn_args *args)
{
    if (args) attn_args_clear(args);
    free(args);
}

static bool is_slot(int32_t slot) { return slot >= ATTN_Q && slot <= ATTN_OUT; }

attn_status attn_args_set_strides(attn_args *args, int32_t slot, const int64_t strides[4])
{
    REQUIRE(args && is_slot(slot), ATTN_EINVAL);
    args->has_strides[slot] = strides != NULL;
    if (strides) memcpy(args->strides[slot], strides, sizeof args->strides[slot]);
    return ATTN_OK;
}

attn_status attn_args_set_type(attn_args *args, int32_t slot, int32_t type)
{
    REQUIRE(args && is_slot(slot), ATTN_EINVAL);
    return type == ATTN_F32 ? ATTN_OK : ATTN_EUNSUPPORTED;
}

static attn_status set_mask(struct mask *mask, const void *data, const int64_t dims[4],
                            const int64_t strides[4])
{
    struct mask m = {.data = data};
    REQUIRE(!data || dims, ATTN_EINVAL);
    int64_t packed = 1;
    for (int a = 3; a >= 0 && data; a--) {
        REQUIRE(dims[a] >= 0, ATTN_EINVAL);
        m.dims[a] = dims[a];
        m.strides[a] = dims[a] == 1 ? 0 : strides ? strides[a] : packed; /* so axes broadcast */
        REQUIRE(!__builtin_mul_overflow(packed, max64(dims[a], 1), &packed), ATTN_EOVERFLOW);
    }
    *mask = m;
    return ATTN_OK;
}

attn_status attn_args_set_mask_bool(attn_args *args, const uint8_t *mask, const int64_t dims[4],
                                    const int64_t strides[4])
{
    REQUIRE(args, ATTN_EINVAL);
    return set_mask(&args->mask_bool, mask, dims, strides);
}

attn_status attn_args_set_mask_add(attn_args *args, const float *mask, const int64_t dims[4],
                                   const int64_t strides[4])
{
    REQUIRE(args, ATTN_EINVAL);
    return set_mask(&args->mask_add, mask, dims, strides);
}

/* A copy of n elements; *copy is NULL when there is nothing to copy. */
static attn_status copy_array(int64_t n, const void *from, size_t element, void **copy)
{
    *copy = NULL;
    if (!from || n == 0) return ATTN_OK;
    REQUIRE((uint64_t)n <= PTRDIFF_MAX / element, ATTN_EOVERFLOW);
    *copy = malloc((size_t)n * element);
    REQUIRE(*copy, ATTN_ENOMEM);
    memcpy(*copy, from, (size_t)n * element);
    return ATTN_OK;
}

static attn_status copy_numbers(int64_t n, const int64_t *from, int64_t **copy)
{
    void *p;
    TRY(copy_array(n, from, sizeof *from, &p));
    *copy = p;
    return ATTN_OK;
}

attn_status attn_args_set_key_range(attn_args *args, int64_t batch, const int64_t *begin,
                                    const int64_t *end)
{
    int64_t *new_begin, *new_end;
    REQUIRE(args && batch >= 0, ATTN_EINVAL);
    TRY(copy_numbers(batch, begin, &new_begin));
    attn_status status = copy_numbers(batch, end, &new_end);
    if (status != ATTN_OK) {
        free(new_begin);
        return status;
    }
    free(args->key_begin);
    free(args->key_end);
    args->key_begin = new_begin;
    args->key_end = new_end;
    args->n_range = batch;
    return ATTN_OK;
}

attn_status attn_args_set_positions(attn_args *args, int64_t batch, const int64_t *pos)
{
    int64_t *copy;
    REQUIRE(args && batch >= 0 && (pos || batch == 0), ATTN_EINVAL);
    TRY(copy_numbers(batch, pos, &copy));
    free(args->positions);
    args->positions = copy;
    args->n_positions = batch;
    return ATTN_OK;
}

/* Numbers of query heads; none may be NaN or inf, but -inf where it is allowed. */
static attn_status set_heads(int64_t heads, const float *from, bool minus_inf, float **to,
                             int64_t *n)
{
    void *copy;
    REQUIRE(heads >= 0 && (from || heads == 0), ATTN_EINVAL);
    REQUIRE(heads <= INT32_MAX, ATTN_EOVERFLOW);
    for (int64_t h = 0; h < heads; h++)
        REQUIRE(isfinite(from[h]) || (minus_inf && from[h] == -INFINITY), ATTN_EINVAL);
    TRY(copy_array(heads, from, sizeof *from, &copy));
    free(*to);
    *to = copy;
    *n = heads;
    return ATTN_OK;
}

attn_status attn_args_set_alibi(attn_args *args, int64_t heads, const float *slopes)
{
    REQUIRE(args, ATTN_EINVAL);
    return set_heads(heads, slopes, false, &args->slopes, &args->n_slopes);
}

attn_status attn_args_set_sinks(attn_args *args, int64_t heads, const float *sinks)
{
    REQUIRE(args, ATTN_EINVAL);
    return set_heads(heads, sinks, true, &args->sinks, &args->n_sinks);
}

attn_status attn_args_set_segments(attn_args *args, const int32_t *q_ids, const int32_t *k_ids)
{
    REQUIRE(args && !q_ids == !k_ids, ATTN_EINVAL);
    args->segments_q = q_ids;
    args->segments_k = k_ids;
    return ATTN_OK;
}

/* Offsets of n sequences: n + 1 numbers that never decrease, from 0 or more. */
static attn_status set_offsets(const void *offsets, int32_t index_type, int64_t n, int64_t **to,
                               int64_t *n_to)
{
    int64_t *copy = NULL;
    REQUIRE(index_type == ATTN_I32 || index_type == ATTN_I64, ATTN_EINVAL);
    REQUIRE(n >= 0, ATTN_EINVAL);
    REQUIRE(!offsets || (uint64_t)n < PTRDIFF_MAX / sizeof *copy, ATTN_EOVERFLOW);
    if (offsets) {
        copy = malloc(((size_t)n + 1) * sizeof *copy);
        REQUIRE(copy, ATTN_ENOMEM);
        for (int64_t i = 0; i <= n; i++) {
            copy[i] = index_type == ATTN_I32 ? ((const int32_t *)offsets)[i]
                                             : ((const int64_t *)offsets)[i];
            if (copy[i] < (i ? copy[i - 1] : 0)) {
                free(copy);
                return ATTN_EINVAL;
            }
        }
    }
    free(*to);
    *to = copy;
    *n_to = offsets ? n : 0;
    return ATTN_OK;
}

attn_status attn_args_set_offsets_q(attn_args *args, const void *offsets, int32_t index_type,
                                    int64_t n_sequences)
{
    REQUIRE(args, ATTN_EINVAL);
    return set_offsets(offsets, index_type, n_sequences, &args->offsets_q, &args->n_sequences_q);
}

attn_status attn_args_set_offsets_k(attn_args *args, const void *offsets, int32_t index_type,
                                    int64_t n_sequences)
{
    REQUIRE(args, ATTN_EINVAL);
    return set_offsets(offsets, index_type, n_sequences, &args->offsets_k, &args->n_sequences_k);
}

attn_status attn_args_set_scores_out(attn_args *args, int32_t stage, float *out, int32_t flags)
{
    REQUIRE(args && stage >= 0 && stage < N_STAGES, ATTN_EINVAL);
    REQUIRE((flags & ~ATTN_MEAN_HEADS) == 0, ATTN_EINVAL);
    args->scores[stage] = out;
    args->score_flags[stage] = flags;
    return ATTN_OK;
}

attn_status attn_args_set_weights(attn_args *args, float *weights)
{
    return attn_args_set_scores_out(args, ATTN_STAGE_WEIGHTS, weights, 0);
}

attn_status attn_args_set_lse(attn_args *args, float *lse)
{
    REQUIRE(args, ATTN_EINVAL);
    args->lse = lse;
    return ATTN_OK;
}

attn_status attn_args_set_workspace(attn_args *args, void *memory, size_t bytes)
{
    REQUIRE(args && (memory || bytes == 0), ATTN_EINVAL);
    args->workspace = memory;
    args->workspace_bytes = memory ? bytes : 0;
    return ATTN_OK;
}
