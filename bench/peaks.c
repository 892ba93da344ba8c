/* SPDX-License-Identifier: MIT */
/* See peaks.h. */
#define _POSIX_C_SOURCE 200809L
#include "peaks.h"

#include "blas.h"
#include "pool.h"
#include "timing.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#define FMA_NS 10e6     /* one try lasts at least so long */
#define SGEMM_NS 400e6  /* all tries of a size, at most */
#define READ_BLOCK 4096 /* a thread reads a multiple of so many floats */

/* ------------------------------------------------------------------- FMA */

struct fma {
    int variant;
    int64_t rounds;
};

static void fma_thread(void *context, int64_t thread)
{
    const struct fma *fma = context;
    volatile float one = 1;
    float sink = one;
    (void)thread;
    fma_run(fma->variant, fma->rounds, &sink);
    one = sink;
}

static double measure_fma(struct pool *pool, int64_t threads, int tries)
{
    double best = NAN;
    for (int variant = 0; variant < fma_variants(); variant++) {
        struct fma fma = {.variant = variant, .rounds = 1 << 16};
        double ns = 0;
        for (int i = 0; i < tries;) {
            double start = timing_now();
            pool_run(pool, fma_thread, &fma);
            ns = timing_now() - start;
            if (ns < FMA_NS) {
                fma.rounds *= 2;
                continue;
            }
            float sink = 1;
            double flops = fma_run(variant, 1, &sink) * (double)fma.rounds * (double)threads;
            best = fmax(best, flops / ns);
            i++;
        }
    }
    return best;
}

/* ----------------------------------------------------------------- sgemm */

static double measure_square(int64_t n, int tries)
{
    size_t floats = (size_t)n * (size_t)n;
    float *x = malloc(3 * floats * sizeof *x);
    if (!x) return NAN;
    for (size_t i = 0; i < 3 * floats; i++) x[i] = (float)(i % 31) - 15;
    struct product p = {.m = n,
                        .n = n,
                        .k = n,
                        .alpha = 1,
                        .a = x,
                        .b = x + floats,
                        .c = x + 2 * floats,
                        .lda = n,
                        .ldb = n,
                        .ldc = n};
    double best = NAN, total = 0;
    for (int i = 0; i < tries && total < SGEMM_NS; i++) {
        double start = timing_now();
        blas_product(&p);
        double ns = timing_now() - start;
        total += ns;
        best = fmax(best, 2.0 * (double)n * (double)n * (double)n / ns);
    }
    free(x);
    return best;
}

/* The larger size feeds more threads, and takes long where there is no vector unit. */
static double measure_sgemm(int64_t threads, int tries)
{
    blas_set_threads(threads);
    double small = measure_square(1024, tries);
    double seconds_of_large = 2 * 2048.0 * 2048 * 2048 / (small * 1e9);
    double rate = seconds_of_large > 2 ? small : fmax(small, measure_square(2048, tries));
    blas_set_threads(1);
    if (threads > 1) /* BLAS's threads spin for some 25 ms before they sleep */
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    return rate;
}

/* ------------------------------------------------------------- bandwidth */

struct reading {
    float *x;
    size_t floats; /* of one thread */
    bool fill;
    volatile float sink;
};

static void read_thread(void *context, int64_t thread)
{
    typedef float vec __attribute__((vector_size(64), aligned(16), may_alias));
    struct reading *reading = context;
    float *x = reading->x + (size_t)thread * reading->floats;
    if (reading->fill) { /* by the thread that reads it: memory comes from its node */
        for (size_t i = 0; i < reading->floats; i++) x[i] = 1;
        return;
    }
    vec sum[4] = {{0}};
    for (size_t i = 0; i < reading->floats; i += 64)
        for (size_t j = 0; j < 4; j++) sum[j] += *(const vec *)(x + i + 16 * j);
    vec all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    if (all[0] + all[15] < 0) /* never; keeps the loop */
        reading->sink = all[0];
}

static double measure_bandwidth(struct pool *pool, int64_t threads, size_t bytes, int tries)
{
    struct reading reading = {.floats = bytes / sizeof(float) / (size_t)threads / READ_BLOCK *
                                        READ_BLOCK};
    size_t total = reading.floats * sizeof(float) * (size_t)threads;
    reading.x = total ? aligned_alloc(64, total) : NULL;
    if (!reading.x) return NAN;
    reading.fill = true;
    pool_run(pool, read_thread, &reading);
    reading.fill = false;
    double best = NAN;
    for (int i = 0; i < tries; i++) {
        double start = timing_now();
        pool_run(pool, read_thread, &reading);
        best = fmax(best, (double)total / (timing_now() - start));
    }
    free(reading.x);
    return best;
}

void peaks_measure(struct peaks *peaks, int tries, size_t bandwidth_bytes)
{
    struct pool *pool = pool_create(peaks->threads);
    if (!pool) return;
    peaks->fma = fmax(peaks->fma, measure_fma(pool, peaks->threads, tries));
    peaks->sgemm = fmax(peaks->sgemm, measure_sgemm(peaks->threads, tries));
    if (bandwidth_bytes)
        peaks->bandwidth = fmax(peaks->bandwidth,
                                measure_bandwidth(pool, peaks->threads, bandwidth_bytes, tries));
    pool_destroy(pool);
}
