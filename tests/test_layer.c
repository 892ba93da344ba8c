/* SPDX-License-Identifier: MIT */
/* attn_layer: projections around attention, against the oracle end to end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "layer_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Heads and widths; odd head counts with odd widths (pytorch#97128: H 3, E 15). */
static const struct layer_spec shapes[] = {
    {.Hq = 1, .Hk = 1, .Dk = 4, .Dv = 4, .E_q = 4, .E_kv = 4, .E_out = 4, .Lq = 5, .Lk = 5},
    {.Hq = 3, .Hk = 3, .Dk = 5, .Dv = 5, .E_q = 15, .E_kv = 15, .E_out = 15, .Lq = 7, .Lk = 7},
    {.Hq = 4, .Hk = 2, .Dk = 8, .Dv = 6, .E_q = 24, .E_kv = 10, .E_out = 17, .Lq = 9, .Lk = 13},
    {.Hq = 6,
     .Hk = 1,
     .Dk = 16,
     .Dv = 16,
     .E_q = 33,
     .E_kv = 33,
     .E_out = 96,
     .Lq = 41,
     .Lk = 41},
    {.Hq = 2,
     .Hk = 2,
     .Dk = 64,
     .Dv = 64,
     .E_q = 128,
     .E_kv = 128,
     .E_out = 128,
     .Lq = 70,
     .Lk = 70},
    {.Hq = 12,
     .Hk = 12,
     .Dk = 32,
     .Dv = 32,
     .E_q = 384,
     .E_kv = 384,
     .E_out = 384,
     .Lq = 50,
     .Lk = 50},
    {.Hq = 4, .Hk = 4, .Dk = 1, .Dv = 1, .E_q = 1, .E_kv = 3, .E_out = 1, .Lq = 1, .Lk = 1},
    {.Hq = 8, .Hk = 2, .Dk = 7, .Dv = 9, .E_q = 100, .E_kv = 65, .E_out = 72, .Lq = 1, .Lk = 130},
    {.Hq = 2, .Hk = 1, .Dk = 3, .Dv = 2, .E_q = 401, .E_kv = 390, .E_out = 67, .Lq = 45, .Lk = 6},
};
#define N_SHAPES ((int64_t)(sizeof shapes / sizeof *shapes))

static struct layer_spec spec_of_row(int64_t row)
{
    struct layer_spec s = shapes[row % N_SHAPES];
    int64_t variant = row / N_SHAPES;
    s.seed = (uint64_t)row;
    s.row = row;
    s.B = 1 + variant % 3;
    for (int w = 0; w < 4; w++) s.flags[w] = (variant >> w) % 2 ? ATTN_OUT_IN : ATTN_IN_OUT;
    s.ld_pad = variant % 4 == 0 ? 0 : variant;
    s.bias = (int32_t)(variant * 5 + row) % 16;
    s.no_output = variant % 3 == 2;
    if (s.no_output) s.E_out = s.Hq * s.Dv;
    s.causal = (int32_t)(variant % 3);
    s.layout = (int32_t)(variant % 2);
    s.range = variant % 4 == 3;
    s.threads = 1 + (int32_t)(variant % 2);
    s.self = s.E_q == s.E_kv && s.Lq == s.Lk && variant % 4 != 1;
    return s;
}

/* Both flags, leading dimensions, biases given and absent, with and without W_O, self and cross. */
static void test_whole_layer(void **state)
{
    (void)state;
    for (int64_t row = 0; row < 12 * N_SHAPES; row++) {
        if (rig_skip(row)) continue;
        struct layer_spec s = spec_of_row(row);
        for (const int32_t *isa = rig_isas(); *isa >= 0; isa++) {
            struct layer_rig g;
            s.isa = *isa;
            layer_make(&g, &s);
            layer_expect(&g);
            layer_free(&g);
        }
    }
}

/* attn_layer_project alone: packed, and into strided caches between canaries. */
static void test_project(void **state)
{
    (void)state;
    for (int64_t row = 0; row < 4 * N_SHAPES; row++) {
        struct layer_spec s = spec_of_row(row);
        struct layer_rig g;
        if (rig_skip(row)) continue;
        layer_make(&g, &s);
        for (int32_t which = ATTN_W_Q; which <= ATTN_W_O; which++) {
            if (which == ATTN_W_O && s.no_output) continue;
            layer_expect_projection(&g, which, false);
            layer_expect_projection(&g, which, true);
        }
        layer_free(&g);
    }
}

/* The weights are copied: the caller's arrays may go (numpy#9647), and be set anew. */
static void test_weights_are_copied(void **state)
{
    struct layer_spec s = spec_of_row(2);
    struct layer_rig g;
    (void)state;
    layer_make(&g, &s);
    layer_prepare(&g);
    for (int w = 0; w < 4; w++) {
        gbuf_reset(&g.w[w]); /* all NaN; the oracle has its own copies */
        gbuf_reset(&g.bias[w]);
    }
    layer_expect(&g);
    layer_free(&g);
}

/* A matrix of all queries, then all keys, then all values (q | k | v), cut by its caller with
   ld: the order is the caller's business, the layer takes three (awslabs/slapo PR#46). */
static void test_packed_qkv_by_leading_dimension(void **state)
{
    const int64_t n_in = 15, n_q = 12, n_k = 4, n_v = 4, ld = n_q + n_k + n_v;
    float w[15 * 20], x[2 * 15], q[2 * 12], k[2 * 4], v[2 * 4];
    struct rng rng = rng_make(3);
    attn_op *op;
    attn_layer *layer;
    (void)state;
    rng_normals(&rng, n_in * ld, w, 1);
    rng_normals(&rng, 2 * n_in, x, 1);
    assert_int_equal(attn_op_create(&op, 3, 1, 4, 4), ATTN_OK);
    assert_int_equal(attn_layer_create(&layer, op, n_in, n_in, 12), ATTN_OK);
    assert_int_equal(attn_layer_set_weights(layer, ATTN_W_Q, ATTN_IN_OUT, w, ld, NULL), ATTN_OK);
    assert_int_equal(attn_layer_set_weights(layer, ATTN_W_K, ATTN_IN_OUT, w + n_q, ld, NULL),
                     ATTN_OK);
    assert_int_equal(
        attn_layer_set_weights(layer, ATTN_W_V, ATTN_IN_OUT, w + n_q + n_k, ld, NULL), ATTN_OK);
    assert_int_equal(attn_layer_project(layer, ATTN_W_Q, 1, 2, x, q, NULL), ATTN_OK);
    assert_int_equal(attn_layer_project(layer, ATTN_W_K, 1, 2, x, k, NULL), ATTN_OK);
    assert_int_equal(attn_layer_project(layer, ATTN_W_V, 1, 2, x, v, NULL), ATTN_OK);
    for (int64_t i = 0; i < 2; i++)
        for (int64_t n = 0; n < ld; n++) {
            double want = 0;
            for (int64_t e = 0; e < n_in; e++)
                want += (double)x[i * n_in + e] * (double)w[e * ld + n];
            float got = n < n_q         ? q[i * n_q + n]
                        : n < n_q + n_k ? k[i * n_k + n - n_q]
                                        : v[i * n_v + n - n_q - n_k];
            assert_true(ref_close(want, 1e-5, got));
        }
    attn_layer_destroy(layer);
    attn_op_destroy(op);
}

/* ------------------------------------------------------------- decoding */

#define CACHE_MAX 16

struct cache {
    float *k, *v;
    int64_t k_strides[4], v_strides[4];
};

/* Project tokens [from, from + n) of x into the cache and attend them over what is there. */
static void decode_step(struct layer_rig *g, struct cache *c, int64_t from, int64_t n, float *out)
{
    const struct layer_spec *s = &g->s;
    float *x = must_alloc((size_t)(s->B * n * s->E_q), sizeof *x);
    float *q = must_alloc((size_t)(s->B * n * s->Hq * s->Dk), sizeof *q);
    int64_t ends[RIG_B_MAX], q_strides[4] = {n * s->Hq * s->Dk, s->Dk, s->Hq * s->Dk, 1};
    attn_args *args;
    for (int64_t b = 0; b < s->B; b++) {
        ends[b] = from + n;
        memcpy(x + b * n * s->E_q, g->x_q.p + (b * s->Lq + from) * s->E_q,
               (size_t)(n * s->E_q) * sizeof *x);
    }
    assert_int_equal(attn_layer_project(g->layer, ATTN_W_Q, s->B, n, x, q, q_strides), ATTN_OK);
    assert_int_equal(attn_layer_project(g->layer, ATTN_W_K, s->B, n, x,
                                        c->k + from * c->k_strides[2], c->k_strides),
                     ATTN_OK);
    assert_int_equal(attn_layer_project(g->layer, ATTN_W_V, s->B, n, x,
                                        c->v + from * c->v_strides[2], c->v_strides),
                     ATTN_OK);
    assert_int_equal(attn_args_create(&args), ATTN_OK);
    assert_int_equal(attn_args_set_key_range(args, s->B, NULL, ends), ATTN_OK);
    assert_int_equal(attn_args_set_strides(args, ATTN_Q, q_strides), ATTN_OK);
    assert_int_equal(attn_args_set_strides(args, ATTN_K, c->k_strides), ATTN_OK);
    assert_int_equal(attn_args_set_strides(args, ATTN_V, c->v_strides), ATTN_OK);
    const int64_t out_strides[4] = {n * s->Hq * s->Dv, s->Dv, s->Hq * s->Dv, 1};
    assert_int_equal(attn_args_set_strides(args, ATTN_OUT, out_strides), ATTN_OK);
    assert_int_equal(attn_run_args(g->op, s->B, n, CACHE_MAX, q, c->k, c->v, out, args), ATTN_OK);
    attn_args_destroy(args);
    free(x);
    free(q);
}

/* Chunks fed through a cache give the rows of a full recompute (meta-llama/llama PR#900,
   onnxruntime-genai PR#2354): prefill 9, then 1, 1, 1; cache 3, then 2. What the cache holds
   beyond its fill is NaN and is never read. */
static void test_decode_equals_full_recompute(void **state)
{
    static const int64_t chunks[][5] = {{9, 1, 1, 1, 0}, {3, 2, 0}, {1, 1, 1, 1, 0}, {4, 8, 0}};
    (void)state;
    for (int64_t row = 0; row < 4; row++) {
        struct layer_spec s = {.seed = (uint64_t)row,
                               .row = row,
                               .B = 2,
                               .Hq = 4,
                               .Hk = 2,
                               .Dk = 8,
                               .Dv = 8,
                               .E_q = 20,
                               .E_kv = 20,
                               .E_out = 32,
                               .no_output = true,
                               .self = true,
                               .causal = ATTN_CAUSAL_BOTTOM_RIGHT,
                               .bias = 7};
        struct cache c = {.k_strides = {2 * CACHE_MAX * 8, CACHE_MAX * 8, 8, 1},
                          .v_strides = {CACHE_MAX * 2 * 8, 8, 2 * 8, 1}};
        struct gbuf k, v;
        for (const int64_t *n = chunks[row]; *n > 0; n++) s.Lq += *n;
        s.Lk = s.Lq;
        struct layer_rig g;
        layer_make(&g, &s);
        layer_expect(&g);
        gbuf_make(&k, 2 * 2 * CACHE_MAX * 8, 1);
        gbuf_make(&v, 2 * 2 * CACHE_MAX * 8, 3);
        c.k = k.p;
        c.v = v.p;
        int64_t from = 0;
        for (const int64_t *n = chunks[row]; *n > 0; from += *n++) {
            float *out = must_alloc((size_t)(2 * *n * 32), sizeof *out);
            decode_step(&g, &c, from, *n, out);
            layer_expect_rows(&g, from, *n, out);
            free(out);
        }
        assert_true(gbuf_intact(&k) && gbuf_intact(&v));
        gbuf_free(&k);
        gbuf_free(&v);
        layer_free(&g);
    }
}

/* No keys: attention gives 0, then the output projection and its bias as usual. */
static void test_no_keys_leaves_the_bias(void **state)
{
    struct layer_spec s = shapes[2];
    struct layer_rig g;
    (void)state;
    s.B = 2;
    s.Lk = 0;
    s.bias = 15;
    layer_make(&g, &s);
    layer_expect(&g);
    for (int64_t n = 0; n < g.out.n; n++) assert_true(g.out.p[n] == g.bias[3].p[n % s.E_out]);
    layer_free(&g);
}

/* Weights and log-sum-exp of a layer's heads, and a workspace for the whole layer. */
static void test_args_of_a_layer(void **state)
{
    (void)state;
    for (int64_t row = 0; row < 2 * N_SHAPES; row++) {
        struct layer_spec s = spec_of_row(row);
        struct layer_rig g;
        if (rig_skip(row)) continue;
        s.weights = true;
        layer_make(&g, &s);
        layer_expect(&g);
        float *before = copy_floats(g.out.p, g.out.n);
        layer_workspace(&g, true);
        layer_expect(&g);
        assert_true(same_bits("out", before, g.out.p, g.out.n));
        layer_workspace(&g, false); /* one byte less */
        gbuf_reset(&g.out);
        assert_int_equal(layer_run(&g), ATTN_EINVAL);
        assert_true(gbuf_untouched(&g.out));
        free(before);
        layer_free(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_layer),
        cmocka_unit_test(test_project),
        cmocka_unit_test(test_weights_are_copied),
        cmocka_unit_test(test_packed_qkv_by_leading_dimension),
        cmocka_unit_test(test_decode_equals_full_recompute),
        cmocka_unit_test(test_no_keys_leaves_the_bias),
        cmocka_unit_test(test_args_of_a_layer),
    };
    return cmocka_run_group_tests_name("layer", tests, NULL, NULL);
}
