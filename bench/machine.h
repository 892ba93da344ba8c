/* SPDX-License-Identifier: MIT */
/* What this machine is, and what about it makes measurements doubtful. */
#ifndef BENCH_MACHINE_H
#define BENCH_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct machine {
    char cpu[128]; /* model; "" unknown, as below */
    char governor[32];
    int64_t cpus;      /* that this process may use */
    size_t last_cache; /* bytes */
    size_t memory;     /* bytes that may still be taken */
    double load;       /* of the last minute, when the program began; NAN unknown */
    bool is_virtual;
};
void machine_read(struct machine *m);
/* Warnings on stderr about this machine, this build and so many threads. */
void machine_warn(const struct machine *m, int64_t threads);
/* Does the build make memory figures meaningless? */
bool machine_sanitized(void);

#endif
