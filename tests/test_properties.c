/* SPDX-License-Identifier: MIT */
/*
 * What must hold between two runs of the library itself, over random shapes:
 * a rule and the same rule written out as a mask; keys in another order;
 * strided and contiguous tensors; what the score outputs say about each other.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "whitebox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 60

static const struct tiles paths[] = {
    TILES_OF(0, PATH_AUTO),
    TILES_OF(0, PATH_DECODE),
    TILES_OF(16, PATH_TILES),
    TILES_OF(16, PATH_TILES_NT),
};
#define N_PATHS ((int)(sizeof paths / sizeof *paths))

/* A random shape; rules are the test's own matter. */
static struct spec random_spec(int64_t row)
{
    static const int64_t heads[][2] = {{1, 1}, {4, 2}, {3, 1}, {2, 2}, {8, 1}};
    struct rng rng = rng_make((uint64_t)row + 1234);
    struct spec s = {.seed = (uint64_t)row + 1, .row = row};
    s.B = rng_int(&rng, 1, 3);
    s.Hq = heads[row % 5][0];
    s.Hk = heads[row % 5][1];
    s.Lq = row % 4 == 0 ? rng_int(&rng, 1, 4) : rng_int(&rng, 1, 130);
    s.Lk = rng_int(&rng, 1, 300);
    s.Dk = rng_int(&rng, 1, 70);
    s.Dv = rng_int(&rng, 1, 70);
    s.layout = (int32_t)(row % 2);
    s.threads = 1 + (int32_t)(row % 3);
    return s;
}

static void ok(attn_status status) { assert_int_equal(status, ATTN_OK); }

/* Outputs of two runs with the same scores: only sums may be made in another order. Each is
   within 2 acc(Lk) + 8 u of max |v| of the true one (see ref.c). */
static void expect_near(const struct rig *g, const char *what, const float *a, const float *b)
{
    double v_max = 0;
    struct ref_margin m = {0};
    float *v = test_packed(&g->v);
    for (int64_t n = 0; n < test_count(&g->v); n++)
        if (isfinite(v[n])) v_max = fmax(v_max, fabs((double)v[n]));
    free(v);
    double tol = 2 * (2 * ref_accumulation(g->s.Lk) + 8 * REF_U) * v_max;
    for (int64_t n = 0; n < test_count(&g->out); n++) ref_compare(&m, n, (double)a[n], tol, b[n]);
    if (m.bad == 0) return;
    rig_print(g, what);
    fail_msg("element %d is %.9g and %.9g", (int)m.at, m.want, (double)m.got);
}

/* ------------------------------------------------- a rule, and the same as a mask */

/* The mask that the boolean rules of this rig amount to; from malloc. */
static uint8_t *rules_as_mask(const struct rig *g)
{
    const struct spec *s = &g->s;
    int64_t n = 0;
    uint8_t *mask = must_alloc((size_t)(s->B * s->Hq * s->Lq * s->Lk), 1);
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t h = 0; h < s->Hq; h++)
            for (int64_t i = 0; i < s->Lq; i++)
                for (int64_t j = 0; j < s->Lk; j++) mask[n++] = ref_sees(&g->problem, b, h, i, j);
    return mask;
}

static float *run_with_mask(struct rig *g, const uint8_t *mask, int32_t isa,
                            const struct tiles *tiles)
{
    const int64_t dims[4] = {g->s.B, g->s.Hq, g->s.Lq, g->s.Lk};
    attn_op *op;
    attn_args *args;
    ok(attn_op_create(&op, g->s.Hq, g->s.Hk, g->s.Dk, g->s.Dv));
    ok(attn_op_set_layout(op, g->s.layout));
    ok(attn_op_set_isa(op, isa));
    attn_i_op_test_tiles(op, *tiles);
    ok(attn_args_create(&args));
    ok(attn_args_set_mask_bool(args, mask, dims, NULL));
    gbuf_reset(&g->out.buf);
    ok(attn_run_args(op, g->s.B, g->s.Lq, g->s.Lk, g->q.at, g->k.at, g->v.at, g->out.at, args));
    attn_args_destroy(args);
    attn_op_destroy(op);
    return test_packed(&g->out);
}

static void expect_rule_is_mask(const struct spec *s, const char *what)
{
    struct rig g;
    rig_make(&g, s);
    rig_solve(&g); /* fills the problem that ref_sees asks */
    uint8_t *mask = rules_as_mask(&g);
    for (const int32_t *isa = rig_isas(); *isa >= 0; isa++)
        for (int n = 0; n < N_PATHS; n++) {
            rig_tiles(&g, &paths[n]);
            g.isa = *isa;
            float *by_rule = rig_output(&g);
            float *by_mask = run_with_mask(&g, mask, *isa, &paths[n]);
            expect_near(&g, what, by_rule, by_mask);
            free(by_rule);
            free(by_mask);
        }
    free(mask);
    rig_free(&g);
}

static void test_rules_as_masks(void **state)
{
    (void)state;
    for (int64_t row = 0; row < ROWS; row++) {
        struct rng rng = rng_make((uint64_t)row + 99);
        struct spec s = random_spec(row);
        if (rig_skip(row)) continue;
        s.causal = (int32_t)rng_int(&rng, 0, 2);
        int kind = (int)(row % 4);
        s.window = kind == 0 || kind == 3;
        s.left = rng_int(&rng, -1, 40);
        s.right = rng_int(&rng, -1, 40);
        s.chunk = kind == 1 ? rng_int(&rng, 1, 50) : 0;
        s.segments = kind == 2 ? -3 : kind == 3 ? 2 : 0;
        s.pos = rng_chance(&rng, 0.3) ? POS_SMALL : 0;
        expect_rule_is_mask(&s, "a rule is not the same as its mask");
    }
}

/* ------------------------------------------------------------- key order */

/* Keys and values of every item and head in another order, the same for all. */
static void permute_keys(struct rig *g, const int64_t *order)
{
    struct test_tensor *both[2] = {&g->k, &g->v};
    for (int t = 0; t < 2; t++) {
        float *packed = test_packed(both[t]);
        int64_t H = both[t]->dims[1], L = both[t]->dims[2], D = both[t]->dims[3];
        for (int64_t n = 0; n < test_count(both[t]); n++) {
            int64_t d = n % D, j = n / D % L, h = n / D / L % H, b = n / D / L / H;
            *test_at(both[t], b, h, j, d) = packed[((b * H + h) * L + order[j]) * D + d];
        }
        free(packed);
    }
}

static void test_keys_in_another_order(void **state)
{
    (void)state;
    for (int64_t row = 0; row < ROWS; row++) {
        struct rng rng = rng_make((uint64_t)row + 55);
        struct spec s = random_spec(row);
        struct rig g;
        int64_t order[300];
        if (rig_skip(row)) continue;
        s.sinks = row % 3 == 0;
        rig_make(&g, &s);
        rig_tiles(&g, &paths[row % N_PATHS]);
        float *before = rig_output(&g);
        for (int64_t j = 0; j < s.Lk; j++) order[j] = j;
        for (int64_t j = s.Lk - 1; j > 0; j--) { /* Fisher and Yates */
            int64_t k = rng_int(&rng, 0, j), swap = order[j];
            order[j] = order[k];
            order[k] = swap;
        }
        permute_keys(&g, order);
        rig_forget(&g);
        float *after = rig_output(&g);
        expect_near(&g, "the order of keys matters", before, after);
        free(before);
        free(after);
        rig_free(&g);
    }
}

/* --------------------------------------------------------------- strides */

/* The same numbers in padded, backward or packed memory: the same bits, as products see the same
   rows in the same order. */
static void copy_inputs(struct rig *a, struct rig *b)
{
    struct test_tensor *from[3] = {&a->q, &a->k, &a->v}, *to[3] = {&b->q, &b->k, &b->v};
    for (int t = 0; t < 3; t++) {
        float *packed = test_packed(from[t]);
        int64_t H = to[t]->dims[1], L = to[t]->dims[2], D = to[t]->dims[3];
        for (int64_t n = 0; n < test_count(to[t]); n++)
            *test_at(to[t], n / D / L / H, n / D / L % H, n / D % L, n % D) = packed[n];
        free(packed);
    }
}

static void test_strides_keep_bits(void **state)
{
    (void)state;
    for (int64_t row = 0; row < ROWS; row++) {
        struct spec s = random_spec(row), strided = s;
        struct rig a, b;
        if (rig_skip(row)) continue;
        strided.layout = 1 - s.layout;
        strided.strides = row % 2 ? STRIDES_PADDED : STRIDES_NEGATIVE;
        rig_make(&a, &s);
        rig_make(&b, &strided);
        copy_inputs(&a, &b);
        for (int n = 0; n < N_PATHS; n++) {
            rig_tiles(&a, &paths[n]);
            rig_tiles(&b, &paths[n]);
            float *contiguous = rig_output(&a), *other = rig_output(&b);
            if (!same_bits("strides matter", contiguous, other, test_count(&a.out))) {
                rig_print(&a, "contiguous");
                print_tiles(&paths[n]);
                fail();
            }
            free(contiguous);
            free(other);
        }
        rig_free(&a);
        rig_free(&b);
    }
}

/* Rows a multiple of 2 KiB apart, of which tiles are copied: nothing else changes, wherever a NaN
   or an infinity lies. */
static void test_rows_that_alias(void **state)
{
    static const struct spec shapes[] = {
        {.Lq = 200, .Lk = 300, .Hq = 4, .Dk = 128}, /* two tiles of keys */
        {.Lq = 100, .Lk = 110, .Hq = 16, .Hk = 8, .Dk = 64},
        {.Lq = 100, .Lk = 40, .Hq = 64, .Dk = 8, .Dv = 72}, /* values are padded, too */
        {.Lq = 30, .Lk = 50, .Hq = 2, .Dk = 256},           /* too few to be copied for */
    };
    (void)state;
    for (int64_t row = 0; row < 4 * 3 * 3; row++) {
        struct spec s = shapes[row % 4], apart;
        struct rig a, b;
        if (rig_skip(row)) continue;
        s.seed = (uint64_t)row;
        s.row = row;
        s.causal = (int32_t)(row / 4 % 3);
        apart = s;
        apart.layout = ATTN_LAYOUT_BLHD;
        rig_make(&a, &s);
        rig_make(&b, &apart);
        if (row / 12 > 0) *test_at(&a.v, 0, 1, s.Lk / 2, 3) = row / 12 == 1 ? NAN : INFINITY;
        copy_inputs(&a, &b);
        float *together = rig_output(&a), *other = rig_output(&b);
        if (!same_bits("rows alias", together, other, test_count(&a.out))) {
            rig_print(&a, "rows apart");
            fail();
        }
        free(together);
        free(other);
        rig_free(&a);
        rig_free(&b);
    }
}

/* -------------------------------------------------- score outputs together */

/* Softmax of the masked scores = weights = exp(masked - lse), with every rule; rows with sinks
   sum to less, and rows that see nothing are 0. */
static void expect_scores_agree(const struct rig *g, int64_t row)
{
    int64_t Lk = g->s.Lk, Lq = g->s.Lq, h = row / Lq % g->s.Hq;
    const float *masked = g->stage[REF_MASKED].p + row * Lk;
    const float *weights = g->stage[REF_WEIGHTS].p + row * Lk;
    double lse = (double)g->lse.p[row], max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < Lk; j++) max = fmax(max, (double)masked[j]);
    for (int64_t j = 0; j < Lk && isfinite(max); j++) sum += exp((double)masked[j] - max);
    if (!isfinite(max)) {
        assert_true(isinf(lse) && lse < 0);
        for (int64_t j = 0; j < Lk; j++) assert_true(weights[j] == 0);
        return;
    }
    double all = g->s.sinks ? sum + exp((double)g->sinks[h] - max) : sum;
    double scale = 1 + fabs(max) + fabs(lse);
    assert_true(fabs(lse - (max + log(sum))) <= 4 * (ref_accumulation(Lk) + 4 * REF_U) * scale);
    for (int64_t j = 0; j < Lk; j++) {
        double want = exp((double)masked[j] - max) / all;
        double tol = want * 4 * (ref_accumulation(Lk) + 8 * REF_U * scale) + 0x1p-125;
        assert_true(ref_close(want, tol, weights[j]));
    }
}

static void test_scores_agree(void **state)
{
    (void)state;
    for (int64_t row = 0; row < ROWS; row++) {
        struct spec s = random_spec(row);
        struct rig g;
        if (rig_skip(row)) continue;
        s.outs = OUT_ALL;
        s.causal = (int32_t)(row % 3);
        s.sinks = row % 2;
        s.alibi = row % 5 == 0;
        s.softcap = row % 7 == 0 ? 3 : 0;
        s.segments = row % 4 == 3 ? 3 : 0;
        s.mask_bool.on = row % 4 == 1;
        rig_make(&g, &s);
        rig_tiles(&g, &paths[row % N_PATHS]);
        free(rig_output(&g));
        for (int64_t r = 0; r < s.B * s.Hq * s.Lq; r++) expect_scores_agree(&g, r);
        rig_free(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules_as_masks),    cmocka_unit_test(test_keys_in_another_order),
        cmocka_unit_test(test_strides_keep_bits), cmocka_unit_test(test_rows_that_alias),
        cmocka_unit_test(test_scores_agree),
    };
    return cmocka_run_group_tests_name("properties", tests, NULL, NULL);
}
