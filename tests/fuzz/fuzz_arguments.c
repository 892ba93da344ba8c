/* SPDX-License-Identifier: MIT */
/*
 * Hostile arguments: sizes, strides, ranges and pointers of any value, of which
 * nothing may be read or written. Asks for the workspace and for what a run
 * would do, and never runs. Overflow is found by UndefinedBehaviorSanitizer.
 */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#define FEW 4 /* elements of each small array */

/* A small number, or one at the edge of a type. */
static int64_t number(struct text_case *c)
{
    static const int64_t edges[] = {INT64_MAX,        INT64_MIN,        INT64_MAX - 1,
                                    INT64_MIN + 1,    INT64_MAX / 4,    INT64_MAX / 8 + 1,
                                    INT32_MAX,        INT32_MIN,        (int64_t)INT32_MAX + 1,
                                    (int64_t)1 << 40, (int64_t)1 << 60, -1};
    return chance(c, 4) ? edges[draw(c, 0, 11)] : draw(c, 0, chance(c, 4) ? 5000 : FEW);
}

static int64_t positive(struct text_case *c)
{
    int64_t x = number(c);
    return x < 1 ? 1 : x;
}

/* An address that nobody owns; sometimes one not aligned, sometimes NULL. */
static void *pointer(struct text_case *c)
{
    return (void *)(uintptr_t)(draw(c, 0, 3) * 4096 + (chance(c, 8) ? draw(c, 0, 63) : 0));
}

static void numbers(struct text_case *c, int64_t *x, int n)
{
    for (int i = 0; i < n; i++) x[i] = number(c);
}

static attn_op *draw_op(struct text_case *c)
{
    attn_op *op;
    int64_t Hk = positive(c), Hq = chance(c, 2) ? Hk : number(c);
    attn_status status = attn_op_create(&op, Hq, Hk, positive(c), positive(c));
    assert_true((status == ATTN_OK) == (op != NULL));
    if (!op) return NULL;
    attn_op_set_window(op, number(c), number(c));
    attn_op_set_chunk(op, number(c));
    attn_op_set_causal(op, (int32_t)draw(c, 0, 3));
    attn_op_set_layout(op, (int32_t)draw(c, 0, 2));
    attn_op_set_threads(op, (int32_t)number(c));
    attn_op_set_scale(op, (double)number(c));
    attn_op_set_softcap(op, (double)number(c));
    return op;
}

/* The borrowed masks and outputs: nobody looks behind these pointers. */
static void draw_borrowed(struct text_case *c, attn_args *args)
{
    int64_t dims[4], strides[4];
    for (int which = 0; which < 2; which++) {
        numbers(c, dims, 4);
        numbers(c, strides, 4);
        if (!chance(c, 3)) continue;
        const int64_t *s = chance(c, 2) ? strides : NULL;
        if (which == 0)
            attn_args_set_mask_bool(args, pointer(c), dims, s);
        else
            attn_args_set_mask_add(args, pointer(c), dims, s);
    }
    for (int32_t stage = 0; stage < 4; stage++)
        if (chance(c, 4))
            attn_args_set_scores_out(args, stage, pointer(c), (int32_t)draw(c, 0, 2));
    if (chance(c, 3)) attn_args_set_lse(args, pointer(c));
    if (chance(c, 3)) attn_args_set_workspace(args, pointer(c), (size_t)number(c));
    if (chance(c, 4)) attn_args_set_segments(args, pointer(c), pointer(c));
}

/* The arrays that are copied have FEW elements, or fewer. */
static void draw_args(struct text_case *c, attn_args *args)
{
    int64_t x[FEW + 1], y[FEW];
    float floats[FEW] = {1, -2, 0.5f, 3};
    for (int32_t slot = 0; slot < 4; slot++) {
        numbers(c, x, 4);
        if (chance(c, 4)) attn_args_set_strides(args, slot, x);
    }
    numbers(c, x, FEW);
    numbers(c, y, FEW);
    if (chance(c, 3)) attn_args_set_key_range(args, draw(c, -1, FEW), x, chance(c, 2) ? y : NULL);
    if (chance(c, 3)) attn_args_set_positions(args, draw(c, -1, FEW), y);
    if (chance(c, 3)) attn_args_set_alibi(args, draw(c, -1, FEW), floats);
    if (chance(c, 3)) attn_args_set_sinks(args, draw(c, -1, FEW), floats);
    for (int side = 0; side < 2; side++) {
        int64_t at = 0;
        for (int n = 0; n <= FEW; n++) x[n] = at += chance(c, 3) ? number(c) & INT64_MAX / 8 : 1;
        if (!chance(c, 3)) continue;
        int64_t n = draw(c, -1, FEW);
        if (side == 0)
            attn_args_set_offsets_q(args, x, ATTN_I64, n);
        else
            attn_args_set_offsets_k(args, x, ATTN_I64, n);
    }
    draw_borrowed(c, args);
}

/* The text ends within its capacity, and the size that it needs does not depend on that. */
static void explain(struct text_case *c, const attn_op *op, const int64_t sizes[3],
                    const attn_args *args)
{
    void *at[4] = {pointer(c), pointer(c), pointer(c), pointer(c)};
    size_t cap = (size_t)draw(c, 1, 300), needed[2];
    char *text = must_alloc(cap, 1);
    attn_status status = attn_explain(op, sizes[0], sizes[1], sizes[2], at[0], at[1], at[2],
                                      at[3], args, text, cap, &needed[0]);
    assert_true(status <= ATTN_OK && status > ATTN_EINTERNAL);
    assert_non_null(memchr(text, 0, cap));
    assert_true(needed[0] > 1 && strlen(text) == (needed[0] < cap ? needed[0] : cap) - 1);
    assert_int_equal(attn_explain(op, sizes[0], sizes[1], sizes[2], at[0], at[1], at[2], at[3],
                                  args, NULL, 0, &needed[1]),
                     status);
    assert_int_equal(needed[0], needed[1]);
    free(text);
}

/* A workspace serves every smaller shape. */
static void ask_for_workspace(struct text_case *c, const attn_op *op, const int64_t sizes[3],
                              const attn_args *args)
{
    size_t large, small;
    int64_t less[3];
    attn_layer *layer = NULL;
    attn_status status = attn_workspace_bytes(op, sizes[0], sizes[1], sizes[2], args, &large);
    assert_true(status <= ATTN_OK && status > ATTN_EINTERNAL);
    for (int i = 0; i < 3; i++) less[i] = sizes[i] > 1 ? sizes[i] / draw(c, 1, 3) : sizes[i];
    if (status == ATTN_OK) {
        assert_int_equal(attn_workspace_bytes(op, less[0], less[1], less[2], args, &small),
                         ATTN_OK);
        assert_true(small <= large);
    }
    attn_layer_create(&layer, op, number(c), number(c), number(c));
    if (layer) attn_layer_workspace_bytes(layer, sizes[0], sizes[1], sizes[2], args, &large);
    attn_layer_destroy(layer);
}

void fuzz_arguments(struct text_case *c)
{
    int64_t sizes[3], shape[4], dims[4], strides[4];
    attn_args *args;
    attn_op *op = draw_op(c);
    assert_int_equal(attn_args_create(&args), ATTN_OK);
    draw_args(c, args);
    numbers(c, sizes, 3);
    explain(c, op, sizes, args);
    if (op) ask_for_workspace(c, op, sizes, args);
    numbers(c, shape, 4);
    attn_mask_dims(draw(c, -1, 4), shape, number(c), dims, strides);
    attn_args_destroy(args);
    attn_op_destroy(op);
}
