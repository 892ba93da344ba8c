/* SPDX-License-Identifier: MIT */
/* From the axes to the rows that will be measured. */
#ifndef BENCH_PLAN_H
#define BENCH_PLAN_H

#include "bench.h"
#include "options.h"

/* What shares its tensors is measured together, sample by sample. */
struct group {
    size_t first, n; /* in configs */
    int64_t n_sets;  /* of buffers */
};

struct plan {
    struct config *configs;
    size_t n_configs;
    struct group *groups;
    size_t n_groups;
    struct packing *packings; /* a list; shapes point to it */
    int64_t threads_max;
};

/* RESULT_OK, or another result after a sentence. */
int plan_make(struct plan *plan, const struct options *o);
void plan_free(struct plan *plan);
/* Decides the groups and the buffers of each, and that they and what is measured fit into
   memory. */
int plan_fit(struct plan *plan, bool cold, size_t last_cache, size_t memory, bool report);

#endif
