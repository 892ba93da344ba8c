/* SPDX-License-Identifier: MIT */
/*
 * Prefill, then decode token by token, with a key/value cache.
 *
 *     prefill      K, V of the whole prompt go into the cache; causal attention
 *     each step    K, V of one new token go behind them; its query sees all of them
 *
 *     y_i = softmax(q_i [k_0 .. k_i]^T / sqrt(d)) [v_0 .. v_i] W_O
 *
 * Two texts of different length share a batch. The projections write straight into
 * the cache (Hk, CAPACITY, D) of their text; the key range says how far it is
 * filled, the position where the first query stands. What is not filled yet holds
 * NaN, so that reading it would show. One causal run over the text so far, from the
 * beginning at every step, gives the same: that is the work which the cache saves.
 *
 * To check by eye: each step adds one row and one key to the triangle of weights,
 * and the differences are of the size of float32's rounding.
 */
#include "common.h"

enum { TEXTS = 2, HEADS = 4, KV_HEADS = 2, D = 8, WIDTH = 16, CAPACITY = 12 };
enum { PROMPT = 5, STEPS = 4, LENGTH = PROMPT + STEPS };
enum { JOINED = HEADS * D, KV_WIDTH = KV_HEADS * D, CACHE = CAPACITY * D };

static const int64_t prompt[TEXTS] = {PROMPT, 3}; /* lengths of the two prompts */

/* The cache, and its strides in the order (B, H, L, D). */
static struct {
    float k[TEXTS][KV_HEADS][CAPACITY][D], v[TEXTS][KV_HEADS][CAPACITY][D];
} cache;
static const int64_t cache_strides[4] = {KV_HEADS * CACHE, CACHE, D, 1};

static float w_q[WIDTH * JOINED], w_k[WIDTH * KV_WIDTH], w_v[WIDTH * KV_WIDTH],
    w_o[JOINED * WIDTH];
static float x[TEXTS][LENGTH][WIDTH], y[TEXTS][LENGTH][WIDTH]; /* tokens in, vectors out */
static float triangle[LENGTH][LENGTH];                         /* weights of text 0, head 0 */

static attn_layer *make_layer(const attn_op *op)
{
    attn_layer *layer;

    fill_noise(w_q, WIDTH * JOINED, 0.25f, 1);
    fill_noise(w_k, WIDTH * KV_WIDTH, 0.25f, 2);
    fill_noise(w_v, WIDTH * KV_WIDTH, 0.25f, 3);
    fill_noise(w_o, JOINED * WIDTH, 0.25f, 4);
    must(attn_layer_create(&layer, op, WIDTH, WIDTH, WIDTH), "attn_layer_create");
    must(attn_layer_set_weights(layer, ATTN_W_Q, ATTN_IN_OUT, w_q, 0, NULL), "W_Q");
    must(attn_layer_set_weights(layer, ATTN_W_K, ATTN_IN_OUT, w_k, 0, NULL), "W_K");
    must(attn_layer_set_weights(layer, ATTN_W_V, ATTN_IN_OUT, w_v, 0, NULL), "W_V");
    must(attn_layer_set_weights(layer, ATTN_W_O, ATTN_IN_OUT, w_o, 0, NULL), "W_O");
    return layer;
}

/* K and V of n tokens of one text, written to the cache from place `at` on. */
static void append(const attn_layer *layer, int text, int64_t at, int64_t n, const float *tokens)
{
    float *k = cache.k[text][0][at], *v = cache.v[text][0][at];

    must(attn_layer_project(layer, ATTN_W_K, 1, n, tokens, k, cache_strides),
         "attn_layer_project");
    must(attn_layer_project(layer, ATTN_W_V, 1, n, tokens, v, cache_strides),
         "attn_layer_project");
}

/* out (TEXTS, n, WIDTH) for n tokens of each text: the first stands at
 * position[b], and the cache of the text holds filled[b] keys. */
static void attend(const attn_op *op, const attn_layer *layer, int n, const int64_t *position,
                   const int64_t *filled, const float *tokens, float *weights, float *out)
{
    float *q = new_floats(TEXTS * n * JOINED), *joined = new_floats(TEXTS * n * JOINED);
    attn_args *args;

    must(attn_args_create(&args), "attn_args_create");
    must(attn_args_set_strides(args, ATTN_K, cache_strides), "attn_args_set_strides");
    must(attn_args_set_strides(args, ATTN_V, cache_strides), "attn_args_set_strides");
    must(attn_args_set_key_range(args, TEXTS, NULL, filled), "attn_args_set_key_range");
    must(attn_args_set_positions(args, TEXTS, position), "attn_args_set_positions");
    must(attn_args_set_weights(args, weights), "attn_args_set_weights");
    must(attn_layer_project(layer, ATTN_W_Q, TEXTS, n, tokens, q, NULL), "attn_layer_project");
    must(attn_run_args(op, TEXTS, n, CAPACITY, q, cache.k, cache.v, joined, args),
         "attn_run_args");
    must(attn_layer_project(layer, ATTN_W_O, TEXTS, n, joined, out, NULL), "attn_layer_project");
    attn_args_destroy(args);
    free(q);
    free(joined);
}

/* Print how far the output for one token is from that of one causal run over the
 * text from its beginning up to that token. */
static void report(const char *phase, const attn_layer *layer, int text, int token)
{
    float whole[LENGTH][WIDTH];
    int n = token + 1;

    must(attn_layer_run(layer, 1, n, n, x[text][0], NULL, &whole[0][0], NULL), "attn_layer_run");
    printf("%-8s%6d%8d%7d%13.1g\n", phase, text, token, n,
           (double)max_difference(whole[token], y[text][token], WIDTH));
}

/* Each prompt into its cache, then both at once. The shorter one is padded with
 * zeros, whose outputs nobody uses. */
static void prefill(const attn_op *op, const attn_layer *layer)
{
    static const int64_t begin[TEXTS] = {0, 0};
    float padded[TEXTS][PROMPT][WIDTH] = {{{0}}}, out[TEXTS][PROMPT][WIDTH];
    float weights[TEXTS][HEADS][PROMPT][CAPACITY];

    for (int b = 0; b < TEXTS; b++) {
        memcpy(padded[b], x[b], (size_t)prompt[b] * sizeof x[b][0]);
        append(layer, b, 0, prompt[b], x[b][0]);
    }
    attend(op, layer, PROMPT, begin, prompt, &padded[0][0][0], &weights[0][0][0][0],
           &out[0][0][0]);
    for (int b = 0; b < TEXTS; b++)
        for (int i = 0; i < prompt[b]; i++) {
            memcpy(y[b][i], out[b][i], sizeof y[b][i]);
            report("prefill", layer, b, i);
        }
    for (int i = 0; i < PROMPT; i++) memcpy(triangle[i], weights[0][0][i], sizeof triangle[i]);
}

/* One token of each text, each at the end of its own. */
static void decode(const attn_op *op, const attn_layer *layer, int step)
{
    float token[TEXTS][WIDTH], out[TEXTS][WIDTH], weights[TEXTS][HEADS][CAPACITY];
    int64_t place[TEXTS], filled[TEXTS];

    for (int b = 0; b < TEXTS; b++) {
        place[b] = prompt[b] + step;
        filled[b] = place[b] + 1;
        memcpy(token[b], x[b][place[b]], sizeof token[b]);
        append(layer, b, place[b], 1, token[b]);
    }
    attend(op, layer, 1, place, filled, &token[0][0], &weights[0][0][0], &out[0][0]);
    memcpy(triangle[place[0]], weights[0][0], sizeof triangle[0]);
    for (int b = 0; b < TEXTS; b++) {
        memcpy(y[b][place[b]], out[b], sizeof y[b][0]);
        report("decode", layer, b, (int)place[b]);
    }
}

int main(int argc, char **argv)
{
    attn_op *op;

    must(attn_op_create(&op, HEADS, KV_HEADS, D, D), "attn_op_create");
    must(attn_op_set_layout(op, ATTN_LAYOUT_BLHD), "attn_op_set_layout");
    must(attn_op_set_causal(op, ATTN_CAUSAL_TOP_LEFT), "attn_op_set_causal");
    attn_layer *layer = make_layer(op);
    fill_noise(&x[0][0][0], TEXTS * LENGTH * WIDTH, 1.0f, 5);
    memset(&cache, 0xff, sizeof cache); /* every float a NaN */

    printf("          text   token   keys   difference\n");
    prefill(op, layer);
    for (int step = 0; step < STEPS; step++) decode(op, layer, step);
    print_table("Weights of text 0, head 0: rows 0-4 by prefill, 5-8 one a step", NULL, NULL,
                &triangle[0][0], LENGTH, LENGTH, LENGTH, 0);

    if (dump_wanted(argc, argv)) {
        dump("x", "2 9 16", &x[0][0][0]);
        dump("w_q", "16 32", w_q);
        dump("w_k", "16 16", w_k);
        dump("w_v", "16 16", w_v);
        dump("w_o", "32 16", w_o);
        dump("y0", "9 16", &y[0][0][0]);
        dump("y1", "7 16", &y[1][0][0]);
        dump("triangle", "9 9", &triangle[0][0]);
    }
    attn_layer_destroy(layer);
    attn_op_destroy(op);
    return EXIT_SUCCESS;
}
