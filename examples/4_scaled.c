/* SPDX-License-Identifier: MIT */
/*
 * Scaled dot-product attention, with the weight matrix A as an output of its own:
 *
 *     A = softmax(Q K^T / sqrt(d_k)),    O = A V
 *
 * Why the square root? For entries of mean 0 and variance 1 a score q . k is a
 * sum of d_k products, so its variance is d_k: the longer the vectors, the
 * farther apart the scores, until the softmax picks one key and passes nearly
 * nothing of the others. Divided by sqrt(d_k) the variance is 1 for every d_k.
 *
 * To check by eye: without the scale the largest weight of a row climbs towards 1
 * as d_k grows, and the deviation of the scores is sqrt(d_k); with it both stay
 * where they are. Every row of A sums to 1.
 */
#include <math.h>

#include "common.h"

enum { QUERIES = 6, KEYS = 8, SIZES = 3, D_V = 2 };

static const int d_k[SIZES] = {4, 64, 1024};

/* One run, with A and the scores as outputs beside O. */
static void attend(int size, double scale, const float *q, const float *k, const float *v,
                   float *scores, float *weights, float *out)
{
    attn_op *op;
    attn_args *args;

    must(attn_op_create(&op, 1, 1, size, D_V), "attn_op_create");
    if (scale != 0) /* else the default, 1/sqrt(size) */
        must(attn_op_set_scale(op, scale), "attn_op_set_scale");
    must(attn_args_create(&args), "attn_args_create");
    must(attn_args_set_weights(args, weights), "attn_args_set_weights");
    must(attn_args_set_scores_out(args, ATTN_STAGE_RAW, scores, 0), "attn_args_set_scores_out");
    must(attn_run_args(op, 1, QUERIES, KEYS, q, k, v, out, args), "attn_run_args");
    attn_args_destroy(args);
    attn_op_destroy(op);
}

static double deviation(const float *x, int n)
{
    double squares = 0;
    for (int i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    return sqrt(squares / n);
}

/* The mean over the rows of a row's largest weight. */
static double mean_largest(const float *a)
{
    double sum = 0;
    for (int i = 0; i < QUERIES; i++) {
        float largest = 0;
        for (int j = 0; j < KEYS; j++)
            if (a[i * KEYS + j] > largest) largest = a[i * KEYS + j];
        sum += (double)largest;
    }
    return sum / QUERIES;
}

int main(int argc, char **argv)
{
    enum { PAIRS = QUERIES * KEYS };
    float scores[SIZES][2][PAIRS], weights[SIZES][2][PAIRS], out[SIZES][2][QUERIES * D_V];
    float *q[SIZES], *k[SIZES], v[KEYS * D_V];

    fill_noise(v, KEYS * D_V, 1.0f, 7);
    printf("   d_k    scores: deviation        mean of the largest weight\n"
           "          q.k    q.k/sqrt(d_k)     q.k    q.k/sqrt(d_k)\n");
    for (int n = 0; n < SIZES; n++) {
        q[n] = new_floats(QUERIES * d_k[n]);
        k[n] = new_floats(KEYS * d_k[n]);
        fill_noise(q[n], QUERIES * d_k[n], 1.0f, 11u + (uint32_t)n);
        fill_noise(k[n], KEYS * d_k[n], 1.0f, 23u + (uint32_t)n);
        attend(d_k[n], 1.0, q[n], k[n], v, scores[n][0], weights[n][0], out[n][0]);
        attend(d_k[n], 0.0, q[n], k[n], v, scores[n][1], weights[n][1], out[n][1]);
        printf("%6d %6.2f %10.2f %13.2f %10.2f\n", d_k[n], deviation(scores[n][0], PAIRS),
               deviation(scores[n][1], PAIRS), mean_largest(weights[n][0]),
               mean_largest(weights[n][1]));
    }
    print_table("A without the scale, d_k = 64", NULL, NULL, weights[1][0], QUERIES, KEYS, KEYS,
                1);
    print_table("A = softmax(Q K^T / 8), d_k = 64", NULL, NULL, weights[1][1], QUERIES, KEYS,
                KEYS, 1);
    print_table("O = A V", NULL, NULL, out[1][1], QUERIES, D_V, D_V, 0);
    for (int i = 0; i < QUERIES; i++) {
        double sum = 0;
        for (int j = 0; j < KEYS; j++) sum += (double)weights[1][1][i * KEYS + j];
        printf("%ssum of row %d of A: %.6f\n", i ? "" : "\n", i, sum);
    }

    if (dump_wanted(argc, argv)) {
        static const char *const q_dims[SIZES] = {"6 4", "6 64", "6 1024"};
        static const char *const k_dims[SIZES] = {"8 4", "8 64", "8 1024"};
        dump("v", "8 2", v);
        for (int n = 0; n < SIZES; n++) {
            char name[32];
            snprintf(name, sizeof name, "q%d", n);
            dump(name, q_dims[n], q[n]);
            snprintf(name, sizeof name, "k%d", n);
            dump(name, k_dims[n], k[n]);
            snprintf(name, sizeof name, "scores%d", n);
            dump(name, "2 6 8", scores[n][0]);
            snprintf(name, sizeof name, "weights%d", n);
            dump(name, "2 6 8", weights[n][0]);
            snprintf(name, sizeof name, "out%d", n);
            dump(name, "2 6 2", out[n][0]);
        }
    }
    for (int n = 0; n < SIZES; n++) {
        free(q[n]);
        free(k[n]);
    }
    return EXIT_SUCCESS;
}
