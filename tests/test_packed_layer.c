/* SPDX-License-Identifier: MIT */
/*
 * A layer over packed sequences: the same as a loop over them, and tokens that
 * belong to no sequence are neither read nor written.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "mem.h"
#include "rig.h"

#include <stdlib.h>
#include <string.h>

enum { H = 4, HK = 2, D = 8, DV = 6, E = 20, E_OUT = 13, TOKENS = 90, SEQUENCES = 4 };

/* Gaps before, between (an empty sequence) and behind. */
static const int64_t offsets[SEQUENCES + 1] = {5, 38, 38, 39, 80};

struct fixture {
    attn_op *op;
    attn_layer *layer;
    struct gbuf w[4], x;
};

static void ok(attn_status status) { assert_int_equal(status, ATTN_OK); }

static void fixture_make(struct fixture *f, bool output)
{
    static const int64_t rows[4] = {E, E, E, H * DV}, cols[4] = {H * D, HK * D, HK * DV, E_OUT};
    struct rng rng = rng_make(11);
    ok(attn_op_create(&f->op, H, HK, D, DV));
    ok(attn_op_set_causal(f->op, ATTN_CAUSAL_TOP_LEFT));
    ok(attn_layer_create(&f->layer, f->op, E, E, output ? E_OUT : H * DV));
    for (int n = 0; n < 4; n++) {
        gbuf_make(&f->w[n], rows[n] * cols[n], n);
        rng_normals(&rng, f->w[n].n, f->w[n].p, 0.3);
        if (n < 3 || output)
            ok(attn_layer_set_weights(f->layer, n, ATTN_IN_OUT, f->w[n].p, 0, NULL));
    }
    gbuf_make(&f->x, TOKENS * E, 1);
    rng_normals(&rng, f->x.n, f->x.p, 1);
}

static void fixture_free(struct fixture *f)
{
    for (int n = 0; n < 4; n++) gbuf_free(&f->w[n]);
    gbuf_free(&f->x);
    attn_layer_destroy(f->layer);
    attn_op_destroy(f->op);
}

/* Tokens outside all sequences hold NaN. */
static void poison_gaps(struct gbuf *x)
{
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t e = 0; e < E && (t < offsets[0] || t >= offsets[SEQUENCES]); e++)
            x->p[t * E + e] = prefill();
}

/* Each sequence alone: the products have other row counts, so a few roundings may differ. Sums of
   E, D, Lk and H * DV products of numbers of order 1: 1e-5 is over ten times what they lose. */
static void expect_sequences(const struct fixture *f, const struct gbuf *packed, int64_t width)
{
    for (int b = 0; b < SEQUENCES; b++) {
        int64_t L = offsets[b + 1] - offsets[b];
        struct gbuf alone;
        gbuf_make(&alone, L * width, 0);
        ok(attn_layer_run(f->layer, 1, L, L, f->x.p + offsets[b] * E, NULL, alone.p, NULL));
        for (int64_t n = 0; n < L * width; n++)
            assert_true(ref_close((double)alone.p[n], 1e-5, packed->p[offsets[b] * width + n]));
        gbuf_free(&alone);
    }
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t e = 0; e < width && (t < offsets[0] || t >= offsets[SEQUENCES]); e++)
            assert_true(is_prefill(packed->p[t * width + e]));
    assert_true(gbuf_intact(packed));
}

static void packed_layer(bool output, bool self)
{
    int64_t width = output ? E_OUT : H * DV;
    struct fixture f;
    struct gbuf out;
    attn_args *args;
    size_t bytes;
    fixture_make(&f, output);
    poison_gaps(&f.x);
    gbuf_make(&out, TOKENS * width, 2);
    ok(attn_args_create(&args));
    ok(attn_args_set_offsets_q(args, offsets, ATTN_I64, SEQUENCES));
    ok(attn_args_set_offsets_k(args, offsets, ATTN_I64, SEQUENCES));
    const float *x_kv = self ? NULL : f.x.p;
    ok(attn_layer_run(f.layer, SEQUENCES, TOKENS, TOKENS, f.x.p, x_kv, out.p, args));
    expect_sequences(&f, &out, width);
    /* again in memory full of NaN, just enough of it */
    ok(attn_layer_workspace_bytes(f.layer, SEQUENCES, TOKENS, TOKENS, args, &bytes));
    char *memory = must_alloc(bytes, 1);
    memset(memory, 0xff, bytes);
    ok(attn_args_set_workspace(args, memory, bytes));
    gbuf_reset(&out);
    ok(attn_layer_run(f.layer, SEQUENCES, TOKENS, TOKENS, f.x.p, x_kv, out.p, args));
    expect_sequences(&f, &out, width);
    free(memory);
    attn_args_destroy(args);
    gbuf_free(&out);
    fixture_free(&f);
}

static void test_packed_layer(void **state)
{
    (void)state;
    for (int n = 0; n < 4; n++) packed_layer(n & 1, n & 2);
}

/* x_q cannot stand for x_kv when only one of them has an axis of items. */
static void test_one_side_packed(void **state)
{
    struct fixture f;
    struct gbuf out;
    attn_args *args;
    (void)state;
    fixture_make(&f, true);
    gbuf_make(&out, TOKENS * E_OUT, 0);
    ok(attn_args_create(&args));
    ok(attn_args_set_offsets_q(args, offsets, ATTN_I64, SEQUENCES));
    assert_int_equal(attn_layer_run(f.layer, SEQUENCES, TOKENS, TOKENS, f.x.p, NULL, out.p, args),
                     ATTN_EINVAL);
    assert_true(gbuf_untouched(&out));
    attn_args_destroy(args);
    gbuf_free(&out);
    fixture_free(&f);
}

/* Nothing to do is success, whatever the workspace. */
static void test_nothing_to_do(void **state)
{
    struct fixture f;
    attn_args *args;
    char small;
    (void)state;
    fixture_make(&f, true);
    ok(attn_args_create(&args));
    ok(attn_args_set_workspace(args, &small, 1));
    ok(attn_layer_run(f.layer, 0, 5, 5, f.x.p, NULL, NULL, args));
    ok(attn_layer_run(f.layer, 2, 0, 5, f.x.p, f.x.p, NULL, args));
    attn_args_destroy(args);
    fixture_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_layer),
        cmocka_unit_test(test_one_side_packed),
        cmocka_unit_test(test_nothing_to_do),
    };
    return cmocka_run_group_tests_name("packed layer", tests, NULL, NULL);
}
