/* SPDX-License-Identifier: MIT */
/*
 * A structured fuzzer for libFuzzer: the bytes choose an op, its rules, shapes,
 * strides, outputs, engine, instruction set and tile sizes, and NaN, infinities
 * and huge numbers among the data; everything that the run writes is compared
 * with the oracle, and what it must not write is guarded. See fuzz/run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "whitebox.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct bytes {
    const uint8_t *at;
    size_t left;
};

/* A number in [lo, hi] out of the next two bytes; lo behind the end. */
static int64_t draw(struct bytes *b, int64_t lo, int64_t hi)
{
    if (b->left < 2) return lo;
    int64_t x = b->at[0] | b->at[1] << 8;
    b->at += 2;
    b->left -= 2;
    return lo + x % (hi - lo + 1);
}

static bool chance(struct bytes *b, int64_t one_in) { return draw(b, 0, one_in - 1) == 1; }

/* The oracle takes about 10 ns a multiply-add. */
#define WORK_MAX 200000

static void draw_shape(struct bytes *b, struct spec *s)
{
    s->seed = (uint64_t)draw(b, 0, 65535);
    s->B = draw(b, 1, 3);
    s->Hk = draw(b, 1, 3);
    s->Hq = s->Hk * draw(b, 1, 4);
    s->Dk = draw(b, 1, 90);
    s->Dv = chance(b, 2) ? s->Dk : draw(b, 1, 90);
    s->Lq = chance(b, 3) ? draw(b, 1, 4) : draw(b, 1, 90);
    s->Lk = draw(b, 1, 520);
    int64_t width = s->B * s->Hq * (s->Dk + s->Dv);
    if (s->Lq * width > WORK_MAX / 2) s->Lq = WORK_MAX / 2 / width + 1;
    if (s->Lk * s->Lq * width > WORK_MAX) s->Lk = WORK_MAX / width / s->Lq + 1;
}

static void draw_mask(struct bytes *b, const struct spec *s, struct mask_spec *m)
{
    m->on = chance(b, 4);
    m->full = (int32_t)draw(b, 0, 7);
    m->style = (int32_t)draw(b, 0, 3);
    m->cut = chance(b, 4) && m->style != MASK_KEYS_BROADCAST ? draw(b, 0, s->Lk - 1) : 0;
    m->density = (double)draw(b, 1, 10) / 10;
}

static void draw_rules(struct bytes *b, struct spec *s)
{
    static const double scales[] = {1, 0, -0.5, 30, 1e-4};
    s->layout = (int32_t)draw(b, 0, 1);
    s->strides = (int32_t)draw(b, 0, 3);
    s->misalign = draw(b, 0, 15);
    s->causal = (int32_t)draw(b, 0, 2);
    s->range = s->strides == STRIDES_SHARED ? 0 : (int32_t)draw(b, 0, 3);
    s->pos = chance(b, 4) ? (int32_t)draw(b, 1, 2) : 0;
    s->window = chance(b, 3);
    s->left = draw(b, -1, s->Lk);
    s->right = draw(b, -1, 20);
    s->has_scale = chance(b, 4);
    s->scale = scales[draw(b, 0, 4)];
    s->softcap = chance(b, 4) ? (double)draw(b, 1, 60) : 0;
    s->chunk = chance(b, 6) ? draw(b, 1, s->Lk + 3) : 0;
    s->alibi = chance(b, 4);
    s->sinks = chance(b, 4);
    s->segments = chance(b, 4) ? (int32_t)draw(b, 1, 8) - 4 : 0;
    draw_mask(b, s, &s->mask_bool);
    draw_mask(b, s, &s->mask_add);
    s->outs = chance(b, 2) ? (int32_t)draw(b, 0, OUT_ALL_MEAN) : 0;
    s->threads = (int32_t)draw(b, 1, 3);
}

/* Some elements of q, k and v become special. */
static void poke(struct bytes *b, struct rig *g)
{
    static const uint32_t special[] = {0x7fc00001, 0xffc12345, 0x7fa00001, 0x7f800000,
                                       0xff800000, 0x80000000, 0x00000001, 0x60ad78ec};
    struct test_tensor *tensors[] = {&g->q, &g->k, &g->v};
    for (int64_t n = draw(b, 0, 6); n > 0; n--) {
        struct test_tensor *t = tensors[draw(b, 0, 2)];
        int64_t at[4];
        for (int a = 0; a < 4; a++) at[a] = draw(b, 0, t->dims[a] - 1);
        memcpy(test_at(t, at[0], at[1], at[2], at[3]), &special[draw(b, 0, 7)], sizeof(float));
    }
}

struct how {
    struct tiles tiles;
    int32_t engine;
};

static void apply(attn_op *op, const void *context)
{
    const struct how *how = context;
    attn_i_op_test_tiles(op, how->tiles);
    assert_int_equal(attn_op_set_engine(op, how->engine), ATTN_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes b = {data, size};
    struct spec s = {0};
    struct how how = {.engine = (int32_t)draw(&b, 0, 1)};
    int64_t sizes[] = {0, 0, 0, 1, 3, 16, 60};
    how.tiles.strip_rows = sizes[draw(&b, 0, 6)];
    how.tiles.tile_keys = sizes[draw(&b, 0, 6)];
    how.tiles.block_queries = sizes[draw(&b, 0, 6)];
    how.tiles.part_keys = sizes[draw(&b, 0, 6)];
    how.tiles.path = (int32_t)draw(&b, 0, 3);
    int32_t isa = (int32_t)draw(&b, 0, 3);
    draw_shape(&b, &s);
    draw_rules(&b, &s);
    struct rig g;
    rig_make(&g, &s);
    g.hook = apply;
    g.hook_context = &how;
    g.isa &= isa; /* ATTN_TEST_ISA limits it */
    poke(&b, &g);
    attn_status status = rig_run(&g);
    if (status != ATTN_OK || !rig_check(&g)) {
        rig_print(&g, attn_status_string(status));
        print_tiles(&how.tiles);
        fprintf(stderr, "engine %d isa %d\n", how.engine, g.isa);
        abort();
    }
    rig_free(&g);
    return 0;
}
