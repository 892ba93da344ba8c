/* SPDX-License-Identifier: MIT */
/* Layers and single projections, and packed sequences. */
#include "fuzz.h"

#include "../layer_rig.h"
#include "../packed_rig.h"

static void draw_layer(struct text_case *c, struct layer_spec *s)
{
    s->seed = (uint64_t)draw(c, 0, 9999);
    s->B = draw(c, 1, 3);
    s->Hk = draw(c, 1, 3);
    s->Hq = s->Hk * draw(c, 1, 3);
    s->Dk = draw(c, 1, 40);
    s->Dv = chance(c, 2) ? s->Dk : draw(c, 1, 40);
    s->E_q = draw(c, 1, chance(c, 6) ? 900 : 70); /* above 768 a matrix lies in two pieces */
    s->E_kv = chance(c, 2) ? s->E_q : draw(c, 1, 70);
    s->no_output = chance(c, 4);
    s->E_out = draw(c, 1, 90);
    s->Lq = draw(c, 1, 30);
    s->Lk = chance(c, 2) ? s->Lq : draw(c, 1, 60);
    if (s->E_q > 70) s->B = s->Hk = s->Hq = 1, s->Lq = s->Lk = 3;
    if (s->no_output) s->E_out = s->Hq * s->Dv;
    s->self = s->E_q == s->E_kv && s->Lq == s->Lk && chance(c, 2);
    for (int w = 0; w < 4; w++) s->flags[w] = chance(c, 2) ? ATTN_OUT_IN : ATTN_IN_OUT;
    s->ld_pad = draw(c, 0, 5);
    s->bias = (int32_t)draw(c, 0, 15);
    s->range = chance(c, 3);
    s->weights = chance(c, 3);
    s->causal = (int32_t)draw(c, 0, 2);
    s->layout = (int32_t)draw(c, 0, 1);
    s->threads = (int32_t)draw(c, 1, 3);
    s->isa = draw_isa(c);
}

void fuzz_layer(struct text_case *c)
{
    struct layer_spec s = {0};
    struct layer_rig g;
    draw_layer(c, &s);
    layer_make(&g, &s);
    if (chance(c, 2)) layer_workspace(&g, true);
    if (chance(c, 4)) {
        int32_t which = (int32_t)draw(c, ATTN_W_Q, s.no_output ? ATTN_W_V : ATTN_W_O);
        layer_expect_projection(&g, which, chance(c, 2));
    } else {
        layer_expect(&g);
    }
    layer_free(&g);
}

void fuzz_packed(struct text_case *c)
{
    struct packed p;
    struct tiles tiles = draw_tiles(c);
    int32_t isa = draw_isa(c);
    packed_make(&p, draw(c, 0, 99) * 100 + draw(c, 0, 99));
    assert_int_equal(packed_run(&p, isa, &tiles), ATTN_OK);
    packed_expect(&p, &tiles);
    packed_free(&p);
}
