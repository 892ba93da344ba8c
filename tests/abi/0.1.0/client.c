/* SPDX-License-Identifier: MIT */
/* A program of the time of 0.1.0: every function and every constant of its header, with the
   results that it could count on. Compiled with that header and linked with the symbols of that
   release it must run on every later libattn with this SONAME; compiled with a later header it
   must still be right. What 0.1.0 does not promise (times, bits, words) is not asked here. */
#include <attn.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ constants */

#define IS(name, value) _Static_assert((name) == (value), #name)

IS(ATTN_OK, 0);
IS(ATTN_EINVAL, -1);
IS(ATTN_ENOMEM, -2);
IS(ATTN_EOVERFLOW, -3);
IS(ATTN_ESTATE, -4);
IS(ATTN_EUNSUPPORTED, -5);
IS(ATTN_EBLAS, -6);
IS(ATTN_EINTERNAL, -7);
IS(ATTN_CAUSAL_NONE, 0);
IS(ATTN_CAUSAL_TOP_LEFT, 1);
IS(ATTN_CAUSAL_BOTTOM_RIGHT, 2);
IS(ATTN_LAYOUT_BHLD, 0);
IS(ATTN_LAYOUT_BLHD, 1);
IS(ATTN_ENGINE_BLAS, 0);
IS(ATTN_ENGINE_VECTOR, 1);
IS(ATTN_ISA_BASE, 0);
IS(ATTN_ISA_AVX2, 1);
IS(ATTN_ISA_AVX512, 2);
IS(ATTN_ISA_ALL, 0x7fffffff);
IS(ATTN_Q, 0);
IS(ATTN_K, 1);
IS(ATTN_V, 2);
IS(ATTN_OUT, 3);
IS(ATTN_F32, 0);
IS(ATTN_I32, 1);
IS(ATTN_I64, 2);
IS(ATTN_STAGE_RAW, 0);
IS(ATTN_STAGE_CAPPED, 1);
IS(ATTN_STAGE_MASKED, 2);
IS(ATTN_STAGE_WEIGHTS, 3);
IS(ATTN_MEAN_HEADS, 1);
IS(ATTN_W_Q, 0);
IS(ATTN_W_K, 1);
IS(ATTN_W_V, 2);
IS(ATTN_W_O, 3);
IS(ATTN_IN_OUT, 1);
IS(ATTN_OUT_IN, 2);
IS(ATTN_W_BORROW, 4);
IS(sizeof(attn_status), 4);
_Static_assert((attn_status)-1 < 0, "attn_status has a sign");

/* -------------------------------------------------------------- checking */

static int n_failures;

static void expect(int holds, int line, const char *what)
{
    if (holds) return;
    n_failures++;
    printf("%s:%d: %s\n", __FILE__, line, what);
}
#define EXPECT(what) expect((what), __LINE__, #what)

/* Within 1e-4, ten times what a float loses in sums as short as these; false for NaN. */
static int near(float x, double wanted) { return fabs(x - wanted) <= 1e-4 * (1 + fabs(wanted)); }

/* The data of all runs: one head of size 1, scores q * k with q = 1 and k = ln 1, ln 3, ln 4,
   so that the weights of all three keys are 1/8, 3/8, 4/8. */
#define LN3 1.0986122887
#define LN4 1.3862943611
static const float q1[1] = {1}, keys[3] = {0, (float)LN3, (float)LN4}, values[3] = {8, 16, 24};

static attn_op *make_op(void)
{
    attn_op *op = NULL;
    EXPECT(attn_op_create(&op, 1, 1, 1, 1) == ATTN_OK);
    if (!op) exit(1);
    return op;
}

static attn_args *make_args(void)
{
    attn_args *args = NULL;
    EXPECT(attn_args_create(&args) == ATTN_OK);
    if (!args) exit(1);
    return args;
}

/* One query over the three keys. */
static float run(const attn_op *op, const attn_args *args)
{
    float out = -1;
    EXPECT(attn_run_args(op, 1, 1, 3, q1, keys, values, &out, args) == ATTN_OK);
    return out;
}

/* --------------------------------------------------------------- asking */

static void test_version(void)
{
    int major = -1, minor = -1, patch = -1;
    EXPECT(sscanf(attn_version(), "%d.%d.%d", &major, &minor, &patch) == 3);
    int library = (major * 1000 + minor) * 1000 + patch;
    EXPECT(library >=
           (ATTN_VERSION_MAJOR * 1000 + ATTN_VERSION_MINOR) * 1000 + ATTN_VERSION_PATCH);
}

static void test_words(void)
{
    char text[4096];
    size_t needed = 0;
    for (attn_status st = ATTN_OK; st >= ATTN_EINTERNAL; st--) {
        EXPECT(attn_status_string(st) != NULL);
    }
    EXPECT(attn_status_string(-12345) != NULL);
    EXPECT(attn_blas_info(text, sizeof text, &needed) == ATTN_OK);
    EXPECT(needed == strlen(text) + 1);
    EXPECT(attn_blas_info(NULL, 1, NULL) == ATTN_EINVAL);

    attn_op *op = make_op();
    float out = 0;
    EXPECT(attn_explain(op, 1, 1, 3, q1, keys, values, &out, NULL, text, sizeof text, &needed) ==
           ATTN_OK);
    EXPECT(needed == strlen(text) + 1);
    EXPECT(attn_explain(op, 1, 1, 3, NULL, keys, values, &out, NULL, NULL, 0, NULL) ==
           ATTN_EINVAL);
    attn_op_destroy(op);
}

/* -------------------------------------------------------------------- op */

static void test_rules_of_an_op(void)
{
    attn_op *op = make_op(), *copy = NULL;
    float out[3] = {-1, -1, -1};
    EXPECT(attn_run(op, 1, 1, 3, q1, keys, values, out) == ATTN_OK);
    EXPECT(near(out[0], 19)); /* (8 + 3 * 16 + 4 * 24) / 8 */

    EXPECT(attn_op_set_scale(op, 0) == ATTN_OK);
    EXPECT(near(run(op, NULL), 16));
    EXPECT(attn_op_copy(&copy, op) == ATTN_OK);
    EXPECT(attn_op_set_scale(op, 1) == ATTN_OK);
    EXPECT(near(run(copy, NULL), 16)); /* the copy kept its own */
    attn_op_destroy(copy);

    EXPECT(attn_op_set_causal(op, ATTN_CAUSAL_TOP_LEFT) == ATTN_OK);
    EXPECT(near(run(op, NULL), 8));
    EXPECT(attn_op_set_causal(op, ATTN_CAUSAL_BOTTOM_RIGHT) == ATTN_OK);
    EXPECT(near(run(op, NULL), 19));
    EXPECT(attn_op_set_window(op, 0, -1) == ATTN_OK);
    EXPECT(near(run(op, NULL), 24)); /* the query stands on the last key */
    EXPECT(attn_op_set_window(op, -1, -1) == ATTN_OK);
    EXPECT(attn_op_set_causal(op, ATTN_CAUSAL_NONE) == ATTN_OK);
    EXPECT(attn_op_set_chunk(op, 2) == ATTN_OK);
    EXPECT(near(run(op, NULL), 24));
    EXPECT(attn_op_set_chunk(op, 0) == ATTN_OK);
    EXPECT(attn_op_set_softcap(op, 1e-6) == ATTN_OK);
    EXPECT(near(run(op, NULL), 16)); /* every score is within 1e-6 of 0 */
    EXPECT(attn_op_set_causal(op, 7) == ATTN_EINVAL);
    attn_op_destroy(op);
    attn_op_destroy(NULL);
}

static void test_ways_of_an_op(void)
{
    attn_op *op = NULL;
    EXPECT(attn_op_create(NULL, 1, 1, 1, 1) == ATTN_EINVAL);
    EXPECT(attn_op_create(&op, 3, 2, 1, 1) == ATTN_EINVAL);
    op = make_op();
    EXPECT(attn_op_set_threads(op, 1) == ATTN_OK);
    EXPECT(attn_op_set_engine(op, ATTN_ENGINE_VECTOR) == ATTN_OK);
    EXPECT(near(run(op, NULL), 19));
    EXPECT(attn_op_set_engine(op, ATTN_ENGINE_BLAS) == ATTN_OK);
    EXPECT(attn_op_set_engine(op, -1) == ATTN_EUNSUPPORTED);
    EXPECT(attn_op_set_layout(op, ATTN_LAYOUT_BLHD) == ATTN_OK);
    EXPECT(attn_op_set_layout(op, ATTN_LAYOUT_BHLD) == ATTN_OK);
    EXPECT(attn_op_set_isa(op, ATTN_ISA_BASE) == ATTN_OK);
    EXPECT(near(run(op, NULL), 19));
    EXPECT(attn_op_set_isa(op, ATTN_ISA_ALL) == ATTN_OK);
    EXPECT(near(run(op, NULL), 19));
    EXPECT(attn_op_trim(op) == ATTN_OK);
    attn_op_destroy(op);
}

/* ------------------------------------------------------------------ args */

static void test_inputs_of_a_run(void)
{
    const uint8_t seen[3] = {1, 1, 0};
    const float added[3] = {0, -INFINITY, 0}, slopes[1] = {1},
                sinks[1] = {(float)(LN4 + 0.69314718)};
    const int64_t dims[4] = {1, 1, 1, 3}, end[1] = {2}, position[1] = {0};
    const int32_t q_ids[1] = {5}, k_ids[3] = {4, 5, 5};
    attn_op *op = make_op();
    attn_args *args = make_args();
    EXPECT(attn_args_set_mask_bool(args, seen, dims, NULL) == ATTN_OK);
    EXPECT(near(run(op, args), 14)); /* (8 + 3 * 16) / 4 */
    EXPECT(attn_args_set_mask_add(args, added, dims, NULL) == ATTN_OK);
    EXPECT(near(run(op, args), 8));
    EXPECT(attn_args_clear(args) == ATTN_OK);
    EXPECT(near(run(op, args), 19));
    EXPECT(attn_args_set_key_range(args, 1, NULL, end) == ATTN_OK);
    EXPECT(near(run(op, args), 14));
    EXPECT(attn_args_clear(args) == ATTN_OK);
    EXPECT(attn_args_set_segments(args, q_ids, k_ids) == ATTN_OK);
    EXPECT(near(run(op, args), (3 * 16 + 4 * 24) / 7.0));
    EXPECT(attn_args_clear(args) == ATTN_OK);
    EXPECT(attn_args_set_sinks(args, 1, sinks) == ATTN_OK); /* exp(sink) = 8 */
    EXPECT(near(run(op, args), 9.5));
    EXPECT(attn_args_clear(args) == ATTN_OK);
    EXPECT(attn_args_set_positions(args, 1, position) == ATTN_OK);
    EXPECT(attn_args_set_alibi(args, 1, slopes) == ATTN_OK);
    double w1 = 3 * exp(-1), w2 = 4 * exp(-2);
    EXPECT(near(run(op, args), (8 + 16 * w1 + 24 * w2) / (1 + w1 + w2)));
    attn_args_destroy(args);
    attn_args_destroy(NULL);
    attn_op_destroy(op);
}

static void test_outputs_of_a_run(void)
{
    float raw[3], weights[3], mean[3], lse = 0;
    attn_op *op = make_op();
    attn_args *args = make_args();
    EXPECT(attn_args_set_scores_out(args, ATTN_STAGE_RAW, raw, 0) == ATTN_OK);
    EXPECT(attn_args_set_weights(args, weights) == ATTN_OK);
    EXPECT(attn_args_set_lse(args, &lse) == ATTN_OK);
    EXPECT(near(run(op, args), 19));
    EXPECT(near(raw[1], LN3) && near(raw[2], LN4));
    EXPECT(near(weights[0], 0.125) && near(weights[1], 0.375) && near(weights[2], 0.5));
    EXPECT(near(lse, log(8)));
    EXPECT(attn_args_set_scores_out(args, ATTN_STAGE_WEIGHTS, mean, ATTN_MEAN_HEADS) == ATTN_OK);
    EXPECT(near(run(op, args), 19) && near(mean[2], 0.5));

    size_t bytes = 0;
    EXPECT(attn_workspace_bytes(op, 1, 1, 3, args, &bytes) == ATTN_OK);
    void *memory = malloc(bytes + 1);
    EXPECT(attn_args_set_workspace(args, memory, bytes) == ATTN_OK);
    EXPECT(near(run(op, args), 19));
    attn_args_destroy(args);
    attn_op_destroy(op);
    free(memory);
}

static void test_views_of_a_run(void)
{
    const int64_t backwards[4] = {3, 3, 1, 1}, every_second[4] = {8, 8, 2, 1};
    const float spread[6] = {8, 0, 16, 0, 24, 0};
    const int64_t offsets[3] = {0, 1, 3};
    const int32_t query_offsets[3] = {0, 1, 2};
    const float q2[2] = {1, 0};
    float out[2] = {-1, -1};
    attn_op *op = make_op();
    attn_args *args = make_args();
    EXPECT(attn_args_set_strides(args, ATTN_Q, backwards) == ATTN_OK);
    EXPECT(attn_args_set_strides(args, ATTN_V, every_second) == ATTN_OK);
    EXPECT(attn_args_set_type(args, ATTN_OUT, ATTN_F32) == ATTN_OK);
    EXPECT(attn_args_set_type(args, ATTN_K, ATTN_I32) == ATTN_EUNSUPPORTED);
    EXPECT(attn_run_args(op, 1, 1, 3, q1, keys, spread, out, args) == ATTN_OK);
    EXPECT(near(out[0], 19));

    /* Two sequences: one query over the first key, one that sees the other two alike. */
    EXPECT(attn_args_clear(args) == ATTN_OK);
    EXPECT(attn_args_set_offsets_q(args, query_offsets, ATTN_I32, 2) == ATTN_OK);
    EXPECT(attn_args_set_offsets_k(args, offsets, ATTN_I64, 2) == ATTN_OK);
    EXPECT(attn_run_args(op, 2, 2, 3, q2, keys, values, out, args) == ATTN_OK);
    EXPECT(near(out[0], 8) && near(out[1], 20));
    attn_args_destroy(args);
    attn_op_destroy(op);
}

/* --------------------------------------------------------------- helpers */

static void test_helpers(void)
{
    float o[1] = {8}, lse[1] = {0}, slopes[2] = {0, 0};
    const float o_part[1] = {16}, lse_part[1] = {(float)LN3}, sinks[1] = {(float)LN4};
    EXPECT(attn_merge(1, 1, o, lse, o_part, lse_part) == ATTN_OK);
    EXPECT(near(o[0], 14) && near(lse[0], LN4));
    EXPECT(attn_merge_sinks(1, 1, 1, 1, o, lse, sinks) == ATTN_OK);
    EXPECT(near(o[0], 7));
    EXPECT(attn_alibi_slopes(2, slopes) == ATTN_OK);
    EXPECT(near(slopes[0], 1 / 16.0) && near(slopes[1], 1 / 256.0));

    const int64_t shape[2] = {2, 3};
    int64_t dims[4] = {0, 0, 0, 0}, strides[4];
    EXPECT(attn_mask_dims(2, shape, 3, dims, strides) == ATTN_OK);
    EXPECT(dims[0] == 1 && dims[1] == 1 && dims[2] == 2 && dims[3] == 3);
    EXPECT(strides[2] == 3 && strides[3] == 1);
}

/* ----------------------------------------------------------------- layer */

static void test_layer(void)
{
    const float one[1] = {1}, two[1] = {2}, bias[1] = {100};
    const int64_t strides[4] = {6, 6, 2, 1};
    float out = -1, cache[6] = {0};
    size_t bytes = 0;
    attn_op *op = make_op();
    attn_layer *layer = NULL;
    EXPECT(attn_layer_create(&layer, op, 1, 1, 1) == ATTN_OK);
    EXPECT(attn_layer_run(layer, 1, 1, 3, q1, keys, &out, NULL) == ATTN_ESTATE);
    EXPECT(attn_layer_set_weights(layer, ATTN_W_Q, ATTN_IN_OUT, one, 0, NULL) == ATTN_OK);
    EXPECT(attn_layer_set_weights(layer, ATTN_W_K, ATTN_OUT_IN, one, 1, NULL) == ATTN_OK);
    EXPECT(attn_layer_set_weights(layer, ATTN_W_V, ATTN_IN_OUT, one, 0, NULL) == ATTN_OK);
    EXPECT(attn_layer_set_weights(layer, ATTN_W_O, ATTN_OUT_IN, two, 0, bias) == ATTN_OK);
    EXPECT(attn_layer_set_weights(layer, ATTN_W_O, ATTN_IN_OUT | ATTN_OUT_IN, two, 0, bias) ==
           ATTN_EINVAL);
    EXPECT(attn_layer_workspace_bytes(layer, 1, 1, 3, NULL, &bytes) == ATTN_OK && bytes > 0);
    EXPECT(attn_layer_run(layer, 1, 1, 3, q1, keys, &out, NULL) == ATTN_OK);
    EXPECT(near(out, 100 + 2 * (3 * LN3 + 4 * LN4) / 8)); /* the keys are the values, too */
    EXPECT(attn_layer_project(layer, ATTN_W_K, 1, 3, keys, cache, strides) == ATTN_OK);
    EXPECT(near(cache[2], LN3) && near(cache[4], LN4) && near(cache[1], 0));
    attn_layer_destroy(layer);
    attn_layer_destroy(NULL);
    attn_op_destroy(op);
}

int main(void)
{
    test_version();
    test_words();
    test_rules_of_an_op();
    test_ways_of_an_op();
    test_inputs_of_a_run();
    test_outputs_of_a_run();
    test_views_of_a_run();
    test_helpers();
    test_layer();
    return n_failures != 0;
}
