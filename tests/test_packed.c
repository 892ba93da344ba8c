/* SPDX-License-Identifier: MIT */
/*
 * Packed sequences: one buffer of tokens and offsets, on the query side, the
 * key side or both, is the same as a loop over the sequences.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "packed_rig.h"

#include <stdlib.h>
#include <string.h>

static const struct tiles paths[] = {
    TILES_OF(0, PATH_AUTO),   TILES_OF(0, PATH_DECODE),    TILES_OF(0, PATH_TILES),
    TILES_OF(16, PATH_TILES), TILES_OF(16, PATH_TILES_NT), TILES_OF(16, PATH_DECODE),
};
#define N_PATHS 6

static void test_packed_is_a_loop(void **state)
{
    (void)state;
    for (int64_t row = 0; row < 150; row++) {
        struct packed p;
        if (rig_skip(row)) continue;
        packed_make(&p, row);
        for (const int32_t *isa = rig_isas(); *isa >= 0; isa++)
            for (int n = 0; n < N_PATHS; n++) {
                assert_int_equal(packed_run(&p, *isa, &paths[n]), ATTN_OK);
                packed_expect(&p, &paths[n]);
            }
        packed_free(&p);
    }
}

/* The same bits for any number of threads, and a workspace that is just enough. */
static void test_packed_threads_and_workspace(void **state)
{
    static const int64_t lengths[6] = {1, 300, 0, 77, 500, 2};
    int64_t offsets[7] = {0};
    struct gbuf x, out[3];
    attn_op *op;
    attn_args *args;
    size_t bytes;
    (void)state;
    for (int b = 0; b < 6; b++) offsets[b + 1] = offsets[b] + lengths[b];
    int64_t total = offsets[6], n = total * 4 * 32;
    struct rng rng = rng_make(8);
    gbuf_make(&x, n, 0);
    rng_normals(&rng, n, x.p, 1);
    assert_int_equal(attn_op_create(&op, 4, 4, 32, 32), ATTN_OK);
    assert_int_equal(attn_op_set_causal(op, ATTN_CAUSAL_TOP_LEFT), ATTN_OK);
    assert_int_equal(attn_args_create(&args), ATTN_OK);
    assert_int_equal(attn_args_set_offsets_q(args, offsets, ATTN_I64, 6), ATTN_OK);
    assert_int_equal(attn_args_set_offsets_k(args, offsets, ATTN_I64, 6), ATTN_OK);
    void *memory = NULL;
    for (int t = 0; t < 3; t++) {
        gbuf_make(&out[t], n, 0);
        assert_int_equal(attn_op_set_threads(op, t == 2 ? 8 : 1 + t), ATTN_OK);
        if (t == 2) {
            assert_int_equal(attn_workspace_bytes(op, 6, total, total, args, &bytes), ATTN_OK);
            memory = malloc(bytes);
            memset(memory, 0xff, bytes);
            assert_int_equal(attn_args_set_workspace(args, memory, bytes - 1), ATTN_OK);
            assert_int_equal(attn_run_args(op, 6, total, total, x.p, x.p, x.p, out[t].p, args),
                             ATTN_EINVAL);
            assert_true(gbuf_untouched(&out[t]));
            assert_int_equal(attn_args_set_workspace(args, memory, bytes), ATTN_OK);
        }
        assert_int_equal(attn_run_args(op, 6, total, total, x.p, x.p, x.p, out[t].p, args),
                         ATTN_OK);
        assert_true(gbuf_intact(&out[t]) && same_bits("packed", out[0].p, out[t].p, n));
    }
    free(memory);
    attn_args_destroy(args);
    attn_op_destroy(op);
    for (int t = 0; t < 3; t++) gbuf_free(&out[t]);
    gbuf_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_is_a_loop),
        cmocka_unit_test(test_packed_threads_and_workspace),
    };
    return cmocka_run_group_tests_name("packed", tests, NULL, NULL);
}
