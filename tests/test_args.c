/* SPDX-License-Identifier: MIT */
/*
 * What is wrong with a run: its status, outputs untouched to the last bit, and
 * a sentence from attn_explain() with the same status.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rig.h"

#include <stdlib.h>
#include <string.h>

/* A valid call that each row below spoils in one way. */
struct call {
    struct rig g;
    attn_op *op;
    attn_args *args;
    int64_t B, Lq, Lk;
    const void *q, *k, *v;
    void *out;
    char memory[64];
};

enum { HQ = 4, HK = 2, DK = 8, DV = 6, B_ = 2, LQ = 5, LK = 7 };
#define FAR (INT64_MAX / 2)

static const int64_t full_dims[4] = {B_, HQ, LQ, LK};
static uint8_t bool_mask[B_ * HQ * LQ * LK];

static void call_make(struct call *c)
{
    const struct spec s = {.seed = 1,
                           .B = B_,
                           .Hq = HQ,
                           .Hk = HK,
                           .Lq = LQ,
                           .Lk = LK,
                           .Dk = DK,
                           .Dv = DV,
                           .outs = OUT_STAGE(REF_WEIGHTS) | OUT_LSE};
    memset(c, 0, sizeof *c);
    rig_make(&c->g, &s);
    rig_prepare(&c->g);
    c->op = c->g.op;
    c->args = c->g.args;
    c->B = B_;
    c->Lq = LQ;
    c->Lk = LK;
    c->q = c->g.q.at;
    c->k = c->g.k.at;
    c->v = c->g.v.at;
    c->out = c->g.out.at;
}

static void ok(attn_status status) { assert_int_equal(status, ATTN_OK); }

/* ------------------------------------------------------------- spoilers */

static void op_null(struct call *c) { c->op = NULL; }
static void b_negative(struct call *c) { c->B = -1; }
static void lq_negative(struct call *c) { c->Lq = -1; }
static void lk_negative(struct call *c) { c->Lk = -7; }
static void q_null(struct call *c) { c->q = NULL; }
static void k_null(struct call *c) { c->k = NULL; }
static void v_null(struct call *c) { c->v = NULL; }
static void out_null(struct call *c) { c->out = NULL; }
static void q_unaligned(struct call *c) { c->q = (const char *)c->q + 1; }
static void k_unaligned(struct call *c) { c->k = (const char *)c->k + 2; }
static void v_unaligned(struct call *c) { c->v = (const char *)c->v + 3; }
static void out_unaligned(struct call *c) { c->out = (char *)c->out + 2; }
static void out_is_q(struct call *c) { c->q = c->out; }
static void out_meets_q(struct call *c) { c->q = (const float *)c->out + B_ * HQ * LQ * DV - 1; }
static void out_is_k(struct call *c) { c->k = c->out; }
static void out_meets_v(struct call *c)
{
    c->v = (const float *)c->out - (B_ * HK * LK * DV - 1);
}

static void strides(struct call *c, int32_t slot, int64_t b, int64_t h, int64_t l, int64_t d)
{
    const int64_t s[4] = {b, h, l, d};
    ok(attn_args_set_strides(c->args, slot, s));
}

/* Packed strides of a tensor, items and heads. */
enum { QB = HQ * LQ * DK, QH = LQ * DK, KB = HK * LK * DK, KH = LK * DK };
enum { VB = HK * LK * DV, VH = LK * DV, OB = HQ * LQ * DV, OH = LQ * DV };

static void q_inner_2(struct call *c) { strides(c, ATTN_Q, QB, QH, DK, 2); }
static void k_inner_0(struct call *c) { strides(c, ATTN_K, KB, KH, DK, 0); }
static void v_transposed(struct call *c) { strides(c, ATTN_V, VB, VH, 1, LK); }
static void out_inner_minus_1(struct call *c) { strides(c, ATTN_OUT, OB, OH, DV, -1); }
static void q_rows_overlap(struct call *c) { strides(c, ATTN_Q, QB, QH, DK - 1, 1); }
static void k_row_stride_0(struct call *c) { strides(c, ATTN_K, KB, KH, 0, 1); }
static void v_rows_backwards(struct call *c) { strides(c, ATTN_V, VB, VH, -DV, 1); }
static void out_rows_overlap(struct call *c) { strides(c, ATTN_OUT, OB, OH, DV - 1, 1); }
static void out_heads_at_once(struct call *c) { strides(c, ATTN_OUT, OB, 0, DV, 1); }
static void out_items_at_once(struct call *c) { strides(c, ATTN_OUT, 0, OH, DV, 1); }
static void out_heads_overlap(struct call *c) { strides(c, ATTN_OUT, OB, OH - 1, DV, 1); }
static void out_items_overlap(struct call *c) { strides(c, ATTN_OUT, OB - 1, OH, DV, 1); }
static void q_row_stride_huge(struct call *c) { strides(c, ATTN_Q, 0, 0, 1LL << 31, 1); }
static void k_extent_overflows(struct call *c) { strides(c, ATTN_K, FAR, FAR, DK, 1); }
static void v_bytes_overflow(struct call *c) { strides(c, ATTN_V, FAR / 2, VH, DV, 1); }
static void out_extent_overflows(struct call *c) { strides(c, ATTN_OUT, INT64_MAX, OH, DV, 1); }

static void range_of(struct call *c, int64_t n, int64_t begin, int64_t end)
{
    const int64_t begins[3] = {0, begin, 0}, ends[3] = {LK, end, LK};
    ok(attn_args_set_key_range(c->args, n, begins, ends));
}

static void range_count_3(struct call *c) { range_of(c, 3, 0, LK); }
static void range_count_1(struct call *c) { range_of(c, 1, 0, LK); }
static void range_backwards(struct call *c) { range_of(c, 2, 4, 3); }
static void range_past_the_keys(struct call *c) { range_of(c, 2, 0, LK + 1); }
static void range_begins_before(struct call *c) { range_of(c, 2, -1, 3); }
static void range_far(struct call *c) { range_of(c, 2, INT64_MIN, INT64_MAX); }
static void begin_alone_past(struct call *c)
{
    const int64_t begins[2] = {0, LK + 1};
    ok(attn_args_set_key_range(c->args, 2, begins, NULL));
}
static void end_alone_negative(struct call *c)
{
    const int64_t ends[2] = {-1, 3};
    ok(attn_args_set_key_range(c->args, 2, NULL, ends));
}
static void positions_count_1(struct call *c)
{
    const int64_t pos[1] = {0};
    ok(attn_args_set_positions(c->args, 1, pos));
}

static void bool_dims(struct call *c, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t dims[4] = {b, h, i, j};
    ok(attn_args_set_mask_bool(c->args, bool_mask, dims, NULL));
}
static void add_dims(struct call *c, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t dims[4] = {b, h, i, j};
    ok(attn_args_set_mask_add(c->args, c->g.v.at, dims, NULL));
}

static void bool_of_3_items(struct call *c) { bool_dims(c, 3, 1, 1, LK); }
static void bool_of_kv_heads(struct call *c) { bool_dims(c, 1, HK, 1, LK); }
static void bool_of_4_queries(struct call *c) { bool_dims(c, 1, 1, 4, LK); }
static void bool_longer(struct call *c) { bool_dims(c, 1, 1, LQ, LK + 1); }
static void bool_of_0_items(struct call *c) { bool_dims(c, 0, 1, LQ, LK); }
static void add_of_batch_times_heads(struct call *c) { add_dims(c, B_ * HQ, 1, LQ, LK); }
static void add_of_2_queries(struct call *c) { add_dims(c, 1, 1, 2, LK); }
static void add_longer(struct call *c) { add_dims(c, 1, 1, 1, 2 * LK); }
static void add_unaligned(struct call *c)
{
    ok(attn_args_set_mask_add(c->args, (const float *)(const void *)((const char *)c->v + 1),
                              full_dims, NULL));
}

static void weights_at(struct call *c, float *p) { ok(attn_args_set_weights(c->args, p)); }

static void workspace_of_8(struct call *c) { ok(attn_args_set_workspace(c->args, c->memory, 8)); }
static void weights_are_out(struct call *c) { weights_at(c, c->out); }
static void weights_meet_lse(struct call *c) { weights_at(c, c->g.lse.p + 39); }
static void lse_is_out(struct call *c) { ok(attn_args_set_lse(c->args, c->out)); }
static void lse_in_q(struct call *c) { ok(attn_args_set_lse(c->args, c->g.q.at + 5)); }
static void weights_in_k(struct call *c) { weights_at(c, c->g.k.at); }
static void raw_is_weights(struct call *c)
{
    ok(attn_args_set_scores_out(c->args, ATTN_STAGE_RAW, c->g.stage[REF_WEIGHTS].p, 0));
}
static void lse_unaligned(struct call *c)
{
    ok(attn_args_set_lse(c->args, (float *)(void *)((char *)c->g.lse.p + 1)));
}
static void out_is_the_mask(struct call *c)
{
    const int64_t dims[4] = {1, 1, LQ, LK};
    ok(attn_args_set_mask_add(c->args, c->out, dims, NULL));
}

static void b_overflows(struct call *c) { c->B = INT64_MAX / 4; }
static void lq_overflows(struct call *c) { c->Lq = INT64_MAX / 8; }
static void lk_overflows(struct call *c) { c->Lk = INT64_MAX; }
static void product_overflows(struct call *c)
{
    c->B = (int64_t)1 << 40, c->Lq = (int64_t)1 << 30;
}

/* Sizes that are no error of the tensors, but one of (B, Hq, Lq, Lk) scores. */
static void scores_overflow(struct call *c)
{
    c->Lq = c->Lk = (int64_t)1 << 31;
    c->q = (const float *)((uintptr_t)1 << 42);
    c->k = (const float *)((uintptr_t)1 << 43);
    c->v = (const float *)((uintptr_t)1 << 44);
    c->out = (float *)((uintptr_t)1 << 45);
    ok(attn_args_set_lse(c->args, NULL));
}
static void mask_strides_overflow(struct call *c)
{
    const int64_t far[4] = {INT64_MAX / 2, INT64_MAX / 2, 1, 1};
    ok(attn_args_set_mask_bool(c->args, bool_mask, full_dims, far));
}

struct error {
    const char *name;
    void (*spoil)(struct call *c);
    attn_status status;
    bool plain; /* also an error of attn_run() */
};

#define PLAIN(f, status)    \
    {                       \
#f, f, status, true \
    }
#define ARGS(f, status)      \
    {                        \
#f, f, status, false \
    }

static const struct error errors[] = {
    PLAIN(op_null, ATTN_EINVAL),
    PLAIN(b_negative, ATTN_EINVAL),
    PLAIN(lq_negative, ATTN_EINVAL),
    PLAIN(lk_negative, ATTN_EINVAL),
    PLAIN(q_null, ATTN_EINVAL),
    PLAIN(k_null, ATTN_EINVAL),
    PLAIN(v_null, ATTN_EINVAL),
    PLAIN(out_null, ATTN_EINVAL),
    PLAIN(q_unaligned, ATTN_EINVAL),
    PLAIN(k_unaligned, ATTN_EINVAL),
    PLAIN(v_unaligned, ATTN_EINVAL),
    PLAIN(out_unaligned, ATTN_EINVAL),
    PLAIN(out_is_q, ATTN_EINVAL),
    PLAIN(out_meets_q, ATTN_EINVAL),
    PLAIN(out_is_k, ATTN_EINVAL),
    PLAIN(out_meets_v, ATTN_EINVAL),
    ARGS(q_inner_2, ATTN_EINVAL),
    ARGS(k_inner_0, ATTN_EINVAL),
    ARGS(v_transposed, ATTN_EINVAL),
    ARGS(out_inner_minus_1, ATTN_EINVAL),
    ARGS(q_rows_overlap, ATTN_EINVAL),
    ARGS(k_row_stride_0, ATTN_EINVAL),
    ARGS(v_rows_backwards, ATTN_EINVAL),
    ARGS(out_rows_overlap, ATTN_EINVAL),
    ARGS(out_heads_at_once, ATTN_EINVAL),
    ARGS(out_items_at_once, ATTN_EINVAL),
    ARGS(out_heads_overlap, ATTN_EINVAL),
    ARGS(out_items_overlap, ATTN_EINVAL),
    ARGS(q_row_stride_huge, ATTN_EOVERFLOW),
    ARGS(k_extent_overflows, ATTN_EOVERFLOW),
    ARGS(v_bytes_overflow, ATTN_EOVERFLOW),
    ARGS(out_extent_overflows, ATTN_EOVERFLOW),
    ARGS(range_count_3, ATTN_EINVAL),
    ARGS(range_count_1, ATTN_EINVAL),
    ARGS(range_backwards, ATTN_EINVAL),
    ARGS(range_past_the_keys, ATTN_EINVAL),
    ARGS(range_begins_before, ATTN_EINVAL),
    ARGS(range_far, ATTN_EINVAL),
    ARGS(begin_alone_past, ATTN_EINVAL),
    ARGS(end_alone_negative, ATTN_EINVAL),
    ARGS(positions_count_1, ATTN_EINVAL),
    ARGS(bool_of_3_items, ATTN_EINVAL),
    ARGS(bool_of_kv_heads, ATTN_EINVAL),
    ARGS(bool_of_4_queries, ATTN_EINVAL),
    ARGS(bool_longer, ATTN_EINVAL),
    ARGS(bool_of_0_items, ATTN_EINVAL),
    ARGS(add_of_batch_times_heads, ATTN_EINVAL),
    ARGS(add_of_2_queries, ATTN_EINVAL),
    ARGS(add_longer, ATTN_EINVAL),
    ARGS(add_unaligned, ATTN_EINVAL),
    ARGS(workspace_of_8, ATTN_EINVAL),
    ARGS(weights_are_out, ATTN_EINVAL),
    ARGS(weights_meet_lse, ATTN_EINVAL),
    ARGS(lse_is_out, ATTN_EINVAL),
    ARGS(lse_in_q, ATTN_EINVAL),
    ARGS(weights_in_k, ATTN_EINVAL),
    ARGS(raw_is_weights, ATTN_EINVAL),
    ARGS(lse_unaligned, ATTN_EINVAL),
    ARGS(out_is_the_mask, ATTN_EINVAL),
    PLAIN(b_overflows, ATTN_EOVERFLOW),
    PLAIN(lq_overflows, ATTN_EOVERFLOW),
    PLAIN(lk_overflows, ATTN_EOVERFLOW),
    PLAIN(product_overflows, ATTN_EOVERFLOW),
    ARGS(scores_overflow, ATTN_EOVERFLOW),
    ARGS(mask_strides_overflow, ATTN_EOVERFLOW),
};
#define N_ERRORS (sizeof errors / sizeof *errors)

/* ----------------------------------------------------------------- tests */

static attn_status run(const struct call *c)
{
    return attn_run_args(c->op, c->B, c->Lq, c->Lk, c->q, c->k, c->v, c->out, c->args);
}

static int wrong; /* rows of the table so far */

static void complain(const char *name, const char *what, attn_status status)
{
    print_error("%s: %s %d\n", name, what, (int)status);
    wrong++;
}

/* Every tensor's elements: what an error must not touch. */
static void expect_untouched(const struct call *c, const struct call *before, const char *name)
{
    bool fine = gbuf_untouched(&c->g.out.buf) && gbuf_untouched(&c->g.lse) &&
                gbuf_untouched(&c->g.stage[REF_WEIGHTS]);
    const struct gbuf *inputs[] = {&c->g.q.buf, &c->g.k.buf, &c->g.v.buf};
    const struct gbuf *kept[] = {&before->g.q.buf, &before->g.k.buf, &before->g.v.buf};
    for (int n = 0; n < 3; n++)
        fine = fine && gbuf_intact(inputs[n]) &&
               memcmp(inputs[n]->p, kept[n]->p, (size_t)kept[n]->n * sizeof(float)) == 0;
    if (!fine) complain(name, "something was written", 0);
}

static void expect_explained(const struct call *c, const struct error *e)
{
    char text[1024];
    memset(text, 'x', sizeof text);
    attn_status status = attn_explain(c->op, c->B, c->Lq, c->Lk, c->q, c->k, c->v, c->out,
                                      c->args, text, sizeof text, NULL);
    if (status != e->status) complain(e->name, "attn_explain's status", status);
    if (memchr(text, 0, sizeof text) == NULL || strlen(text) < 5)
        complain(e->name, "no sentence", status);
    else
        print_message("%-26s %s\n", e->name, text);
}

static void test_every_error_of_a_run(void **state)
{
    struct call before;
    (void)state;
    call_make(&before);
    for (size_t n = 0; n < N_ERRORS; n++) {
        const struct error *e = &errors[n];
        struct call c;
        call_make(&c);
        e->spoil(&c);
        attn_status status = run(&c);
        if (status != e->status) complain(e->name, "status", status);
        if (e->plain) {
            status = attn_run(c.op, c.B, c.Lq, c.Lk, c.q, c.k, c.v, c.out);
            if (status != e->status) complain(e->name, "attn_run's status", status);
        }
        expect_untouched(&c, &before, e->name);
        expect_explained(&c, e);
        rig_free(&c.g);
    }
    rig_free(&before.g);
    assert_int_equal(wrong, 0);
}

/* The call that the table spoils is itself right, also after an error. */
static void test_the_call_is_right(void **state)
{
    struct call c;
    (void)state;
    call_make(&c);
    c.B = -1;
    assert_int_equal(run(&c), ATTN_EINVAL);
    c.B = B_;
    ok(run(&c));
    assert_true(rig_check(&c.g));
    rig_free(&c.g);
}

/* Nothing to do: success, nothing written, NULL tensors allowed (pytorch#141218). */
static void test_nothing_to_do(void **state)
{
    struct call c, before;
    (void)state;
    call_make(&c);
    call_make(&before);
    ok(attn_args_clear(c.args));
    for (int n = 0; n < 3; n++) {
        c.B = n == 1 ? B_ : 0;
        c.Lq = n == 0 ? LQ : 0;
        ok(run(&c));
        ok(attn_run(c.op, c.B, c.Lq, c.Lk, NULL, NULL, NULL, NULL));
        ok(attn_run(c.op, c.B, c.Lq, 0, NULL, NULL, NULL, NULL));
        ok(attn_explain(c.op, c.B, c.Lq, c.Lk, c.q, c.k, c.v, c.out, c.args, NULL, 0, NULL));
    }
    expect_untouched(&c, &before, "nothing to do");
    assert_int_equal(wrong, 0);
    rig_free(&c.g);
    rig_free(&before.g);
}

/* Strides of axes of length 1 are ignored, whatever they say. */
static void test_strides_of_short_axes(void **state)
{
    struct call c;
    (void)state;
    call_make(&c);
    ok(attn_args_clear(c.args));
    for (int32_t slot = ATTN_Q; slot <= ATTN_OUT; slot++)
        strides(&c, slot, INT64_MIN, LQ * DK, INT64_MAX, 1);
    c.B = c.Lq = c.Lk = 1;
    ok(run(&c));
    rig_free(&c.g);
}

/* One buffer of (token, q | k | v | out, head, D): the four interleave and do not overlap. One
   element further down they do. */
static void test_interleaved_tensors(void **state)
{
    enum { H = 2, L = 9, D = 4, W = H * D, ROW = 4 * W };
    const struct spec s = {.seed = 3, .Hq = H, .Lq = L, .Lk = L, .Dk = D};
    const int64_t step[4] = {0, D, ROW, 1};
    struct gbuf all;
    struct call c = {.op = NULL};
    (void)state;
    rig_make(&c.g, &s);
    rig_expect(&c.g);
    gbuf_make(&all, L * ROW, 1);
    for (int64_t n = 0; n < L * W; n++) {
        int64_t l = n / W, h = n / D % H, d = n % D, at = l * ROW + h * D + d;
        all.p[at] = *test_at(&c.g.q, 0, h, l, d);
        all.p[at + W] = *test_at(&c.g.k, 0, h, l, d);
        all.p[at + 2 * W] = *test_at(&c.g.v, 0, h, l, d);
    }
    ok(attn_args_create(&c.args));
    for (int32_t slot = ATTN_Q; slot <= ATTN_OUT; slot++)
        ok(attn_args_set_strides(c.args, slot, step));
    float *before = copy_floats(all.p, all.n);
    attn_status status = attn_run_args(c.g.op, 1, L, L, all.p, all.p + W, all.p + 2 * W,
                                       all.p + 3 * W - 1, c.args);
    assert_int_equal(status, ATTN_EINVAL);
    assert_memory_equal(all.p, before, (size_t)all.n * sizeof(float));
    ok(attn_run_args(c.g.op, 1, L, L, all.p, all.p + W, all.p + 2 * W, all.p + 3 * W, c.args));
    for (int64_t n = 0; n < L * ROW; n++) {
        int64_t l = n / ROW, h = n / D % H, d = n % D;
        double want = n / W % 4 < 3 ? (double)before[n] : (double)*test_at(&c.g.out, 0, h, l, d);
        assert_true(ref_close(want, n / W % 4 < 3 ? 0 : 1e-6, all.p[n]));
    }
    assert_true(gbuf_intact(&all));
    free(before);
    gbuf_free(&all);
    attn_args_destroy(c.args);
    rig_free(&c.g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_error_of_a_run), cmocka_unit_test(test_the_call_is_right),
        cmocka_unit_test(test_nothing_to_do),        cmocka_unit_test(test_strides_of_short_axes),
        cmocka_unit_test(test_interleaved_tensors),
    };
    memset(bool_mask, 1, sizeof bool_mask);
    return cmocka_run_group_tests_name("args", tests, NULL, NULL);
}
