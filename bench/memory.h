/* SPDX-License-Identifier: MIT */
/* How much memory one run adds to a process. */
#ifndef BENCH_MEMORY_H
#define BENCH_MEMORY_H

#include "bench.h"

/*
 * MiB by which the resident memory of a fresh process peaks above what its inputs and output
 * take: the handle, scratch, BLAS's buffers, threads' stacks. Pages of program files do not
 * count. NAN: not known. To be called before anything else runs in this process, for the child
 * inherits what is there.
 */
double memory_probe(const struct config *c, int64_t n_sets, uint64_t seed);

#endif
