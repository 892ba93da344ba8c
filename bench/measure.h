/* SPDX-License-Identifier: MIT */
/* One group of rows: open, compare, time, compare again. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include "plan.h"
#include "report.h"

/* Fills what is measured of each record; RESULT_OK, _WRONG (the records are filled all the same)
   or _ENVIRONMENT. samples has room for n * repetitions numbers. */
int measure_group(const struct plan *plan, const struct group *group, const struct options *o,
                  struct record *records, double *samples);

#endif
