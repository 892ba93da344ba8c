/* SPDX-License-Identifier: MIT */
/* Making handles and setting them: every error of the header, and what it leaves alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void ok(attn_status status) { assert_int_equal(status, ATTN_OK); }

static void bad(attn_status status) { assert_int_equal(status, ATTN_EINVAL); }

static attn_op *make_op(void)
{
    attn_op *op;
    ok(attn_op_create(&op, 4, 2, 8, 8));
    return op;
}

static attn_args *make_args(void)
{
    attn_args *args;
    ok(attn_args_create(&args));
    return args;
}

static void test_create_op(void **state)
{
    const int64_t big = (int64_t)INT32_MAX + 1;
    static const int64_t wrong[][4] = {
        {0, 1, 8, 8},  {1, 0, 8, 8},  {1, 1, 0, 8},         {1, 1, 8, 0},
        {-1, 1, 8, 8}, {4, -2, 8, 8}, {4, 2, -8, 8},        {4, 2, 8, -8},
        {5, 2, 8, 8},  {2, 4, 8, 8},  {INT64_MIN, 1, 8, 8},
    };
    const int64_t large[][4] = {
        {big, 1, 8, 8}, {big, big, 8, 8},     {1, 1, big, 8},
        {1, 1, 8, big}, {INT64_MAX, 1, 8, 8}, {1, 1, INT64_MAX, INT64_MAX},
    };
    attn_op *op;
    (void)state;
    bad(attn_op_create(NULL, 4, 2, 8, 8));
    for (size_t n = 0; n < sizeof wrong / sizeof *wrong; n++) {
        op = (attn_op *)(uintptr_t)64;
        attn_status status =
            attn_op_create(&op, wrong[n][0], wrong[n][1], wrong[n][2], wrong[n][3]);
        if (status != ATTN_EINVAL || op != NULL) fail_msg("row %d: %d", (int)n, (int)status);
    }
    for (size_t n = 0; n < sizeof large / sizeof *large; n++) {
        op = (attn_op *)(uintptr_t)64;
        attn_status status =
            attn_op_create(&op, large[n][0], large[n][1], large[n][2], large[n][3]);
        if (status != ATTN_EOVERFLOW || op != NULL) fail_msg("row %d: %d", (int)n, (int)status);
    }
    attn_op_destroy(NULL);
    attn_args_destroy(NULL);
    attn_layer_destroy(NULL);
}

static void test_null_handles(void **state)
{
    const int64_t four[4] = {1, 1, 1, 1};
    size_t bytes = 77;
    attn_op *op = (attn_op *)(uintptr_t)64;
    (void)state;
    bad(attn_op_copy(&op, NULL));
    assert_null(op);
    bad(attn_op_copy(NULL, NULL));
    bad(attn_op_set_scale(NULL, 1));
    bad(attn_op_set_causal(NULL, 0));
    bad(attn_op_set_window(NULL, 1, 1));
    bad(attn_op_set_softcap(NULL, 1));
    bad(attn_op_set_layout(NULL, 0));
    bad(attn_op_set_engine(NULL, 0));
    bad(attn_op_set_threads(NULL, 1));
    bad(attn_op_set_isa(NULL, 0));
    bad(attn_op_trim(NULL));
    bad(attn_args_create(NULL));
    bad(attn_args_clear(NULL));
    bad(attn_args_set_strides(NULL, ATTN_Q, four));
    bad(attn_args_set_mask_bool(NULL, NULL, NULL, NULL));
    bad(attn_args_set_mask_add(NULL, NULL, NULL, NULL));
    bad(attn_args_set_key_range(NULL, 1, NULL, four));
    bad(attn_args_set_positions(NULL, 1, four));
    bad(attn_args_set_weights(NULL, NULL));
    bad(attn_args_set_scores_out(NULL, 0, NULL, 0));
    bad(attn_args_set_lse(NULL, NULL));
    bad(attn_args_set_type(NULL, ATTN_Q, ATTN_F32));
    bad(attn_args_set_workspace(NULL, NULL, 0));
    bad(attn_workspace_bytes(NULL, 1, 1, 1, NULL, &bytes));
    bad(attn_layer_workspace_bytes(NULL, 1, 1, 1, NULL, &bytes));
    bad(attn_explain(NULL, 1, 1, 1, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL));
    assert_true(bytes == 77);
}

/* What an op computes, as bits: a setter that fails must not change it. */
static float *fingerprint(struct rig *g, attn_op *op)
{
    float *out = must_alloc((size_t)test_count(&g->out), sizeof *out);
    ok(attn_run(op, g->s.B, g->s.Lq, g->s.Lk, g->q.at, g->k.at, g->v.at, out));
    return out;
}

static void test_op_setters(void **state)
{
    const struct spec s = {.seed = 1, .B = 2, .Hq = 4, .Hk = 2, .Lq = 9, .Lk = 9, .Dk = 8};
    struct rig g;
    (void)state;
    rig_make(&g, &s);
    attn_op *op = make_op();
    ok(attn_op_set_scale(op, 0.3));
    ok(attn_op_set_softcap(op, 2));
    ok(attn_op_set_causal(op, ATTN_CAUSAL_TOP_LEFT));
    ok(attn_op_set_window(op, 4, -1));
    ok(attn_op_set_threads(op, 2));
    float *before = fingerprint(&g, op);
    const double numbers[] = {(double)NAN, (double)INFINITY, (double)-INFINITY, 1e39, -1e39};
    for (int n = 0; n < 5; n++) {
        bad(attn_op_set_scale(op, numbers[n]));
        bad(attn_op_set_softcap(op, numbers[n]));
    }
    bad(attn_op_set_softcap(op, -1));
    bad(attn_op_set_softcap(op, 1e-40)); /* no normal float */
    bad(attn_op_set_softcap(op, 1e-50));
    bad(attn_op_set_causal(op, 3));
    bad(attn_op_set_causal(op, -1));
    bad(attn_op_set_window(op, -2, 0));
    bad(attn_op_set_window(op, 0, -2));
    bad(attn_op_set_window(op, INT64_MIN, 0));
    bad(attn_op_set_layout(op, 2));
    bad(attn_op_set_layout(op, -1));
    assert_int_equal(attn_op_set_engine(op, 99), ATTN_EUNSUPPORTED);
    assert_int_equal(attn_op_set_engine(op, -1), ATTN_EUNSUPPORTED);
    bad(attn_op_set_threads(op, -1));
    bad(attn_op_set_threads(op, 4097));
    float *after = fingerprint(&g, op);
    assert_true(same_bits("out", before, after, test_count(&g.out)));
    free(before);
    free(after);
    attn_op_destroy(op);
    rig_free(&g);
}

static void test_op_setters_take(void **state)
{
    attn_op *op = make_op();
    (void)state;
    ok(attn_op_set_scale(op, 0));
    ok(attn_op_set_scale(op, -3e38));
    ok(attn_op_set_softcap(op, 0));
    ok(attn_op_set_softcap(op, 3e38));
    ok(attn_op_set_window(op, INT64_MAX, INT64_MAX));
    ok(attn_op_set_window(op, -1, -1));
    ok(attn_op_set_engine(op, ATTN_ENGINE_BLAS));
    ok(attn_op_set_threads(op, 4096));
    ok(attn_op_set_threads(op, 1));
    ok(attn_op_set_threads(op, 0));
    for (int32_t mask = -1; mask < 8; mask++) ok(attn_op_set_isa(op, mask));
    ok(attn_op_set_isa(op, ATTN_ISA_ALL));
    ok(attn_op_set_isa(op, INT32_MIN));
    ok(attn_op_trim(op));
    attn_op_destroy(op);
}

/* A copy has the settings of then, and goes its own way. */
static void test_copy_is_independent(void **state)
{
    const struct spec s = {.seed = 1, .Hq = 4, .Hk = 2, .Lq = 9, .Lk = 9, .Dk = 8};
    struct rig g;
    attn_op *copy;
    (void)state;
    rig_make(&g, &s);
    attn_op *op = make_op();
    ok(attn_op_set_causal(op, ATTN_CAUSAL_TOP_LEFT));
    ok(attn_op_set_scale(op, 0.7));
    float *first = fingerprint(&g, op);
    ok(attn_op_copy(&copy, op));
    ok(attn_op_set_causal(op, ATTN_CAUSAL_NONE));
    float *changed = fingerprint(&g, op), *copied = fingerprint(&g, copy);
    assert_true(same_bits("copy", first, copied, test_count(&g.out)));
    assert_true(memcmp(first, changed, (size_t)test_count(&g.out) * sizeof(float)) != 0);
    attn_op_destroy(op);
    float *alone = fingerprint(&g, copy);
    assert_true(same_bits("copy", first, alone, test_count(&g.out)));
    bad(attn_op_copy(NULL, copy));
    free(first);
    free(changed);
    free(copied);
    free(alone);
    attn_op_destroy(copy);
    rig_free(&g);
}

/* The default scale is 1/sqrt(Dk), of the head, not of the model (vit-pytorch#65: E 8, H 4);
   an explicit one, 0 and negative too, is taken as given. */
static void test_scale(void **state)
{
    const double scales[] = {0, -0.25, 1, 3, 0.70710678118654752};
    (void)state;
    for (int n = -1; n < 5; n++) {
        struct spec s = {.seed = 32,
                         .row = n,
                         .Hq = 4,
                         .Lq = 6,
                         .Lk = 6,
                         .Dk = 2,
                         .layout = ATTN_LAYOUT_BLHD,
                         .outs = OUT_STAGE(REF_RAW)};
        s.has_scale = n >= 0;
        if (n >= 0) s.scale = scales[n];
        rig_once(&s);
    }
}

static void test_args_setters(void **state)
{
    const int64_t four[4] = {1, 1, 1, 1}, negative[4] = {1, 1, -1, 1};
    const int64_t huge = INT64_MAX / 4;
    attn_args *args = make_args();
    uint8_t mask = 1;
    float x = 0;
    (void)state;
    bad(attn_args_set_strides(args, 4, four));
    bad(attn_args_set_strides(args, -1, four));
    ok(attn_args_set_strides(args, ATTN_OUT, NULL));
    bad(attn_args_set_mask_bool(args, &mask, NULL, four));
    bad(attn_args_set_mask_bool(args, &mask, negative, NULL));
    bad(attn_args_set_mask_add(args, &x, NULL, NULL));
    bad(attn_args_set_mask_add(args, &x, negative, NULL));
    ok(attn_args_set_mask_bool(args, NULL, NULL, NULL));
    ok(attn_args_set_mask_add(args, NULL, NULL, NULL));
    bad(attn_args_set_key_range(args, -1, NULL, four));
    assert_int_equal(attn_args_set_key_range(args, huge, NULL, four), ATTN_EOVERFLOW);
    ok(attn_args_set_key_range(args, 0, NULL, NULL));
    bad(attn_args_set_positions(args, -1, four));
    bad(attn_args_set_positions(args, 1, NULL));
    assert_int_equal(attn_args_set_positions(args, huge, four), ATTN_EOVERFLOW);
    ok(attn_args_set_positions(args, 0, NULL));
    bad(attn_args_set_scores_out(args, 4, &x, 0));
    bad(attn_args_set_scores_out(args, -1, &x, 0));
    bad(attn_args_set_scores_out(args, ATTN_STAGE_RAW, &x, 2));
    bad(attn_args_set_scores_out(args, ATTN_STAGE_RAW, &x, -1));
    bad(attn_args_set_type(args, 4, ATTN_F32));
    bad(attn_args_set_type(args, -1, ATTN_F32));
    assert_int_equal(attn_args_set_type(args, ATTN_K, 1), ATTN_EUNSUPPORTED);
    assert_int_equal(attn_args_set_type(args, ATTN_K, -1), ATTN_EUNSUPPORTED);
    for (int32_t slot = ATTN_Q; slot <= ATTN_OUT; slot++)
        ok(attn_args_set_type(args, slot, ATTN_F32));
    bad(attn_args_set_workspace(args, NULL, 1));
    ok(attn_args_set_workspace(args, NULL, 0));
    ok(attn_args_clear(args));
    attn_args_destroy(args);
}

/* A setter that fails leaves what was set; small arrays are copied; clear forgets everything. */
static void test_args_keep_what_was_set(void **state)
{
    struct spec s = {.seed = 6,
                     .B = 2,
                     .Hq = 2,
                     .Lq = 4,
                     .Lk = 9,
                     .Dk = 8,
                     .range = RANGE_END,
                     .pos = POS_SMALL,
                     .causal = ATTN_CAUSAL_TOP_LEFT};
    struct rig g;
    const int64_t one = 1;
    (void)state;
    rig_make(&g, &s);
    rig_prepare(&g);
    rig_solve(&g);
    bad(attn_args_set_key_range(g.args, -1, NULL, NULL));
    assert_int_equal(attn_args_set_key_range(g.args, INT64_MAX / 4, NULL, &one), ATTN_EOVERFLOW);
    bad(attn_args_set_positions(g.args, 3, NULL));
    bad(attn_args_set_scores_out(g.args, 9, NULL, 0));
    for (int n = 0; n < 2; n++) g.end[n] = g.pos[n] = -5; /* copied already */
    ok(rig_run(&g));
    assert_true(rig_check(&g));
    ok(attn_args_clear(g.args));
    for (int64_t n = 0; n < test_count(&g.v);
         n++) /* the poison beyond the range is visible now */
        if (!isfinite(g.v.at[n])) g.v.at[n] = g.k.at[n] = 0;
    float *cleared = rig_output(&g), *plain = fingerprint(&g, g.op);
    assert_true(same_bits("out", cleared, plain, test_count(&g.out)));
    free(cleared);
    free(plain);
    rig_free(&g);
}

static void test_texts(void **state)
{
    char version[64];
    (void)state;
    snprintf(version, sizeof version, "%d.%d.%d", ATTN_VERSION_MAJOR, ATTN_VERSION_MINOR,
             ATTN_VERSION_PATCH);
    assert_string_equal(attn_version(), version);
    for (int32_t a = ATTN_EINTERNAL; a <= ATTN_OK; a++) {
        assert_true(strlen(attn_status_string(a)) > 1);
        for (int32_t b = ATTN_EINTERNAL; b < a; b++)
            assert_string_not_equal(attn_status_string(a), attn_status_string(b));
    }
    const int32_t unknown[] = {1, -8, -100, INT32_MAX, INT32_MIN};
    for (int n = 0; n < 5; n++) assert_true(strlen(attn_status_string(unknown[n])) > 1);
}

static int32_t isa_of_cpu(void)
{
#if RIG_X86_64
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return ATTN_ISA_AVX2;
#endif
    return ATTN_ISA_BASE;
}

/* A BLAS that takes this CPU for an old one is named so. */
static void test_blas_info(void **state)
{
    char whole[4096], text[4096];
    size_t needed = 0, again = 0;
    (void)state;
    ok(attn_blas_info(NULL, 0, &needed));
    assert_in_range(needed, 10, sizeof whole - 1);
    ok(attn_blas_info(whole, sizeof whole, NULL));
    assert_int_equal(strlen(whole) + 1, needed);
    for (size_t cap = 1; cap <= needed + 1; cap++) {
        memset(text, 'x', sizeof text);
        ok(attn_blas_info(text, cap, &again));
        size_t length = cap < needed ? cap - 1 : needed - 1;
        assert_true(again == needed && text[length] == 0 && text[length + 1] == 'x');
        assert_memory_equal(text, whole, length);
    }
    bad(attn_blas_info(NULL, 5, &again));
    bool slow = strstr(whole, "core Prescott;") != NULL && isa_of_cpu() != ATTN_ISA_BASE;
    assert_int_equal(strstr(whole, "OPENBLAS_CORETYPE") != NULL, slow);
    print_message("%s\n", whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_op),
        cmocka_unit_test(test_null_handles),
        cmocka_unit_test(test_op_setters),
        cmocka_unit_test(test_op_setters_take),
        cmocka_unit_test(test_copy_is_independent),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_args_setters),
        cmocka_unit_test(test_args_keep_what_was_set),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_blas_info),
    };
    return cmocka_run_group_tests_name("handles", tests, NULL, NULL);
}
