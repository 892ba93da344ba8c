/* SPDX-License-Identifier: MIT */
/* Runs of an op: shapes, rules, strides, outputs, tiles, special numbers, workspaces. */
#include "fuzz.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Multiply-adds of a case: the oracle takes about 10 ns for one. */
#define WORK_MAX 200000

static void draw_shape(struct text_case *c, struct spec *s)
{
    static const double stds[] = {1, 0.01, 10};
    int64_t D_max = chance(c, 6) ? 300 : 90;
    s->seed = (uint64_t)draw(c, 0, 9999);
    s->B = draw(c, 1, 3);
    s->Hk = draw(c, 1, 3);
    s->Hq = s->Hk * draw(c, 1, 4);
    s->Dk = draw(c, 1, D_max);
    s->Dv = chance(c, 2) ? s->Dk : draw(c, 1, D_max);
    s->Lq = chance(c, 3) ? draw(c, 1, 4) : draw(c, 1, 90);
    s->Lk = chance(c, 6) ? draw(c, 0, 8000) : draw(c, 0, 520);
    s->std = stds[draw(c, 0, 2)];
    int64_t width = s->B * s->Hq * (s->Dk + s->Dv);
    if (s->Lk * width > WORK_MAX) s->Lk = WORK_MAX / width;
    if (s->Lk * s->Lq * width > WORK_MAX) s->Lq = WORK_MAX / width / s->Lk;
}

static void draw_mask(struct text_case *c, const struct spec *s, struct mask_spec *m)
{
    m->on = chance(c, 4);
    m->full = (int32_t)draw(c, 0, FULL_ALL);
    m->style = (int32_t)draw(c, MASK_PACKED, MASK_KEYS_BROADCAST);
    m->cut =
        chance(c, 4) && m->style != MASK_KEYS_BROADCAST && s->Lk > 0 ? draw(c, 0, s->Lk - 1) : 0;
    m->density = (double)draw(c, 1, 10) / 10;
}

static void draw_rules(struct text_case *c, struct spec *s)
{
    static const double scales[] = {1, 0, -0.5, 30, 1e-4};
    s->layout = (int32_t)draw(c, 0, 1);
    s->strides = (int32_t)draw(c, STRIDES_PACKED, STRIDES_SHARED);
    s->misalign = draw(c, 0, 15);
    s->causal = (int32_t)draw(c, 0, 2);
    s->range = s->strides == STRIDES_SHARED ? 0 : (int32_t)draw(c, 0, RANGE_BEGIN | RANGE_END);
    s->pos = chance(c, 4) ? (int32_t)draw(c, POS_SMALL, POS_EXTREME) : 0;
    s->window = chance(c, 3);
    s->left = draw(c, -1, s->Lk);
    s->right = draw(c, -1, 20);
    s->has_scale = chance(c, 4);
    s->scale = scales[draw(c, 0, 4)];
    s->softcap = chance(c, 4) ? (double)draw(c, 1, 60) : 0;
    s->chunk = chance(c, 6) ? draw(c, 1, s->Lk + 3) : 0;
    s->alibi = chance(c, 4);
    s->sinks = chance(c, 4);
    s->segments = chance(c, 4) ? (int32_t)draw(c, 1, 8) - 4 : 0;
    draw_mask(c, s, &s->mask_bool);
    draw_mask(c, s, &s->mask_add);
    s->outs = chance(c, 2) ? (int32_t)draw(c, 0, OUT_ALL_MEAN) : 0;
    s->threads = (int32_t)draw(c, 1, 3);
}

/* Sums of many alike numbers, one at a time, lose more than the oracle allows for: their rounding
   errors have one sign. No plan makes tiles so small. */
static void spare_tiny_tiles(const struct spec *s, struct tiles *t)
{
    if (s->Lk <= 100) return;
    if (t->tile_keys > 0 && t->tile_keys < 16) t->tile_keys = 16;
    if (t->part_keys > 0 && t->part_keys < 16) t->part_keys = 16;
}

/* Some elements of q, k, v and the additive mask become special: NaN of several payloads,
   infinities, -0, a denormal, 1e15. */
static void poke(struct text_case *c, struct rig *g)
{
    static const uint32_t special[] = {0x7fc00001, 0xffc12345, 0x7fa00001, 0x7f800000,
                                       0xff800000, 0x80000000, 0x00000001, 0x58635fa9};
    struct test_tensor *tensors[] = {&g->q, &g->k, &g->v};
    for (int64_t n = draw(c, 0, 6); n > 0; n--) {
        int64_t which = draw(c, 0, 3), at[4];
        float x = float_of_bits(special[draw(c, 0, 7)]);
        if (which == 3) {
            if (g->mask_add.n > 0) g->mask_add.p[draw(c, 0, g->mask_add.n - 1)] = x;
            continue;
        }
        struct test_tensor *t = tensors[which];
        if (test_count(t) == 0) continue;
        for (int a = 0; a < 4; a++) at[a] = draw(c, 0, t->dims[a] - 1);
        *test_at(t, at[0], at[1], at[2], at[3]) = x;
    }
}

/* Just enough memory of the caller's, at any address: AddressSanitizer guards its end. */
static char *give_workspace(struct rig *g)
{
    size_t bytes;
    rig_prepare(g);
    assert_int_equal(attn_workspace_bytes(g->op, g->s.B, g->s.Lq, g->s.Lk, g->args, &bytes),
                     ATTN_OK);
    char *memory = must_alloc(bytes + 1, 1);
    memset(memory, 0xff, bytes + 1);
    assert_int_equal(attn_args_set_workspace(g->args, memory + 1, bytes), ATTN_OK);
    return memory;
}

void fuzz_run(struct text_case *c)
{
    struct spec s = {0};
    struct rig g;
    struct tiles tiles = draw_tiles(c);
    int32_t isa = draw_isa(c);
    bool workspace = chance(c, 3);
    draw_shape(c, &s);
    spare_tiny_tiles(&s, &tiles);
    draw_rules(c, &s);
    if (workspace) s.seed |= 1; /* the rig takes attn_run(), without args, for some even ones */
    rig_make(&g, &s);
    rig_tiles(&g, &tiles);
    g.isa &= isa;
    poke(c, &g);
    char *memory = workspace ? give_workspace(&g) : NULL;
    attn_status status = rig_run(&g);
    if (status != ATTN_OK || !rig_check(&g)) {
        rig_print(&g, attn_status_string(status));
        print_tiles(&tiles);
        fprintf(stderr, "engine %s workspace %d\n", getenv("ATTN_TEST_ENGINE"), workspace);
        abort();
    }
    rig_free(&g);
    free(memory);
}
