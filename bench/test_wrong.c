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

/* Rules that are a little off: by one key, not there at all, by a per cent, by one token. */
ATTN_API attn_status attn_op_set_window(attn_op *op, int64_t left, int64_t right)
{
    attn_status (*set)(attn_op *, int64_t, int64_t);
    void *found = next("attn_op_set_window");
    memcpy(&set, &found, sizeof set);
    return set(op, left + errs("window"), right);
}

ATTN_API attn_status attn_op_set_softcap(attn_op *op, double cap)
{
    attn_status (*set)(attn_op *, double);
    void *found = next("attn_op_set_softcap");
    memcpy(&set, &found, sizeof set);
    return set(op, errs("softcap") ? 0 : cap);
}

ATTN_API attn_status attn_alibi_slopes(int64_t heads, float *slopes)
{
    attn_status (*usual)(int64_t, float *);
    void *found = next("attn_alibi_slopes");
    memcpy(&usual, &found, sizeof usual);
    attn_status st = usual(heads, slopes);
    if (errs("alibi")) slopes[0] *= 1.01f;
    return st;
}

ATTN_API attn_status attn_args_set_offsets_k(attn_args *args, const void *offsets, int32_t type,
                                             int64_t n)
{
    attn_status (*set)(attn_args *, const void *, int32_t, int64_t);
    void *found = next("attn_args_set_offsets_k");
    memcpy(&set, &found, sizeof set);
    int64_t moved[4]; /* test_bench.sh asks for three sequences */
    if (!errs("offsets") || n != 3) return set(args, offsets, type, n);
    memcpy(moved, offsets, sizeof moved);
    moved[1]++;
    return set(args, moved, type, n);
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
