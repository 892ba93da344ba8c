/* SPDX-License-Identifier: MIT */
/* Workspaces: enough for every smaller run, and never a byte too few; sizes near 2^63. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rig.h"

#include <stdlib.h>
#include <string.h>

static void ok(attn_status status) { assert_int_equal(status, ATTN_OK); }

/* Shapes from tiny to long, on every path that the plan knows. */
static struct spec spec_of_row(int64_t row)
{
    static const int64_t lengths[][2] = {{1, 40},    {1, 2000}, {3, 700}, {20, 20}, {70, 300},
                                         {130, 130}, {400, 90}, {5, 0},   {64, 1}};
    static const int64_t heads[][2] = {{1, 1}, {4, 2}, {6, 1}, {8, 8}};
    static const int32_t outs[] = {
        0,       OUT_LSE,      OUT_STAGE(REF_WEIGHTS),
        OUT_ALL, OUT_ALL_MEAN, OUT_STAGE(REF_WEIGHTS) | OUT_MEAN(REF_WEIGHTS)};
    struct rng rng = rng_make((uint64_t)row + 17);
    struct spec s = {.seed = (uint64_t)row * 2 + 1, .row = row, .B = rng_int(&rng, 1, 3)};
    s.Lq = lengths[row % 9][0];
    s.Lk = lengths[row % 9][1];
    s.Hq = heads[row / 3 % 4][0];
    s.Hk = heads[row / 3 % 4][1];
    s.Dk = rng_int(&rng, 1, 100);
    s.Dv = rng_int(&rng, 1, 100);
    s.outs = outs[row / 2 % 6];
    s.causal = (int32_t)(row % 3);
    s.threads = (int32_t)rng_int(&rng, 1, 5);
    s.softcap = row % 5 == 0 ? 3 : 0;
    s.range = (int32_t)rng_int(&rng, 0, 3);
    return s;
}

/* Exactly what attn_workspace_bytes says works, at any address, full of NaN, with the bits of a
   run without; one byte less is refused before a write. */
static void test_exactly_enough(void **state)
{
    (void)state;
    for (int64_t row = 0; row < 72; row++) {
        struct spec s = spec_of_row(row);
        struct rig g;
        size_t bytes = 0;
        if (rig_skip(row)) continue;
        rig_make(&g, &s);
        float *plain = rig_output(&g);
        ok(attn_workspace_bytes(g.op, g.s.B, s.Lq, s.Lk, g.args, &bytes));
        size_t shift = (size_t)(row * 5 % 67); /* any alignment */
        unsigned char *memory = malloc(bytes + shift + 64);
        assert_non_null(memory);
        memset(memory, 0xff, bytes + shift + 64);
        ok(attn_args_set_workspace(g.args, memory + shift, bytes));
        rig_expect(&g);
        float *with = test_packed(&g.out);
        assert_true(same_bits("out", plain, with, test_count(&g.out)));
        for (size_t n = 0; n < shift; n++) assert_int_equal(memory[n], 0xff);
        for (size_t n = 0; n < 64; n++) assert_int_equal(memory[shift + bytes + n], 0xff);
        if (bytes > 0) {
            ok(attn_args_set_workspace(g.args, memory + shift, bytes - 1));
            assert_int_equal(rig_run(&g), ATTN_EINVAL);
            assert_true(gbuf_untouched(&g.out.buf));
        }
        free(plain);
        free(with);
        free(memory);
        rig_free(&g);
    }
}

/* The number never shrinks when a size grows: one workspace serves all smaller runs. */
static void test_monotone(void **state)
{
    (void)state;
    for (int64_t row = 0; row < 400; row++) {
        struct spec s = spec_of_row(row);
        struct rng rng = rng_make((uint64_t)row);
        struct rig g;
        if (rig_skip(row)) continue;
        s.range = 0;
        rig_make(&g, &s);
        rig_prepare(&g);
        int64_t B = rng_int(&rng, 1, 40), Lq = rng_int(&rng, 1, 3000),
                Lk = rng_int(&rng, 1, 9000);
        if (row % 3 == 0) Lq = rng_int(&rng, 1, 20);
        size_t whole = 0;
        ok(attn_workspace_bytes(g.op, B, Lq, Lk, g.args, &whole));
        for (int n = 0; n < 60; n++) {
            int64_t b = rng_int(&rng, 0, B), lq = rng_int(&rng, 0, Lq), lk = rng_int(&rng, 0, Lk);
            if (n % 3 == 0) lq = rng_int(&rng, 0, Lq < 20 ? Lq : 20);
            if (n % 5 == 0) b = B;
            if (n % 7 == 0) lk = Lk - (Lk > 0 ? n % 2 : 0);
            size_t part = 0;
            ok(attn_workspace_bytes(g.op, b, lq, lk, g.args, &part));
            if (part <= whole) continue;
            rig_print(&g, "a smaller run needs more");
            fail_msg("B %d Lq %d Lk %d: %zu bytes; B %d Lq %d Lk %d: %zu", (int)B, (int)Lq,
                     (int)Lk, whole, (int)b, (int)lq, (int)lk, part);
        }
        rig_free(&g);
    }
}

/* And it does serve them. */
static void test_one_workspace_for_smaller_runs(void **state)
{
    (void)state;
    for (int64_t row = 0; row < 36; row++) {
        struct spec s = spec_of_row(row);
        struct rng rng = rng_make((uint64_t)row);
        struct rig g;
        size_t bytes = 0;
        if (rig_skip(row)) continue;
        rig_make(&g, &s);
        rig_prepare(&g);
        ok(attn_workspace_bytes(g.op, g.s.B, s.Lq, s.Lk, g.args, &bytes));
        rig_free(&g);
        void *memory = malloc(bytes + 1);
        for (int n = 0; n < 4; n++) {
            struct spec small = s;
            small.B = rng_int(&rng, 1, s.B);
            small.Lq = rng_int(&rng, 1, s.Lq);
            small.Lk = rng_int(&rng, 0, s.Lk);
            rig_make(&g, &small);
            rig_prepare(&g);
            ok(attn_args_set_workspace(g.args, memory, bytes));
            rig_expect(&g);
            rig_free(&g);
        }
        free(memory);
    }
}

/* O(threads x tile): no matrix of Lq x Lk unless it is the caller's. */
static void test_memory_does_not_grow_with_the_product(void **state)
{
    attn_op *op;
    size_t bytes = 0;
    (void)state;
    ok(attn_op_create(&op, 1, 1, 64, 64));
    ok(attn_op_set_threads(op, 1));
    ok(attn_workspace_bytes(op, 1, 16384, 16384, NULL, &bytes));
    assert_in_range(bytes, 1, 16 << 20);
    ok(attn_workspace_bytes(op, 1, 1 << 20, 1 << 20, NULL, &bytes));
    assert_in_range(bytes, 1, 16 << 20);
    attn_op_destroy(op);
}

/* Sizes near 2^63 (pytorch_geometric PR#10766: more than 2^31 elements counted in 32 bits). */
static void test_overflow(void **state)
{
    const int64_t big = INT64_MAX, half = INT64_MAX / 2, root = (int64_t)1 << 32;
    const struct {
        int64_t B, Lq, Lk;
        attn_status status;
    } rows[] = {
        {2049, 724, 724, ATTN_OK}, /* B H L L = 2^31 and some */
        {1, root, root, ATTN_OK},  /* scores would overflow; nobody asks for them */
        {big, 1, 1, ATTN_EOVERFLOW},
        {1, big, 1, ATTN_EOVERFLOW},
        {1, 1, big, ATTN_EOVERFLOW},
        {half, half, half, ATTN_EOVERFLOW},
        {root, root, 1, ATTN_EOVERFLOW},
        {root, 1, root, ATTN_EOVERFLOW},
        {-1, 1, 1, ATTN_EINVAL},
        {1, -1, 1, ATTN_EINVAL},
        {1, 1, -1, ATTN_EINVAL},
        {INT64_MIN, 1, 1, ATTN_EINVAL},
        {0, 5, 5, ATTN_OK},
        {5, 0, 5, ATTN_OK},
        {5, 5, 0, ATTN_OK},
    };
    attn_op *op;
    attn_args *args;
    (void)state;
    ok(attn_op_create(&op, 2, 2, 16, 16));
    ok(attn_args_create(&args));
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
        for (int with = 0; with < 2; with++) {
            size_t bytes = 12345;
            attn_status status = attn_workspace_bytes(op, rows[n].B, rows[n].Lq, rows[n].Lk,
                                                      with ? args : NULL, &bytes);
            if (status != rows[n].status) fail_msg("row %d: status %d", (int)n, (int)status);
            if (status != ATTN_OK) assert_int_equal(bytes, 12345);
        }
    assert_int_equal(attn_workspace_bytes(op, 1, 1, 1, NULL, NULL), ATTN_EINVAL);
    attn_args_destroy(args);
    attn_op_destroy(op);
}

/* With both sides packed no tensor has an axis B; with one side, the other has. */
static void test_overflow_of_packed_sequences(void **state)
{
    const int64_t offsets[2] = {0, 1}, B = (int64_t)1 << 30, L = (int64_t)1 << 31;
    attn_op *op;
    (void)state;
    ok(attn_op_create(&op, 1, 1, 16, 16));
    for (int sides = 0; sides < 4; sides++) {
        attn_args *args;
        size_t bytes;
        ok(attn_args_create(&args));
        ok(attn_args_set_offsets_q(args, sides & 1 ? offsets : NULL, ATTN_I64, 1));
        ok(attn_args_set_offsets_k(args, sides & 2 ? offsets : NULL, ATTN_I64, 1));
        assert_int_equal(attn_workspace_bytes(op, B, L, L, args, &bytes),
                         sides == 3 ? ATTN_OK : ATTN_EOVERFLOW);
        attn_args_destroy(args);
    }
    attn_op_destroy(op);
}

/* Scores of 2^60 elements may be asked for, 2^61 may not. */
static void test_overflow_of_scores(void **state)
{
    const int64_t root = (int64_t)1 << 30;
    attn_op *op;
    attn_args *args;
    float x = 0;
    size_t bytes;
    (void)state;
    ok(attn_op_create(&op, 1, 1, 1, 1));
    ok(attn_args_create(&args));
    ok(attn_args_set_weights(args, &x));
    ok(attn_workspace_bytes(op, 1, root, root, args, &bytes));
    assert_int_equal(attn_workspace_bytes(op, 2, root, root, args, &bytes), ATTN_EOVERFLOW);
    assert_int_equal(attn_workspace_bytes(op, 1, 2 * root, root, args, &bytes), ATTN_EOVERFLOW);
    attn_args_destroy(args);
    attn_op_destroy(op);
}

/* A mean over heads needs Lk floats for each row of a strip: asked for, it may overflow. */
static void test_overflow_of_means(void **state)
{
    attn_op *op;
    attn_args *args;
    float x = 0;
    size_t bytes = 12345;
    (void)state;
    ok(attn_op_create(&op, 2, 2, 1, 1));
    ok(attn_args_create(&args));
    ok(attn_args_set_scores_out(args, ATTN_STAGE_WEIGHTS, &x, ATTN_MEAN_HEADS));
    assert_int_equal(attn_workspace_bytes(op, 1, 60, INT64_MAX / 32, args, &bytes),
                     ATTN_EOVERFLOW);
    assert_int_equal(bytes, 12345);
    attn_args_destroy(args);
    attn_op_destroy(op);
}

/* Rows of scores are BLAS's leading dimension; without score outputs no row is that long. */
static void test_scores_beyond_an_int(void **state)
{
    const int64_t Lk = (int64_t)INT32_MAX + 1;
    attn_op *op;
    attn_args *args;
    float x = 0;
    size_t bytes;
    (void)state;
    ok(attn_op_create(&op, 1, 1, 1, 1));
    ok(attn_args_create(&args));
    ok(attn_workspace_bytes(op, 1, 2, Lk, args, &bytes));
    for (int32_t stage = ATTN_STAGE_RAW; stage <= ATTN_STAGE_WEIGHTS; stage++) {
        ok(attn_args_set_scores_out(args, stage, &x, 0));
        assert_int_equal(attn_workspace_bytes(op, 1, 2, Lk, args, &bytes), ATTN_EOVERFLOW);
        ok(attn_workspace_bytes(op, 1, 2, Lk - 1, args, &bytes));
        ok(attn_args_set_scores_out(args, stage, NULL, 0));
    }
    attn_args_destroy(args);
    attn_op_destroy(op);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exactly_enough),
        cmocka_unit_test(test_monotone),
        cmocka_unit_test(test_one_workspace_for_smaller_runs),
        cmocka_unit_test(test_memory_does_not_grow_with_the_product),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_overflow_of_packed_sequences),
        cmocka_unit_test(test_overflow_of_scores),
        cmocka_unit_test(test_overflow_of_means),
        cmocka_unit_test(test_scores_beyond_an_int),
    };
    return cmocka_run_group_tests_name("sizes", tests, NULL, NULL);
}
