/* SPDX-License-Identifier: MIT */
/* A few numbers about a few samples. */
#ifndef BENCH_STATS_H
#define BENCH_STATS_H

#include <stddef.h>

struct stats {
    double min, median, mean;
    double deviation; /* sample standard deviation; NAN for one sample */
    double spread;    /* (max - min) / median; NAN for one sample */
};
/* n >= 1; all NAN where there is no memory to sort in. */
struct stats stats_of(const double *samples, size_t n);

#endif
