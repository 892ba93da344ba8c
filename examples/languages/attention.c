/* SPDX-License-Identifier: MIT */
/* Multi-head self-attention in C: 4 tokens of width 8, 2 heads of 4. */
#include <attn.h>
#include <stdio.h>

enum { L = 4, E = 8, HEADS = 2, HEAD_DIM = E / HEADS };

/* Eighths between -5/8 and 5/8: the same floats in every language. */
static void fill(float *x, int n, int seed)
{
    for (int i = 0; i < n; i++) x[i] = (float)((i + 1) * seed % 11 - 5) / 8;
}

int main(void)
{
    float x[L * E], w[E * E], y[L * E];
    attn_op *op = NULL;
    attn_layer *layer = NULL;
    attn_status st = attn_op_create(&op, HEADS, HEADS, HEAD_DIM, HEAD_DIM);
    if (st == ATTN_OK) st = attn_layer_create(&layer, op, E, E, E);
    for (int which = ATTN_W_Q; which <= ATTN_W_O && st == ATTN_OK; which++) {
        fill(w, E * E, which + 2);
        st = attn_layer_set_weights(layer, which, ATTN_IN_OUT, w, 0, NULL);
    }
    fill(x, L * E, 7);
    if (st == ATTN_OK) st = attn_layer_run(layer, 1, L, L, x, NULL, y, NULL);
    if (st != ATTN_OK) puts(attn_status_string(st));
    for (int i = 0; i < L * E && st == ATTN_OK; i++)
        printf("%9.6f%s", (double)y[i], i % E == E - 1 ? "\n" : " ");
    attn_layer_destroy(layer);
    attn_op_destroy(op);
    return st != ATTN_OK;
}
