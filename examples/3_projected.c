/* SPDX-License-Identifier: MIT */
/*
 * Projected attention: separate, learnable weights for query, key and value.
 *
 *     Q = H W_Q      what a token asks for
 *     K = H W_K      what a token answers to
 *     V = H W_V      what a token gives
 *     O = softmax(Q K^T / sqrt(d_k)) V
 *
 * H is (5, 4), d_k = 4, d_v = 2, and the matrices hold small whole numbers, so
 * Q, K, V and the scores can be checked on paper. Then W_Q is "learned anew":
 * the layer takes the new matrix, and the same tokens look elsewhere.
 *
 * To check by eye: with the first W_Q, "green" (an adjective) asks for a noun and
 * finds "apple" and "she"; "apple" asks for an adjective and finds "green". With
 * the second every token asks for the verb.
 */
#include "common.h"

enum { WORDS = 5, WIDTH = 4, D_K = 4, D_V = 2 };

static const char *const names[WORDS] = {"she", "ate", "a", "green", "apple"};
static const char *const kinds[WIDTH] = {"noun", "verb", "article", "adj."};
static const char *const given[D_V] = {"thing", "quality"};

static const float hidden[WORDS][WIDTH] = {
    {1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}, {2, 0, 0, 0}};

/* Row = kind of token, column = kind that is asked for. */
static const float w_q[WIDTH][D_K] = {{0, 1, 0, 3}, {3, 0, 0, 0}, {3, 0, 0, 0}, {3, 0, 0, 0}};
static const float w_q_verb[WIDTH][D_K] = {
    {0, 3, 0, 0}, {0, 3, 0, 0}, {0, 3, 0, 0}, {0, 3, 0, 0}};
/* Row = kind of token, column = kind that is answered to. */
static const float w_k[WIDTH][D_K] = {{1, 0, 0, 0}, {0, 2, 0, 0}, {0, 0, 2, 0}, {0, 0, 0, 2}};
static const float w_v[WIDTH][D_V] = {{2, 0}, {1, 0}, {0, 0}, {0, 3}};

static void set(attn_layer *layer, int32_t which, const float *w)
{
    must(attn_layer_set_weights(layer, which, ATTN_IN_OUT, w, 0, NULL), "attn_layer_set_weights");
}

int main(int argc, char **argv)
{
    const float *h = &hidden[0][0];
    float q[WORDS][D_K], k[WORDS][D_K], v[WORDS][D_V];
    float weights[WORDS][WORDS], out[WORDS][D_V], weights_verb[WORDS][WORDS],
        out_verb[WORDS][D_V];
    attn_op *op;
    attn_args *args;
    attn_layer *layer;

    must(attn_op_create(&op, 1, 1, D_K, D_V), "attn_op_create");
    must(attn_layer_create(&layer, op, WIDTH, WIDTH, D_V), "attn_layer_create");
    must(attn_args_create(&args), "attn_args_create");
    set(layer, ATTN_W_Q, &w_q[0][0]);
    set(layer, ATTN_W_K, &w_k[0][0]);
    set(layer, ATTN_W_V, &w_v[0][0]);

    /* The projections by themselves ... */
    must(attn_layer_project(layer, ATTN_W_Q, 1, WORDS, h, &q[0][0], NULL), "attn_layer_project");
    must(attn_layer_project(layer, ATTN_W_K, 1, WORDS, h, &k[0][0], NULL), "attn_layer_project");
    must(attn_layer_project(layer, ATTN_W_V, 1, WORDS, h, &v[0][0], NULL), "attn_layer_project");
    print_table("H: the tokens", names, kinds, h, WORDS, WIDTH, WIDTH, 0);
    print_table("Q = H W_Q: what each token asks for", names, kinds, &q[0][0], WORDS, D_K, D_K,
                0);
    print_table("K = H W_K: what it answers to", names, kinds, &k[0][0], WORDS, D_K, D_K, 0);
    print_table("V = H W_V: what it gives", names, given, &v[0][0], WORDS, D_V, D_V, 0);

    /* ... and the whole layer, with the weights that it used. */
    must(attn_args_set_weights(args, &weights[0][0]), "attn_args_set_weights");
    must(attn_layer_run(layer, 1, WORDS, WORDS, h, NULL, &out[0][0], args), "attn_layer_run");
    print_table("A = softmax(Q K^T / 2)", names, names, &weights[0][0], WORDS, WORDS, WORDS, 1);
    print_table("O = A V", names, given, &out[0][0], WORDS, D_V, D_V, 0);

    /* Weights may be replaced between runs: another W_Q, everything else stays. */
    set(layer, ATTN_W_Q, &w_q_verb[0][0]);
    must(attn_args_set_weights(args, &weights_verb[0][0]), "attn_args_set_weights");
    must(attn_layer_run(layer, 1, WORDS, WORDS, h, NULL, &out_verb[0][0], args),
         "attn_layer_run");
    print_table("A with the second W_Q: everyone asks for the verb", names, names,
                &weights_verb[0][0], WORDS, WORDS, WORDS, 1);

    if (dump_wanted(argc, argv)) {
        dump("h", "5 4", h);
        dump("w_q", "4 4", &w_q[0][0]);
        dump("w_q_verb", "4 4", &w_q_verb[0][0]);
        dump("w_k", "4 4", &w_k[0][0]);
        dump("w_v", "4 2", &w_v[0][0]);
        dump("q", "5 4", &q[0][0]);
        dump("k", "5 4", &k[0][0]);
        dump("v", "5 2", &v[0][0]);
        dump("weights", "5 5", &weights[0][0]);
        dump("out", "5 2", &out[0][0]);
        dump("weights_verb", "5 5", &weights_verb[0][0]);
        dump("out_verb", "5 2", &out_verb[0][0]);
    }
    attn_args_destroy(args);
    attn_layer_destroy(layer);
    attn_op_destroy(op);
    return EXIT_SUCCESS;
}
