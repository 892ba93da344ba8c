/* SPDX-License-Identifier: MIT */
/*
 * Sizes that are no multiple of any tile: every length 1..70 for queries and
 * for keys with every head size, on every instruction set and tile size.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "whitebox.h"

static const int64_t sizes[] = {1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 80, 96, 100};
#define N_SIZES ((int64_t)(sizeof sizes / sizeof *sizes))
#define L_MAX 70

static const int64_t head_counts[][2] = {{1, 1}, {2, 2}, {2, 1}, {3, 3}, {4, 2}, {6, 2}, {5, 1}};
#define N_HEADS ((int64_t)(sizeof head_counts / sizeof *head_counts))

/* Each (Lq, Dk) and each (Lk, Dk) comes once; the rest is drawn from the row's number. */
static struct spec spec_of_row(int64_t row)
{
    int64_t Lq = row % L_MAX + 1, which = row / L_MAX;
    struct rng rng = rng_make((uint64_t)row + 1000);
    const int64_t *heads = head_counts[rng_int(&rng, 0, N_HEADS - 1)];
    struct spec s = {.seed = (uint64_t)row, .row = row, .Lq = Lq, .Dk = sizes[which]};
    s.Lk = (Lq * 17 + which * 23) % L_MAX + 1;
    s.Hq = heads[0];
    s.Hk = heads[1];
    s.Dv = rng_chance(&rng, 0.5) ? s.Dk : sizes[rng_int(&rng, 0, N_SIZES - 1)];
    s.B = rng_chance(&rng, 0.2) ? rng_int(&rng, 2, 9) : 1;
    s.causal = (int32_t)(row % 3);
    s.layout = (int32_t)rng_int(&rng, 0, 1);
    s.strides = rng_chance(&rng, 0.5) ? (int32_t)rng_int(&rng, 0, 3) : STRIDES_PACKED;
    s.range = rng_chance(&rng, 0.2) ? (int32_t)rng_int(&rng, 1, 3) : 0;
    s.threads = (int32_t)rng_int(&rng, 1, 3);
    s.misalign = rng_int(&rng, 0, 15);
    return s;
}

static void sweep(int64_t from, int64_t to)
{
    for (int64_t row = from; row < to; row++) {
        if (rig_skip(row)) continue;
        struct spec s = spec_of_row(row);
        struct rig g;
        rig_make(&g, &s);
        expect_on(&g, all_tiles, N_ALL_TILES);
        rig_free(&g);
    }
}

static void test_head_sizes_to_8(void **state)
{
    (void)state;
    sweep(0, 6 * L_MAX);
}

static void test_head_sizes_to_33(void **state)
{
    (void)state;
    sweep(6 * L_MAX, 11 * L_MAX);
}

static void test_head_sizes_to_100(void **state)
{
    (void)state;
    sweep(11 * L_MAX, N_SIZES * L_MAX);
}

/* One and two tiles, plus and minus one; and a length far from any. */
static const struct {
    int64_t Lq, Lk, Dk, Dv;
} around_tiles[] = {
    {59, 60, 64, 64},     {60, 61, 64, 64},    {61, 59, 64, 64},    {119, 121, 64, 64},
    {120, 255, 64, 64},   {121, 256, 64, 64},  {255, 257, 64, 64},  {256, 256, 80, 80},
    {257, 255, 33, 33},   {29, 127, 128, 128}, {30, 128, 128, 128}, {31, 129, 128, 128},
    {511, 513, 16, 16},   {512, 512, 17, 15},  {513, 511, 15, 31},  {1, 511, 64, 64},
    {2, 512, 64, 64},     {3, 513, 100, 64},   {1, 1100, 96, 96},   {7, 1100, 80, 80},
    {1100, 1100, 64, 64}, {1100, 61, 31, 33},  {61, 1100, 33, 31},  {12, 257, 512, 512},
};

static void test_around_tiles(void **state)
{
    static const struct tiles some[] = {
        TILES_OF(0, PATH_AUTO),
        TILES_OF(60, PATH_AUTO),
        TILES_OF(0, PATH_TILES),
        TILES_OF(0, PATH_TILES_NT),
    };
    (void)state;
    for (int64_t n = 0; n < (int64_t)(sizeof around_tiles / sizeof *around_tiles); n++) {
        for (int32_t causal = 0; causal < 3; causal++) {
            int64_t row = 10000 + 3 * n + causal;
            struct spec s = {.seed = (uint64_t)row, .row = row, .causal = causal, .Hq = 2};
            s.Lq = around_tiles[n].Lq;
            s.Lk = around_tiles[n].Lk;
            s.Dk = around_tiles[n].Dk;
            s.Dv = around_tiles[n].Dv;
            s.Hk = s.Lq * s.Lk > 300000 ? 1 : 2;
            s.Hq = s.Hk * (n % 2 + 1);
            s.layout = (int32_t)(n % 2);
            if (rig_skip(row) || (s.Lq * s.Lk > 1000000 && causal == 1)) continue;
            struct rig g;
            rig_make(&g, &s);
            expect_on(&g, some, 4);
            rig_free(&g);
        }
    }
}

/* All batch sizes: "only some batch sizes break" (tt-metal#32502). */
static void test_batches(void **state)
{
    (void)state;
    for (int64_t B = 1; B <= 9; B++) {
        int64_t row = 20000 + B;
        if (rig_skip(row)) continue;
        struct spec s = {.seed = (uint64_t)row,
                         .row = row,
                         .B = B,
                         .Hq = 3,
                         .Lq = 13,
                         .Lk = 37,
                         .Dk = 17,
                         .range = RANGE_END | RANGE_BEGIN,
                         .threads = 2};
        struct rig g;
        rig_make(&g, &s);
        expect_on(&g, all_tiles, N_ALL_TILES);
        rig_free(&g);
    }
}

static int print_margin(void **state)
{
    (void)state;
    print_message("largest error: %.2f of the tolerance\n", rig_worst());
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head_sizes_to_8),   cmocka_unit_test(test_head_sizes_to_33),
        cmocka_unit_test(test_head_sizes_to_100), cmocka_unit_test(test_around_tiles),
        cmocka_unit_test(test_batches),
    };
    return cmocka_run_group_tests_name("sweep", tests, NULL, print_margin);
}
