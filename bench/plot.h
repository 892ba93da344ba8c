/* SPDX-License-Identifier: MIT */
/* The measured rows as a picture, for --plot. Knows nothing of libattn. */
#ifndef BENCH_PLOT_H
#define BENCH_PLOT_H

#include "report.h"

/* An SVG with a panel for each unit: GF/s, GB/s (decoding), ns a score (the softmax alone).
   In place of what the file, opened for appending, holds.
   False when it cannot be written, or there is no memory. */
bool plot_write(FILE *file, const struct record *records, size_t n);

#endif
