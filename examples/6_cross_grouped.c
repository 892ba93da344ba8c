/* SPDX-License-Identifier: MIT */
/*
 * Cross attention, and key/value heads that several query heads share.
 *
 *     Q = X_q W_Q      (Lq, Hq, Dk)     X_q  is (Lq, E_q)
 *     K = X_kv W_K     (Lk, Hk, Dk)     X_kv is (Lk, E_kv): other width, other length
 *     V = X_kv W_V     (Lk, Hk, Dv)
 *     query head h attends to key/value head h / (Hq / Hk)
 *
 * Part 1: the words of a caption (width 3) look at the patches of a picture (width
 * 5). There are two pictures in the batch, of six patches and of four; the second
 * one's places 4 and 5 hold NaN and are outside its key range.
 * Part 2: four query heads over 4, 2 and 1 key/value heads (multi-head, grouped,
 * multi-query). Fewer heads mean less to keep for each key and nothing else: the
 * result is that of four heads when each key/value head is repeated.
 *
 * To check by eye: each word's weights lie on the patches that show it; a word that
 * is not in the picture spreads evenly; weights outside the key range are 0.
 */
#include <math.h>

#include "common.h"

enum { PICTURES = 2, WORDS = 3, PATCHES = 6, E_TEXT = 3, E_IMAGE = 5, D_K = 4, D_V = 3 };

static const char *const words[WORDS] = {"sky", "dog", "grass"};
static const char *const patches[PATCHES] = {"0", "1", "2", "3", "4", "5"};
static const char *const colours[D_V] = {"blue", "brown", "green"};

/* A word is one-hot. A patch is (blue, brown, green, fur, bright). */
static const float caption[PICTURES][WORDS][E_TEXT] = {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
                                                       {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};
static const float image[PICTURES][PATCHES][E_IMAGE] = {
    /* sky, sky, sky / grass, dog, grass */
    {{2, 0, 0, 0, 1},
     {2, 0, 0, 0, 1},
     {2, 0, 0, 0, 1},
     {0, 0, 2, 0, 0},
     {0, 2, 0, 2, 0},
     {0, 0, 2, 0, 0}},
    /* sky, sky / grass, grass; no dog */
    {{2, 0, 0, 0, 1},
     {2, 0, 0, 0, 1},
     {0, 0, 2, 0, 0},
     {0, 0, 2, 0, 0},
     {NAN, NAN, NAN, NAN, NAN},
     {NAN, NAN, NAN, NAN, NAN}}};

static const float w_q[E_TEXT][D_K] = {{3, 0, 0, 0}, {0, 3, 0, 0}, {0, 0, 3, 0}};
static const float w_k[E_IMAGE][D_K] = {
    {1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1.5f, 0}, {0, 1, 0, 0}, {1, 0, 0, 0}};
static const float w_v[E_IMAGE][D_V] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {0, 0, 0}, {0, 0, 0}};

static void cross(float weights[PICTURES][WORDS][PATCHES], float out[PICTURES][WORDS][D_V])
{
    static const int64_t n_patches[PICTURES] = {6, 4};
    attn_op *op;
    attn_layer *layer;
    attn_args *args;

    must(attn_op_create(&op, 1, 1, D_K, D_V), "attn_op_create");
    must(attn_layer_create(&layer, op, E_TEXT, E_IMAGE, D_V), "attn_layer_create");
    must(attn_layer_set_weights(layer, ATTN_W_Q, ATTN_IN_OUT, &w_q[0][0], 0, NULL), "W_Q");
    must(attn_layer_set_weights(layer, ATTN_W_K, ATTN_IN_OUT, &w_k[0][0], 0, NULL), "W_K");
    must(attn_layer_set_weights(layer, ATTN_W_V, ATTN_IN_OUT, &w_v[0][0], 0, NULL), "W_V");
    must(attn_args_create(&args), "attn_args_create");
    must(attn_args_set_key_range(args, PICTURES, NULL, n_patches), "attn_args_set_key_range");
    must(attn_args_set_weights(args, &weights[0][0][0]), "attn_args_set_weights");
    must(attn_layer_run(layer, PICTURES, WORDS, PATCHES, &caption[0][0][0], &image[0][0][0],
                        &out[0][0][0], args),
         "attn_layer_run");
    for (int b = 0; b < PICTURES; b++) {
        printf("\nPicture %d: %s\n", b,
               b ? "sky sky / grass grass, two places unused" : "sky sky sky / grass dog grass");
        print_table("which patches each word looks at", words, patches, &weights[b][0][0], WORDS,
                    PATCHES, PATCHES, 0);
        print_table("and the colour that it finds", words, colours, &out[b][0][0], WORDS, D_V,
                    D_V, 0);
    }
    attn_args_destroy(args);
    attn_layer_destroy(layer);
    attn_op_destroy(op);
}

enum { HEADS = 4, QUERIES = 3, KEYS = 5, SIZE = 8 };

/* The first kv_heads heads of k and v, and once more with each repeated. */
static void grouped(int kv_heads, const float *q, const float *k, const float *v, float *out)
{
    enum { HEAD = KEYS * SIZE };
    float all_k[HEADS * HEAD], all_v[HEADS * HEAD], all_out[HEADS * QUERIES * SIZE];
    attn_op *op;

    must(attn_op_create(&op, HEADS, kv_heads, SIZE, SIZE), "attn_op_create");
    must(attn_run(op, 1, QUERIES, KEYS, q, k, v, out), "attn_run");
    attn_op_destroy(op);

    printf("%2d  ", kv_heads);
    for (int h = 0; h < HEADS; h++) {
        int group = h / (HEADS / kv_heads);
        memcpy(all_k + h * HEAD, k + group * HEAD, HEAD * sizeof *k);
        memcpy(all_v + h * HEAD, v + group * HEAD, HEAD * sizeof *v);
        printf(" %d->%d", h, group);
    }
    must(attn_op_create(&op, HEADS, HEADS, SIZE, SIZE), "attn_op_create");
    must(attn_run(op, 1, QUERIES, KEYS, q, all_k, all_v, all_out), "attn_run");
    attn_op_destroy(op);
    printf("  %15d  %.1g\n", 2 * kv_heads * SIZE,
           (double)max_difference(out, all_out, HEADS * QUERIES * SIZE));
}

int main(int argc, char **argv)
{
    static const int kv_heads[3] = {4, 2, 1};
    float q[HEADS * QUERIES * SIZE], k[HEADS * KEYS * SIZE], v[HEADS * KEYS * SIZE];
    float weights[PICTURES][WORDS][PATCHES], cross_out[PICTURES][WORDS][D_V];
    float out[3][HEADS * QUERIES * SIZE];

    cross(weights, cross_out);

    fill_noise(q, HEADS * QUERIES * SIZE, 1.0f, 1);
    fill_noise(k, HEADS * KEYS * SIZE, 1.0f, 2);
    fill_noise(v, HEADS * KEYS * SIZE, 1.0f, 3);
    printf("\nHk   query->kv head     floats per key   difference to repeated heads\n");
    for (int n = 0; n < 3; n++) grouped(kv_heads[n], q, k, v, out[n]);

    if (dump_wanted(argc, argv)) {
        dump("caption", "2 3 3", &caption[0][0][0]);
        dump("image", "2 6 5", &image[0][0][0]);
        dump("n_patches", "2", (const float[]){6, 4});
        dump("w_q", "3 4", &w_q[0][0]);
        dump("w_k", "5 4", &w_k[0][0]);
        dump("w_v", "5 3", &w_v[0][0]);
        dump("weights", "2 1 3 6", &weights[0][0][0]);
        dump("out", "2 3 3", &cross_out[0][0][0]);
        dump("q", "4 3 8", q);
        dump("k", "4 5 8", k);
        dump("v", "4 5 8", v);
        dump("out4", "4 3 8", out[0]);
        dump("out2", "4 3 8", out[1]);
        dump("out1", "4 3 8", out[2]);
    }
    return EXIT_SUCCESS;
}
