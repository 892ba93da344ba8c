/* SPDX-License-Identifier: MIT */
/* See stats.h. */
#include "stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_size(const void *a, const void *b)
{
    double x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

struct stats stats_of(const double *samples, size_t n)
{
    struct stats s = {NAN, NAN, NAN, NAN, NAN};
    double *sorted = malloc(n * sizeof *sorted);
    if (!sorted) return s;
    memcpy(sorted, samples, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_size);
    s.min = sorted[0];
    s.median = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) sum += sorted[i];
    s.mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) squares += (sorted[i] - s.mean) * (sorted[i] - s.mean);
    if (n > 1) {
        s.deviation = sqrt(squares / (double)(n - 1));
        s.spread = (sorted[n - 1] - sorted[0]) / s.median;
    }
    free(sorted);
    return s;
}
