/* SPDX-License-Identifier: MIT */
/* What a panel of the plot shows: which rows, over what, as which series. */
#ifndef BENCH_PLOT_PANEL_H
#define BENCH_PLOT_PANEL_H

#include "report.h"

enum unit { UNIT_GFLOPS, UNIT_GBPS, UNIT_NS, UNIT_COUNT };
enum { PLOT_LABEL = 160, PLOT_CEILINGS = 2 };

struct panel {
    enum unit unit;
    size_t n; /* rows, copied: those that have a number in this unit */
    struct record *rows;
    const struct field *x; /* the size that is swept: lines over it; NULL: bars */
    size_t n_series;
    char (*series)[PLOT_LABEL]; /* names */
    size_t *series_of;          /* a row */
    size_t n_threads, *threads; /* different numbers of threads, each by a row that has it */
    char (*cases)
        [PLOT_LABEL];   /* bars: what a row measures, without who and with how many threads */
    char constant[512]; /* what is the same in all rows */
};

/* False: no memory. n is 0 where no row is of this unit. */
bool panel_make(struct panel *p, enum unit unit, const struct record *records, size_t n);
void panel_free(struct panel *p);

const char *unit_title(enum unit unit);
/* In the panel's unit; of the fastest and of the median sample. */
double panel_value(const struct panel *p, const struct record *r);
double panel_median(const struct panel *p, const struct record *r);
/* What the machine could reach with the row's threads, at its best; NAN where it was not measured
   or there is none. */
double panel_ceiling(const struct panel *p, const struct record *r, int which);
const char *panel_ceiling_name(const struct panel *p, int which);
/* The place of a row on the axis. */
double panel_x(const struct panel *p, const struct record *r);

#endif
