/* SPDX-License-Identifier: MIT */
/*
 * Mistakes that other attention and BLAS projects made, each with the input
 * that shows it. More of them stand where their subject is: huge scores and
 * start positions in test_edges, NaN in test_nan, masks and softcap in
 * test_masks, caches and packed weights in test_layer, ends of buffers in
 * test_pages, threads in test_threads, sizes in test_sizes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "whitebox.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void ok(attn_status status) { assert_int_equal(status, ATTN_OK); }

/* Run on each path, ISA and tile size with a mask that the caller then changes. */
typedef void (*check_fn)(struct rig *g);

static void on_every_path(struct rig *g, check_fn check)
{
    for (const int32_t *isa = rig_isas(); *isa >= 0; isa++)
        for (int n = 0; n < N_ALL_TILES; n++) {
            if (rig_skip(n)) continue;
            rig_tiles(g, &all_tiles[n]);
            g->isa = *isa;
            check(g);
        }
}

/* ------------------------------------------------ rows that see nothing */

/* pytorch#103963: a row whose keys are all disallowed is NaN. It must be exactly 0, and the other
   rows must have the bits of a run in which that row is not masked. */
static void check_row_2(struct rig *g)
{
    for (int j = 0; j < 4; j++) g->mask_bool[2 * 4 + j] = 1;
    float *without = rig_output(g);
    for (int j = 0; j < 4; j++) g->mask_bool[2 * 4 + j] = 0;
    float *with = rig_output(g);
    for (int64_t n = 0; n < 4 * 8; n++) {
        if (n / 8 == 2)
            assert_true(bits_of_float(with[n]) == 0);
        else
            assert_true(bits_of_float(with[n]) == bits_of_float(without[n]));
    }
    free(with);
    free(without);
}

static void test_row_without_keys(void **state)
{
    struct spec s = {.seed = 103963, .Lq = 4, .Lk = 4, .Dk = 8};
    struct rig g;
    (void)state;
    s.mask_bool = (struct mask_spec){.on = 1, .full = FULL_Q, .density = 1};
    rig_make(&g, &s);
    on_every_path(&g, check_row_2);
    rig_free(&g);
}

/* The same by a causal rule and left padding that have no key in common. */
static void test_row_without_keys_by_two_rules(void **state)
{
    const int64_t begins[2] = {2, 0}, ends[2] = {4, 4};
    struct spec s = {.seed = 103749,
                     .B = 2,
                     .Lq = 4,
                     .Lk = 4,
                     .Dk = 8,
                     .begins = begins,
                     .ends = ends,
                     .range = RANGE_BEGIN | RANGE_END,
                     .causal = ATTN_CAUSAL_TOP_LEFT,
                     .outs = OUT_ALL};
    struct rig g;
    (void)state;
    rig_make(&g, &s);
    expect_on(&g, all_tiles, N_ALL_TILES);
    for (int64_t n = 0; n < 2 * 8; n++) assert_true(bits_of_float(g.out.at[n]) == 0);
    assert_true(g.lse.p[0] == -INFINITY && g.lse.p[1] == -INFINITY && isfinite(g.lse.p[2]));
    rig_free(&g);
}

/* -------------------------------------------------------------- alignment */

/* pytorch#108108, mlx#2835, onnx PR#8068: "causal" is anchored top-left here, bottom-right there.
   V counts keys in powers of two and all scores are equal, so a row says which keys it saw. */
static void test_two_alignments(void **state)
{
    static const struct {
        int64_t Lq, Lk;
        int32_t causal;
        int64_t seen[2]; /* how many keys, from the first, rows 0 and 1 see */
    } rows[] = {
        {1, 8, ATTN_CAUSAL_TOP_LEFT, {1, 0}}, {1, 8, ATTN_CAUSAL_BOTTOM_RIGHT, {8, 0}},
        {2, 5, ATTN_CAUSAL_TOP_LEFT, {1, 2}}, {2, 5, ATTN_CAUSAL_BOTTOM_RIGHT, {4, 5}},
        {2, 5, ATTN_CAUSAL_NONE, {5, 5}},     {2, 1, ATTN_CAUSAL_BOTTOM_RIGHT, {0, 1}},
    };
    (void)state;
    for (int n = 0; n < 6; n++) {
        float q[2] = {0}, k[8] = {0}, v[8], out[2];
        attn_op *op;
        for (int j = 0; j < 8; j++) v[j] = (float)(1 << j);
        ok(attn_op_create(&op, 1, 1, 1, 1));
        ok(attn_op_set_causal(op, rows[n].causal));
        ok(attn_run(op, 1, rows[n].Lq, rows[n].Lk, q, k, v, out));
        for (int64_t i = 0; i < rows[n].Lq; i++) {
            double keys = (double)rows[n].seen[i];
            double want = keys > 0 ? (exp2(keys) - 1) / keys : 0;
            assert_true(ref_close(want, 1e-5 * want, out[i]));
        }
        attn_op_destroy(op);
    }
}

/* meta-llama/llama PR#900: a square mask for a chunk although keys include cached ones. */
static void test_chunk_after_a_cache(void **state)
{
    struct spec s = {.seed = 900, .Hq = 4, .Hk = 2, .Lq = 5, .Lk = 5, .Dk = 8};
    struct rig g;
    float out[4 * 2 * 8];
    const int64_t q_strides[4] = {0, 5 * 8, 8, 1}, pos = 3;
    attn_args *args;
    (void)state;
    s.causal = ATTN_CAUSAL_TOP_LEFT;
    rig_make(&g, &s);
    rig_expect(&g);
    ok(attn_args_create(&args));
    ok(attn_args_set_strides(args, ATTN_Q, q_strides));
    for (int by = 0; by < 2; by++) { /* by positions, and by the other alignment */
        if (by == 0)
            ok(attn_args_set_positions(args, 1, &pos));
        else
            ok(attn_args_set_positions(args, 0, NULL));
        if (by == 1) ok(attn_op_set_causal(g.op, ATTN_CAUSAL_BOTTOM_RIGHT));
        ok(attn_run_args(g.op, 1, 2, 5, g.q.at + 3 * 8, g.k.at, g.v.at, out, args));
        for (int64_t n = 0; n < 4 * 2 * 8; n++) {
            int64_t h = n / 16, i = n / 8 % 2, d = n % 8;
            assert_true(ref_close((double)*test_at(&g.out, 0, h, 3 + i, d), 2e-6, out[n]));
        }
    }
    attn_args_destroy(args);
    rig_free(&g);
}

/* ------------------------------------------------------- heads and strides */

/* onnx PR#7274, keras PR#23081: grouped heads tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1). */
static void test_groups_repeat(void **state)
{
    float q[4 * 3] = {0}, k[2 * 5] = {0}, v[2 * 5], out[4 * 3];
    attn_op *op = NULL;
    (void)state;
    for (int n = 0; n < 10; n++) v[n] = n < 5 ? 10 : 20;
    assert_int_equal(attn_op_create(&op, 5, 2, 1, 1), ATTN_EINVAL);
    ok(attn_op_create(&op, 4, 2, 1, 1));
    ok(attn_run(op, 1, 3, 5, q, k, v, out));
    for (int n = 0; n < 12; n++) assert_true(ref_close(n < 6 ? 10 : 20, 1e-5, out[n]));
    attn_op_destroy(op);
}

/* pytorch PR#187506: a transposed view read as if packed. V as a (L, H * d) buffer seen as
   (H, L, d) is served; an inner stride that is not 1 is refused (test_args). */
static void test_v_as_a_view(void **state)
{
    struct spec s = {.seed = 22, .Hq = 3, .Lq = 6, .Lk = 7, .Dk = 4, .Dv = 5};
    struct rig g;
    float view[7 * 3 * 5];
    const int64_t strides[4] = {0, 5, 3 * 5, 1};
    (void)state;
    rig_make(&g, &s);
    for (int64_t n = 0; n < 7 * 3 * 5; n++) view[n] = *test_at(&g.v, 0, n / 5 % 3, n / 15, n % 5);
    for (int n = 0; n < N_ALL_TILES; n++) {
        rig_tiles(&g, &all_tiles[n]);
        rig_prepare(&g);
        ok(attn_args_set_strides(g.args, ATTN_V, strides));
        gbuf_reset(&g.out.buf);
        ok(attn_run_args(g.op, 1, 6, 7, g.q.at, g.k.at, view, g.out.at, g.args));
        assert_true(rig_check(&g));
    }
    rig_free(&g);
}

/* numpy#31776: A A^T by a symmetric routine. Self-attention without projections: q = k = v. */
static void test_q_is_k_is_v(void **state)
{
    (void)state;
    for (int64_t L = 1; L <= 130; L += 43) {
        struct spec s = {.seed = 31776, .row = L, .Hq = 2, .Lq = L, .Lk = L, .Dk = 16};
        struct rig g;
        rig_make(&g, &s);
        memcpy(g.k.at, g.q.at, (size_t)(2 * L * 16) * sizeof(float));
        memcpy(g.v.at, g.q.at, (size_t)(2 * L * 16) * sizeof(float));
        for (int n = 0; n < N_ALL_TILES; n++) {
            rig_tiles(&g, &all_tiles[n]);
            rig_prepare(&g);
            gbuf_reset(&g.out.buf);
            ok(attn_run(g.op, 1, L, L, g.q.at, g.q.at, g.q.at, g.out.at));
            assert_true(rig_check(&g));
        }
        rig_free(&g);
    }
}

/* ------------------------------------------------------------ zero sizes */

/* pytorch#141218, OpenBLAS#2914: no keys. GEMM with K = 0 may leave its output as it was. */
static void check_no_keys(struct rig *g)
{
    float *out = rig_output(g);
    for (int64_t n = 0; n < test_count(&g->out); n++) assert_true(bits_of_float(out[n]) == 0);
    assert_true(gbuf_intact(&g->out.buf));
    free(out);
}

static void test_no_keys(void **state)
{
    static const int64_t lengths[] = {1, 8, 70};
    (void)state;
    for (int n = 0; n < 3; n++) {
        struct spec s = {.seed = 2914,
                         .B = 2,
                         .Hq = 4,
                         .Hk = 2,
                         .Lq = lengths[n],
                         .Dk = 8,
                         .Dv = 3,
                         .causal = n,
                         .strides = n};
        struct rig g;
        rig_make(&g, &s);
        on_every_path(&g, check_no_keys);
        ok(attn_run(g.op, 0, s.Lq, 4, NULL, NULL, NULL, NULL));
        ok(attn_run(g.op, 2, 0, 4, NULL, NULL, NULL, NULL));
        rig_free(&g);
    }
}

/* ------------------------------------------------------- company and order */

/* CTranslate2#693: one sequence alone, and as item 2 of a batch of 4, padded. */
static void test_alone_and_in_a_batch(void **state)
{
    (void)state;
    for (int64_t Lq = 1; Lq <= 65; Lq += 32) {
        const int64_t ends[4] = {40, 3, 33, 21};
        struct spec s = {.seed = 693,
                         .row = Lq,
                         .B = 4,
                         .Hq = 4,
                         .Hk = 2,
                         .Lq = Lq,
                         .Lk = 40,
                         .Dk = 16,
                         .ends = ends,
                         .range = RANGE_END};
        struct rig g;
        rig_make(&g, &s);
        rig_expect(&g);
        float *alone = must_alloc((size_t)(4 * Lq * 16), sizeof *alone);
        float *k = must_alloc(2 * 33 * 16, sizeof *k), *v = must_alloc(2 * 33 * 16, sizeof *v);
        for (int64_t n = 0; n < 2 * 33 * 16; n++) {
            k[n] = *test_at(&g.k, 2, n / 16 / 33, n / 16 % 33, n % 16);
            v[n] = *test_at(&g.v, 2, n / 16 / 33, n / 16 % 33, n % 16);
        }
        ok(attn_run(g.op, 1, Lq, 33, test_at(&g.q, 2, 0, 0, 0), k, v, alone));
        for (int64_t n = 0; n < 4 * Lq * 16; n++)
            assert_true(ref_close((double)*(test_at(&g.out, 2, 0, 0, 0) + n), 3e-6, alone[n]));
        free(alone);
        free(k);
        free(v);
        rig_free(&g);
    }
}

/* OpenBLAS PR#4814: one row goes another way than eight. L = 1 against row 0 of 8; groups of one;
   Dv = 1. And one call repeated has the same bits. */
static void test_one_row_and_eight(void **state)
{
    (void)state;
    for (int64_t Dv = 1; Dv <= 17; Dv += 16)
        for (int64_t Hk = 1; Hk <= 4; Hk++) {
            struct spec s = {.seed = 4814,
                             .row = Hk,
                             .Hq = Hk * (1 + Hk % 2),
                             .Hk = Hk,
                             .Lq = 8,
                             .Lk = 50,
                             .Dk = 24,
                             .Dv = Dv};
            struct rig g;
            float one[8 * 17], again[8 * 17];
            rig_make(&g, &s);
            rig_expect(&g);
            for (int64_t h = 0; h < s.Hq; h++)
                memmove(g.q.at + h * 24, test_at(&g.q, 0, h, 0, 0), 24 * sizeof(float));
            ok(attn_run(g.op, 1, 1, 50, g.q.at, g.k.at, g.v.at, one));
            ok(attn_run(g.op, 1, 1, 50, g.q.at, g.k.at, g.v.at, again));
            assert_true(same_bits("again", one, again, s.Hq * Dv));
            for (int64_t n = 0; n < s.Hq * Dv; n++)
                assert_true(
                    ref_close((double)*test_at(&g.out, 0, n / Dv, 0, n % Dv), 3e-6, one[n]));
            rig_free(&g);
        }
}

static void check_repeat(struct rig *g)
{
    float *first = rig_output(g), *second = rig_output(g);
    assert_true(same_bits("second run", first, second, test_count(&g->out)));
    free(first);
    free(second);
}

static void test_repeated_run_has_the_same_bits(void **state)
{
    (void)state;
    for (int64_t Lq = 1; Lq <= 70; Lq += 23) {
        struct spec s = {.seed = 35,
                         .row = Lq,
                         .B = 2,
                         .Hq = 4,
                         .Hk = 2,
                         .Lq = Lq,
                         .Lk = 90,
                         .Dk = 33,
                         .threads = 3,
                         .causal = (int32_t)(Lq % 3)};
        struct rig g;
        rig_make(&g, &s);
        on_every_path(&g, check_repeat);
        rig_free(&g);
    }
}

/* ------------------------------------------------------------ small stack */

/* OpenBLAS#2839: big frames crash threads of 256 KiB of stack, a usual minimum. */
static void *run_on_a_small_stack(void *context)
{
    struct rig *g = context;
    return (void *)(intptr_t)attn_run_args(g->op, g->s.B, g->s.Lq, g->s.Lk, g->q.at, g->k.at,
                                           g->v.at, g->out.at, g->args);
}

static void test_small_stack(void **state)
{
    (void)state;
    for (int64_t Lq = 1; Lq <= 301; Lq += 100) {
        struct spec s = {.seed = 2839,
                         .row = Lq,
                         .Hq = 4,
                         .Hk = 2,
                         .Lq = Lq,
                         .Lk = 300,
                         .Dk = 64,
                         .threads = 2,
                         .outs = Lq == 101 ? OUT_ALL : 0};
        struct rig g;
        pthread_attr_t attributes;
        pthread_t thread;
        void *status;
        rig_make(&g, &s);
        rig_prepare(&g);
        pthread_attr_init(&attributes);
        assert_int_equal(pthread_attr_setstacksize(&attributes, 256 << 10), 0);
        assert_int_equal(pthread_create(&thread, &attributes, run_on_a_small_stack, &g), 0);
        pthread_join(thread, &status);
        pthread_attr_destroy(&attributes);
        assert_int_equal((intptr_t)status, ATTN_OK);
        assert_true(rig_check(&g));
        rig_free(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_without_keys),
        cmocka_unit_test(test_row_without_keys_by_two_rules),
        cmocka_unit_test(test_two_alignments),
        cmocka_unit_test(test_chunk_after_a_cache),
        cmocka_unit_test(test_groups_repeat),
        cmocka_unit_test(test_v_as_a_view),
        cmocka_unit_test(test_q_is_k_is_v),
        cmocka_unit_test(test_no_keys),
        cmocka_unit_test(test_alone_and_in_a_batch),
        cmocka_unit_test(test_one_row_and_eight),
        cmocka_unit_test(test_repeated_run_has_the_same_bits),
        cmocka_unit_test(test_small_stack),
    };
    return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
