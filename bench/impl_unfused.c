/* SPDX-License-Identifier: MIT */
/*
 * unfused: sgemm, the library's own vector softmax on the whole score matrix, sgemm. The division
 * by the row's sum is left to the output, which is smaller than the matrix. Rules are the
 * softmax's: both products are done in full, softcap and ALiBi on the whole matrix. Packed
 * sequences have a matrix each.
 */
#include "chain.h"
#include "projections.h"

#include <stdlib.h>

struct state {
    struct chain chain;
    float *projected; /* layer: Q, K, V and the joined heads, each (b, length, heads, size) */
};

static bool is_available(const struct config *c, const char **why)
{
    *why = "this CPU or build lacks the instruction set";
    return softmax_kernels(c->isa) != NULL;
}

static int64_t projected_floats(const struct shape *s)
{
    return (shape_all_q(s) * s->h + shape_all_k(s) * s->g) * (s->d + s->dv);
}

static bool bytes(const struct config *c, size_t *total)
{
    const struct shape *s = &c->shape;
    if (s->stage == STAGE_LAYER && !(bytes_add(total, shape_all_q(s), s->h, s->d + s->dv) &&
                                     bytes_add(total, shape_all_k(s), s->g, s->d + s->dv)))
        return false;
    return chain_bytes(c, total);
}

/* The matrices hold what the step on trial finds there in a whole run. */
static void fill_matrices(struct trial *t)
{
    struct state *state = t->state;
    struct heads x[T_COUNT];
    chain_tensors(t, 0, x);
    bool weights = t->config.shape.stage == STAGE_VALUES;
    int steps = weights ? STEP_SCORES | STEP_SOFTMAX : STEP_SCORES;
    for (int64_t i = 0; i < state->chain.cut.threads; i++) {
        chain_run_task(&state->chain, steps, &x[T_Q], &x[T_K], &x[T_V], &x[T_OUT], i, 0);
        if (weights) chain_normalize(&state->chain, i);
    }
}

static void close(struct trial *t)
{
    struct state *state = t->state;
    chain_close(&state->chain);
    free(state->projected);
    free(state);
    t->state = NULL;
}

static bool open(struct trial *t)
{
    struct state *state = calloc(1, sizeof *state);
    const struct shape *s = &t->config.shape;
    if (!state || !chain_open(&state->chain, &t->config, softmax_kernels(t->config.isa))) {
        free(state);
        return false;
    }
    t->state = state;
    t->threading = state->chain.cut.threading;
    t->blas_threads = state->chain.cut.blas_threads > 1;
    if (s->stage == STAGE_LAYER) {
        state->projected = malloc((size_t)projected_floats(s) * sizeof(float));
        if (!state->projected) {
            close(t);
            complain("no memory for the projections");
            return false;
        }
    }
    t->matrix = chain_matrix(&state->chain, 0);
    t->matrix_ld = state->chain.cut.ld;
    t->matrix_rows = state->chain.cut.rows;
    if (s->stage == STAGE_SOFTMAX || s->stage == STAGE_VALUES) fill_matrices(t);
    return true;
}

static bool prepare(struct trial *t)
{
    struct state *state = t->state;
    chain_prepare(&state->chain);
    return true;
}

static void run_projection(const struct trial *t, int which, const float *x, int64_t rows,
                           float *y)
{
    struct state *state = t->state;
    const struct tensors *in = t->tensors;
    project(state->chain.pool, state->chain.cut.threads,
            &(struct projection){.x = x,
                                 .w = in->weights + in->w_at[which],
                                 .y = y,
                                 .rows = rows,
                                 .in = in->w_rows[which],
                                 .out = in->w_cols[which]});
}

static void run_layer(struct trial *t, int64_t set)
{
    struct state *state = t->state;
    const struct shape *s = &t->config.shape;
    struct heads x[T_COUNT];
    chain_tokens(s, state->projected, x);
    const float *x_q = tensor_at(t->tensors, set, T_Q);
    const float *x_kv = t->tensors->n[T_K] ? tensor_at(t->tensors, set, T_K) : x_q;
    run_projection(t, W_Q, x_q, shape_all_q(s), x[T_Q].data);
    run_projection(t, W_K, x_kv, shape_all_k(s), x[T_K].data);
    run_projection(t, W_V, x_kv, shape_all_k(s), x[T_V].data);
    chain_run(&state->chain, STEP_ALL, &x[T_Q], &x[T_K], &x[T_V], &x[T_OUT]);
    run_projection(t, W_O, x[T_OUT].data, shape_all_q(s), tensor_at(t->tensors, set, T_OUT));
}

static void run_projections(struct trial *t, int64_t set)
{
    const struct shape *s = &t->config.shape;
    const int source[W_COUNT] = {T_Q, T_K, T_K, T_V};
    float *y = tensor_at(t->tensors, set, T_OUT);
    for (int which = 0; which < W_COUNT; which++) {
        int64_t rows = which == W_K || which == W_V ? shape_all_k(s) : shape_all_q(s);
        run_projection(t, which, tensor_at(t->tensors, set, source[which]), rows, y);
        y += rows * t->tensors->w_cols[which];
    }
}

static bool run(struct trial *t, int64_t set)
{
    static const int steps[STAGE_COUNT] = {[STAGE_RUN] = STEP_ALL,
                                           [STAGE_SCORES] = STEP_SCORES,
                                           [STAGE_SOFTMAX] = STEP_SOFTMAX,
                                           [STAGE_VALUES] = STEP_VALUES};
    struct state *state = t->state;
    int stage = t->config.shape.stage;
    if (stage == STAGE_LAYER) {
        run_layer(t, set);
    } else if (stage == STAGE_PROJECT) {
        run_projections(t, set);
    } else {
        struct heads x[T_COUNT];
        chain_tensors(t, set, x);
        chain_run(&state->chain, steps[stage], &x[T_Q], &x[T_K], &x[T_V], &x[T_OUT]);
    }
    return true;
}

/* Scores and softmax are compared in the matrix, where a whole run leaves the last head. */
static bool check(struct trial *t)
{
    struct state *state = t->state;
    int stage = t->config.shape.stage;
    if (stage != STAGE_SCORES && stage != STAGE_SOFTMAX) return run(t, 0);
    struct heads x[T_COUNT];
    chain_tensors(t, 0, x);
    int steps = stage == STAGE_SCORES ? STEP_SCORES : STEP_SCORES | STEP_SOFTMAX;
    chain_run_task(&state->chain, steps, &x[T_Q], &x[T_K], &x[T_V], &x[T_OUT], 0, 0);
    if (stage == STAGE_SOFTMAX) chain_normalize(&state->chain, 0);
    return true;
}

const struct impl impl_unfused = {
    .name = "unfused",
    .what = "sgemm, libattn's vector softmax on the whole score matrix, sgemm",
    .stages = (1u << STAGE_COUNT) - 1,
    .uses_isa = true,
    .uses_threads = true,
    .available = is_available,
    .bytes = bytes,
    .open = open,
    .prepare = prepare,
    .run = run,
    .check = check,
    .close = close,
};
