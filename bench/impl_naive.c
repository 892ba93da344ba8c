/* SPDX-License-Identifier: MIT */
/* naive: the loops of the book in float64, one thread; what verification compares with. */
#include "reference.h"

#include <stdlib.h>

struct state {
    struct reference reference;
    double *row;
};

static bool bytes(const struct config *c, size_t *total)
{
    return bytes_add(total, 2 * 2, shape_longest_k(&c->shape), 1) &&
           bytes_add(total, 3 * 2, reference_width(&c->shape), 1);
}

static void close(struct trial *t)
{
    struct state *state = t->state;
    reference_close(&state->reference);
    free(state->row);
    free(state);
    t->state = NULL;
}

static bool open(struct trial *t)
{
    const struct shape *s = &t->config.shape;
    struct state *state = calloc(1, sizeof *state);
    if (!state) {
        complain("no memory");
        return false;
    }
    t->state = state;
    t->threading = "one";
    state->row = malloc((size_t)reference_width(s) * sizeof(double));
    if (!reference_open(&state->reference, s, t->tensors, false) || !state->row) {
        close(t);
        complain("no memory for naive");
        return false;
    }
    return true;
}

static bool run(struct trial *t, int64_t set)
{
    struct state *state = t->state;
    const struct shape *s = &t->config.shape;
    int64_t rows = reference_rows(s);
    state->reference.set = set;
    for (int64_t r = 0; r < rows; r++) {
        float *to = tensor_at(t->tensors, set, T_OUT) + reference_at(s, r);
        int64_t n = reference_row(&state->reference, r, state->row, NULL);
        for (int64_t i = 0; i < n; i++) to[i] = (float)state->row[i];
    }
    return true;
}

const struct impl impl_naive = {
    .name = "naive",
    .what = "plain loops in float64, one thread: what the others are compared with",
    .stages = 1u << STAGE_RUN | 1u << STAGE_PROJECT,
    .bytes = bytes,
    .open = open,
    .run = run,
    .close = close,
};
