/* SPDX-License-Identifier: MIT */
/* See timing.h. */
#define _POSIX_C_SOURCE 200809L
#include "timing.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

/* Warm: two samples in a row within this of each other ... */
#define STABLE 0.05
/* ... or after so many, or so long. */
#define WARM_SAMPLES 5
#define WARM_NS 1e9
#define ITERATIONS_MAX ((int64_t)1 << 40)

double timing_now(void)
{
    struct timespec t;
    if (clock_gettime(CLOCK_MONOTONIC, &t) != 0) return -1;
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void rest(double seconds)
{
    if (seconds <= 0) return;
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
}

/* Time of all the iterations; negative with *status set. */
static double time_runs(const struct timing_task *task, int *status)
{
    double start = timing_now();
    for (int64_t i = 0; i < task->iterations; i++)
        if (!task->run(task->context)) {
            *status = TIMING_FAILED;
            return -1;
        }
    double end = timing_now();
    if (start < 0 || end < start) {
        *status = TIMING_NO_CLOCK;
        return -1;
    }
    return end - start;
}

static bool prepare(const struct timing_task *task, int *status)
{
    if (!task->prepare || task->prepare(task->context)) return true;
    *status = TIMING_FAILED;
    return false;
}

/* Finds iterations. Leaves the task warm: caches, clock, pages, threads. */
static int warm_up(struct timing_task *task, double min_ns)
{
    int status = TIMING_OK;
    task->iterations = 1;
    if (!prepare(task, &status)) return status;
    double before = 0, total = 0;
    for (int n = 0; n < WARM_SAMPLES;) {
        double t = time_runs(task, &status);
        if (t < 0) return status;
        total += t;
        if (t < min_ns && task->iterations < ITERATIONS_MAX) {
            task->iterations *= 2;
            continue;
        }
        bool stable = t < before * (1 + STABLE) && t > before * (1 - STABLE);
        if (stable || total >= fmax(WARM_NS, 2 * min_ns)) break;
        before = t;
        n++;
    }
    return status;
}

static void shuffle(size_t *order, size_t n, uint64_t *state)
{
    for (size_t i = n; i > 1; i--) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        size_t j = (size_t)(*state >> 33) % i, swap = order[i - 1];
        order[i - 1] = order[j];
        order[j] = swap;
    }
}

static int sample(struct timing_task *task, const struct timing_options *o, int64_t repetition)
{
    int status = TIMING_OK;
    rest(o->pause);
    if (!prepare(task, &status)) return status;
    /* the others have had the caches; one run gives them back, where it is not half the sample */
    if (!o->cold && task->iterations > 1 && !task->run(task->context)) return TIMING_FAILED;
    double t = time_runs(task, &status);
    task->samples[repetition] = t / (double)task->iterations;
    return status;
}

int timing_measure(struct timing_task *tasks, size_t n, const struct timing_options *o)
{
    uint64_t state = o->seed;
    size_t *order = malloc(n * sizeof *order);
    int status = order ? TIMING_OK : TIMING_FAILED;
    for (size_t i = 0; status == TIMING_OK && i < n; i++) {
        order[i] = i;
        rest(o->pause);
        status = warm_up(&tasks[i], o->min_time * 1e9);
    }
    for (int64_t r = 0; status == TIMING_OK && r < o->repetitions; r++) {
        shuffle(order, n, &state);
        for (size_t i = 0; status == TIMING_OK && i < n; i++)
            status = sample(&tasks[order[i]], o, r);
    }
    free(order);
    return status;
}
