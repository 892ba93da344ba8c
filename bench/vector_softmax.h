/* SPDX-License-Identifier: MIT */
/* libattn's own row-wise softmax, for the unfused chain: a baseline with a slower one would
   flatter the library. */
#ifndef BENCH_VECTOR_SOFTMAX_H
#define BENCH_VECTOR_SOFTMAX_H

#include <stdbool.h>
#include <stdint.h>

/* The kernels of an instruction set. */
struct kernels;

/* ISA_* to a set's kernels; NULL when this CPU or build lacks it. */
const struct kernels *softmax_kernels(int isa);
/* The best set here, as ISA_*. */
int softmax_best_isa(void);

/* Each row to exp(s - max), its sum in l. s is aligned to 64 bytes and lds a multiple of 16;
   sight holds per row the columns [lo, hi) that it sees, NULL: all. m is scratch. */
void softmax_rows(const struct kernels *kernels, int64_t rows, int64_t cols, float *s,
                  int64_t lds, const int32_t (*sight)[2], float *m, float *l);
/* What happens to one row before: capped, then ALiBi's bias on all columns; then only [lo, hi)
   are seen. 0: no such rule. at is the query's place among the columns. */
struct row_rules {
    float softcap, slope, at;
    int32_t lo, hi;
};
void softmax_row_by_rules(const struct kernels *kernels, const struct row_rules *rules,
                          int64_t cols, float *s, int64_t lds, float *m, float *l);
/* o / l per row, 0 where l is 0: what is left to do after the second product. */
void softmax_finish(const struct kernels *kernels, int64_t rows, int64_t dv, float *o,
                    int64_t ldo, const float *l);

#endif
