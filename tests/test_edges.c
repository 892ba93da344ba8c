/* SPDX-License-Identifier: MIT */
/*
 * Where a running softmax over tiles goes wrong: maxima that jump from tile to
 * tile, tiles that a row does not see, ranges and windows that end on and
 * beside a tile's edge.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "whitebox.h"

#include <math.h>
#include <stdlib.h>

/* Tiles of these sizes are forced; 256 stands for the default ones. */
static const int64_t tile_sizes[] = {1, 16, 60, 256};
#define N_TILE_SIZES 4

/* The default tiles and paths, then the forced size on each path. */
static void expect_with_tiles(struct rig *g, int64_t T)
{
    const struct tiles some[] = {
        TILES_OF(0, PATH_AUTO),  TILES_OF(0, PATH_DECODE), TILES_OF(0, PATH_TILES_NT),
        TILES_OF(T, PATH_TILES), TILES_OF(T, PATH_DECODE), TILES_OF(T, PATH_TILES_NT),
    };
    expect_on(g, some, T == 256 ? 3 : 6);
}

/* ------------------------------------------------------------ maxima */

enum { RISING, FALLING, ZIGZAG, SPIKE_FIRST, SPIKE_LAST, SPIKE_MIDDLE, N_SHAPES };

/* The score of key j: integers, so exact in float32. */
static float score_of(int shape, int64_t j, int64_t Lk, int64_t T)
{
    int64_t tile = j / T, tiles = (Lk + T - 1) / T;
    float fine = (float)(j % 3);
    switch (shape) {
    case RISING:
        return fine + (float)(128 * tile);
    case FALLING:
        return fine - (float)(128 * tile);
    case ZIGZAG:
        return fine + (tile % 2 == 0 ? 110.0f : -110.0f) * (float)(tile % 5 + 1);
    case SPIKE_FIRST:
        return j == 0 ? 300 : fine;
    case SPIKE_LAST:
        return j == Lk - 1 ? 300 : fine;
    default:
        return tile == tiles / 2 ? 300 + fine : fine;
    }
}

/* Make q . k the given score in query rows 0 mod 4, -, 2 x and 1/2 x it in the others. */
static void set_scores(struct rig *g, int shape, int64_t T)
{
    static const float factors[4] = {1, -1, 2, 0.5f};
    const struct spec *s = &g->s;
    for (int64_t b = 0; b < s->B; b++) {
        for (int64_t n = 0; n < s->Hq * s->Lq * s->Dk; n++) {
            int64_t d = n % s->Dk, i = n / s->Dk % s->Lq;
            *test_at(&g->q, b, n / s->Dk / s->Lq, i, d) = d == s->Dk / 2 ? factors[i % 4] : 0;
        }
        for (int64_t n = 0; n < s->Hk * s->Lk * s->Dk; n++) {
            int64_t d = n % s->Dk, j = n / s->Dk % s->Lk;
            *test_at(&g->k, b, n / s->Dk / s->Lk, j, d) =
                d == s->Dk / 2 ? score_of(shape, j, s->Lk, T) : 0;
        }
    }
}

static void test_maxima_jump(void **state)
{
    (void)state;
    for (int t = 0; t < N_TILE_SIZES; t++)
        for (int shape = 0; shape < N_SHAPES; shape++)
            for (int64_t Lq = 1; Lq <= 9; Lq += 8) {
                int64_t T = tile_sizes[t], row = (t * N_SHAPES + shape) * 2 + Lq / 9;
                struct spec s = {.seed = (uint64_t)row, .row = row, .Hq = 2, .Hk = 1, .Lq = Lq};
                s.Lk = T == 1 ? 40 : 4 * T + 3;
                s.Dk = 4;
                s.Dv = 9;
                s.has_scale = s.exact = true;
                s.scale = 1;
                s.outs = shape % 2 ? OUT_STAGE(REF_WEIGHTS) | OUT_LSE : 0;
                struct rig g;
                if (rig_skip(row)) continue;
                rig_make(&g, &s);
                set_scores(&g, shape, T);
                expect_with_tiles(&g, T);
                rig_free(&g);
            }
}

/* Exact scores of 152, 1000 and 10000 apart by 1 (executorch PR#18407), and one peak of 1e4
   among zeros: finite, right, and rows that sum to 1. */
static void test_huge_scores(void **state)
{
    static const float bases[] = {152, 1000, 10000, -10000, 0};
    (void)state;
    for (int n = 0; n < 5; n++) {
        struct spec s = {.seed = (uint64_t)n, .row = n, .Hq = 2, .Lq = 5, .Lk = 70, .Dk = 64};
        s.exact = s.has_scale = true;
        s.scale = 1;
        s.outs = OUT_STAGE(REF_WEIGHTS) | OUT_LSE;
        struct rig g;
        rig_make(&g, &s);
        set_scores(&g, RISING, 1000);
        for (int64_t i = 0; i < 5; i++) *test_at(&g.q, 0, 0, i, 32) = 1;
        for (int64_t h = 0; h < 2; h++)
            for (int64_t j = 0; j < 70; j++)
                *test_at(&g.k, 0, h, j, 32) = bases[n] != 0 ? bases[n] + (float)(j % 7)
                                              : j == 41     ? 1e4f
                                                            : 0;
        expect_with_tiles(&g, 16);
        for (int64_t r = 0; r < 10; r++) {
            double sum = 0;
            for (int64_t j = 0; j < 70; j++) sum += (double)g.stage[REF_WEIGHTS].p[r * 70 + j];
            assert_true(fabs(sum - 1) < 1e-6);
        }
        rig_free(&g);
    }
}

/* A scale that no query could take beforehand: scores are ordinary, scale * q is Inf or 0. */
static void test_extreme_scales(void **state)
{
    static const float scales[] = {1e30f, 1e-30f, 3.0f, 0.0f};
    (void)state;
    for (int n = 0; n < 4; n++) {
        struct spec s = {.seed = (uint64_t)n, .row = n, .Hq = 2, .Lq = 40, .Lk = 70, .Dk = 9};
        s.has_scale = true;
        s.scale = (double)scales[n];
        struct rig g;
        rig_make(&g, &s);
        float q = n == 0   ? 1e10f
                  : n == 1 ? 1e-12f
                           : 1,
              k = 1 / (scales[n] > 0 ? scales[n] * q : 1);
        for (int64_t i = 0; i < test_count(&g.q); i++) *test_nth(&g.q, i) *= q;
        for (int64_t i = 0; i < test_count(&g.k); i++) *test_nth(&g.k, i) *= n == 0 ? 1e-37f : k;
        rig_expect(&g);
        rig_free(&g);
    }
}

/* ------------------------------------------------------- unseen tiles */

enum { NOT_FIRST, NOT_LAST, ONLY_OWN, ONLY_ONE_KEY, NONE, NOT_MIDDLE, N_SIGHTS };

static bool pattern_sees(int sight, int64_t i, int64_t j, int64_t Lk, int64_t T)
{
    int64_t tile = j / T, tiles = (Lk + T - 1) / T;
    switch (sight) {
    case NOT_FIRST:
        return tile > i % 3;
    case NOT_LAST:
        return tile < tiles - 1 - i % 3;
    case ONLY_OWN:
        return tile == i % tiles;
    case ONLY_ONE_KEY:
        return j == i * 37 % Lk;
    case NONE:
        return i % 2 == 1 && j > 3;
    default:
        return tile != tiles / 2 || i % 3 == 0;
    }
}

/* Rows whose first or last tiles are wholly masked, by either kind of mask. */
static void test_unseen_tiles(void **state)
{
    (void)state;
    for (int t = 0; t < N_TILE_SIZES; t++)
        for (int sight = 0; sight < N_SIGHTS * 2; sight++) {
            int64_t T = tile_sizes[t], row = t * N_SIGHTS * 2 + sight;
            struct spec s = {.seed = (uint64_t)row, .row = row, .Lq = row % 3 ? 7 : 65, .Dk = 8};
            s.Lk = T == 1 ? 13 : 3 * T + 5;
            s.outs = row % 4 ? 0 : OUT_STAGE(REF_WEIGHTS) | OUT_STAGE(REF_MASKED);
            struct mask_spec *mask = sight < N_SIGHTS ? &s.mask_bool : &s.mask_add;
            mask->on = 1;
            mask->full = FULL_Q;
            struct rig g;
            if (rig_skip(row)) continue;
            rig_make(&g, &s);
            for (int64_t i = 0; i < s.Lq; i++)
                for (int64_t j = 0; j < s.Lk; j++) {
                    bool sees = pattern_sees(sight % N_SIGHTS, i, j, s.Lk, T);
                    if (sight < N_SIGHTS)
                        g.mask_bool[i * s.Lk + j] = sees;
                    else
                        g.mask_add.p[i * s.Lk + j] = sees ? 0.5f : -INFINITY;
                }
            expect_with_tiles(&g, T);
            rig_free(&g);
        }
}

/* ---------------------------------------------------- ranges and windows */

/* Every pair of a begin and an end on and beside the edges of two tiles. */
static void test_range_edges(void **state)
{
    (void)state;
    for (int t = 1; t < N_TILE_SIZES; t++) {
        int64_t T = tile_sizes[t], Lk = 2 * T + 5;
        const int64_t edges[] = {0, 1, T - 1, T, T + 1, 2 * T - 1, 2 * T, 2 * T + 1, Lk};
        for (int64_t pair = 0; pair < 81; pair += 9) {
            int64_t row = t * 100 + pair, begins[9], ends[9];
            for (int64_t b = 0; b < 9; b++) {
                begins[b] = edges[min64(pair / 9, b)];
                ends[b] = edges[max64(pair / 9, b)];
            }
            struct spec s = {.seed = (uint64_t)row,
                             .row = row,
                             .B = 9,
                             .Lq = 6,
                             .Lk = Lk,
                             .Dk = 5,
                             .begins = begins,
                             .ends = ends,
                             .range = RANGE_BEGIN | RANGE_END};
            s.causal = (int32_t)(pair / 9 % 3);
            if (rig_skip(row)) continue;
            struct rig g;
            rig_make(&g, &s);
            expect_with_tiles(&g, T);
            rig_free(&g);
        }
    }
}

static void test_window_edges(void **state)
{
    (void)state;
    for (int t = 1; t < N_TILE_SIZES; t++) {
        int64_t T = tile_sizes[t];
        const int64_t widths[] = {-1, 0, 1, T - 1, T, T + 1};
        for (int64_t n = 0; n < 36; n++) {
            int64_t row = t * 100 + n;
            struct spec s = {.seed = (uint64_t)row, .row = row, .Lq = 2 * T + 3, .Lk = 2 * T + 3};
            s.Dk = 7;
            s.window = true;
            s.left = widths[n / 6];
            s.right = widths[n % 6];
            s.causal = (int32_t)(n % 3);
            if (n % 4 == 1) s.Lk = T + 1;
            if (n % 4 == 2) s.Lq = 3;
            if (n % 4 == 3) s.range = RANGE_BEGIN | RANGE_END;
            if (rig_skip(row) || (T == 256 && n % 5 != 0)) continue;
            struct rig g;
            rig_make(&g, &s);
            expect_with_tiles(&g, T);
            rig_free(&g);
        }
    }
}

/* Queries that stand before the first key or behind the last one: windows that miss the range. */
static void test_window_beyond_the_keys(void **state)
{
    static const int64_t offs[] = {-1000, -30, -6, -1, 0, 5, 12, 40, 75, 1000};
    (void)state;
    for (int64_t row = 0; row < 10 * 4 * 3; row++) {
        const int64_t begin = row % 3 * 7, end = 25 + row % 3 * 3, off = offs[row % 10];
        struct spec s = {.seed = (uint64_t)row,
                         .row = row,
                         .Lq = row % 4 == 0 ? 1 : 5 * (row % 4),
                         .Lk = 40,
                         .Dk = 4,
                         .Hq = 2,
                         .Hk = 1,
                         .begins = &begin,
                         .ends = &end,
                         .positions = &off,
                         .range = RANGE_BEGIN | RANGE_END,
                         .pos = POS_SMALL,
                         .window = true,
                         .left = row / 10 % 4,
                         .right = row / 40};
        s.outs = row % 2 ? OUT_ALL : 0;
        s.mask_bool.on = row % 3 == 2;
        if (rig_skip(row)) continue;
        struct rig g;
        rig_make(&g, &s);
        expect_with_tiles(&g, 16);
        rig_free(&g);
    }
}

/* A start position that is no multiple of a block (executorch PR#9105): offset 5 of 70 queries
   over 75 keys, then every offset to 40. */
static void test_every_offset(void **state)
{
    static const struct tiles some[] = {
        TILES_OF(0, PATH_AUTO),      TILES_OF(32, PATH_TILES),  TILES_OF(64, PATH_TILES),
        TILES_OF(32, PATH_TILES_NT), TILES_OF(32, PATH_DECODE),
    };
    (void)state;
    for (int64_t offset = 0; offset <= 40; offset++) {
        struct spec s = {.seed = 5,
                         .row = offset,
                         .Lq = 70,
                         .Lk = 75,
                         .Dk = 16,
                         .pos = POS_SMALL,
                         .positions = &offset,
                         .causal = ATTN_CAUSAL_TOP_LEFT};
        if (rig_skip(offset)) continue;
        struct rig g;
        rig_make(&g, &s);
        expect_on(&g, some, 5);
        rig_free(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_maxima_jump),  cmocka_unit_test(test_huge_scores),
        cmocka_unit_test(test_unseen_tiles), cmocka_unit_test(test_range_edges),
        cmocka_unit_test(test_window_edges), cmocka_unit_test(test_window_beyond_the_keys),
        cmocka_unit_test(test_every_offset), cmocka_unit_test(test_extreme_scales),
    };
    return cmocka_run_group_tests_name("edges", tests, NULL, NULL);
}
