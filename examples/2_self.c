/* SPDX-License-Identifier: MIT */
/*
 * Self-attention: every token is a query, so n tokens in, n vectors out.
 *
 *     without projections    s_ij = h_i . h_j,  a_i = softmax(s_i),  o_i = sum_j a_ij h_j
 *     with projections       the same with q_i = h_i W_Q, k_j = h_j W_K, v_j = h_j W_V
 *
 * Two sentences, one batch. "bank" goes in as the same vector in both and comes
 * out as two: one leans to money, the other to water.
 *
 * To check by eye: s is symmetric without projections, and every token looks at
 * itself most, for h_i . h_i is large. With them a token can ask for something
 * that it is not: here W_Q turns "place" into a question about money and water.
 */
#include "common.h"

enum { SENTENCES = 2, WORDS = 3, SIZE = 4 };

static const char *const axes[SIZE] = {"money", "water", "place", "action"};
static const char *const names[SENTENCES][WORDS] = {{"money", "bank", "grows"},
                                                    {"river", "bank", "floods"}};
static const float tokens[SENTENCES][WORDS][SIZE] = {
    {{2, 0, 0, 0}, {1, 1, 1, 0}, {1, 0, 0, 2}},  /* money bank grows */
    {{0, 2, 0, 0}, {1, 1, 1, 0}, {0, 1, 0, 2}}}; /* river bank floods */

/* Row = axis of the token, column = axis of the query, key or value. */
static const float w_q[SIZE][SIZE] = {
    {0, 0, 0, 0.25f}, {0, 0, 0, 0.25f}, {2, 2, 0, 0}, {1, 1, 0, 0}};
static const float w_k[SIZE][SIZE] = {{1, 0, 0, 0}, {0, 1, 0, 0}, {-2, -2, 1, 0}, {0, 0, 0, 1}};
static const float w_v[SIZE][SIZE] = {{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}};

enum { SCORES = SENTENCES * WORDS * WORDS, VECTORS = SENTENCES * WORDS * SIZE };

static void show(const char *what, const float *scores, const float *weights, const float *out)
{
    for (int b = 0; b < SENTENCES; b++) {
        printf("\n--- %s: \"%s %s %s\"", what, names[b][0], names[b][1], names[b][2]);
        print_table("scores s", names[b], names[b], scores + b * WORDS * WORDS, WORDS, WORDS,
                    WORDS, 0);
        print_table("weights a", names[b], names[b], weights + b * WORDS * WORDS, WORDS, WORDS,
                    WORDS, 1);
        print_table("outputs o", names[b], axes, out + b * WORDS * SIZE, WORDS, SIZE, SIZE, 0);
    }
}

int main(int argc, char **argv)
{
    const float *h = &tokens[0][0][0];
    float scores[SCORES], weights[SCORES], out[VECTORS];
    float layer_scores[SCORES], layer_weights[SCORES], layer_out[VECTORS];
    attn_op *op;
    attn_args *args;
    attn_layer *layer;

    must(attn_op_create(&op, 1, 1, SIZE, SIZE), "attn_op_create");
    must(attn_op_set_scale(op, 1.0), "attn_op_set_scale");
    must(attn_args_create(&args), "attn_args_create");

    /* Without projections: the tokens are queries, keys and values at once. */
    must(attn_args_set_scores_out(args, ATTN_STAGE_RAW, scores, 0), "attn_args_set_scores_out");
    must(attn_args_set_weights(args, weights), "attn_args_set_weights");
    must(attn_run_args(op, SENTENCES, WORDS, WORDS, h, h, h, out, args), "attn_run_args");
    show("raw", scores, weights, out);

    /* With projections: x_kv = NULL says that keys and values come from x_q. */
    must(attn_layer_create(&layer, op, SIZE, SIZE, SIZE), "attn_layer_create");
    must(attn_layer_set_weights(layer, ATTN_W_Q, ATTN_IN_OUT, &w_q[0][0], 0, NULL), "W_Q");
    must(attn_layer_set_weights(layer, ATTN_W_K, ATTN_IN_OUT, &w_k[0][0], 0, NULL), "W_K");
    must(attn_layer_set_weights(layer, ATTN_W_V, ATTN_IN_OUT, &w_v[0][0], 0, NULL), "W_V");
    must(attn_args_set_scores_out(args, ATTN_STAGE_RAW, layer_scores, 0),
         "attn_args_set_scores_out");
    must(attn_args_set_weights(args, layer_weights), "attn_args_set_weights");
    must(attn_layer_run(layer, SENTENCES, WORDS, WORDS, h, NULL, layer_out, args),
         "attn_layer_run");
    show("projected", layer_scores, layer_weights, layer_out);

    const float *before = tokens[0][1];
    printf("\n\"bank\" on the axes (money, water): before (%.2f, %.2f)\n", before[0], before[1]);
    for (int b = 0; b < SENTENCES; b++) {
        const float *raw = out + (b * WORDS + 1) * SIZE;
        const float *own = layer_out + (b * WORDS + 1) * SIZE;
        printf("    beside \"%s\": raw (%.2f, %.2f), projected (%.2f, %.2f)\n", names[b][0],
               raw[0], raw[1], own[0], own[1]);
    }

    if (dump_wanted(argc, argv)) {
        dump("h", "2 3 4", h);
        dump("w_q", "4 4", &w_q[0][0]);
        dump("w_k", "4 4", &w_k[0][0]);
        dump("w_v", "4 4", &w_v[0][0]);
        dump("scores", "2 1 3 3", scores);
        dump("weights", "2 1 3 3", weights);
        dump("out", "2 3 4", out);
        dump("layer_scores", "2 1 3 3", layer_scores);
        dump("layer_weights", "2 1 3 3", layer_weights);
        dump("layer_out", "2 3 4", layer_out);
    }
    attn_layer_destroy(layer);
    attn_args_destroy(args);
    attn_op_destroy(op);
    return EXIT_SUCCESS;
}
