/* SPDX-License-Identifier: MIT */
/*
 * The kernels of the vector engine, each against float64: queries in and
 * outputs out of panels, scores with what each lane sees, the softmax along
 * the keys, the weighted values. Rows of K and V end at an unreadable page.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "panel_rig.h"

static void expect_scores(const struct problem *p)
{
    const struct panel *t = &p->t;
    for (int64_t lane = 0; lane < p->lanes; lane++) {
        float top = -INFINITY;
        for (int64_t j = start_of(p, lane); j < end_of(p, lane); j++) {
            double dot = 0, size = 0;
            for (int64_t d = 0; d < t->Dk; d++) {
                double x = (double)t->k[j * t->ldk + d] * (double)t->q[d * p->lanes + lane];
                dot += x;
                size += fabs(x);
            }
            float got = t->s[j * p->lanes + lane];
            if (!sees(p, lane, j))
                assert_true(got == -INFINITY);
            else if (!ref_close(dot, (ref_accumulation(t->Dk) + REF_U) * size, got))
                fail_msg("key %d of %d, lane %d of %d", (int)j, (int)t->keys, (int)lane,
                         (int)p->lanes);
            top = fmaxf(top, got);
        }
        assert_true(t->top[lane] == top);
    }
}

/* Scores as they are; weights, sum and maximum as they must become. */
static void expect_softmax(const struct problem *p, const float *s)
{
    const struct panel *t = &p->t;
    for (int64_t lane = 0; lane < p->lanes; lane++) {
        double m = (double)p->old_m[lane], sum = 0;
        int64_t start = start_of(p, lane), end = end_of(p, lane);
        for (int64_t j = start; j < end; j++) m = fmax(m, (double)s[j * p->lanes + lane]);
        double base = isinf(m) ? 0 : m, old = (double)p->old_m[lane];
        double fix = isinf(old) ? 1 : exp(old - base);
        for (int64_t j = start; j < end; j++) {
            double x = (double)s[j * p->lanes + lane] - base, e = exp(x);
            /* the difference is rounded; results below 2^-100 are 0 */
            double tol = e == 0 ? 0 : (4 + fabs(x)) * REF_U * e + 0x1p-100;
            assert_true(ref_close(e, tol, t->s[j * p->lanes + lane]));
            sum += e;
        }
        sum += (double)p->old_l[lane] * fix;
        assert_true((double)t->m[lane] == m);
        double x = isinf(old) ? 0 : fabs(old - base);
        assert_true(ref_close(fix, (4 + x) * REF_U * fix + 0x1p-100, t->top[lane]));
        assert_true(
            ref_close(sum, (ref_accumulation(t->keys + 1) + 40 * REF_U) * sum, t->l[lane]));
    }
}

static void expect_values(const struct problem *p)
{
    const struct panel *t = &p->t;
    for (int64_t d = 0; d < t->Dv; d++)
        for (int64_t lane = 0; lane < p->lanes; lane++) {
            double sum = (double)p->old_o[d * p->lanes + lane] * (double)t->top[lane];
            double size = fabs(sum);
            for (int64_t j = start_of(p, lane); j < end_of(p, lane); j++) {
                double x = (double)t->s[j * p->lanes + lane] * (double)t->v[j * t->ldv + d];
                sum += x;
                size += fabs(x);
            }
            assert_true(ref_close(sum, (ref_accumulation(t->keys + 1) + REF_U) * size,
                                  t->o[d * p->lanes + lane]));
        }
}

/* The scores once more, from such as are not hidden yet. */
static void scores_by_rules(struct problem *p)
{
    int64_t keys = p->t.keys;
    for (int64_t i = 0; i < keys * p->lanes; i++)
        if (p->t.s[i] == -INFINITY) p->t.s[i] = NAN;
    for (int64_t i = 0; i < p->lanes; i++) p->t.top[i] = 99;
    kn->panel_rules(&p->t, &(struct panel_rules){.scale = 1});
    for (int64_t i = 0; i < p->lanes; i++)
        for (int64_t j = start_of(p, i); j < end_of(p, i); j++)
            assert_true((p->t.s[j * p->lanes + i] == -INFINITY) == !sees(p, i, j));
    expect_scores(p);
}

static void one_problem(int64_t vectors, int64_t keys, int64_t Dk, int64_t Dv)
{
    struct rng rng = rng_make((uint64_t)(keys * 10007 + Dk * 101 + Dv * 7 + vectors));
    struct problem p;
    problem_make(&p, &rng, vectors, keys, Dk, Dv);
    for (int64_t i = 0; i < keys * p.lanes; i++) p.t.s[i] = NAN;
    kn->panel_scores(&p.t);
    expect_scores(&p);
    scores_by_rules(&p);
    float *s = copy_floats(p.t.s, keys * p.lanes);
    kn->panel_softmax(&p.t);
    expect_softmax(&p, s);
    kn->panel_values(&p.t);
    expect_values(&p);
    for (int64_t i = 0; i < Dv * p.lanes; i++) { /* the first tile: o is not there yet */
        p.t.o[i] = NAN;
        p.old_o[i] = 0;
    }
    p.t.first = true;
    kn->panel_values(&p.t);
    expect_values(&p);
    free(s);
    problem_free(&p);
}

static void test_panels(void **state)
{
    (void)state;
    for (int64_t n = 0; n < N_SIZES * N_SIZES; n++)
        for (int64_t vectors = 1; vectors <= PANEL_VECTORS && !rig_skip(n); vectors++)
            one_problem(vectors, sizes[n % N_SIZES], sizes[n / N_SIZES],
                        sizes[(n + vectors) % N_SIZES]);
}

/* Scores of NaN payloads, +-inf and huge numbers: the maximum drops NaN, its exponential is NaN;
   a lane that saw -inf only keeps what it has, 0 or NaN. */
static void test_panel_specials(void **state)
{
    (void)state;
    struct rng rng = rng_make(5);
    struct problem p;
    problem_make(&p, &rng, 1, 3, 4, 4);
    p.t.lo = p.t.hi = NULL;
    int64_t lanes = p.lanes;
    for (int64_t i = 0; i < 3 * lanes; i++) p.t.s[i] = -INFINITY;
    for (int64_t i = 0; i < 4 * lanes; i++) p.t.o[i] = i % lanes == 2 ? NAN : 1.0f;
    for (int64_t i = 0; i < lanes; i++) {
        p.t.m[i] = -INFINITY;
        p.t.l[i] = i == 2 ? NAN : 0.0f;
    }
    uint32_t payload = 0xffc12345;
    memcpy(&p.t.s[0], &payload, sizeof payload); /* lane 0: NaN beside 1 */
    p.t.s[lanes] = 1.0f;
    p.t.s[1] = INFINITY; /* lane 1: +inf */
    kn->panel_rules(&p.t, &(struct panel_rules){.scale = 1});
    assert_true(p.t.top[0] == 1.0f);
    kn->panel_softmax(&p.t);
    kn->panel_values(&p.t);
    assert_true(isnan(p.t.l[0]) && isnan(p.t.s[0]) && p.t.s[lanes] == 1.0f && p.t.m[0] == 1.0f);
    assert_true(isnan(p.t.l[1]) && p.t.m[1] == INFINITY);
    assert_true(isnan(p.t.l[2]) && isnan(p.t.o[2]) && p.t.m[2] == -INFINITY);
    assert_true(p.t.l[3] == 0.0f && p.t.o[3] == 1.0f && p.t.s[3] == 0.0f);
    problem_free(&p);
}

/* In sums with values what lies 2^-100 below the maximum, e^-69.31, counts as 0. */
static void test_weights_end(void **state)
{
    (void)state;
    struct rng rng = rng_make(6);
    struct problem p;
    problem_make(&p, &rng, 1, 3, 4, 4);
    for (int64_t i = 0; i < p.lanes; i++) {
        p.t.top[i] = 0;
        p.t.m[i] = i == 0 ? -69.4f : -INFINITY;
        p.t.l[i] = i == 0 ? 1 : 0;
        p.t.s[i] = 0;
        p.t.s[i + p.lanes] = -69.3f;
        p.t.s[i + 2 * p.lanes] = -69.4f;
    }
    kn->panel_softmax(&p.t);
    for (int64_t i = 0; i < p.lanes; i++) {
        assert_true(p.t.s[i] == 1 && p.t.l[i] == 1);
        assert_true(ref_close(exp(-69.3f), 80 * REF_U * 1e-30, p.t.s[i + p.lanes]));
        assert_true(p.t.s[i + p.lanes] > 0 && p.t.s[i + 2 * p.lanes] == 0);
    }
    assert_true(p.t.top[0] == 0);
    problem_free(&p);
}

static void in_and_out(int64_t rows, int64_t D)
{
    int32_t vectors = (int32_t)ceil_div(rows, kn->width);
    int64_t lanes = (int64_t)vectors * kn->width;
    struct pages pages[64], guard;
    const float *x[64];
    float *out[64], *y = aligned_floats(D * lanes);
    for (int64_t r = 0; r < rows; r++) {
        pages_end(&pages[r], (size_t)D * sizeof(float));
        x[r] = out[r] = pages[r].p;
        for (int64_t d = 0; d < D; d++) out[r][d] = (float)(r * 1000 + d);
    }
    pages_end(&guard, (size_t)(D * lanes) * sizeof(float)); /* the panel itself, at a page end */
    kn->panel_in(rows, vectors, D, x, 0.5f, guard.p);
    memcpy(y, guard.p, (size_t)(D * lanes) * sizeof *y);
    for (int64_t d = 0; d < D; d++)
        for (int64_t i = 0; i < lanes; i++)
            assert_true(y[d * lanes + i] == 0.5f * (float)(min64(i, rows - 1) * 1000 + d));
    float *factor = aligned_floats(lanes); /* every third row saw nothing */
    for (int64_t r = 0; r < lanes; r++) factor[r] = r % 3 == 2 ? EMPTY_ROW : 0.25f;
    for (int64_t d = 0; d < D; d++)
        for (int64_t r = 2; r < lanes; r += 3) ((float *)guard.p)[d * lanes + r] = NAN;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < D; d++) out[r][d] = -1;
    kn->panel_out(rows, vectors, D, guard.p, factor, out);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t d = 0; d < D; d++)
            assert_true(out[r][d] == (factor[r] == EMPTY_ROW ? 0.0f : y[d * lanes + r] / 4));
        pages_free(&pages[r]);
    }
    pages_free(&guard);
    free(factor);
    free(y);
}

static void test_in_and_out(void **state)
{
    (void)state;
    for (int64_t rows = 1; rows <= kn->width * PANEL_VECTORS; rows++)
        for (int64_t D = 1; D <= 70; D += D < 40 ? 1 : 15)
            if (!rig_skip(rows * 71 + D)) in_and_out(rows, D);
}

/* Columns [first, first + n) of rows of `lanes`. */
static float *copy_lanes(const float *x, int64_t rows, int64_t lanes, int64_t first, int64_t n)
{
    float *y = aligned_floats(rows * n);
    for (int64_t i = 0; i < rows * n; i++) y[i] = x[i / n * lanes + first + i % n];
    return y;
}

/* Vector j of a panel of several is as good as one of its own, which forms all keys. */
static void alone_as_beside(uint64_t seed, int64_t keys, int64_t Dk, int32_t j)
{
    struct rng rng = rng_make(seed);
    struct problem all;
    problem_make(&all, &rng, PANEL_VECTORS, keys, Dk, 9);
    int64_t W = kn->width, lane = j * W;
    struct panel one = all.t;
    one.vectors = 1;
    float *q = copy_lanes(all.t.q, Dk, all.lanes, lane, W);
    one.q = q;
    one.o = copy_lanes(all.t.o, 9, all.lanes, lane, W);
    one.m = copy_lanes(all.t.m, 1, all.lanes, lane, W);
    one.l = copy_lanes(all.t.l, 1, all.lanes, lane, W);
    one.top = aligned_floats(W);
    one.s = aligned_floats(keys * W);
    if (one.lo) one.lo += lane, one.hi += lane;
    one.starts[0] = 0;
    one.ends[0] = keys;
    const struct panel *both[] = {&all.t, &one};
    for (int i = 0; i < 2; i++) {
        kn->panel_scores(both[i]);
        kn->panel_softmax(both[i]);
        kn->panel_values(both[i]);
    }
    for (int64_t i = 0; i < 9; i++)
        assert_true(same_bits("o", all.t.o + i * all.lanes + lane, one.o + i * W, W));
    assert_true(same_bits("l", all.t.l + lane, one.l, W));
    float *made[] = {q, one.o, one.m, one.l, one.top, one.s};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) free(made[i]);
    problem_free(&all);
}

/* A lane's bits do not depend on how many vectors the panel has, nor on what they see. */
static void test_lanes_are_independent(void **state)
{
    (void)state;
    for (int64_t n = 0; n < 4 * N_SIZES; n++)
        for (int32_t j = 0; j < PANEL_VECTORS; j++)
            alone_as_beside((uint64_t)n, sizes[n % N_SIZES], sizes[N_SIZES - 1 - n % N_SIZES], j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_panels),
        cmocka_unit_test(test_panel_specials),
        cmocka_unit_test(test_weights_end),
        cmocka_unit_test(test_in_and_out),
        cmocka_unit_test(test_lanes_are_independent),
    };
    return RUN_ON_EACH_ISA("panel", tests);
}
