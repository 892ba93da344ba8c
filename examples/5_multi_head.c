/* SPDX-License-Identifier: MIT */
/*
 * Single-head and multi-head attention.
 *
 *     head_h = softmax(Q_h K_h^T / sqrt(d)) V_h
 *     Y      = [head_0 | head_1] W_O
 *
 * where Q_h = H W_Q[:, h d .. (h+1) d - 1], and K_h, V_h alike. Every head has a
 * space of queries, keys and values of its own and so its own weights; the heads
 * run side by side, are joined, and an output projection mixes them. A token here
 * is (word | position), both one-hot. Head 0 lives in the words and looks for the
 * same word; head 1 lives in the positions and looks one back.
 *
 * To check by eye: head 0 shows the repeated words "a small", head 1 a line below
 * the diagonal (nothing stands before the first word, so it takes itself). A single
 * head over the same matrices has one softmax for both wishes and must share it
 * out. Y is every token's word, and half of the word before it. The heads one by
 * one, joined and projected, give the same Y.
 */
#include "common.h"

enum { WORDS = 7, KINDS = 5, HEADS = 2, D = 8, WIDTH = HEADS * D };

static const char *const names[WORDS] = {"a", "small", "dog", "saw", "a", "small", "cat"};
static const char *const axes[KINDS] = {"a", "small", "dog", "saw", "cat"};
static const int kind[WORDS] = {0, 1, 2, 3, 0, 1, 4};

/* Row = in (word | position), column = out (head 0 | head 1). */
static float w_q[WIDTH][WIDTH], w_k[WIDTH][WIDTH], w_v[WIDTH][WIDTH], w_o[WIDTH][D];

static void make_weights(void)
{
    for (int d = 0; d < D; d++) {
        w_q[d][d] = 4.0f;                           /* head 0: my word ... */
        w_k[d][d] = 4.0f;                           /* ... against your word */
        w_q[D + d][D + (d > 0 ? d - 1 : 0)] = 4.0f; /* head 1: the place before mine ... */
        w_k[D + d][D + d] = 4.0f;                   /* ... against your place */
        w_v[d][d] = w_v[d][D + d] = 1.0f;           /* both give the word */
        w_o[d][d] = 1.0f;
        w_o[D + d][d] = 0.5f;
    }
}

/* The `heads` heads of size `d` whose columns begin at `column`. A row of the
 * matrices is WIDTH long, however few of its columns belong to these heads. */
static attn_layer *make_layer(int heads, int d, int column, int with_output)
{
    attn_op *op;
    attn_layer *layer;

    must(attn_op_create(&op, heads, heads, d, d), "attn_op_create");
    must(attn_layer_create(&layer, op, WIDTH, WIDTH, D), "attn_layer_create");
    attn_op_destroy(op); /* the layer has its own copy */
    must(attn_layer_set_weights(layer, ATTN_W_Q, ATTN_IN_OUT, &w_q[0][column], WIDTH, NULL),
         "W_Q");
    must(attn_layer_set_weights(layer, ATTN_W_K, ATTN_IN_OUT, &w_k[0][column], WIDTH, NULL),
         "W_K");
    must(attn_layer_set_weights(layer, ATTN_W_V, ATTN_IN_OUT, &w_v[0][column], WIDTH, NULL),
         "W_V");
    if (with_output)
        must(attn_layer_set_weights(layer, ATTN_W_O, ATTN_IN_OUT, &w_o[0][0], 0, NULL), "W_O");
    return layer;
}

static void run(const attn_layer *layer, const float *h, float *out, float *weights)
{
    attn_args *args;

    must(attn_args_create(&args), "attn_args_create");
    must(attn_args_set_weights(args, weights), "attn_args_set_weights");
    must(attn_layer_run(layer, 1, WORDS, WORDS, h, NULL, out, args), "attn_layer_run");
    attn_args_destroy(args);
}

int main(int argc, char **argv)
{
    float h[WORDS][WIDTH] = {{0}}, joined[WORDS][WIDTH];
    float multi[WORDS][D], single[WORDS][D], part[WORDS][D], one_by_one[WORDS][D];
    float multi_a[HEADS][WORDS][WORDS], single_a[WORDS][WORDS], part_a[WORDS][WORDS];

    for (int i = 0; i < WORDS; i++) h[i][kind[i]] = h[i][D + i] = 1.0f;
    make_weights();

    /* Two heads of 8; one head of 16 over the very same matrices. */
    attn_layer *two_heads = make_layer(HEADS, D, 0, 1);
    attn_layer *one_head = make_layer(1, WIDTH, 0, 1);
    run(two_heads, &h[0][0], &multi[0][0], &multi_a[0][0][0]);
    run(one_head, &h[0][0], &single[0][0], &single_a[0][0]);
    print_table("Head 0 of 2: the same word", names, names, &multi_a[0][0][0], WORDS, WORDS,
                WORDS, 0);
    print_table("Head 1 of 2: one back", names, names, &multi_a[1][0][0], WORDS, WORDS, WORDS, 0);
    print_table("A single head: both at once", names, names, &single_a[0][0], WORDS, WORDS, WORDS,
                0);
    print_table("Y of two heads: the word + half of the one before", names, axes, &multi[0][0],
                WORDS, KINDS, D, 0);
    print_table("Y of a single head", names, axes, &single[0][0], WORDS, KINDS, D, 0);

    /* The heads of the first layer one at a time: without W_O a layer gives its
     * joined heads. Then the output projection by itself. */
    for (int head = 0; head < HEADS; head++) {
        attn_layer *alone = make_layer(1, D, head * D, 0);
        run(alone, &h[0][0], &part[0][0], &part_a[0][0]);
        for (int i = 0; i < WORDS; i++) memcpy(&joined[i][head * D], part[i], sizeof part[i]);
        attn_layer_destroy(alone);
    }
    must(
        attn_layer_project(two_heads, ATTN_W_O, 1, WORDS, &joined[0][0], &one_by_one[0][0], NULL),
        "attn_layer_project");
    printf("\nThe heads one by one, joined and projected: Y differs by %.1g\n",
           (double)max_difference(&multi[0][0], &one_by_one[0][0], WORDS * D));

    if (dump_wanted(argc, argv)) {
        dump("h", "7 16", &h[0][0]);
        dump("w_q", "16 16", &w_q[0][0]);
        dump("w_k", "16 16", &w_k[0][0]);
        dump("w_v", "16 16", &w_v[0][0]);
        dump("w_o", "16 8", &w_o[0][0]);
        dump("multi_weights", "2 7 7", &multi_a[0][0][0]);
        dump("multi", "7 8", &multi[0][0]);
        dump("single_weights", "1 7 7", &single_a[0][0]);
        dump("single", "7 8", &single[0][0]);
        dump("joined", "7 16", &joined[0][0]);
        dump("one_by_one", "7 8", &one_by_one[0][0]);
    }
    attn_layer_destroy(two_heads);
    attn_layer_destroy(one_head);
    return EXIT_SUCCESS;
}
