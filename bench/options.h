/* SPDX-License-Identifier: MIT */
/* The command line. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include "bench.h"

#define LIST_MAX 1024

/* The values of an axis; none: not given. */
struct list {
    size_t n;
    int64_t v[LIST_MAX];
};
struct reals {
    size_t n;
    double v[LIST_MAX];
};
struct windows {
    size_t n;
    struct window v[LIST_MAX];
};
struct texts { /* in the command line, ended by a comma or its end */
    size_t n;
    const char *v[LIST_MAX];
};

/* A line that goes away, on a terminal; lines that stay; nothing. */
enum { PROGRESS_AUTO, PROGRESS_LINES, PROGRESS_NONE };

struct options {
    struct list b, q, k, h, g, d, dv, threads;
    /* indices of names: shape.c's, impl_name's, model_name's */
    struct list causal, alibi, engine, impl, isa, stage, model;
    struct windows window;
    struct reals softcap;
    struct texts varlen;
    int64_t repetitions, seed, format, second_format; /* second_format: negative for none */
    double min_time;
    int64_t progress; /* PROGRESS_* */
    const char *plot; /* a file's name, or NULL */
    bool verify, memory, peaks, cold;
    bool help, version, list, dry_run;
};

/* Read the command line into *o; false after a sentence about what is wrong with it. */
bool options_parse(struct options *o, int argc, char **argv);
void options_help(void);

#endif
