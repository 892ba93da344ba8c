/* SPDX-License-Identifier: MIT */
/* Times anything. Knows nothing of attention. */
#ifndef BENCH_TIMING_H
#define BENCH_TIMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct timing_task {
    bool (*prepare)(void *context); /* before each sample, not timed; NULL: nothing */
    bool (*run)(void *context);     /* what is timed */
    void *context;
    int64_t iterations; /* out: runs in a sample */
    double *samples;    /* out: nanoseconds a run, one per repetition */
};

struct timing_options {
    int64_t repetitions;
    double min_time; /* seconds that a sample lasts at least */
    double pause;    /* seconds of rest before each sample */
    bool cold;       /* no untimed run before a sample */
    uint64_t seed;   /* order of the tasks in each repetition */
};

enum { TIMING_OK, TIMING_FAILED, TIMING_NO_CLOCK };

/* Nanoseconds by a clock that only goes forward; negative: there is none. */
double timing_now(void);

/*
 * Each task first runs until it is warm: iterations are doubled until a sample exceeds min_time,
 * and samples thrown away until two agree. Then every repetition takes one sample of every task,
 * in an order drawn anew, so that a change of the machine's speed meets all of them alike.
 */
int timing_measure(struct timing_task *tasks, size_t n, const struct timing_options *options);

#endif
