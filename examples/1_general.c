/* SPDX-License-Identifier: MIT */
/*
 * General attention: a decoder over the states of an encoder.
 *
 *     e_tj  = h_t . s_j                        not scaled
 *     a_tj  = exp(e_tj) / sum_j exp(e_tj)      which word step t looks at
 *     c_t   = sum_j a_tj s_j                   the context vector
 *
 * The encoder has read an English sentence: one state s_j a word. The decoder
 * writes French, one word a step: its state h_t follows from the word that it
 * wrote last, and the word that it writes follows from the context c_t. So the
 * steps must run one by one. Once all h_t are known (as in training) one call
 * does all steps, with the same weights.
 *
 * To check by eye: the sentence is right, each French word looks at its English
 * one, and the last two cross: "cold milk" is "lait froid".
 */
#include "common.h"

enum { WORDS = 6, SIZE = 6 };

static const char *const english[WORDS] = {"the", "cat", "drinks", "cold", "milk", "."};
static const char *const french[WORDS] = {"le", "chat", "boit", "froid", "lait", "."};

/* Encoder states. Each word has an axis of its own, where its state is 3; like
 * those of a recurrent encoder, the states hold a trace of their neighbours. */
static const float states[WORDS][SIZE] = {
    {3.0f, 0.5f, 0.0f, 0.0f, 0.0f, 0.0f}, /* the */
    {0.5f, 3.0f, 0.5f, 0.0f, 0.0f, 0.0f}, /* cat */
    {0.0f, 0.5f, 3.0f, 0.5f, 0.0f, 0.0f}, /* drinks */
    {0.0f, 0.0f, 0.5f, 3.0f, 0.5f, 0.0f}, /* cold */
    {0.0f, 0.0f, 0.0f, 0.5f, 3.0f, 0.5f}, /* milk */
    {0.0f, 0.0f, 0.0f, 0.0f, 0.5f, 3.0f}, /* . */
};

/* What a French decoder looks for next, by the word that it wrote last: after
 * the verb "boit" a noun, after the noun "lait" its adjective. */
static const int start = 0;
static const int next_axis[WORDS] = {1, 2, 4, 5, 3, 5};

static void decoder_state(float h[SIZE], int axis)
{
    memset(h, 0, SIZE * sizeof *h);
    h[axis] = 1.2f;
}

/* The word whose axis is largest in the context. */
static int emit(const float context[SIZE])
{
    int best = 0;
    for (int d = 1; d < SIZE; d++)
        if (context[d] > context[best]) best = d;
    return best;
}

int main(int argc, char **argv)
{
    const float *s = &states[0][0];
    float h[WORDS][SIZE], context[WORDS][SIZE], weights[WORDS][WORDS];
    const char *written[WORDS];
    attn_op *op;
    attn_args *args;

    must(attn_op_create(&op, 1, 1, SIZE, SIZE), "attn_op_create");
    must(attn_op_set_scale(op, 1.0), "attn_op_set_scale");
    must(attn_args_create(&args), "attn_args_create");

    /* One step at a time: one query, keys = values = encoder states. */
    int axis = start;
    for (int t = 0; t < WORDS; t++) {
        decoder_state(h[t], axis);
        must(attn_args_set_weights(args, weights[t]), "attn_args_set_weights");
        must(attn_run_args(op, 1, 1, WORDS, h[t], s, s, context[t], args), "attn_run_args");
        int word = emit(context[t]);
        written[t] = french[word];
        axis = next_axis[word];
    }
    printf("read:   ");
    for (int j = 0; j < WORDS; j++) printf(" %s", english[j]);
    printf("\nwritten:");
    for (int t = 0; t < WORDS; t++) printf(" %s", written[t]);
    print_table("\nWeights, one step at a time (* = where the step looks)", written, english,
                &weights[0][0], WORDS, WORDS, WORDS, 1);
    print_table("Context vectors", written, NULL, &context[0][0], WORDS, SIZE, SIZE, 0);

    /* All decoder steps at once. */
    float all_context[WORDS][SIZE], all_weights[WORDS][WORDS];
    must(attn_args_set_weights(args, &all_weights[0][0]), "attn_args_set_weights");
    must(attn_run_args(op, 1, WORDS, WORDS, h, s, s, all_context, args), "attn_run_args");
    printf("\nAll steps in one call: weights differ by %.1g, contexts by %.1g\n",
           (double)max_difference(&weights[0][0], &all_weights[0][0], WORDS * WORDS),
           (double)max_difference(&context[0][0], &all_context[0][0], WORDS * SIZE));

    if (dump_wanted(argc, argv)) {
        dump("states", "6 6", s);
        dump("h", "6 6", &h[0][0]);
        dump("weights", "6 6", &weights[0][0]);
        dump("context", "6 6", &context[0][0]);
        dump("all_weights", "6 6", &all_weights[0][0]);
        dump("all_context", "6 6", &all_context[0][0]);
    }
    attn_args_destroy(args);
    attn_op_destroy(op);
    return EXIT_SUCCESS;
}
