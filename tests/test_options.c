/* SPDX-License-Identifier: MIT */
/*
 * Errors and helpers of the score rules: chunks, ALiBi, sinks, segments,
 * packed sequences; standard slopes, merging with sinks, NumPy-style masks.
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

static void ok(attn_status status) { assert_int_equal(status, ATTN_OK); }

static void bad(attn_status status) { assert_int_equal(status, ATTN_EINVAL); }

static void test_setters(void **state)
{
    const float slopes[2] = {1, 2}, nan[2] = {1, NAN}, inf[2] = {INFINITY, 1};
    const float minus[2] = {-INFINITY, 1};
    const int64_t good[3] = {0, 2, 2}, down[3] = {0, 2, 1}, negative[3] = {-1, 0, 1};
    const int32_t narrow[3] = {0, 2, 2}, narrow_down[3] = {3, 2, 5}, ids[2] = {0};
    attn_op *op;
    attn_args *args;
    (void)state;
    ok(attn_op_create(&op, 2, 2, 2, 2));
    ok(attn_args_create(&args));
    bad(attn_op_set_chunk(NULL, 1));
    bad(attn_op_set_chunk(op, -1));
    ok(attn_op_set_chunk(op, INT64_MAX));
    ok(attn_op_set_chunk(op, 0));
    attn_status (*const setters[2])(attn_args *, int64_t, const float *) = {attn_args_set_alibi,
                                                                            attn_args_set_sinks};
    for (int n = 0; n < 2; n++) {
        bad(setters[n](NULL, 2, slopes));
        bad(setters[n](args, -1, slopes));
        bad(setters[n](args, 2, NULL));
        bad(setters[n](args, 2, nan));
        bad(setters[n](args, 2, inf));
        assert_int_equal(setters[n](args, INT64_MAX / 2, slopes), ATTN_EOVERFLOW);
        ok(setters[n](args, 2, slopes));
        ok(setters[n](args, 0, NULL));
    }
    bad(attn_args_set_alibi(args, 2, minus));
    ok(attn_args_set_sinks(args, 2, minus));
    bad(attn_args_set_segments(NULL, ids, ids));
    bad(attn_args_set_segments(args, ids, NULL));
    bad(attn_args_set_segments(args, NULL, ids));
    ok(attn_args_set_segments(args, NULL, NULL));
    attn_status (*const offsets[2])(attn_args *, const void *, int32_t,
                                    int64_t) = {attn_args_set_offsets_q, attn_args_set_offsets_k};
    for (int n = 0; n < 2; n++) {
        bad(offsets[n](NULL, good, ATTN_I64, 2));
        bad(offsets[n](args, good, 77, 2));
        bad(offsets[n](args, good, ATTN_F32, 2));
        bad(offsets[n](args, good, ATTN_I64, -1));
        bad(offsets[n](args, NULL, ATTN_I64, -1));
        bad(offsets[n](args, down, ATTN_I64, 2));
        bad(offsets[n](args, negative, ATTN_I64, 2));
        bad(offsets[n](args, narrow_down, ATTN_I32, 2));
        assert_int_equal(offsets[n](args, good, ATTN_I64, INT64_MAX), ATTN_EOVERFLOW);
        ok(offsets[n](args, good, ATTN_I64, 2));
        ok(offsets[n](args, narrow, ATTN_I32, 2));
        ok(offsets[n](args, good, ATTN_I64, 0));
        ok(offsets[n](args, NULL, ATTN_I64, 0));
    }
    attn_args_destroy(args);
    attn_op_destroy(op);
}

/* ------------------------------------------------------------ runs refused */

/* Two items of 4 queries and 5 keys, one head of 2. */
struct call {
    attn_op *op;
    attn_args *args;
    float q[16], k[20], v[20], lse[8], weights[40];
    uint8_t mask[40];
    int32_t ids[10];
    struct gbuf out;
};

static void slopes_of_2_heads(struct call *c) { ok(attn_args_set_alibi(c->args, 2, c->q)); }
static void sinks_of_3_heads(struct call *c) { ok(attn_args_set_sinks(c->args, 3, c->q)); }
static void offsets_past_the_queries(struct call *c)
{
    const int64_t offsets[3] = {0, 2, 5};
    ok(attn_args_set_offsets_q(c->args, offsets, ATTN_I64, 2));
}
static void offsets_past_the_keys(struct call *c)
{
    const int32_t offsets[3] = {0, 2, 6};
    ok(attn_args_set_offsets_k(c->args, offsets, ATTN_I32, 2));
}
static void offsets_of_3_sequences(struct call *c)
{
    const int64_t offsets[4] = {0, 1, 2, 3};
    ok(attn_args_set_offsets_q(c->args, offsets, ATTN_I64, 3));
}
static void range_past_a_sequence(struct call *c)
{
    const int64_t offsets[3] = {0, 2, 5}, ends[2] = {3, 3};
    ok(attn_args_set_offsets_k(c->args, offsets, ATTN_I64, 2));
    ok(attn_args_set_key_range(c->args, 2, NULL, ends));
}
static void ids_are_out(struct call *c)
{
    ok(attn_args_set_segments(c->args, (const int32_t *)(const void *)c->out.p, c->ids));
}
static void ids_unaligned(struct call *c)
{
    const char *at = (const char *)c->ids + 1;
    ok(attn_args_set_segments(c->args, c->ids, (const int32_t *)(const void *)at));
}

static void pack_queries(struct call *c)
{
    const int64_t offsets[3] = {0, 1, 4};
    ok(attn_args_set_offsets_q(c->args, offsets, ATTN_I64, 2));
}
static void packed_with_bool_mask(struct call *c)
{
    const int64_t dims[4] = {1, 1, 1, 5};
    pack_queries(c);
    ok(attn_args_set_mask_bool(c->args, c->mask, dims, NULL));
}
static void packed_with_add_mask(struct call *c)
{
    const int64_t dims[4] = {1, 1, 1, 5};
    pack_queries(c);
    ok(attn_args_set_mask_add(c->args, c->weights, dims, NULL));
}
static void packed_with_weights(struct call *c)
{
    pack_queries(c);
    ok(attn_args_set_weights(c->args, c->weights));
}
static void packed_keys_with_weights(struct call *c)
{
    const int64_t offsets[3] = {0, 1, 5};
    ok(attn_args_set_offsets_k(c->args, offsets, ATTN_I64, 2));
    ok(attn_args_set_weights(c->args, c->weights));
}

static void test_refused_runs(void **state)
{
    static const struct {
        const char *name;
        void (*spoil)(struct call *c);
        attn_status status;
    } rows[] = {
        {"slopes of 2 heads", slopes_of_2_heads, ATTN_EINVAL},
        {"sinks of 3 heads", sinks_of_3_heads, ATTN_EINVAL},
        {"offsets past the queries", offsets_past_the_queries, ATTN_EINVAL},
        {"offsets past the keys", offsets_past_the_keys, ATTN_EINVAL},
        {"offsets of 3 sequences", offsets_of_3_sequences, ATTN_EINVAL},
        {"range past a sequence", range_past_a_sequence, ATTN_EINVAL},
        {"ids are out", ids_are_out, ATTN_EINVAL},
        {"ids unaligned", ids_unaligned, ATTN_EINVAL},
        {"packed with a boolean mask", packed_with_bool_mask, ATTN_EUNSUPPORTED},
        {"packed with an additive mask", packed_with_add_mask, ATTN_EUNSUPPORTED},
        {"packed with weights", packed_with_weights, ATTN_EUNSUPPORTED},
        {"packed keys with weights", packed_keys_with_weights, ATTN_EUNSUPPORTED},
    };
    (void)state;
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        struct call c = {.op = NULL};
        char text[512] = "";
        ok(attn_op_create(&c.op, 1, 1, 2, 2));
        ok(attn_args_create(&c.args));
        gbuf_make(&c.out, 16, 0);
        rows[n].spoil(&c);
        attn_status run = attn_run_args(c.op, 2, 4, 5, c.q, c.k, c.v, c.out.p, c.args);
        attn_status said =
            attn_explain(c.op, 2, 4, 5, c.q, c.k, c.v, c.out.p, c.args, text, sizeof text, NULL);
        print_message("%-30s %s\n", rows[n].name, text);
        if (run != rows[n].status || said != run || strlen(text) < 5 || !gbuf_untouched(&c.out))
            fail_msg("%s: %d, %d", rows[n].name, (int)run, (int)said);
        gbuf_free(&c.out);
        attn_args_destroy(c.args);
        attn_op_destroy(c.op);
    }
}

/* ---------------------------------------------------------------- helpers */

static void test_slopes(void **state)
{
    static const double eight[8] = {0.5,     0.25,     0.125,     0.0625,
                                    0.03125, 0.015625, 0.0078125, 0.00390625};
    float slopes[16], twelve[12];
    (void)state;
    ok(attn_alibi_slopes(8, slopes));
    for (int h = 0; h < 8; h++) assert_true(ref_close(eight[h], 1e-7 * eight[h], slopes[h]));
    ok(attn_alibi_slopes(16, slopes));
    ok(attn_alibi_slopes(12, twelve));
    for (int h = 0; h < 12; h++) { /* those of 8, then every other one of 16 */
        double want = h < 8 ? eight[h] : pow(2, -0.5 * (2 * (h - 8) + 1));
        assert_true(ref_close(want, 1e-6 * want, twelve[h]));
    }
    ok(attn_alibi_slopes(1, slopes));
    assert_true(ref_close(0.00390625, 1e-8, slopes[0]));
    ok(attn_alibi_slopes(3, slopes));
    assert_true(ref_close(0.0625, 1e-8, slopes[0]) && ref_close(0.25, 1e-8, slopes[2]));
    bad(attn_alibi_slopes(0, slopes));
    bad(attn_alibi_slopes(-4, slopes));
    bad(attn_alibi_slopes(4, NULL));
}

/* Parts merged without sinks, then the sinks once, are a run with sinks. */
static void test_merge_sinks(void **state)
{
    (void)state;
    for (int64_t row = 0; row < 12; row++) {
        struct spec s = {.seed = (uint64_t)row,
                         .row = row,
                         .B = 2,
                         .Hq = 4,
                         .Hk = 2,
                         .Lq = 5,
                         .Lk = 21,
                         .Dk = 8,
                         .sinks = true,
                         .outs = OUT_LSE,
                         .std = row % 3 ? 1 : 5};
        struct rig g;
        s.mask_bool = (struct mask_spec){.on = 1, .full = FULL_Q, .density = 0.1};
        rig_make(&g, &s);
        rig_expect(&g);
        ok(attn_args_set_sinks(g.args, 0, NULL));
        ok(attn_run_args(g.op, 2, 5, 21, g.q.at, g.k.at, g.v.at, g.out.at, g.args));
        ok(attn_merge_sinks(2, 4, 5, 8, g.out.at, g.lse.p, g.sinks));
        assert_true(rig_check(&g));
        rig_free(&g);
    }
    float o[4] = {1, 2, 3, 4}, lse[2] = {0, -INFINITY};
    const float sinks[2] = {0, 5};
    ok(attn_merge_sinks(1, 2, 1, 2, o, lse, sinks));
    assert_true(ref_close(0.5, 1e-6, o[0]) && o[2] == 3 && o[3] == 4);
    bad(attn_merge_sinks(-1, 2, 1, 2, o, lse, sinks));
    bad(attn_merge_sinks(1, 2, 1, 0, o, lse, sinks));
    bad(attn_merge_sinks(1, 2, 1, 2, NULL, lse, sinks));
    bad(attn_merge_sinks(1, 2, 1, 2, o, NULL, sinks));
    bad(attn_merge_sinks(1, 2, 1, 2, o, lse, NULL));
    assert_int_equal(attn_merge_sinks(INT64_MAX, 2, 2, 2, o, lse, sinks), ATTN_EOVERFLOW);
    ok(attn_merge_sinks(0, 2, 1, 2, NULL, NULL, NULL));
}

static void test_mask_dims(void **state)
{
    static const struct {
        int64_t rank, shape[4], Lk, dims[4], strides[4];
    } rows[] = {
        {0, {0}, 6, {1, 1, 1, 6}, {-1, -1, -1, 0}},
        {1, {6}, 6, {1, 1, 1, 6}, {-1, -1, -1, 1}},
        {1, {4}, 6, {1, 1, 1, 4}, {-1, -1, -1, 1}},
        {2, {5, 1}, 6, {1, 1, 5, 6}, {-1, -1, 1, 0}},
        {2, {1, 6}, 6, {1, 1, 1, 6}, {-1, -1, -1, 1}},
        {3, {3, 5, 6}, 6, {1, 3, 5, 6}, {-1, 30, 6, 1}},
        {4, {2, 1, 5, 4}, 6, {2, 1, 5, 4}, {20, -1, 4, 1}},
    };
    const int64_t two[2] = {3, -1}, huge[4] = {INT64_MAX / 2, 4, 2, 2};
    int64_t dims[4] = {7, 7, 7, 7}, strides[4] = {7, 7, 7, 7};
    (void)state;
    bad(attn_mask_dims(2, two, 6, dims, strides));
    bad(attn_mask_dims(5, two, 6, dims, strides));
    bad(attn_mask_dims(-1, two, 6, dims, strides));
    bad(attn_mask_dims(2, NULL, 6, dims, strides));
    bad(attn_mask_dims(1, two, 6, NULL, strides));
    bad(attn_mask_dims(1, two, 6, dims, NULL));
    assert_int_equal(attn_mask_dims(4, huge, 6, dims, strides), ATTN_EOVERFLOW);
    for (int a = 0; a < 4; a++) assert_true(dims[a] == 7 && strides[a] == 7);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        ok(attn_mask_dims(rows[n].rank, rows[n].shape, rows[n].Lk, dims, strides));
        for (int a = 0; a < 4; a++) {
            if (dims[a] != rows[n].dims[a]) fail_msg("row %d: extent %d", (int)n, a);
            bool matters = dims[a] > 1; /* strides of extents of 1 may be anything: -1 here */
            if (matters && strides[a] != rows[n].strides[a])
                fail_msg("row %d: stride %d", (int)n, a);
        }
    }
}

/* A sink far above every score: weights fall to 0 by degrees, and values hold their own. */
static void test_sink_above_the_scores(void **state)
{
    static const struct {
        float sink, v;
    } rows[] = {{88.5f, 1e30f}, {89, 1e30f}, {100, 1e38f}, {90, INFINITY}, {-90, INFINITY}};
    const float zero = 0;
    attn_op *op;
    attn_args *args;
    (void)state;
    ok(attn_op_create(&op, 1, 1, 1, 1));
    ok(attn_args_create(&args));
    for (int n = 0; n < 5; n++) {
        float out = 7, weight = 7, lse = 0, merged = rows[n].v;
        double want = (double)rows[n].v / (1 + exp((double)rows[n].sink));
        ok(attn_args_set_sinks(args, 1, &rows[n].sink));
        ok(attn_args_set_weights(args, &weight));
        ok(attn_run_args(op, 1, 1, 1, &zero, &zero, &rows[n].v, &out, args));
        ok(attn_merge_sinks(1, 1, 1, 1, &merged, &lse, &rows[n].sink));
        /* factors below 2^-126 have fewer digits; those of rows[2] are 2^-19 of that */
        assert_true(ref_close(want, fabs(want) * (rows[n].sink > 99 ? 0.1 : 1e-4), out));
        assert_true(ref_close(want, fabs(want) * (rows[n].sink > 99 ? 0.1 : 1e-4), merged));
        assert_true(ref_close(1 / (1 + exp((double)rows[n].sink)), 0x1p-126, weight) ||
                    rows[n].sink < 0);
    }
    attn_args_destroy(args);
    attn_op_destroy(op);
}

/* Ranges for no item but the wrong count are refused, too. */
static void test_count_of_empty_ranges(void **state)
{
    const float x = 1;
    float out;
    attn_op *op;
    attn_args *args;
    (void)state;
    ok(attn_op_create(&op, 1, 1, 1, 1));
    ok(attn_args_create(&args));
    ok(attn_args_set_key_range(args, 7, NULL, NULL));
    bad(attn_run_args(op, 1, 1, 1, &x, &x, &x, &out, args));
    ok(attn_args_set_key_range(args, 0, NULL, NULL));
    ok(attn_run_args(op, 1, 1, 1, &x, &x, &x, &out, args));
    attn_args_destroy(args);
    attn_op_destroy(op);
}

/* q, k, v and out in one (B, L, 4, H, D) buffer share no element: with one query, too, and with
   heads counted backwards. */
static void test_interleaved_in_one_buffer(void **state)
{
    enum { B = 2, L = 5, H = 2, D = 3 };
    const int64_t strides[4] = {L * 4 * H * D, D, 4 * H * D, 1}, back[4] = {L * 24, -D, 24, 1};
    struct gbuf x;
    attn_op *op;
    attn_args *args;
    (void)state;
    gbuf_make(&x, B * L * 4 * H * D, 0);
    memset(x.p, 0, (size_t)x.n * sizeof *x.p);
    ok(attn_op_create(&op, H, H, D, D));
    for (int backwards = 0; backwards < 2; backwards++)
        for (int64_t Lq = 1; Lq <= L; Lq++) {
            float *first = x.p + (L - Lq) * 24; /* the last queries */
            ok(attn_args_create(&args));
            for (int slot = ATTN_Q; slot <= ATTN_OUT; slot++)
                ok(attn_args_set_strides(args, slot,
                                         backwards && slot == ATTN_Q ? back : strides));
            ok(attn_run_args(op, B, Lq, L, first + (backwards ? D : 0), x.p + 6, x.p + 12,
                             first + 18, args));
            bad(attn_run_args(op, B, Lq, L, first, x.p + 6, x.p + 12, first + 14, args));
            attn_args_destroy(args);
        }
    assert_true(gbuf_intact(&x));
    attn_op_destroy(op);
    gbuf_free(&x);
}

/* A row of output, which has no stride, in the gap behind a row of K; anywhere else it overlaps. */
static void test_output_in_a_gap(void **state)
{
    const int64_t strides[4] = {0, 0, 8, 1};
    float q[3] = {0}, v[12] = {0}, k[32] = {0};
    attn_op *op;
    attn_args *args;
    (void)state;
    ok(attn_op_create(&op, 1, 1, 3, 3));
    ok(attn_args_create(&args));
    ok(attn_args_set_strides(args, ATTN_K, strides));
    for (int at = 0; at < 24; at++) {
        attn_status want = at % 8 >= 3 && at % 8 <= 5 ? ATTN_OK : ATTN_EINVAL;
        assert_int_equal(attn_run_args(op, 1, 1, 4, q, k, v, k + at, args), want);
    }
    attn_args_destroy(args);
    attn_op_destroy(op);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_setters),
        cmocka_unit_test(test_refused_runs),
        cmocka_unit_test(test_slopes),
        cmocka_unit_test(test_merge_sinks),
        cmocka_unit_test(test_sink_above_the_scores),
        cmocka_unit_test(test_count_of_empty_ranges),
        cmocka_unit_test(test_interleaved_in_one_buffer),
        cmocka_unit_test(test_output_in_a_gap),
        cmocka_unit_test(test_mask_dims),
    };
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
