/* SPDX-License-Identifier: MIT */
/* What is wrong with a layer: its status, and outputs untouched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "layer_rig.h"

#include <stdlib.h>
#include <string.h>

static void ok(attn_status status) { assert_int_equal(status, ATTN_OK); }

static void bad(attn_status status) { assert_int_equal(status, ATTN_EINVAL); }

static const struct layer_spec valid = {.seed = 1,
                                        .B = 2,
                                        .Hq = 4,
                                        .Hk = 2,
                                        .Dk = 6,
                                        .Dv = 5,
                                        .E_q = 10,
                                        .E_kv = 10,
                                        .E_out = 12,
                                        .Lq = 7,
                                        .Lk = 7,
                                        .bias = 15};

static void test_create(void **state)
{
    const int64_t big = (int64_t)INT32_MAX + 1;
    const int64_t large[][3] = {{big, 1, 1},
                                {1, big, 1},
                                {1, 1, big},
                                {INT64_MAX, 1, 1},
                                {INT64_MAX, INT64_MAX, INT64_MAX}};
    static const int64_t wrong[][3] = {{0, 1, 1},  {1, 0, 1},  {1, 1, 0},
                                       {-1, 1, 1}, {1, -1, 1}, {1, 1, INT64_MIN}};
    attn_op *op, *wide;
    attn_layer *layer = NULL;
    (void)state;
    ok(attn_op_create(&op, 2, 2, 4, 4));
    bad(attn_layer_create(NULL, op, 1, 1, 1));
    layer = (attn_layer *)(uintptr_t)64;
    bad(attn_layer_create(&layer, NULL, 1, 1, 1));
    assert_null(layer);
    for (int n = 0; n < 6; n++) {
        layer = (attn_layer *)(uintptr_t)64;
        bad(attn_layer_create(&layer, op, wrong[n][0], wrong[n][1], wrong[n][2]));
        assert_null(layer);
    }
    for (int n = 0; n < 5; n++) {
        layer = (attn_layer *)(uintptr_t)64;
        assert_int_equal(attn_layer_create(&layer, op, large[n][0], large[n][1], large[n][2]),
                         ATTN_EOVERFLOW);
        assert_null(layer);
    }
    ok(attn_op_create(&wide, 1 << 16, 1, 1 << 15, 4)); /* Hq * Dk = 2^31 */
    assert_int_equal(attn_layer_create(&layer, wide, 8, 8, 8), ATTN_EOVERFLOW);
    assert_null(layer);
    attn_op_destroy(wide);
    ok(attn_op_create(&wide, 1 << 16, 1, 4, 1 << 15)); /* Hq * Dv */
    assert_int_equal(attn_layer_create(&layer, wide, 8, 8, 8), ATTN_EOVERFLOW);
    attn_op_destroy(wide);
    attn_op_destroy(op);
}

/* The op is copied: changing or freeing it does not reach the layer. */
static void test_op_is_copied(void **state)
{
    struct layer_rig g;
    (void)state;
    layer_make(&g, &valid);
    layer_prepare(&g);
    ok(attn_op_set_causal(g.op, ATTN_CAUSAL_TOP_LEFT));
    ok(attn_op_set_scale(g.op, 7));
    attn_op_destroy(g.op);
    ok(attn_op_create(&g.op, 1, 1, 1, 1));
    layer_expect(&g);
    layer_free(&g);
}

static void test_set_weights(void **state)
{
    struct layer_rig g;
    (void)state;
    layer_make(&g, &valid);
    layer_prepare(&g);
    const float *w = g.w[0].p;
    bad(attn_layer_set_weights(NULL, ATTN_W_Q, ATTN_IN_OUT, w, 0, NULL));
    bad(attn_layer_set_weights(g.layer, 4, ATTN_IN_OUT, w, 0, NULL));
    bad(attn_layer_set_weights(g.layer, -1, ATTN_IN_OUT, w, 0, NULL));
    bad(attn_layer_set_weights(g.layer, ATTN_W_Q, 0, w, 0, NULL));
    bad(attn_layer_set_weights(g.layer, ATTN_W_Q, ATTN_IN_OUT | ATTN_OUT_IN, w, 0, NULL));
    bad(attn_layer_set_weights(g.layer, ATTN_W_Q, ATTN_IN_OUT | 8, w, 0, NULL));
    bad(attn_layer_set_weights(g.layer, ATTN_W_Q, -1, w, 0, NULL));
    assert_int_equal(
        attn_layer_set_weights(g.layer, ATTN_W_Q, ATTN_IN_OUT | ATTN_W_BORROW, w, 0, NULL),
        ATTN_EUNSUPPORTED);
    bad(attn_layer_set_weights(g.layer, ATTN_W_Q, ATTN_IN_OUT, w, 23, NULL)); /* N = 24 */
    bad(attn_layer_set_weights(g.layer, ATTN_W_Q, ATTN_OUT_IN, w, 9, NULL));  /* E_in = 10 */
    bad(attn_layer_set_weights(g.layer, ATTN_W_Q, ATTN_IN_OUT, w, -24, NULL));
    layer_expect(&g); /* all as it was */
    layer_free(&g);
}

/* W_Q, W_K and W_V are needed, each; NULL takes one away; without W_O the heads are the output. */
static void test_missing_weights(void **state)
{
    (void)state;
    for (int32_t which = ATTN_W_Q; which <= ATTN_W_O; which++) {
        struct layer_rig g;
        layer_make(&g, &valid);
        layer_prepare(&g);
        ok(attn_layer_set_weights(g.layer, which, ATTN_IN_OUT, NULL, 0, NULL));
        attn_status want =
            which == ATTN_W_O ? ATTN_EINVAL : ATTN_ESTATE; /* E_out is not Hq * Dv */
        assert_int_equal(layer_run(&g), want);
        assert_true(gbuf_untouched(&g.out));
        float y[7 * 24], x[7 * 20] = {0};
        y[0] = prefill();
        assert_int_equal(attn_layer_project(g.layer, which, 1, 7, x, y, NULL), ATTN_ESTATE);
        assert_true(is_prefill(y[0]));
        ok(attn_layer_set_weights(g.layer, which, ATTN_IN_OUT, g.w[which].p, 0, g.bias[which].p));
        layer_expect(&g);
        layer_free(&g);
    }
}

/* The last ones set count; those before are freed, as LeakSanitizer sees. */
static void test_weights_set_again(void **state)
{
    struct layer_rig g;
    (void)state;
    layer_make(&g, &valid);
    layer_prepare(&g);
    for (int32_t which = ATTN_W_Q; which <= ATTN_W_O; which++) {
        float *other = must_alloc((size_t)g.w[which].n, sizeof *other);
        ok(attn_layer_set_weights(g.layer, which, ATTN_IN_OUT, other, 0, other));
        ok(attn_layer_set_weights(g.layer, which, ATTN_IN_OUT, g.w[which].p, 0, g.bias[which].p));
        free(other);
    }
    layer_expect(&g);
    layer_free(&g);
}

static void test_project_errors(void **state)
{
    const int64_t inner[4] = {7 * 24, 6, 24, 2}, rows[4] = {7 * 24, 6, 5, 1};
    const int64_t heads[4] = {7 * 24, 5, 24, 1}, items[4] = {7, 6, 24, 1};
    const int64_t far[4] = {INT64_MAX, 6, 24, 1};
    struct layer_rig g;
    struct gbuf y;
    (void)state;
    layer_make(&g, &valid);
    layer_prepare(&g);
    gbuf_make(&y, 2 * 7 * 24, 0);
    const float *x = g.x_q.p;
    attn_layer *l = g.layer;
    bad(attn_layer_project(NULL, ATTN_W_Q, 2, 7, x, y.p, NULL));
    bad(attn_layer_project(l, 4, 2, 7, x, y.p, NULL));
    bad(attn_layer_project(l, -1, 2, 7, x, y.p, NULL));
    bad(attn_layer_project(l, ATTN_W_Q, -2, 7, x, y.p, NULL));
    bad(attn_layer_project(l, ATTN_W_Q, 2, -7, x, y.p, NULL));
    bad(attn_layer_project(l, ATTN_W_Q, 2, 7, NULL, y.p, NULL));
    bad(attn_layer_project(l, ATTN_W_Q, 2, 7, x, NULL, NULL));
    bad(attn_layer_project(l, ATTN_W_Q, 2, 7, x, y.p, inner));
    bad(attn_layer_project(l, ATTN_W_Q, 2, 7, x, y.p, rows));
    bad(attn_layer_project(l, ATTN_W_Q, 2, 7, x, y.p, heads));
    bad(attn_layer_project(l, ATTN_W_Q, 2, 7, x, y.p, items));
    bad(attn_layer_project(l, ATTN_W_Q, 2, 7, y.p, y.p, NULL));
    bad(attn_layer_project(l, ATTN_W_Q, 2, 7, y.p + 2 * 7 * 24 - 1, y.p, NULL));
    bad(attn_layer_project(l, ATTN_W_Q, 2, 7, (const float *)(const void *)((const char *)x + 1),
                           y.p, NULL));
    assert_int_equal(attn_layer_project(l, ATTN_W_Q, 2, 7, x, y.p, far), ATTN_EOVERFLOW);
    assert_int_equal(attn_layer_project(l, ATTN_W_Q, INT64_MAX / 2, 7, x, y.p, NULL),
                     ATTN_EOVERFLOW);
    assert_true(gbuf_untouched(&y));
    ok(attn_layer_project(l, ATTN_W_Q, 0, 7, NULL, NULL, NULL));
    ok(attn_layer_project(l, ATTN_W_Q, 2, 0, NULL, NULL, NULL));
    ok(attn_layer_project(l, ATTN_W_Q, 2, 7, x, y.p, NULL));
    assert_true(gbuf_intact(&y) && !is_prefill(y.p[2 * 7 * 24 - 1]));
    gbuf_free(&y);
    layer_free(&g);
}

static void test_run_errors(void **state)
{
    const int64_t four[4] = {1, 1, 1, 1}, ends[3] = {1, 1, 1};
    struct layer_rig g;
    char memory[16];
    (void)state;
    layer_make(&g, &valid);
    layer_prepare(&g);
    attn_layer *l = g.layer;
    const float *x = g.x_q.p, *kv = g.x_kv.p;
    float *out = g.out.p;
#define RUN(B, Lq, Lk, x, kv, out) attn_layer_run(l, B, Lq, Lk, x, kv, out, g.args)
    bad(attn_layer_run(NULL, 2, 7, 7, x, kv, out, NULL));
    bad(RUN(-1, 7, 7, x, kv, out));
    bad(RUN(2, -7, 7, x, kv, out));
    bad(RUN(2, 7, -7, x, kv, out));
    bad(RUN(2, 7, 7, NULL, kv, out));
    bad(RUN(2, 7, 7, x, kv, NULL));
    bad(RUN(2, 7, 6, x, NULL, out)); /* self-attention with other lengths */
    bad(RUN(2, 7, 7, out, kv, out));
    bad(RUN(2, 7, 7, x, out + 2 * 7 * 12 - 1, out));
    bad(RUN(2, 7, 7, (const float *)(const void *)((const char *)x + 2), kv, out));
    assert_int_equal(RUN(INT64_MAX / 2, 7, 7, x, kv, out), ATTN_EOVERFLOW);
    assert_int_equal(RUN(1, INT64_MAX / 4, 7, x, kv, out), ATTN_EOVERFLOW);
    for (int32_t slot = ATTN_Q; slot <= ATTN_OUT; slot++) {
        ok(attn_args_set_strides(g.args, slot, four));
        bad(RUN(2, 7, 7, x, kv, out));
        ok(attn_args_set_strides(g.args, slot, NULL));
    }
    ok(attn_args_set_key_range(g.args, 3, NULL, ends));
    bad(RUN(2, 7, 7, x, kv, out));
    ok(attn_args_clear(g.args));
    ok(attn_args_set_workspace(g.args, memory, sizeof memory));
    bad(RUN(2, 7, 7, x, kv, out));
    ok(attn_args_clear(g.args));
    ok(attn_args_set_lse(g.args, out));
    bad(RUN(2, 7, 7, x, kv, out));
    ok(attn_args_clear(g.args));
    assert_true(gbuf_untouched(&g.out));
    ok(RUN(0, 7, 7, NULL, NULL, NULL));
    ok(RUN(2, 0, 7, NULL, kv, NULL));
    assert_true(gbuf_untouched(&g.out));
#undef RUN
    layer_expect(&g);
    layer_free(&g);
}

/* x_kv NULL needs E_kv == E_q. */
static void test_self_with_other_widths(void **state)
{
    struct layer_spec s = valid;
    struct layer_rig g;
    (void)state;
    s.E_kv = 11;
    layer_make(&g, &s);
    layer_prepare(&g);
    bad(attn_layer_run(g.layer, 2, 7, 7, g.x_q.p, NULL, g.out.p, NULL));
    assert_true(gbuf_untouched(&g.out));
    layer_expect(&g);
    layer_free(&g);
}

static void test_workspace_bytes(void **state)
{
    struct layer_rig g;
    size_t bytes = 77, whole;
    struct rng rng = rng_make(5);
    (void)state;
    layer_make(&g, &valid);
    layer_prepare(&g);
    bad(attn_layer_workspace_bytes(NULL, 1, 1, 1, NULL, &bytes));
    bad(attn_layer_workspace_bytes(g.layer, 1, 1, 1, NULL, NULL));
    bad(attn_layer_workspace_bytes(g.layer, -1, 1, 1, NULL, &bytes));
    bad(attn_layer_workspace_bytes(g.layer, 1, -1, 1, NULL, &bytes));
    bad(attn_layer_workspace_bytes(g.layer, 1, 1, -1, NULL, &bytes));
    assert_int_equal(attn_layer_workspace_bytes(g.layer, INT64_MAX / 2, 9, 9, NULL, &bytes),
                     ATTN_EOVERFLOW);
    assert_true(bytes == 77);
    for (int n = 0; n < 200; n++) {
        int64_t B = rng_int(&rng, 1, 20), Lq = rng_int(&rng, 1, 900), Lk = rng_int(&rng, 1, 900);
        ok(attn_layer_workspace_bytes(g.layer, B, Lq, Lk, NULL, &whole));
        for (int m = 0; m < 30; m++) {
            ok(attn_layer_workspace_bytes(g.layer, rng_int(&rng, 0, B), rng_int(&rng, 0, Lq),
                                          rng_int(&rng, 0, Lk), NULL, &bytes));
            assert_true(bytes <= whole);
        }
    }
    layer_free(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),          cmocka_unit_test(test_op_is_copied),
        cmocka_unit_test(test_set_weights),     cmocka_unit_test(test_weights_set_again),
        cmocka_unit_test(test_missing_weights), cmocka_unit_test(test_project_errors),
        cmocka_unit_test(test_run_errors),      cmocka_unit_test(test_self_with_other_widths),
        cmocka_unit_test(test_workspace_bytes),
    };
    return cmocka_run_group_tests_name("layer_args", tests, NULL, NULL);
}
