/* SPDX-License-Identifier: MIT */
/* y = x W by cblas_sgemm, for the unfused layer. */
#ifndef BENCH_PROJECTIONS_H
#define BENCH_PROJECTIONS_H

#include "pool.h"

/* x is (rows, in), w (in, out), y (rows, out), all packed. */
struct projection {
    const float *x, *w;
    float *y;
    int64_t rows, in, out;
};
/* On the pool's threads, of which there are n, BLAS at one thread. */
void project(struct pool *pool, int64_t n, const struct projection *p);

#endif
