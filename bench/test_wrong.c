/* SPDX-License-Identifier: MIT */
/*
 * Stands in front of libattn by LD_PRELOAD and errs as ATTN_BENCH_ERROR says: attn-bench must
 * notice. Only for test_bench.sh.
 */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <attn.h>

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef attn_status run_function(const attn_op *op, int64_t B, int64_t Lq, int64_t Lk,
                                 const float *q, const float *k, const float *v, float *out);
typedef attn_status info_function(char *text, size_t cap, size_t *needed);

static int errs(const char *how)
{
    const char *error = getenv("ATTN_BENCH_ERROR");
    return error && strcmp(error, how) == 0;
}

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

/* The shape that test_bench.sh asks for: 2 heads of 48 queries, size 16. */
#define SIZE 16
#define N (2 * 48 * SIZE)

ATTN_API attn_status attn_run(const attn_op *op, int64_t B, int64_t Lq, int64_t Lk,
                              const float *q, const float *k, const float *v, float *out)
{
    static int calls;
    run_function *run;
    void *found = next("attn_run");
    memcpy(&run, &found, sizeof run);
    calls++;
    if (errs("status") || (errs("status-late") && calls > 3)) return ATTN_ENOMEM;
    if (errs("nothing")) return ATTN_OK;
    attn_status st = run(op, B, Lq, Lk, q, k, v, out);
    if (errs("zero")) memset(out, 0, N * sizeof *out);
    for (int i = 0; errs("nan") && i < N; i++) out[i] = NAN;
    if (errs("nan-once") && calls == 1) /* one number, and only in the first run */
        out[N / 2] = NAN;
    if (errs("last-row") && calls > 1) /* only under way: the first run is right */
        out[N - 1] += 0.01f;
    return st;
}

ATTN_API attn_status attn_blas_info(char *text, size_t cap, size_t *needed)
{
    info_function *info;
    void *found = next("attn_blas_info");
    memcpy(&info, &found, sizeof info);
    if (!errs("blas")) return info(text, cap, needed);
    snprintf(text, cap, "a BLAS that errs");
    return ATTN_EBLAS;
}
