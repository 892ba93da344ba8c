/* SPDX-License-Identifier: MIT */
/*
 * Races planted against the rules of attn.h, which ThreadSanitizer must report:
 * else its silence over the suite would mean nothing.
 *
 *     race setter   an option is set while a run uses the op
 *     race data     K changes while the pool's threads read it
 */
#include "attn.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS 20000
#define SIZE 64

static attn_op *op;
static float *k;
static bool on_data;
static atomic_bool stop;

static void *plant(void *unused)
{
    (void)unused;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        if (!on_data && attn_op_set_scale(op, 0.5) != ATTN_OK) break;
        for (int64_t i = 0; on_data && i < KEYS * SIZE; i++) k[i] = 1;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static float q[4 * SIZE], out[4 * SIZE];
    pthread_t thread;
    on_data = argc > 1 && strcmp(argv[1], "data") == 0;
    k = calloc(KEYS * SIZE, sizeof *k);
    if (k == NULL || attn_op_create(&op, 4, 1, SIZE, SIZE) != ATTN_OK) return 1;
    if (attn_op_set_threads(op, 4) != ATTN_OK) return 1;
    if (pthread_create(&thread, NULL, plant, NULL) != 0) return 1;
    for (int n = 0; n < 20; n++)
        if (attn_run(op, 1, 1, KEYS, q, k, k, out) != ATTN_OK) return 1;
    atomic_store_explicit(&stop, true, memory_order_relaxed);
    pthread_join(thread, NULL);
    attn_op_destroy(op);
    free(k);
    return 0;
}
