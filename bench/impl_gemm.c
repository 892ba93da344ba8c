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
    const struct shape *s = &t->config.shape;
    const struct heads x[T_COUNT] = {
        {tensor_at(t->tensors, set, T_Q), s->h * s->q * s->d, s->q * s->d, s->d},
        {tensor_at(t->tensors, set, T_K), s->g * s->k * s->d, s->k * s->d, s->d},
        {tensor_at(t->tensors, set, T_V), s->g * s->k * s->dv, s->k * s->dv, s->dv},
        {tensor_at(t->tensors, set, T_OUT), s->h * s->q * s->dv, s->q * s->dv, s->dv}};
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
