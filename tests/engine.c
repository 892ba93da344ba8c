/* SPDX-License-Identifier: MIT */
/*
 * Every test runs on every engine: attn_op_create of the tests (linked with
 * --wrap) sets the engine that ATTN_TEST_ENGINE names.
 */
#include "attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

attn_status __real_attn_op_create(attn_op **op, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                  int64_t value_dim);
attn_status __wrap_attn_op_create(attn_op **op, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                  int64_t value_dim);

attn_status __wrap_attn_op_create(attn_op **op, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                  int64_t value_dim)
{
    attn_status status = __real_attn_op_create(op, heads, kv_heads, head_dim, value_dim);
    const char *name = getenv("ATTN_TEST_ENGINE");
    if (status != ATTN_OK || !name || strcmp(name, "blas") == 0) return status;
    if (strcmp(name, "vector") != 0 || attn_op_set_engine(*op, ATTN_ENGINE_VECTOR) != ATTN_OK) {
        fprintf(stderr, "ATTN_TEST_ENGINE=%s: there is no such engine\n", name);
        exit(2);
    }
    return status;
}
