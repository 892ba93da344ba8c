/* SPDX-License-Identifier: MIT */
/* The BLAS of the process, and what a run must do about it: see blas.c. */
#ifndef ATTN_BLAS_H
#define ATTN_BLAS_H

#include "internal.h"

/* c = alpha a b + beta c, or alpha a b^T + beta c; row-major; sizes >= 1 and within blasint. */
struct product {
    int64_t m, n, k;
    float alpha, beta;
    const float *a, *b;
    float *c;
    int64_t lda, ldb, ldc;
    bool b_transposed;
};
void attn_i_sgemm(const struct product *p);

/* Multiply-adds of an NN product up to which OpenBLAS takes its small-matrix path. */
#define SMALL_PRODUCT 1000000

attn_status attn_i_blas_init(void); /* once a process; the same answer ever after */
bool attn_i_blas_small_path(void);  /* does this BLAS core have a small-matrix path? */
void attn_i_blas_describe(struct text *text);
/* Around every run. With small products only, nothing of BLAS needs to be set. */
void attn_i_blas_enter(bool small_products);
void attn_i_blas_leave(bool small_products);
/* A thread of ours begins: what it needs of BLAS is there before its first product. */
void attn_i_blas_thread_start(void);
/* Around the products that one thread makes in a run; leave gets what enter gave. */
int32_t attn_i_blas_thread_enter(void);
void attn_i_blas_thread_leave(int32_t saved);
/* Called by threads.c around fork. */
void attn_i_blas_before_fork(void);
void attn_i_blas_after_fork(bool child);

#endif
