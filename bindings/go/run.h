/* SPDX-License-Identifier: MIT */
/*
 * Everything that a run looks at, passed to C by value in one call. Go's rules want
 * it so: C may not keep an address of Go memory after a call, and Go may not store
 * one where C would find it. So the attn_args that borrows these addresses is made,
 * used and freed within the call. Pointers have their true types, none points to
 * memory with pointers.
 */
#ifndef ATTN_GO_RUN_H
#define ATTN_GO_RUN_H

#include <attn.h>

typedef struct {
    int64_t b, lq, lk;
    float *q, *k, *v, *out; /* of a layer: x_q, x_kv, none, out */
    int32_t optional;       /* is anything below set? */
    int32_t has_strides[4];
    int64_t strides[4][4];
    uint8_t *mask_bool;
    int64_t bool_dims[4], bool_steps[4];
    float *mask_add;
    int64_t add_dims[4], add_steps[4];
    int64_t n_range, *key_begin, *key_end;
    int64_t n_positions, *positions;
    int64_t n_alibi, n_sinks;
    float *alibi, *sinks;
    int32_t *segments_q, *segments_k;
    int64_t n_sequences_q, n_sequences_k, *offsets_q, *offsets_k;
    float *scores[4], *lse;
    int32_t score_flags[4];
    uint8_t *workspace;
    size_t workspace_bytes;
} attn_go_run_args;

attn_status attn_go_run(const attn_op *op, attn_go_run_args r);
attn_status attn_go_layer_run(const attn_layer *layer, attn_go_run_args r);
/* Of the layer, or of the op when it is NULL. */
attn_status attn_go_workspace_bytes(const attn_op *op, const attn_layer *layer,
                                    attn_go_run_args r, size_t *bytes);
attn_status attn_go_explain(const attn_op *op, attn_go_run_args r, char *text, size_t cap,
                            size_t *needed);
/* Why options do not go with these sizes, whatever the tensors. */
attn_status attn_go_explain_options(const attn_op *op, attn_go_run_args r, char *text, size_t cap,
                                    size_t *needed);

#endif /* ATTN_GO_RUN_H */
