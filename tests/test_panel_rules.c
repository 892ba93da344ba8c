/* SPDX-License-Identifier: MIT */
/*
 * The rules of the vector engine against float64, each set of them: a scale, a
 * softcap, ALiBi, masks along rows of any stride, segments, intervals. Rows of
 * masks end at unreadable pages.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "panel_rig.h"

/* What rules make of score s of a key and a lane, in float64, and how far a float may be off. */
static double by_rules(const struct problem *p, const struct panel_rules *r, int64_t i,
                       int64_t lane, double s, double *tol)
{
    double x = s * (double)r->scale, cap = (double)r->cap;
    if (cap > 0) x = cap * tanh(x / cap);
    double size = (cap > 0 ? 8 : 1) * fabs(x);
    if (r->slopes) {
        double bias = (double)r->slopes[lane] * fabs((double)r->at[lane] - (double)i);
        x -= bias;
        size += bias;
    }
    float add = r->add ? r->add[lane][i * r->add_stride] : 0;
    x = add == -INFINITY ? (double)-INFINITY : x + (double)add;
    size += isfinite(add) ? fabs((double)add) : 0;
    if (r->keep && !r->keep[lane][i * r->keep_stride]) x = (double)-INFINITY;
    if (r->ids && r->ids[i] != r->id[lane]) x = (double)-INFINITY;
    if (!sees(p, lane, i)) x = (double)-INFINITY;
    *tol = isfinite(x) ? 4 * REF_U * size : 0; /* two products, two sums; a softcap's 8 */
    return x;
}

/* Masks of all lanes; each row ends at an unreadable page, the keys run forth or back. */
struct mask_pages {
    struct pages add[64], keep[64];
    const float *add_rows[64];
    const uint8_t *keep_rows[64];
};

static int64_t stride_of(struct rng *rng)
{
    static const int64_t strides[] = {1, 1, 1, 3, 0, -1, -2};
    return strides[rng_int(rng, 0, 6)];
}

static void masks_make(struct mask_pages *m, struct rng *rng, int64_t lanes, int64_t keys,
                       struct panel_rules *r)
{
    r->add_stride = stride_of(rng);
    r->keep_stride = stride_of(rng);
    for (int64_t i = 0; i < lanes; i++) {
        int64_t n = (keys - 1) * (r->add_stride < 0 ? -r->add_stride : r->add_stride) + 1;
        pages_end(&m->add[i], (size_t)n * sizeof(float));
        float *add = m->add[i].p;
        for (int64_t k = 0; k < n; k++)
            add[k] = rng_chance(rng, 0.2) ? -INFINITY : (float)rng_int(rng, -9, 9);
        m->add_rows[i] = add + (r->add_stride < 0 ? n - 1 : 0);
        n = (keys - 1) * (r->keep_stride < 0 ? -r->keep_stride : r->keep_stride) + 1;
        pages_end(&m->keep[i], (size_t)n);
        uint8_t *keep = m->keep[i].p;
        for (int64_t k = 0; k < n; k++)
            keep[k] = (uint8_t)(rng_chance(rng, 0.5) ? rng_int(rng, 1, 255) : 0);
        m->keep_rows[i] = keep + (r->keep_stride < 0 ? n - 1 : 0);
    }
}

static void masks_free(struct mask_pages *m, int64_t lanes)
{
    for (int64_t i = 0; i < lanes; i++) {
        pages_free(&m->add[i]);
        pages_free(&m->keep[i]);
    }
}

/* Every set of rules; some keys NaN. */
static void rules_case(int64_t n)
{
    struct rng rng = rng_make((uint64_t)n);
    struct problem p;
    struct mask_pages masks;
    int64_t keys = sizes[n / 64], vectors = n % PANEL_VECTORS + 1;
    problem_make(&p, &rng, vectors, keys, 3, 1);
    float *slopes = aligned_floats(p.lanes), *at = aligned_floats(p.lanes), top[64];
    int32_t *ids = must_alloc((size_t)keys, sizeof *ids), id[48];
    struct panel_rules r = {.scale = n & 1 ? 1.75f : 1, .cap = n & 2 ? 5 : 0};
    masks_make(&masks, &rng, p.lanes, keys, &r);
    for (int64_t i = 0; i < p.lanes; i++) {
        slopes[i] = (float)rng_int(&rng, 0, 9) / 4;
        at[i] = (float)rng_int(&rng, -9, 99);
        id[i] = (int32_t)rng_int(&rng, 0, 3);
        top[i] = -INFINITY;
    }
    for (int64_t i = 0; i < keys; i++) ids[i] = (int32_t)rng_int(&rng, 0, 3);
    for (int64_t i = 0; i < keys * p.lanes; i++)
        p.t.s[i] = rng_chance(&rng, 0.1) ? NAN : (float)rng_normal(&rng, 3);
    if (n & 4) r.slopes = slopes, r.at = at;
    if (n & 8) r.add = masks.add_rows;
    if (n & 16) r.keep = masks.keep_rows;
    if (n & 32) r.ids = ids, r.id = id;
    float *before = copy_floats(p.t.s, keys * p.lanes);
    kn->panel_rules(&p.t, &r);
    for (int64_t i = 0; i < keys * p.lanes; i++) {
        int64_t key = i / p.lanes, lane = i % p.lanes;
        if (key < start_of(&p, lane) || key >= end_of(&p, lane)) continue;
        double tol, want = by_rules(&p, &r, key, lane, (double)before[i], &tol);
        assert_true(ref_close(want, tol, p.t.s[i]));
        if (p.t.s[i] > top[lane]) top[lane] = p.t.s[i];
    }
    for (int64_t i = 0; i < p.lanes; i++) assert_true(p.t.top[i] == top[i]);
    free(slopes);
    free(at);
    free(before);
    free(ids);
    masks_free(&masks, p.lanes);
    problem_free(&p);
}

static void test_panel_rules(void **state)
{
    (void)state;
    for (int64_t n = 0; n < 64 * N_SIZES; n++)
        if (!rig_skip(n)) rules_case(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_panel_rules)};
    return RUN_ON_EACH_ISA("panel_rules", tests);
}
