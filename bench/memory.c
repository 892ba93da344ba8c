/* SPDX-License-Identifier: MIT */
/* See memory.h. */
#define _POSIX_C_SOURCE 200809L
#include "memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

/* A line of /proc/self/status, in KiB; negative: not there. */
static double status_kib(const char *key)
{
    char line[256];
    double kib = -1;
    size_t n = strlen(key);
    FILE *f = fopen("/proc/self/status", "r");
    while (f && kib < 0 && fgets(line, sizeof line, f))
        if (strncmp(line, key, n) == 0 && line[n] == ':') kib = strtod(line + n + 1, NULL);
    if (f) fclose(f);
    return kib;
}

/* The mark of the highest resident size starts again at the present one. */
static void reset_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f) return; /* a forked child's mark is its own anyway, and nothing was freed before */
    fputs("5\n", f);
    fclose(f);
}

static double run_once(const struct config *c, int64_t n_sets, uint64_t seed)
{
    struct tensors tensors;
    if (!tensors_make(&tensors, &c->shape, n_sets, seed)) return NAN;
    struct trial t = {.config = *c, .tensors = &tensors};
    const struct impl *impl = c->impl;
    reset_peak();
    double before = status_kib("VmRSS"), file_before = status_kib("RssFile");
    if (!impl->open(&t) || (impl->prepare && !impl->prepare(&t)) || !impl->run(&t, 0)) return NAN;
    double peak = status_kib("VmHWM"), file_after = status_kib("RssFile");
    if (before < 0 || peak < 0 || file_before < 0 || file_after < 0) return NAN;
    return fmax(0, peak - before - (file_after - file_before)) / 1024;
}

double memory_probe(const struct config *c, int64_t n_sets, uint64_t seed)
{
    int ends[2];
    double mib = NAN;
    if (pipe(ends) != 0) return NAN;
    fflush(NULL); /* or the child would hold a copy of what is not yet written */
    pid_t child = fork();
    if (child == 0) {
        mib = run_once(c, n_sets, seed);
        ssize_t written = write(ends[1], &mib, sizeof mib);
        _exit(written == sizeof mib ? 0 : 1);
    }
    close(ends[1]);
    if (child > 0) {
        if (read(ends[0], &mib, sizeof mib) != sizeof mib) mib = NAN;
        waitpid(child, NULL, 0);
    }
    close(ends[0]);
    return mib;
}
