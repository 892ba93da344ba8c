/* SPDX-License-Identifier: MIT */
/* Is what an implementation computes right? Compared with reference.c, on some rows. */
#ifndef BENCH_VERIFY_H
#define BENCH_VERIFY_H

#include "bench.h"

/* Reference rows of a shape. */
struct verify {
    int64_t n, width;
    int64_t *rows;            /* which */
    int64_t *counts;          /* numbers in each */
    double *want, *tolerance; /* n rows of width */
};

/* All rows where that is cheap, else the first, the last and some that the seed draws. */
bool verify_open(struct verify *v, const struct shape *s, const struct tensors *t,
                 bool skip_softmax, uint64_t seed);
void verify_close(struct verify *v);

struct verdict {
    bool right;
    double max_error;    /* NAN where something is NaN or never written */
    double of_tolerance; /* the largest error over its tolerance: 1 is the limit */
};
/* Run the trial once, untimed, into a spoilt output and look at it. False: the run failed. */
bool verify_trial(const struct verify *v, struct trial *t, struct verdict *verdict);

#endif
