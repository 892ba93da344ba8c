/* SPDX-License-Identifier: MIT */
#include "run.h"

#include <stdio.h>

/* Keeps the first failure and what it was about. */
struct made {
    attn_args *args;
    attn_status status;
    const char *what;
};

static void set(struct made *m, const char *what, attn_status status)
{
    if (m->status != ATTN_OK || status == ATTN_OK) return;
    m->status = status;
    m->what = what;
}

static void fill(struct made *m, const attn_go_run_args *r)
{
    attn_args *args = m->args;
    for (int32_t n = 0; n < 4; n++) {
        if (r->has_strides[n]) set(m, "strides", attn_args_set_strides(args, n, r->strides[n]));
        set(m, "scores", attn_args_set_scores_out(args, n, r->scores[n], r->score_flags[n]));
    }
    set(m, "MaskBool", attn_args_set_mask_bool(args, r->mask_bool, r->bool_dims, r->bool_steps));
    set(m, "MaskAdd", attn_args_set_mask_add(args, r->mask_add, r->add_dims, r->add_steps));
    set(m, "key range", attn_args_set_key_range(args, r->n_range, r->key_begin, r->key_end));
    set(m, "Positions", attn_args_set_positions(args, r->n_positions, r->positions));
    set(m, "Alibi", attn_args_set_alibi(args, r->n_alibi, r->alibi));
    set(m, "Sinks", attn_args_set_sinks(args, r->n_sinks, r->sinks));
    set(m, "segments", attn_args_set_segments(args, r->segments_q, r->segments_k));
    set(m, "OffsetsQ", attn_args_set_offsets_q(args, r->offsets_q, ATTN_I64, r->n_sequences_q));
    set(m, "OffsetsK", attn_args_set_offsets_k(args, r->offsets_k, ATTN_I64, r->n_sequences_k));
    set(m, "LSE", attn_args_set_lse(args, r->lse));
    set(m, "Workspace", attn_args_set_workspace(args, r->workspace, r->workspace_bytes));
}

/* No args when nothing is set: then a run allocates nothing. */
static struct made make(const attn_go_run_args *r)
{
    struct made m = {NULL, ATTN_OK, "args"};
    if (!r->optional) return m;
    m.status = attn_args_create(&m.args);
    if (m.status == ATTN_OK) fill(&m, r);
    return m;
}

attn_status attn_go_run(const attn_op *op, attn_go_run_args r)
{
    struct made m = make(&r);
    if (m.status == ATTN_OK)
        m.status = attn_run_args(op, r.b, r.lq, r.lk, r.q, r.k, r.v, r.out, m.args);
    attn_args_destroy(m.args);
    return m.status;
}

attn_status attn_go_layer_run(const attn_layer *layer, attn_go_run_args r)
{
    struct made m = make(&r);
    if (m.status == ATTN_OK)
        m.status = attn_layer_run(layer, r.b, r.lq, r.lk, r.q, r.k, r.out, m.args);
    attn_args_destroy(m.args);
    return m.status;
}

attn_status attn_go_workspace_bytes(const attn_op *op, const attn_layer *layer,
                                    attn_go_run_args r, size_t *bytes)
{
    struct made m = make(&r);
    if (m.status == ATTN_OK && layer)
        m.status = attn_layer_workspace_bytes(layer, r.b, r.lq, r.lk, m.args, bytes);
    else if (m.status == ATTN_OK)
        m.status = attn_workspace_bytes(op, r.b, r.lq, r.lk, m.args, bytes);
    attn_args_destroy(m.args);
    return m.status;
}

attn_status attn_go_explain(const attn_op *op, attn_go_run_args r, char *text, size_t cap,
                            size_t *needed)
{
    struct made m = make(&r);
    if (m.status == ATTN_OK)
        m.status =
            attn_explain(op, r.b, r.lq, r.lk, r.q, r.k, r.v, r.out, m.args, text, cap, needed);
    else
        *needed = 1 + (size_t)snprintf(text, cap, "%s: %s", m.what, attn_status_string(m.status));
    attn_args_destroy(m.args);
    return m.status;
}

attn_status attn_go_explain_options(const attn_op *op, attn_go_run_args r, char *text, size_t cap,
                                    size_t *needed)
{
    /* Addresses that overlap nothing; explain looks at them and never behind them. */
    r.q = r.k = r.v = (float *)(uintptr_t)8;
    r.out = (float *)(UINTPTR_MAX / 2 & ~(uintptr_t)7);
    return attn_go_explain(op, r, text, cap, needed);
}
