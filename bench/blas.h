/* SPDX-License-Identifier: MIT */
/* The BLAS, for what is measured against libattn and for the ceiling. Row-major, float32. */
#ifndef BENCH_BLAS_H
#define BENCH_BLAS_H

#include <stdbool.h>
#include <stdint.h>

/* c = alpha a b (or a b^T): m x n, summed over k. One row goes to cblas_sgemv, which reads a
   matrix once and is faster there than cblas_sgemm. */
struct product {
    int64_t m, n, k;
    float alpha;
    const float *a, *b;
    float *c;
    int64_t lda, ldb, ldc;
    bool b_transposed;
};
void blas_product(const struct product *p);

/* Can several threads call it at once? Not where it is built without locks. */
bool blas_concurrent(void);
/* Let each call use n threads of BLAS's own. */
void blas_set_threads(int64_t n);
/* In a thread of ours that calls BLAS beside others: calls stay on this thread. */
void blas_single_thread(void);

#endif
