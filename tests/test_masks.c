/* SPDX-License-Identifier: MIT */
/* Every rule against the oracle, alone and in pairs; masks of every shape and stride. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "whitebox.h"

#include <math.h>
#include <stdlib.h>

static const struct tiles paths[] = {
    TILES_OF(0, PATH_AUTO),      TILES_OF(0, PATH_DECODE),  TILES_OF(16, PATH_TILES),
    TILES_OF(16, PATH_TILES_NT), TILES_OF(16, PATH_DECODE),
};
#define N_PATHS 5

/* ---------------------------------------------------------- one by one */

/* Every set of broadcast axes, every stride style, whole and cut short, for both kinds. */
static void test_mask_shapes(void **state)
{
    (void)state;
    for (int64_t row = 0; row < 2 * 8 * 4 * 3; row++) {
        struct spec s = {.seed = (uint64_t)row, .row = row, .B = 3, .Hq = 4, .Hk = 2, .Lk = 35};
        struct mask_spec *m = row % 2 ? &s.mask_bool : &s.mask_add;
        s.Lq = row % 5 == 0 ? 2 : 19;
        s.Dk = 6;
        m->on = 1;
        m->full = (int32_t)(row / 2 % 8);
        m->style = (int32_t)(row / 16 % 4);
        m->cut = row / 64 == 0 ? 0 : row / 64 == 1 ? 4 : 35;
        if (m->style == MASK_KEYS_BROADCAST && row / 64 == 1) m->cut = 34;
        s.outs = row % 3 ? 0 : OUT_STAGE(REF_MASKED) | OUT_STAGE(REF_WEIGHTS);
        if (rig_skip(row)) continue;
        struct rig g;
        rig_make(&g, &s);
        expect_on(&g, paths, N_PATHS);
        rig_free(&g);
    }
}

/* Any nonzero byte means attend; the polarity is that of a lower triangle = causal
   (pytorch PR#170415, rasbt/LLMs-from-scratch#1061). */
static void test_bool_polarity(void **state)
{
    struct spec s = {.seed = 1, .Hq = 2, .Lq = 9, .Lk = 9, .Dk = 4};
    struct rig masked, causal;
    (void)state;
    s.mask_bool = (struct mask_spec){.on = 1, .full = FULL_Q};
    rig_make(&masked, &s);
    for (int64_t n = 0; n < 81; n++)
        masked.mask_bool[n] = (uint8_t)(n % 9 <= n / 9 ? 1 << n % 8 : 0);
    rig_expect(&masked);
    s.mask_bool.on = 0;
    s.causal = ATTN_CAUSAL_TOP_LEFT;
    rig_make(&causal, &s);
    rig_expect(&causal);
    for (int64_t n = 0; n < 2 * 9 * 4; n++)
        assert_true(fabsf(masked.out.at[n] - causal.out.at[n]) < 1e-6f);
    rig_free(&masked);
    rig_free(&causal);
}

/* Masking by a finite constant leaks where it meets another (onnxruntime#14363): causal, a key
   mask of 0110010, scores of std 30; and a finite huge negative is plain arithmetic. */
static void test_masked_weight_is_exactly_zero(void **state)
{
    static const uint8_t keys[7] = {0, 1, 1, 0, 0, 1, 0};
    (void)state;
    for (int32_t causal = 0; causal < 3; causal++) {
        struct spec s = {.seed = 14363,
                         .row = causal,
                         .Hq = 2,
                         .Lq = 7,
                         .Lk = 7,
                         .Dk = 16,
                         .causal = causal,
                         .std = 5.5,
                         .outs = OUT_STAGE(REF_WEIGHTS)};
        struct rig g;
        s.mask_bool.on = 1;
        rig_make(&g, &s);
        for (int j = 0; j < 7; j++) g.mask_bool[j] = keys[j];
        expect_on(&g, paths, N_PATHS);
        for (int64_t n = 0; n < 2 * 7 * 7; n++)
            if (!keys[n % 7]) assert_true(bits_of_float(g.stage[REF_WEIGHTS].p[n]) == 0);
        rig_free(&g);
    }
}

static void test_finite_huge_negative_is_arithmetic(void **state)
{
    static const float huge[] = {-1e30f, -3.4e38f, -1e9f};
    (void)state;
    for (int n = 0; n < 3; n++) {
        struct spec s = {.seed = 3, .row = n, .Lq = 6, .Lk = 20, .Dk = 4};
        struct rig g;
        s.mask_add = (struct mask_spec){.on = 1, .full = FULL_Q, .density = 1};
        rig_make(&g, &s);
        for (int64_t i = 0; i < 6; i++)
            for (int64_t j = 0; j < 20; j++) /* row 2: all keys equally bad, not an empty row */
                g.mask_add.p[i * 20 + j] = i == 2 || j % 3 == 0 ? huge[n] : 0;
        rig_solve(&g);
        /* In float the score vanishes beside the mask: the bad row becomes a plain mean. */
        for (int64_t d = 0; d < 4; d++) {
            double mean = 0;
            for (int64_t j = 0; j < 20; j++) mean += (double)*test_at(&g.v, 0, 0, j, d) / 20;
            g.ref.out.x[2 * 4 + d] = mean;
            g.ref.out.tol[2 * 4 + d] = n == 2 ? 1 : 1e-6;
        }
        expect_on(&g, paths, N_PATHS);
        rig_free(&g);
    }
}

/* ------------------------------------------------------------- in pairs */

enum {
    CAUSAL_TL,
    CAUSAL_BR,
    WINDOW_BOTH,
    WINDOW_LEFT,
    WINDOW_RIGHT,
    WINDOW_ZERO,
    SOFTCAP,
    SCALE_0,
    SCALE_NEGATIVE,
    BOOL_ROWS,
    BOOL_ALL,
    BOOL_KEYS_CUT,
    ADD_ROWS,
    ADD_ALL,
    ADD_HEADS_BACKWARDS,
    RANGE_ENDS,
    RANGE_BOTH,
    POS,
    POS_FAR,
    BLHD,
    PADDED,
    SHARED,
    CHUNK,
    CHUNK_LARGE,
    ALIBI,
    SINKS,
    SEGMENTS,
    DOCUMENTS,
    N_RULES
};

static void add_rule(struct spec *s, int rule)
{
    switch (rule) {
    case CAUSAL_TL:
        s->causal = ATTN_CAUSAL_TOP_LEFT;
        break;
    case CAUSAL_BR:
        s->causal = ATTN_CAUSAL_BOTTOM_RIGHT;
        break;
    case WINDOW_BOTH:
        s->window = true, s->left = 5, s->right = 3;
        break;
    case WINDOW_LEFT:
        s->window = true, s->left = 7, s->right = -1;
        break;
    case WINDOW_RIGHT:
        s->window = true, s->left = -1, s->right = 2;
        break;
    case WINDOW_ZERO:
        s->window = true, s->left = 0, s->right = 0;
        break;
    case SOFTCAP:
        s->softcap = 0.75;
        break;
    case SCALE_0:
        s->has_scale = true, s->scale = 0;
        break;
    case SCALE_NEGATIVE:
        s->has_scale = true, s->scale = -0.7;
        break;
    case BOOL_ROWS:
        s->mask_bool = (struct mask_spec){.on = 1, .full = FULL_Q};
        break;
    case BOOL_ALL:
        s->mask_bool = (struct mask_spec){.on = 1, .full = 7, .style = 1};
        break;
    case BOOL_KEYS_CUT:
        s->mask_bool = (struct mask_spec){.on = 1, .full = 1, .cut = 9};
        break;
    case ADD_ROWS:
        s->mask_add = (struct mask_spec){.on = 1, .full = FULL_Q};
        break;
    case ADD_ALL:
        s->mask_add = (struct mask_spec){.on = 1, .full = 7, .cut = 3};
        break;
    case ADD_HEADS_BACKWARDS:
        s->mask_add = (struct mask_spec){.on = 1, .full = 2, .style = 2};
        break;
    case RANGE_ENDS:
        s->range = RANGE_END;
        break;
    case RANGE_BOTH:
        s->range = RANGE_BEGIN | RANGE_END;
        break;
    case POS:
        s->pos = POS_SMALL;
        break;
    case POS_FAR:
        s->pos = POS_EXTREME;
        break;
    case BLHD:
        s->layout = ATTN_LAYOUT_BLHD;
        break;
    case PADDED:
        s->strides = STRIDES_NEGATIVE;
        break;
    case SHARED:
        s->strides = STRIDES_SHARED;
        break;
    case CHUNK:
        s->chunk = 5;
        break;
    case CHUNK_LARGE:
        s->chunk = 16;
        break;
    case ALIBI:
        s->alibi = true;
        break;
    case SINKS:
        s->sinks = true;
        break;
    case SEGMENTS:
        s->segments = 3;
        break;
    case DOCUMENTS:
        s->segments = -4;
        break;
    default:
        break;
    }
}

static void pair(int64_t row, int first, int second)
{
    static const int64_t lengths[][2] = {{23, 41}, {3, 50}, {41, 23}};
    struct spec s = {
        .seed = (uint64_t)row, .row = row, .B = 2, .Hq = 4, .Hk = 2, .Dk = 8, .Dv = 5};
    s.Lq = lengths[row % 3][0];
    s.Lk = lengths[row % 3][1];
    s.outs = row % 4 == 0 ? OUT_ALL : 0;
    s.threads = 1 + (int32_t)(row % 2);
    add_rule(&s, first);
    add_rule(&s, second);
    struct rig g;
    rig_make(&g, &s);
    expect_on(&g, paths, N_PATHS);
    rig_free(&g);
}

static void test_rules_alone_and_in_pairs(void **state)
{
    (void)state;
    for (int64_t row = 0; row < 2 * N_RULES * N_RULES; row++) {
        int first = (int)(row / 2 % N_RULES), second = (int)(row / 2 / N_RULES);
        if (first <= second && !rig_skip(row)) pair(row, first, second);
    }
}

/* Everything at once. */
static void test_rules_all_together(void **state)
{
    (void)state;
    for (int64_t row = 0; row < 120; row++) {
        struct rng rng = rng_make((uint64_t)row + 5000);
        struct spec s = {.seed = (uint64_t)row, .row = row, .B = 2, .Hq = 6, .Hk = 2, .Dk = 9};
        s.Lq = rng_int(&rng, 1, 70);
        s.Lk = rng_int(&rng, 10, 80);
        for (int n = 0; n < 6; n++) add_rule(&s, (int)rng_int(&rng, 0, N_RULES - 1));
        s.outs = rng_chance(&rng, 0.3) ? OUT_ALL : 0;
        if (rig_skip(row)) continue;
        struct rig g;
        rig_make(&g, &s);
        expect_on(&g, paths, N_PATHS);
        rig_free(&g);
    }
}

/* ----------------------------------------------------------- saturation */

/* Windows as wide as int64 and positions as far: the sums saturate, nothing wraps. */
static void test_extreme_windows_and_positions(void **state)
{
    static const int64_t far[] = {INT64_MAX, INT64_MAX - 1, INT64_MIN, INT64_MIN + 1, 0, -1, 30};
    static const int64_t wide[] = {INT64_MAX, INT64_MAX - 1, 0, -1, 5};
    (void)state;
    for (int64_t row = 0; row < 7 * 5 * 5; row++) {
        struct spec s = {.seed = (uint64_t)row,
                         .row = row,
                         .Lq = row % 2 ? 3 : 20,
                         .Lk = 20,
                         .Dk = 3,
                         .pos = POS_EXTREME,
                         .positions = &far[row % 7],
                         .window = true};
        s.left = wide[row / 7 % 5];
        s.right = wide[row / 35];
        s.causal = (int32_t)(row % 3);
        if (rig_skip(row)) continue;
        struct rig g;
        rig_make(&g, &s);
        expect_on(&g, paths, N_PATHS);
        rig_free(&g);
    }
}

/* A soft cap saturates at +-cap for huge scores (vllm#56578: cap 50, score 5000) and leaves
   small ones alone. */
static void test_softcap_of_huge_scores(void **state)
{
    static const float scores[] = {5000, -5000, 1e30f, -1e30f, 3e38f, 0, 1e-20f, 49, 0.125f, 2};
    (void)state;
    for (int n = 0; n < 3; n++) {
        struct spec s = {.seed = 50,
                         .row = n,
                         .Lq = n == 0 ? 1 : 20,
                         .Lk = 10,
                         .Dk = 1,
                         .has_scale = true,
                         .scale = 1,
                         .outs = OUT_ALL};
        struct rig g;
        s.softcap = n == 1 ? 1e-3 : 50;
        rig_make(&g, &s);
        for (int64_t j = 0; j < 10; j++) *test_at(&g.k, 0, 0, j, 0) = scores[j];
        for (int64_t i = 0; i < s.Lq; i++) *test_at(&g.q, 0, 0, i, 0) = 1;
        expect_on(&g, paths, N_PATHS);
        rig_free(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mask_shapes),
        cmocka_unit_test(test_bool_polarity),
        cmocka_unit_test(test_masked_weight_is_exactly_zero),
        cmocka_unit_test(test_finite_huge_negative_is_arithmetic),
        cmocka_unit_test(test_rules_alone_and_in_pairs),
        cmocka_unit_test(test_rules_all_together),
        cmocka_unit_test(test_extreme_windows_and_positions),
        cmocka_unit_test(test_softcap_of_huge_scores),
    };
    return cmocka_run_group_tests_name("masks", tests, NULL, NULL);
}
