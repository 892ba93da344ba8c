/* SPDX-License-Identifier: MIT */
/*
 * NaN and Inf per (row, key): what a row sees makes it NaN and never silently
 * 0; what it does not see never reaches it, though another row of the same
 * tile may see it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "whitebox.h"

#include <math.h>
#include <stdlib.h>

static const struct tiles paths[] = {
    TILES_OF(0, PATH_AUTO),     TILES_OF(0, PATH_DECODE),    TILES_OF(0, PATH_TILES),
    TILES_OF(0, PATH_TILES_NT), TILES_OF(16, PATH_TILES),    TILES_OF(16, PATH_DECODE),
    TILES_OF(1, PATH_TILES),    TILES_OF(16, PATH_TILES_NT),
};
#define N_PATHS 8

/* Few and many queries; one kv head and groups. */
static const struct {
    int64_t Lq, Lk, Hq, Hk, Dk, Dv;
} shapes[] = {
    {1, 19, 4, 2, 16, 16},  {3, 40, 2, 2, 8, 5},  {8, 33, 6, 2, 16, 16},
    {37, 70, 2, 1, 16, 24}, {70, 70, 1, 1, 7, 3},
};
#define N_SHAPES 5

/* The rules under which something is invisible. */
enum {
    BY_BOOL,
    BY_ADD,
    BY_CAUSAL_TL,
    BY_CAUSAL_BR,
    BY_WINDOW,
    BY_RANGE,
    BY_CUT,
    BY_CHUNK,
    BY_SEGMENT,
    N_RULES
};

static struct spec spec_of(int64_t row, int shape, int rule, int32_t outs)
{
    struct spec s = {.seed = (uint64_t)row, .row = row, .outs = outs, .B = 2};
    s.Lq = shapes[shape].Lq;
    s.Lk = shapes[shape].Lk;
    s.Hq = shapes[shape].Hq;
    s.Hk = shapes[shape].Hk;
    s.Dk = shapes[shape].Dk;
    s.Dv = shapes[shape].Dv;
    switch (rule) {
    case BY_BOOL:
        s.mask_bool = (struct mask_spec){.on = 1, .full = FULL_ALL};
        break;
    case BY_ADD:
        s.mask_add = (struct mask_spec){.on = 1, .full = FULL_ALL};
        break;
    case BY_CAUSAL_TL:
        s.causal = ATTN_CAUSAL_TOP_LEFT;
        break;
    case BY_CAUSAL_BR:
        s.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
        break;
    case BY_WINDOW:
        s.window = true, s.left = 6, s.right = 2;
        break;
    case BY_RANGE:
        s.range = RANGE_BEGIN | RANGE_END;
        break;
    case BY_CHUNK:
        s.chunk = 9;
        break;
    case BY_SEGMENT:
        s.segments = 3;
        break;
    default:
        s.mask_bool = (struct mask_spec){.on = 1, .full = FULL_Q, .cut = 7, .density = 1};
        break;
    }
    return s;
}

static bool head_sees(const struct rig *g, int64_t b, int64_t hk, int64_t j)
{
    int64_t group = g->s.Hq / g->s.Hk;
    for (int64_t h = hk * group; h < (hk + 1) * group; h++)
        for (int64_t i = 0; i < g->s.Lq; i++)
            if (ref_sees(&g->problem, b, h, i, j)) return true;
    return false;
}

/* Plant x at every key that no row of the kv head sees. */
static int64_t plant_unseen(struct rig *g, struct test_tensor *t, float x)
{
    int64_t planted = 0;
    for (int64_t n = 0; n < g->s.B * g->s.Hk * g->s.Lk; n++) {
        int64_t j = n % g->s.Lk, hk = n / g->s.Lk % g->s.Hk, b = n / g->s.Lk / g->s.Hk;
        if (head_sees(g, b, hk, j)) continue;
        for (int64_t d = 0; d < t->dims[3]; d++) *test_at(t, b, hk, j, d) = x;
        planted++;
    }
    return planted;
}

/* All bits that a run wrote. */
struct written {
    float *out, *lse, *weights;
};

static struct written written_by(struct rig *g)
{
    int64_t rows = g->s.B * g->s.Hq * g->s.Lq;
    struct written w = {.out = rig_output(g)};
    if (g->s.outs != 0) {
        w.lse = copy_floats(g->lse.p, rows);
        w.weights = copy_floats(g->stage[REF_WEIGHTS].p, rows * g->s.Lk);
    }
    return w;
}

static void expect_same(struct rig *g, const struct written *a, const struct tiles *tiles)
{
    struct written b = written_by(g);
    int64_t rows = g->s.B * g->s.Hq * g->s.Lq;
    bool same = same_bits("out", a->out, b.out, rows * g->s.Dv);
    if (a->lse != NULL)
        same = same && same_bits("lse", a->lse, b.lse, rows) &&
               same_bits("weights", a->weights, b.weights, rows * g->s.Lk);
    free(b.out);
    free(b.lse);
    free(b.weights);
    if (same) return;
    rig_print(g, "bits changed by what no row sees");
    print_tiles(tiles);
    fail();
}

static void free_written(struct written *w)
{
    free(w->out);
    free(w->lse);
    free(w->weights);
}

/* NaN and Inf at keys that no row sees leave every bit as it was, in K and in V. */
static void unseen_leaves_bits(int64_t row, int shape, int rule, int32_t isa,
                               const struct tiles *tiles)
{
    const float bad[] = {NAN, INFINITY, -INFINITY};
    struct spec s = spec_of(row, shape, rule, row % 2 ? OUT_LSE | OUT_STAGE(REF_WEIGHTS) : 0);
    struct rig g;
    rig_make(&g, &s);
    g.isa = isa;
    rig_tiles(&g, tiles);
    rig_solve(&g);
    struct written before = written_by(&g);
    plant_unseen(&g, &g.k, bad[row % 3]);
    expect_same(&g, &before, tiles);
    plant_unseen(&g, &g.v, bad[(row + 1) % 3]);
    expect_same(&g, &before, tiles);
    free_written(&before);
    rig_free(&g);
}

static void test_unseen_leaves_bits(void **state)
{
    int64_t row = 0;
    (void)state;
    for (int shape = 0; shape < N_SHAPES; shape++)
        for (int rule = 0; rule < N_RULES; rule++)
            for (const int32_t *isa = rig_isas(); *isa >= 0; isa++)
                for (int n = 0; n < N_PATHS; n++, row++)
                    if (!rig_skip(row)) unseen_leaves_bits(row, shape, rule, *isa, &paths[n]);
}

/* Where something non-finite is planted: at a few random (kv head, key), in one element. */
static void plant_some(struct rig *g, struct test_tensor *t, float x, int64_t count)
{
    for (int64_t n = 0; n < count; n++) {
        int64_t b = rng_int(&g->rng, 0, g->s.B - 1), h = rng_int(&g->rng, 0, g->s.Hk - 1);
        int64_t j = rng_int(&g->rng, 0, g->s.Lk - 1), d = rng_int(&g->rng, 0, t->dims[3] - 1);
        *test_at(t, b, h, j, d) = x;
    }
}

/* Each row against the oracle: rows that see the planted key, and rows that do not. */
static void test_planted_in_v(void **state)
{
    const float bad[] = {NAN, INFINITY, -INFINITY};
    (void)state;
    for (int64_t row = 0; row < N_SHAPES * N_RULES * 4; row++) {
        int shape = (int)(row % N_SHAPES), rule = (int)(row / N_SHAPES % N_RULES);
        int32_t outs = row % 2 ? OUT_LSE | OUT_STAGE(REF_WEIGHTS) | OUT_STAGE(REF_MASKED) : 0;
        struct spec s = spec_of(row, shape, rule, outs);
        struct rig g;
        if (rig_skip(row)) continue;
        rig_make(&g, &s);
        plant_some(&g, &g.v, bad[row % 3], 1 + row % 4);
        if (row % 5 == 0) plant_some(&g, &g.v, bad[(row + 1) % 3], 2);
        expect_on(&g, paths, N_PATHS);
        rig_free(&g);
    }
}

/* NaN and Inf in K and Q become scores of NaN, +inf and -inf; the softcap tames the infinite. */
static void test_planted_in_q_and_k(void **state)
{
    const float bad[] = {NAN, INFINITY, -INFINITY};
    (void)state;
    for (int64_t row = 0; row < N_SHAPES * N_RULES * 4; row++) {
        int shape = (int)(row % N_SHAPES), rule = (int)(row / N_SHAPES % N_RULES);
        int32_t outs = row % 2 ? OUT_LSE | OUT_STAGE(REF_WEIGHTS) | OUT_STAGE(REF_RAW) : 0;
        struct spec s = spec_of(row, shape, rule, outs);
        if (row % 7 == 3) s.softcap = 3;
        struct rig g;
        if (rig_skip(row)) continue;
        rig_make(&g, &s);
        if (row / 3 % 2)
            plant_some(&g, &g.k, bad[row % 3], 1 + row % 3);
        else
            *test_at(&g.q, 0, s.Hq - 1, s.Lq / 2, 0) = bad[row % 3];
        expect_on(&g, paths, N_PATHS);
        rig_free(&g);
    }
}

/* A scale of 0 is arithmetic, not a licence to skip the product: 0 * NaN is NaN. */
static void test_scale_zero_keeps_nan(void **state)
{
    struct spec s = {.seed = 1,
                     .Hq = 2,
                     .Lq = 9,
                     .Lk = 33,
                     .Dk = 8,
                     .has_scale = true,
                     .causal = ATTN_CAUSAL_TOP_LEFT,
                     .outs = OUT_STAGE(REF_RAW)};
    struct rig g;
    (void)state;
    rig_make(&g, &s);
    *test_at(&g.k, 0, 1, 4, 3) = NAN;
    expect_on(&g, paths, N_PATHS);
    rig_free(&g);
}

/* Additive masks: NaN and +inf count where visible; -inf hides even a NaN score. */
static void test_planted_in_mask(void **state)
{
    (void)state;
    for (int64_t row = 0; row < 40; row++) {
        int shape = (int)(row % N_SHAPES);
        struct spec s =
            spec_of(row, shape, BY_ADD, row % 2 ? OUT_LSE | OUT_STAGE(REF_MASKED) : 0);
        s.causal = (int32_t)(row % 3);
        s.mask_add.full = (int32_t)(row % 8);
        struct rig g;
        if (rig_skip(row)) continue;
        rig_make(&g, &s);
        for (int n = 0; n < 3; n++)
            g.mask_add.p[rng_int(&g.rng, 0, g.mask_add.n - 1)] = row % 4 == 2 ? INFINITY : NAN;
        if (row % 3 == 0) plant_some(&g, &g.k, NAN, 1);
        expect_on(&g, paths, N_PATHS);
        rig_free(&g);
    }
}

/* A visible key of weight 0 by underflow, with NaN or Inf in V: 0 * NaN is NaN. */
static void test_underflowed_weight_times_nan(void **state)
{
    const float bad[] = {NAN, INFINITY};
    (void)state;
    for (int64_t row = 0; row < 12; row++) {
        int shape = (int)(row % N_SHAPES);
        struct spec s = spec_of(row, shape, BY_CAUSAL_TL + (int)(row % 2), 0);
        struct rig g;
        if (rig_skip(row)) continue;
        s.exact = s.has_scale = true;
        s.scale = 1;
        rig_make(&g, &s);
        for (int64_t n = 0; n < test_count(&g.q); n++)
            *test_at(&g.q, n / s.Dk / s.Lq / s.Hq, n / s.Dk / s.Lq % s.Hq, n / s.Dk % s.Lq,
                     n % s.Dk) = n % s.Dk == 0;
        for (int64_t n = 0; n < test_count(&g.k); n++)
            *test_at(&g.k, n / s.Dk / s.Lk / s.Hk, n / s.Dk / s.Lk % s.Hk, n / s.Dk % s.Lk,
                     n % s.Dk) = n / s.Dk % 2 ? 0 : 400;
        *test_at(&g.v, 0, s.Hk - 1, 3, 1) = bad[row % 2];
        *test_at(&g.v, 1, 0, s.Lk / 2 | 1, 0) = bad[row % 2];
        expect_on(&g, paths, N_PATHS);
        rig_free(&g);
    }
}

/* The same where whole tiles and parts underflow: scores rise by 120 a tile, and what an early
   tile holds of NaN and Inf is not lost when its rows are rescaled or merged by a factor of 0. */
static void test_underflowed_tile_keeps_nan(void **state)
{
    static const struct tiles some[] = {
        TILES_OF(0, PATH_AUTO),   TILES_OF(16, PATH_TILES),    TILES_OF(16, PATH_DECODE),
        TILES_OF(1, PATH_DECODE), TILES_OF(16, PATH_TILES_NT), TILES_OF(0, PATH_DECODE),
    };
    (void)state;
    for (int64_t row = 0; row < 12; row++) {
        bool longer = row % 3 == 2; /* several parts by plan */
        struct spec s = {.seed = (uint64_t)row, .row = row, .Hq = 2, .Hk = 1, .Dk = 1, .Dv = 3};
        struct rig g;
        s.Lq = row % 2 ? 1 : 20;
        s.Lk = longer ? 2000 : 64;
        s.exact = s.has_scale = true;
        s.scale = 1;
        s.causal = row < 6 ? ATTN_CAUSAL_NONE : ATTN_CAUSAL_BOTTOM_RIGHT;
        if (rig_skip(row)) continue;
        rig_make(&g, &s);
        for (int64_t n = 0; n < test_count(&g.q); n++) g.q.at[n] = 1;
        for (int64_t j = 0; j < s.Lk; j++)
            g.k.at[j] = (float)((row % 4 < 2 ? j : s.Lk - j) / (longer ? 512 : 16) * 120);
        *test_at(&g.v, 0, 0, row % 4 < 2 ? 3 : s.Lk - 20 - s.Lq, 1) = row % 3 ? NAN : INFINITY;
        expect_on(&g, some, 6);
        assert_true(isnan(*test_at(&g.out, 0, 0, s.Lq - 1, 1)));
        rig_free(&g);
    }
}

/* Finite inputs near the largest float: scores overflow to +-inf, by float arithmetic, in rows
   that see them; a row with only -inf scores is empty. */
static void test_overflowing_scores(void **state)
{
    struct spec s = {.seed = 9,
                     .Hq = 2,
                     .Lq = 5,
                     .Lk = 20,
                     .Dk = 4,
                     .has_scale = true,
                     .scale = 1,
                     .outs = OUT_LSE};
    struct rig g;
    (void)state;
    rig_make(&g, &s);
    for (int64_t d = 0; d < 4; d++) {
        *test_at(&g.q, 0, 0, 1, d) = INFINITY;
        for (int64_t j = 0; j < 20; j++) *test_at(&g.k, 0, 0, j, d) = -1 - (float)j;
    }
    expect_on(&g, paths, N_PATHS);
    assert_true(g.lse.p[1] == -INFINITY && *test_at(&g.out, 0, 0, 1, 0) == 0);
    rig_free(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unseen_leaves_bits),
        cmocka_unit_test(test_planted_in_v),
        cmocka_unit_test(test_planted_in_q_and_k),
        cmocka_unit_test(test_scale_zero_keeps_nan),
        cmocka_unit_test(test_planted_in_mask),
        cmocka_unit_test(test_underflowed_weight_times_nan),
        cmocka_unit_test(test_underflowed_tile_keeps_nan),
        cmocka_unit_test(test_overflowing_scores),
    };
    return cmocka_run_group_tests_name("nan", tests, NULL, NULL);
}
