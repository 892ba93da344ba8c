/* SPDX-License-Identifier: MIT */
/*
 * The tests' own tools: a comparator that a NaN cannot fool, an oracle that
 * agrees with hand-made numbers, guards that notice a stray write. (A test
 * suite that passes on NaN: cubecl PR#1070, oneDNN PR#2410.)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void test_close(void **state)
{
    const float inf = INFINITY, nan = NAN;
    const struct {
        double want, tol;
        float got;
        bool close;
    } rows[] = {
        {1, 0.5, 1.25f, true},
        {1, 0.25, 1.25f, true},
        {1, 0.2, 1.25f, false},
        {1, 0, 1, true},
        {0, 0, -0.0f, true},
        {0, 0, 1e-45f, false},
        {(double)nan, 1e9, 0, false}, /* a NaN reference matches no number */
        {(double)nan, INFINITY, 1, false},
        {(double)nan, 1e9, inf, false},
        {(double)nan, 0, nan, true},
        {1, 1e9, nan, false},
        {1, INFINITY, nan, false},
        {1, 1e9, inf, false},
        {1, INFINITY, inf, false},
        {1, INFINITY, -inf, false},
        {(double)inf, 1e9, inf, true},
        {(double)inf, INFINITY, -inf, false},
        {(double)-inf, 0, -inf, true},
        {(double)-inf, INFINITY, -3e38f, false}, /* a finite stand-in is no -inf */
        {(double)-inf, INFINITY, nan, false},
        {(double)inf, INFINITY, 3e38f, false},
        {1, (double)nan, 1, false}, /* a NaN tolerance allows nothing */
    };
    (void)state;
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
        if (ref_close(rows[n].want, rows[n].tol, rows[n].got) != rows[n].close)
            fail_msg("row %d", (int)n);
}

static void test_margin_remembers_the_first_bad_one(void **state)
{
    struct ref_margin m = {0};
    (void)state;
    ref_compare(&m, 0, 1, 0.5, 1.25f);
    ref_compare(&m, 1, 1, 0.5, 1.125f);
    assert_int_equal(m.bad, 0);
    assert_true(m.worst == 0.5 && m.at == 0);
    ref_compare(&m, 2, (double)NAN, 1, 1);
    ref_compare(&m, 3, 1, 1, 9);
    assert_int_equal(m.bad, 2);
    assert_int_equal(m.at, 2);
    assert_int_equal(m.seen, 4);
    assert_true(isinf(m.worst));
}

/* Two keys with scores ln 3 apart: weights 3/4 and 1/4. */
static void test_oracle_by_hand(void **state)
{
    const double q[1] = {1}, k[2] = {log(3), 0}, v[4] = {4, 8, 0, 16};
    struct ref_problem p = ref_problem_make(1, 1, 1, 1, 2, 1, 2);
    struct ref_result r;
    (void)state;
    p.q = q;
    p.k = k;
    p.v = v;
    ref_solve(&p, &r);
    assert_true(fabs(r.out.x[0] - 3) < 1e-12 && fabs(r.out.x[1] - 10) < 1e-12);
    assert_true(fabs(r.stage[REF_WEIGHTS].x[0] - 0.75) < 1e-12);
    assert_true(fabs(r.lse.x[0] - log(4)) < 1e-12);
    assert_true(r.out.tol[0] > 0 && r.out.tol[0] < 1e-5);
    assert_false(r.has_nan);
    ref_free(&r);
}

/* The picture in the header of FlashAttention, whose alignment is bottom-right. */
static void test_oracle_causal_pictures(void **state)
{
    static const char *const pictures[][5] = {
        {"1000", "1100", "", "", ""},   /* top-left, 2 x 4 */
        {"1110", "1111", "", "", ""},   /* bottom-right, 2 x 4 */
        {"10", "11", "11", "11", "11"}, /* top-left, 5 x 2 */
        {"00", "00", "00", "10", "11"}, /* bottom-right, 5 x 2 */
        {"0111", "0011", "", "", ""},   /* window (1, 1) aligned to the end */
    };
    static const int64_t sizes[][2] = {{2, 4}, {2, 4}, {5, 2}, {5, 2}, {2, 4}};
    static const int32_t causal[] = {1, 2, 1, 2, 0};
    (void)state;
    for (int n = 0; n < 5; n++) {
        struct ref_problem p = ref_problem_make(1, 1, 1, sizes[n][0], sizes[n][1], 1, 1);
        p.causal = causal[n];
        if (n == 4) p.left = p.right = 1;
        for (int64_t i = 0; i < p.Lq; i++)
            for (int64_t j = 0; j < p.Lk; j++)
                assert_int_equal(ref_sees(&p, 0, 0, i, j), pictures[n][i][j] == '1');
    }
}

static void test_oracle_offsets_saturate(void **state)
{
    static const int64_t pos[] = {INT64_MAX, INT64_MIN};
    struct ref_problem p = ref_problem_make(2, 1, 1, 3, 3, 1, 1);
    (void)state;
    p.pos = pos;
    p.causal = ATTN_CAUSAL_TOP_LEFT;
    for (int64_t j = 0; j < 3; j++) {
        assert_true(ref_sees(&p, 0, 0, 2, j));
        assert_false(ref_sees(&p, 1, 0, 2, j));
    }
    p.left = 5;
    assert_false(ref_sees(&p, 0, 0, 2, 2));
}

/* A run with this spec, for tests of the rig itself. */
static void make_and_solve(struct rig *g)
{
    const struct spec s = {.seed = 3,
                           .Hq = 2,
                           .Lq = 4,
                           .Lk = 5,
                           .Dk = 3,
                           .outs = OUT_LSE,
                           .strides = STRIDES_PADDED};
    rig_make(g, &s);
    rig_expect(g);
}

static void quiet_check_fails(struct rig *g) { assert_false(rig_check(g)); }

static void test_rig_notices(void **state)
{
    struct rig g;
    (void)state;
    make_and_solve(&g);
    print_message("the complaints that follow are wanted\n");
    *test_at(&g.out, 0, 1, 2, 1) += 1e-4f; /* a wrong number */
    quiet_check_fails(&g);
    assert_int_equal(rig_run(&g), ATTN_OK);
    *test_at(&g.out, 0, 1, 2, 1) = prefill(); /* a number that was never written */
    quiet_check_fails(&g);
    assert_int_equal(rig_run(&g), ATTN_OK);
    test_at(&g.out, 0, 0, 0, 2)[1] = 0; /* a write into the gap behind a row */
    quiet_check_fails(&g);
    assert_int_equal(rig_run(&g), ATTN_OK);
    g.out.buf.p[-1] = 0; /* a write before */
    quiet_check_fails(&g);
    assert_int_equal(rig_run(&g), ATTN_OK);
    g.lse.p[g.lse.n] = 0; /* a write behind */
    quiet_check_fails(&g);
    assert_int_equal(rig_run(&g), ATTN_OK);
    assert_true(rig_check(&g));
    rig_free(&g);
}

static void test_generator_reaches_everything(void **state)
{
    struct rng rng = rng_make(1);
    double sum = 0, squares = 0;
    int seen[10] = {0};
    (void)state;
    for (int n = 0; n < 10000; n++) {
        double x = (double)rng_normal(&rng, 1);
        sum += x;
        squares += x * x;
        seen[rng_int(&rng, 0, 9)]++;
    }
    assert_true(fabs(sum / 10000) < 0.05 && fabs(squares / 10000 - 1) < 0.05);
    for (int n = 0; n < 10; n++) assert_in_range(seen[n], 800, 1200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_close),
        cmocka_unit_test(test_margin_remembers_the_first_bad_one),
        cmocka_unit_test(test_oracle_by_hand),
        cmocka_unit_test(test_oracle_causal_pictures),
        cmocka_unit_test(test_oracle_offsets_saturate),
        cmocka_unit_test(test_rig_notices),
        cmocka_unit_test(test_generator_reaches_everything),
    };
    return cmocka_run_group_tests_name("compare", tests, NULL, NULL);
}
