/* SPDX-License-Identifier: MIT */
/* One run of an attn_layer beside the oracle; see rig.h for the idea. */
#ifndef ATTN_TEST_LAYER_RIG_H
#define ATTN_TEST_LAYER_RIG_H

#include "rig.h"

struct layer_spec {
    uint64_t seed;
    int64_t row;
    int64_t B, Hq, Hk, Dk, Dv, E_q, E_kv, E_out, Lq, Lk; /* B 0: 1 */
    int32_t flags[4];                     /* ATTN_IN_OUT or ATTN_OUT_IN; 0: IN_OUT */
    int64_t ld_pad;                       /* floats between the rows of a matrix */
    int32_t bias;                         /* bit w: weight w has one */
    bool no_output;                       /* no W_O; E_out = Hq * Dv */
    bool self;                            /* x_kv is NULL */
    bool range;                           /* random ends of the keys */
    bool weights;                         /* ask for weights and log-sum-exp */
    int32_t causal, layout, threads, isa; /* isa 0: base, as in attn.h */
};

struct layer_rig {
    struct layer_spec s;
    struct gbuf x_q, x_kv, out, weights, lse;
    struct gbuf w[4], w_copy[4], bias[4], bias_copy[4]; /* copies: the oracle's */
    struct ref_linear linear[4];
    int64_t begin[RIG_B_MAX], end[RIG_B_MAX];
    attn_op *op;
    attn_layer *layer;
    attn_args *args;
    void *workspace;
    double *want, *want_tol; /* (B, Lq, E_out) */
    struct ref_result ref;   /* of the attention inside */
    bool solved;
};

void layer_make(struct layer_rig *g, const struct layer_spec *s);
void layer_free(struct layer_rig *g);
void layer_prepare(struct layer_rig *g); /* op, layer and its weights, args */
attn_status layer_run(struct layer_rig *g);
void layer_expect(struct layer_rig *g);
/* Compare rows [from, from + n) of each item, given as (B, n, E_out). */
void layer_expect_rows(struct layer_rig *g, int64_t from, int64_t n, const float *rows);
void layer_expect_projection(struct layer_rig *g, int32_t which, bool strided);
/* Give a workspace of exactly what is needed, full of NaN, or one byte less. */
void layer_workspace(struct layer_rig *g, bool enough);

#endif
