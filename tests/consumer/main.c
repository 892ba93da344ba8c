/* SPDX-License-Identifier: MIT */
/* A program of somebody else's: two queries over two keys, whose result is known. */
#include <attn.h>

#include <math.h>
#include <stdio.h>

int main(void)
{
    /* Scores 0 and ln 3: weights 1/4 and 3/4. The second query sees both alike. */
    const float q[2] = {1, 0}, k[2] = {0, 1.0986123f}, v[2] = {4, 8};
    float out[2] = {-1, -1};
    attn_op *op = NULL;
    attn_status st = attn_op_create(&op, 1, 1, 1, 1);
    if (st == ATTN_OK) st = attn_run(op, 1, 2, 2, q, k, v, out);
    attn_op_destroy(op);
    printf("libattn %s: %s, %.3f %.3f\n", attn_version(), attn_status_string(st), out[0], out[1]);
    return st != ATTN_OK || !(fabsf(out[0] - 7) <= 1e-5f && fabsf(out[1] - 6) <= 1e-5f);
}
