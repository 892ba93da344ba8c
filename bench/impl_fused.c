/* SPDX-License-Identifier: MIT */
/* fused: libattn by its public interface, as it is shipped. The only includer of <attn.h>. */
#include <attn.h>

#include "bench.h"
#include "blas.h"
#include "packing.h"
#include "vector_softmax.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* bench.h repeats some of attn.h's numbers. */
#define SAME(a, b) _Static_assert((int)(a) == (int)(b), "bench.h and attn.h disagree")
SAME(CAUSAL_TOP_LEFT, ATTN_CAUSAL_TOP_LEFT);
SAME(CAUSAL_BOTTOM_RIGHT, ATTN_CAUSAL_BOTTOM_RIGHT);
SAME(ENGINE_VECTOR, ATTN_ENGINE_VECTOR);
SAME(W_Q, ATTN_W_Q);
SAME(W_O, ATTN_W_O);

struct state {
    attn_op *op;
    attn_layer *layer;
    attn_args *args; /* NULL: none needed */
};

static const int32_t isa_masks[] = {[ISA_BEST] = ATTN_ISA_ALL,
                                    [ISA_BASE] = ATTN_ISA_BASE,
                                    [ISA_AVX2] = ATTN_ISA_AVX2,
                                    [ISA_AVX512] = ATTN_ISA_AVX2 | ATTN_ISA_AVX512};

static bool failed(const char *what, attn_status status)
{
    complain("fused: %s: %s", what, attn_status_string(status));
    return false;
}

static attn_status make_op(attn_op **op, const struct config *c)
{
    const struct shape *s = &c->shape;
    attn_status st = attn_op_create(op, s->h, s->g, s->d, s->dv);
    if (st == ATTN_OK) st = attn_op_set_causal(*op, s->causal);
    if (st == ATTN_OK && s->window)
        st = attn_op_set_window(*op, s->window->left, s->window->right);
    if (st == ATTN_OK && s->softcap > 0) st = attn_op_set_softcap(*op, s->softcap);
    if (st == ATTN_OK) st = attn_op_set_engine(*op, c->engine);
    if (st == ATTN_OK) st = attn_op_set_isa(*op, isa_masks[c->isa]);
    if (st == ATTN_OK) st = attn_op_set_threads(*op, (int32_t)c->threads);
    return st;
}

static attn_status set_slopes(attn_args *args, int64_t heads)
{
    float *slopes = malloc((size_t)heads * sizeof *slopes);
    attn_status st = slopes ? attn_alibi_slopes(heads, slopes) : ATTN_ENOMEM;
    if (st == ATTN_OK) st = attn_args_set_alibi(args, heads, slopes);
    free(slopes);
    return st;
}

static attn_status make_args(attn_args **args, const struct shape *s)
{
    const struct packing *p = s->packing;
    if (!s->alibi && !p) return ATTN_OK;
    attn_status st = attn_args_create(args);
    if (st == ATTN_OK && s->alibi) st = set_slopes(*args, s->h);
    if (st == ATTN_OK && p) st = attn_args_set_offsets_q(*args, p->q, ATTN_I64, p->n);
    if (st == ATTN_OK && p) st = attn_args_set_offsets_k(*args, p->k, ATTN_I64, p->n);
    return st;
}

/* Engines come and go with versions: the library is asked, not known. The op for asking is never
   run, and made only where the engine is not the one that is always there. */
static bool is_available(const struct config *c, const char **why)
{
    *why = "this CPU or build lacks the instruction set";
    if (!softmax_kernels(c->isa)) return false;
    if (c->engine == ENGINE_BLAS) return true;
    attn_op *op = NULL;
    attn_status st = make_op(&op, c);
    attn_op_destroy(op);
    *why = "this libattn or CPU lacks the engine";
    return st != ATTN_EUNSUPPORTED;
}

static void close(struct trial *t)
{
    struct state *state = t->state;
    attn_args_destroy(state->args);
    attn_layer_destroy(state->layer);
    attn_op_destroy(state->op);
    free(state);
    t->state = NULL;
}

static attn_status make_layer(struct state *state, const struct trial *t)
{
    const struct tensors *in = t->tensors;
    int64_t E = shape_width(&t->config.shape);
    attn_status st = attn_layer_create(&state->layer, state->op, E, E, E);
    for (int which = 0; st == ATTN_OK && which < W_COUNT; which++)
        st = attn_layer_set_weights(state->layer, which, ATTN_IN_OUT,
                                    in->weights + in->w_at[which], in->w_cols[which], NULL);
    return st;
}

static bool open(struct trial *t)
{
    struct state *state = calloc(1, sizeof *state);
    if (!state) {
        complain("no memory");
        return false;
    }
    t->state = state;
    t->threading = t->config.threads > 1 ? "pool" : "one";
    attn_status st = make_op(&state->op, &t->config);
    if (st == ATTN_OK) st = make_args(&state->args, &t->config.shape);
    int stage = t->config.shape.stage;
    if (st == ATTN_OK && (stage == STAGE_LAYER || stage == STAGE_PROJECT))
        st = make_layer(state, t);
    if (st == ATTN_OK) return true;
    close(t);
    return failed("cannot be set up", st);
}

/* Weights that a layer copies, once more. */
static bool bytes(const struct config *c, size_t *total)
{
    const struct shape *s = &c->shape;
    if (s->stage != STAGE_LAYER && s->stage != STAGE_PROJECT) return true;
    return bytes_add(total, 2 * shape_width(s), s->h + s->g, s->d + s->dv);
}

/* The library brings its own threads; those of BLAS are to stay asleep. */
static bool prepare(struct trial *t)
{
    (void)t;
    blas_set_threads(1);
    return true;
}

/* Lengths as the library counts them: all tokens of packed sequences, else an item's. */
static int64_t length_q(const struct shape *s) { return s->packing ? shape_all_q(s) : s->q; }
static int64_t length_k(const struct shape *s) { return s->packing ? shape_all_k(s) : s->k; }

static attn_status run_projections(const struct state *state, const struct trial *t, int64_t set)
{
    const struct shape *s = &t->config.shape;
    const int source[W_COUNT] = {T_Q, T_K, T_K, T_V};
    float *y = tensor_at(t->tensors, set, T_OUT);
    attn_status st = ATTN_OK;
    for (int which = 0; st == ATTN_OK && which < W_COUNT; which++) {
        int64_t items = s->packing ? 1 : s->b;
        int64_t length = which == W_K || which == W_V ? length_k(s) : length_q(s);
        st = attn_layer_project(state->layer, which, items, length,
                                tensor_at(t->tensors, set, source[which]), y, NULL);
        y += items * length * t->tensors->w_cols[which];
    }
    return st;
}

static bool run(struct trial *t, int64_t set)
{
    const struct state *state = t->state;
    const struct tensors *in = t->tensors;
    const struct shape *s = &t->config.shape;
    int64_t q_length = length_q(s), k_length = length_k(s);
    const float *q = tensor_at(in, set, T_Q), *k = tensor_at(in, set, T_K);
    const float *v = tensor_at(in, set, T_V);
    float *out = tensor_at(in, set, T_OUT);
    attn_status st;
    if (s->stage == STAGE_LAYER)
        st = attn_layer_run(state->layer, s->b, q_length, k_length, q, in->n[T_K] ? k : NULL, out,
                            state->args);
    else if (s->stage == STAGE_PROJECT)
        st = run_projections(state, t, set);
    else if (state->args)
        st = attn_run_args(state->op, s->b, q_length, k_length, q, k, v, out, state->args);
    else
        st = attn_run(state->op, s->b, q_length, k_length, q, k, v, out);
    return st == ATTN_OK || failed("run", st);
}

const char *library_version(void) { return attn_version(); }

bool library_blas(char *text, size_t cap)
{
    static const char label[] = "BLAS: ";
    attn_status st = attn_blas_info(text, cap, NULL);
    size_t n = strlen(text);
    if (strncmp(text, label, sizeof label - 1) == 0) {
        n -= sizeof label - 1;
        memmove(text, text + sizeof label - 1, n + 1);
    }
    while (n > 0 && text[n - 1] == '\n') text[--n] = '\0';
    for (char *c = text; *c; c++)
        if (*c == '\n') *c = ';';
    return st == ATTN_OK;
}

const struct impl impl_fused = {
    .name = "fused",
    .what = "libattn",
    .stages = 1u << STAGE_RUN | 1u << STAGE_LAYER | 1u << STAGE_PROJECT,
    .uses_engine = true,
    .uses_isa = true,
    .uses_threads = true,
    .available = is_available,
    .bytes = bytes,
    .open = open,
    .prepare = prepare,
    .run = run,
    .close = close,
};
