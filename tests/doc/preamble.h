/* SPDX-License-Identifier: MIT */
/*
 * What the snippets of the documents do not declare themselves. tests/doc/run puts each of them
 * into the body of snippet(), with this before it, calls it once, and then looks at `out`.
 */
#define _GNU_SOURCE
#include <assert.h>
#include <attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Batch items, and tokens of each. */
enum { B = 2, L = 48 };

/* Large enough for every snippet; inputs hold numbers within -0.5 to 0.5, outputs NaN. */
enum { MANY = 1 << 19 };
static float q[MANY], k[MANY], v[MANY], x[MANY], image[MANY];
static float w_q[MANY], w_k[MANY], w_v[MANY], w_o[MANY];
static float b_q[MANY], b_k[MANY], b_v[MANY], b_o[MANY];
static float out[MANY], joined[MANY], k_cache[MANY], v_cache[MANY];

static int failed;

/* Every call of a snippet that returns a status goes through this. */
static attn_status checked(attn_status status, const char *call, int line)
{
    if (status == ATTN_OK) return status;
    fprintf(stderr, "line %d: %s: %s\n", line, call, attn_status_string(status));
    failed = 1;
    return status;
}

static void fill(float *to, unsigned seed, float size)
{
    for (int i = 0; i < MANY; i++) {
        seed = seed * 1664525u + 1013904223u;
        to[i] = size * ((float)(seed >> 8) / 16777216.0f - 0.5f);
    }
}

static void snippet(void);

/* With an argument: the snippet runs something, so out must have been written. */
int main(int argc, char **argv)
{
    (void)argv;
    float *const inputs[] = {q, k, v, x, image}, *const biases[] = {b_q, b_k, b_v, b_o};
    float *const weights[] = {w_q, w_k, w_v, w_o}, *const outputs[] = {out, joined, k_cache, v_cache};
    for (unsigned i = 0; i < 5; i++) fill(inputs[i], i, 1);
    for (unsigned i = 0; i < 4; i++) fill(weights[i], 10 + i, 0.15f), fill(biases[i], 20 + i, 1);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < MANY; j++) outputs[i][j] = NAN;
    snippet();
    if (argc > 1 && !isfinite(out[0])) {
        fputs("nothing was written to out\n", stderr);
        failed = 1;
    }
    return failed;
}
