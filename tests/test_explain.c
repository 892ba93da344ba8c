/* SPDX-License-Identifier: MIT */
/* attn_explain: the text of right and wrong runs, cut to what the caller gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rig.h"

#include <stdlib.h>
#include <string.h>

static void ok(attn_status status) { assert_int_equal(status, ATTN_OK); }

/* Two heads of 8, 5 queries, 7 keys. */
static void make(struct rig *g)
{
    const struct spec s = {.seed = 1, .Hq = 2, .Lq = 5, .Lk = 7, .Dk = 8, .outs = OUT_LSE};
    rig_make(g, &s);
    rig_prepare(g);
}

static attn_status explain(struct rig *g, int64_t Lq, char *text, size_t cap, size_t *needed)
{
    return attn_explain(g->op, 1, Lq, 7, g->q.at, g->k.at, g->v.at, g->out.at, g->args, text, cap,
                        needed);
}

static void test_text_is_cut_to_cap(void **state)
{
    char whole[4096], text[4096];
    size_t needed = 0, again;
    struct rig g;
    (void)state;
    make(&g);
    for (int64_t Lq = 5; Lq >= -1; Lq -= 6) {
        attn_status want = Lq < 0 ? ATTN_EINVAL : ATTN_OK;
        assert_int_equal(explain(&g, Lq, NULL, 0, &needed), want);
        assert_in_range(needed, 5, sizeof whole - 1);
        assert_int_equal(explain(&g, Lq, whole, sizeof whole, &again), want);
        assert_true(again == needed && strlen(whole) + 1 == needed);
        print_message("%s\n", whole);
        for (size_t cap = 1; cap <= needed + 1; cap++) {
            memset(text, 'x', sizeof text);
            assert_int_equal(explain(&g, Lq, text, cap, &again), want);
            size_t length = cap < needed ? cap - 1 : needed - 1;
            assert_true(again == needed && text[length] == 0 && text[length + 1] == 'x');
            assert_memory_equal(text, whole, length);
        }
        assert_int_equal(explain(&g, Lq, NULL, 5, &again), ATTN_EINVAL);
        assert_int_equal(explain(&g, Lq, NULL, 0, NULL), want);
    }
    rig_free(&g);
}

/* It looks at sizes and pointers, never behind them, and writes nothing. */
static void test_no_tensor_is_read(void **state)
{
    struct pages pages;
    struct rig g;
    char text[2048];
    (void)state;
    make(&g);
    pages_end(&pages, 16);
    const char *at = (const char *)pages.p + 16; /* the unreadable page */
    ok(attn_args_clear(g.args));
    for (int64_t L = 1; L <= 4; L += 3)
        ok(attn_explain(g.op, 1, L, L, at, at + 1024, at + 2048, at + 3072, g.args, text,
                        sizeof text, NULL));
    assert_true(strlen(text) > 40);
    assert_true(gbuf_untouched(&g.out.buf) && gbuf_untouched(&g.lse));
    pages_free(&pages);
    rig_free(&g);
}

/* A workspace of exactly what the text's run needs is accepted; what explain says is what the run
   returns, for every size. */
static void test_status_is_that_of_the_run(void **state)
{
    static const int64_t sizes[] = {5, 0, 1, -1, 3};
    struct rig g;
    (void)state;
    make(&g);
    for (int n = 0; n < 5; n++) {
        attn_status said = explain(&g, sizes[n], NULL, 0, NULL);
        assert_int_equal(
            said, attn_run_args(g.op, 1, sizes[n], 7, g.q.at, g.k.at, g.v.at, g.out.at, g.args));
    }
    rig_free(&g);
}

static const char *text_of(const attn_op *op, int64_t B, int64_t Lq, int64_t Lk)
{
    const float *in = (const float *)(uintptr_t)4096; /* nobody looks behind them */
    float *out = (float *)((uintptr_t)1 << 60);
    static char text[2048];
    ok(attn_explain(op, B, Lq, Lk, in, in, in, out, NULL, text, sizeof text, NULL));
    return text;
}

static double flops_of(const attn_op *op, int64_t B, int64_t Lq, int64_t Lk)
{
    const char *at = strstr(text_of(op, B, Lq, Lk), "flops: ");
    assert_non_null(at);
    return strtod(at + strlen("flops: "), NULL);
}

/* 2 (Dk + Dv) for each pair of a query head's row and a key that it sees; of very many rows as
   some of them say. */
static void test_flops(void **state)
{
    attn_op *op;
    (void)state;
    ok(attn_op_create(&op, 2, 1, 8, 4));
    assert_true(flops_of(op, 1, 5, 7) == 2 * 35 * 2 * 12);
    assert_true(flops_of(op, 3, 5, 7) == 3 * 2 * 35 * 2 * 12);
    assert_true(flops_of(op, 3, 5, 0) == 0);
    ok(attn_op_set_causal(op, ATTN_CAUSAL_BOTTOM_RIGHT));
    assert_true(flops_of(op, 1, 5, 7) == 2 * (3 + 4 + 5 + 6 + 7) * 2 * 12);
    double all = 2 * (10001.0 * 10000 / 2) * 2 * 12, said = flops_of(op, 1, 10000, 10000);
    assert_true(said > 0.99 * all && said < 1.01 * all);
    assert_true(flops_of(op, (int64_t)1 << 40, 1, 1) == 0x1p40 * 2 * 2 * 12); /* at once */
    attn_op_destroy(op);
}

/* One of a thing is not called several. */
static void test_one_and_many(void **state)
{
    attn_op *op;
    (void)state;
    ok(attn_op_create(&op, 4, 1, 8, 8));
    ok(attn_op_set_threads(op, 1));
    assert_non_null(strstr(text_of(op, 1, 1, 9), "; 1 unit of 4 heads; threads: 1 of 1; "));
    assert_non_null(strstr(text_of(op, 1, 1, 9), ", 1 part of the keys; "));
    assert_non_null(strstr(text_of(op, 1, 1, 9000), " parts of the keys; "));
    attn_op_destroy(op);
    ok(attn_op_create(&op, 4, 4, 8, 8));
    assert_non_null(strstr(text_of(op, 1, 1, 9), "; 4 units of 1 head; threads: 1 of "));
    ok(attn_op_set_threads(op, 2)); /* 13 us as estimated, and 52 */
    assert_non_null(strstr(text_of(op, 1, 100, 100), "; threads: 1, or 2 if awake, of 2; "));
    assert_non_null(strstr(text_of(op, 1, 200, 200), "; threads: 2 of 2; "));
    assert_non_null(strstr(text_of(op, 0, 1, 9), "nothing to do: B is 0"));
    assert_non_null(strstr(text_of(op, 1, 0, 9), "nothing to do: Lq is 0"));
    attn_op_destroy(op);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_is_cut_to_cap),
        cmocka_unit_test(test_no_tensor_is_read),
        cmocka_unit_test(test_status_is_that_of_the_run),
        cmocka_unit_test(test_flops),
        cmocka_unit_test(test_one_and_many),
    };
    return cmocka_run_group_tests_name("explain", tests, NULL, NULL);
}
