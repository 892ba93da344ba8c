/* SPDX-License-Identifier: MIT */
/* Threads that run one function together: for the baselines and for the ceilings. */
#ifndef BENCH_POOL_H
#define BENCH_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct pool;
typedef void pool_function(void *context, int64_t thread);

/* n threads, the caller's included; NULL when they cannot be had. */
struct pool *pool_create(int64_t n);
/* function(context, t) for t = 0 .. n - 1, each on its thread, 0 on the caller's. Returns when
   all have. One caller at a time. */
void pool_run(struct pool *pool, pool_function *function, void *context);
void pool_destroy(struct pool *pool); /* NULL is fine */

#endif
