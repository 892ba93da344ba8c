/* SPDX-License-Identifier: MIT */
/* gemm: the two products of unfused and nothing between them, (scale Q K^T) V: what unfused could
   reach with a softmax that costs nothing. */
#include "chain.h"

#include <stdlib.h>

static bool open(struct trial *t)
{
    struct chain *chain = malloc(sizeof *chain);
    if (!chain || !chain_open(chain, &t->config, NULL)) {
        free(chain);
        return false;
    }
    t->state = chain;
    t->threading = chain->cut.threading;
    t->blas_threads = chain->cut.blas_threads > 1;
    return true;
}

static bool prepare(struct trial *t)
{
    chain_prepare(t->state);
    return true;
}

static bool run(struct trial *t, int64_t set)
{
    struct heads x[T_COUNT];
    chain_tensors(t, set, x);
    chain_run(t->state, STEP_ALL, &x[T_Q], &x[T_K], &x[T_V], &x[T_OUT]);
    return true;
}

static void close(struct trial *t)
{
    chain_close(t->state);
    free(t->state);
    t->state = NULL;
}

const struct impl impl_gemm = {
    .name = "gemm",
    .what = "the two products of unfused alone, no softmax: the ceiling of unfused",
    .stages = 1u << STAGE_RUN,
    .uses_threads = true,
    .skips_softmax = true,
    .bytes = chain_bytes,
    .open = open,
    .prepare = prepare,
    .run = run,
    .close = close,
};
