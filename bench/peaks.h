/* SPDX-License-Identifier: MIT */
/* Ceilings of this machine, measured. Knows nothing of libattn. */
#ifndef BENCH_PEAKS_H
#define BENCH_PEAKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of so many threads together; NAN where it is not known. */
struct peaks {
    int64_t threads;
    double fma;       /* GFLOP/s of multiply-adds in registers, by the best instruction set */
    double sgemm;     /* GFLOP/s of square products by the BLAS with its own threads */
    double bandwidth; /* GB/s of reading memory beyond the caches */
};
/* Measure, or measure again and keep the larger: tries is how often. A ceiling is what the
   machine can, not what it does while others disturb it. bandwidth_bytes: memory to read, 0 for
   none. */
void peaks_measure(struct peaks *peaks, int tries, size_t bandwidth_bytes);

/* fma.c: one thread's multiply-adds, rounds times, by instruction set 0 .. fma_variants() - 1;
   returns the flops. *sink is 1 before and about 1 after. */
int fma_variants(void);
double fma_run(int variant, int64_t rounds, float *sink);

#endif
