/* SPDX-License-Identifier: MIT */
/* Shapes of attention in models that people run. */
#ifndef BENCH_MODELS_H
#define BENCH_MODELS_H

#include "bench.h"

struct model {
    const char *name, *what;
    struct shape shape;
};
extern const struct model models[];
const char *model_name(size_t i); /* NULL past the last */
/* The table, for --list. */
void models_print(void);

#endif
