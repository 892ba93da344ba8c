/* SPDX-License-Identifier: MIT */
/* Weights, scores of each stage, means over heads, log-sum-exp. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "whitebox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct tiles paths[] = {
    TILES_OF(0, PATH_AUTO),    TILES_OF(0, PATH_DECODE),    TILES_OF(0, PATH_TILES),
    TILES_OF(1, PATH_TILES),   TILES_OF(0, PATH_TILES_NT),  TILES_OF(16, PATH_TILES),
    TILES_OF(16, PATH_DECODE), TILES_OF(16, PATH_TILES_NT),
};
#define N_PATHS 8

/* A run with some rules, drawn from the row's number. */
static struct spec spec_of_row(int64_t row)
{
    static const int64_t heads[][2] = {{1, 1}, {4, 2}, {3, 3}, {6, 1}};
    struct rng rng = rng_make((uint64_t)row * 3 + 1);
    const int64_t *h = heads[rng_int(&rng, 0, 3)];
    struct spec s = {.seed = (uint64_t)row, .row = row, .Hq = h[0], .Hk = h[1]};
    s.B = rng_int(&rng, 1, 3);
    s.Lq = row % 3 == 0 ? rng_int(&rng, 1, 6) : rng_int(&rng, 7, 75);
    s.Lk = rng_int(&rng, 1, 90);
    s.Dk = rng_int(&rng, 1, 33);
    s.Dv = rng_int(&rng, 1, 33);
    s.causal = (int32_t)rng_int(&rng, 0, 2);
    s.layout = (int32_t)rng_int(&rng, 0, 1);
    s.strides = (int32_t)rng_int(&rng, 0, 2);
    s.range = (int32_t)rng_int(&rng, 0, 3);
    s.softcap = rng_chance(&rng, 0.3) ? 2 : 0;
    s.mask_bool.on = rng_chance(&rng, 0.3);
    s.mask_bool.full = (int32_t)rng_int(&rng, 0, 7);
    s.mask_add.on = rng_chance(&rng, 0.3);
    s.mask_add.full = (int32_t)rng_int(&rng, 0, 7);
    s.misalign = rng_int(&rng, 0, 15);
    s.threads = (int32_t)rng_int(&rng, 1, 3);
    return s;
}

static void test_all_outputs(void **state)
{
    (void)state;
    for (int64_t row = 0; row < 60; row++) {
        struct spec s = spec_of_row(row);
        struct rig g;
        if (rig_skip(row)) continue;
        s.outs = row % 2 ? OUT_ALL : OUT_ALL_MEAN;
        rig_make(&g, &s);
        expect_on(&g, paths, N_PATHS);
        rig_free(&g);
    }
}

/* Each stage asked for alone, plain and averaged. */
static void test_one_output_at_a_time(void **state)
{
    (void)state;
    for (int64_t row = 100; row < 163; row++) {
        struct spec s = spec_of_row(row);
        int stage = (int)(row % 9) / 2;
        struct rig g;
        if (rig_skip(row)) continue;
        s.outs = row % 9 == 8 ? OUT_LSE : OUT_STAGE(stage) | (row % 2 ? OUT_MEAN(stage) : 0);
        rig_make(&g, &s);
        expect_on(&g, paths, N_PATHS);
        rig_free(&g);
    }
}

/* out has the same bits whatever else is asked for. */
static void same_out_for_all_outputs(int64_t row, int32_t isa, const struct tiles *tiles)
{
    static const int32_t outs[] = {OUT_LSE,
                                   OUT_STAGE(REF_WEIGHTS),
                                   OUT_ALL,
                                   OUT_ALL_MEAN,
                                   OUT_STAGE(REF_RAW),
                                   OUT_STAGE(REF_MASKED) | OUT_MEAN(REF_MASKED),
                                   OUT_STAGE(REF_WEIGHTS) | OUT_MEAN(REF_WEIGHTS)};
    struct spec s = spec_of_row(row);
    float *plain = NULL;
    for (int n = -1; n < 7; n++) {
        struct rig g;
        s.outs = n < 0 ? 0 : outs[n];
        rig_make(&g, &s);
        g.isa = isa;
        rig_tiles(&g, tiles);
        float *out = rig_output(&g);
        if (n < 0) plain = copy_floats(out, test_count(&g.out));
        if (!same_bits("out", plain, out, test_count(&g.out))) {
            rig_print(&g, "outputs asked for changed out");
            print_tiles(tiles);
            fail();
        }
        free(out);
        rig_free(&g);
    }
    free(plain);
}

static void test_out_has_the_same_bits(void **state)
{
    (void)state;
    for (int64_t row = 200; row < 230; row++)
        for (const int32_t *isa = rig_isas(); *isa >= 0; isa++)
            for (int n = 0; n < N_PATHS; n++)
                if (!rig_skip(row)) same_out_for_all_outputs(row, *isa, &paths[n]);
}

/* A long run in several parts and tiles: the same bits with weights. */
static void test_out_has_the_same_bits_when_long(void **state)
{
    static const int64_t lengths[][2] = {{1, 3000}, {300, 600}, {5, 1100}};
    static const struct tiles plain = TILES_OF(0, PATH_AUTO);
    (void)state;
    for (int n = 0; n < 3; n++) {
        float *outs[2];
        int64_t count = 0;
        for (int with = 0; with < 2; with++) {
            struct spec s = {.seed = 77, .Hq = 2, .Hk = 1, .Dk = 16, .threads = 2};
            s.Lq = lengths[n][0];
            s.Lk = lengths[n][1];
            s.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
            s.outs = with ? OUT_ALL : 0;
            struct rig g;
            rig_make(&g, &s);
            rig_tiles(&g, &plain);
            rig_expect(&g);
            outs[with] = test_packed(&g.out);
            count = test_count(&g.out);
            rig_free(&g);
        }
        assert_true(same_bits("out", outs[0], outs[1], count));
        free(outs[0]);
        free(outs[1]);
    }
}

/* Rows of weights sum to 1, or are 0 where a row sees nothing, and lse says so. */
static void test_rows_sum_to_one(void **state)
{
    (void)state;
    for (int64_t row = 300; row < 340; row++) {
        struct spec s = spec_of_row(row);
        struct rig g;
        s.outs = OUT_LSE | OUT_STAGE(REF_WEIGHTS);
        s.std = row % 4 ? 1 : 6;
        if (rig_skip(row)) continue;
        rig_make(&g, &s);
        rig_expect(&g);
        for (int64_t r = 0; r < s.B * s.Hq * s.Lq; r++) {
            double sum = 0;
            for (int64_t j = 0; j < s.Lk; j++)
                sum += (double)g.stage[REF_WEIGHTS].p[r * s.Lk + j];
            bool empty = g.lse.p[r] == -INFINITY;
            if (empty ? sum != 0 : fabs(sum - 1) > 1e-6) {
                rig_print(&g, "row sum");
                fail_msg("row %d sums to %.9g", (int)r, sum);
            }
        }
        rig_free(&g);
    }
}

/* softmax of the masked scores = weights = what lse implies, from the library's own numbers. */
static void test_outputs_agree(void **state)
{
    (void)state;
    for (int64_t row = 400; row < 430; row++) {
        struct spec s = spec_of_row(row);
        struct rig g;
        if (rig_skip(row)) continue;
        s.outs = OUT_ALL;
        rig_make(&g, &s);
        rig_expect(&g);
        for (int64_t n = 0; n < s.B * s.Hq * s.Lq * s.Lk; n++) {
            double lse = (double)g.lse.p[n / s.Lk], masked = (double)g.stage[REF_MASKED].p[n];
            double want = masked == -INFINITY ? 0 : exp(masked - lse);
            double tol = want > 0 ? want * (4e-6 + 0x1p-22 * (fabs(lse) + fabs(masked))) : 0;
            if (!ref_close(want, tol + (want > 0 ? 1e-37 : 0), g.stage[REF_WEIGHTS].p[n])) {
                rig_print(&g, "weights and lse disagree");
                fail_msg("element %d: %.9g, by lse %.9g", (int)n,
                         (double)g.stage[REF_WEIGHTS].p[n], want);
            }
        }
        rig_free(&g);
    }
}

/* Scores of 1e4: weights must not be formed from a float log-sum-exp (0.7309 for 0.7311). */
static void test_weights_at_large_scores(void **state)
{
    (void)state;
    struct spec s = {.seed = 1,
                     .Lq = 2,
                     .Lk = 2,
                     .Dk = 1,
                     .has_scale = true,
                     .scale = 1,
                     .exact = true,
                     .outs = OUT_STAGE(REF_WEIGHTS) | OUT_LSE};
    struct rig g;
    rig_make(&g, &s);
    for (int64_t i = 0; i < 2; i++) *test_at(&g.q, 0, 0, i, 0) = 1;
    *test_at(&g.k, 0, 0, 0, 0) = 10000;
    *test_at(&g.k, 0, 0, 1, 0) = 10001;
    expect_on(&g, paths, N_PATHS);
    assert_true(fabs((double)g.stage[REF_WEIGHTS].p[1] - 0.7310585786) < 1e-6);
    rig_free(&g);
}

/* set_weights is set_scores_out with the last stage; NULL takes an output away again. */
static void test_set_weights_is_the_last_stage(void **state)
{
    struct spec s = {
        .seed = 4, .Hq = 2, .Lq = 3, .Lk = 5, .Dk = 4, .outs = OUT_STAGE(REF_WEIGHTS)};
    struct rig g;
    (void)state;
    rig_make(&g, &s);
    rig_expect(&g);
    float *weights = copy_floats(g.stage[REF_WEIGHTS].p, 30);
    assert_int_equal(attn_args_set_scores_out(g.args, ATTN_STAGE_WEIGHTS, NULL, 0), ATTN_OK);
    assert_int_equal(rig_run(&g), ATTN_OK);
    assert_true(gbuf_untouched(&g.stage[REF_WEIGHTS]));
    assert_int_equal(attn_args_set_weights(g.args, g.stage[REF_WEIGHTS].p), ATTN_OK);
    assert_int_equal(rig_run(&g), ATTN_OK);
    assert_true(same_bits("weights", weights, g.stage[REF_WEIGHTS].p, 30));
    assert_int_equal(attn_args_set_weights(g.args, NULL), ATTN_OK);
    assert_int_equal(rig_run(&g), ATTN_OK);
    assert_true(gbuf_untouched(&g.stage[REF_WEIGHTS]));
    free(weights);
    rig_free(&g);
}

/* No keys at all: zeros, -inf, and outputs of no elements; K and V may be NULL. */
static void test_outputs_without_keys(void **state)
{
    struct spec s = {.seed = 4, .B = 2, .Hq = 2, .Lq = 3, .Dk = 4, .outs = OUT_ALL};
    struct rig g;
    (void)state;
    rig_make(&g, &s);
    expect_on(&g, paths, N_PATHS);
    gbuf_reset(&g.out.buf);
    assert_int_equal(attn_run_args(g.op, 2, 3, 0, g.q.at, NULL, NULL, g.out.at, g.args), ATTN_OK);
    assert_true(rig_check(&g));
    rig_free(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_outputs),
        cmocka_unit_test(test_one_output_at_a_time),
        cmocka_unit_test(test_out_has_the_same_bits),
        cmocka_unit_test(test_out_has_the_same_bits_when_long),
        cmocka_unit_test(test_rows_sum_to_one),
        cmocka_unit_test(test_outputs_agree),
        cmocka_unit_test(test_weights_at_large_scores),
        cmocka_unit_test(test_set_weights_is_the_last_stage),
        cmocka_unit_test(test_outputs_without_keys),
    };
    return cmocka_run_group_tests_name("outputs", tests, NULL, NULL);
}
