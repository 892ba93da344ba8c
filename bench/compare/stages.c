/* SPDX-License-Identifier: MIT */
/*
 * Where the time of a run of libattn goes, seen from outside: preloaded, this stands between
 * libattn and cblas_sgemm and reads the clock before and after each product. With a scale other
 * than 1 the scores are the products whose alpha is not 1. The time from a product of scores to
 * the next of values is the softmax; every other gap (transposing keys, finishing the output) is
 * the rest. For runs of one thread.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <time.h>

enum { SCORES, SOFTMAX, VALUES, REST, STAGES };

typedef void sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                   int lda, const float *b, int ldb, float beta, float *c, int ldc);

static double spent[STAGES], last;
static int after_scores;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

void stages_begin(void)
{
    memset(spent, 0, sizeof spent);
    after_scores = 0;
    last = now();
}

/* Nanoseconds since stages_begin(): scores, softmax, values, rest. */
void stages_end(double ns[STAGES])
{
    spent[REST] += now() - last;
    memcpy(ns, spent, sizeof spent);
}

void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                 int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    static sgemm *next;
    if (!next) {
        void *symbol = dlsym(RTLD_NEXT, "cblas_sgemm");
        memcpy(&next, &symbol, sizeof next);
        if (!next) { /* OpenBLAS came by dlopen: out of sight from here, but loaded */
            void *blas = dlopen("libopenblas.so.0", RTLD_LAZY | RTLD_NOLOAD);
            symbol = blas ? dlsym(blas, "cblas_sgemm") : NULL;
            memcpy(&next, &symbol, sizeof next);
        }
    }
    int scores = alpha != 1.0f;
    double start = now();
    spent[after_scores && !scores ? SOFTMAX : REST] += start - last;
    next(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    last = now();
    spent[scores ? SCORES : VALUES] += last - start;
    after_scores = scores;
}
