/* SPDX-License-Identifier: MIT */
/* One run by the library beside the oracle. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rig.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double worst_of_all;

double rig_worst(void) { return worst_of_all; }

void rig_margin_note(double worst)
{
    if (worst > worst_of_all) worst_of_all = worst;
}

static int64_t env_number(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL && *text != '\0' ? strtoll(text, NULL, 0) : otherwise;
}

bool rig_skip(int64_t row)
{
    int64_t only = env_number("ATTN_TEST_ONLY", -1);
    if (only >= 0) return row != only;
    return row % env_number("ATTN_TEST_STEP", 1) != 0;
}

int rig_times(int n)
{
    int64_t fewer = n / env_number("ATTN_TEST_STEP", 1);
    return fewer > 2 ? (int)fewer : 2;
}

const int32_t *rig_isas(void)
{
    static const int32_t all[] = {ATTN_ISA_BASE, ATTN_ISA_AVX2, ATTN_ISA_ALL, -1};
    static const int32_t some[] = {ATTN_ISA_BASE, ATTN_ISA_AVX2, -1};
    static const int32_t one[] = {ATTN_ISA_BASE, -1};
    if (!RIG_X86_64) return one;
    return env_number("ATTN_TEST_ISA", ATTN_ISA_ALL) == ATTN_ISA_ALL ? all : some;
}

/* -------------------------------------------------------------- tensors */

float *test_at(const struct test_tensor *t, int64_t b, int64_t h, int64_t l, int64_t d)
{
    const int64_t index[4] = {b, h, l, d};
    int64_t at = 0;
    for (int a = 0; a < 4; a++)
        if (t->dims[a] > 1) at += index[a] * t->strides[a];
    return t->at + at;
}

int64_t test_count(const struct test_tensor *t)
{
    return t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
}

/* Element n in the order (B, H, L, D). */
float *test_nth(const struct test_tensor *t, int64_t n)
{
    int64_t d = n % t->dims[3], l = n / t->dims[3] % t->dims[2];
    int64_t h = n / t->dims[3] / t->dims[2] % t->dims[1];
    return test_at(t, n / t->dims[3] / t->dims[2] / t->dims[1], h, l, d);
}

float *test_packed(const struct test_tensor *t)
{
    int64_t n = test_count(t);
    float *x = must_alloc((size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++) memcpy(&x[i], test_nth(t, i), sizeof *x);
    return x;
}

/* Strides of the layout, with gaps of `pad` floats behind rows, heads and items. */
static int64_t lay_out(struct test_tensor *t, int32_t layout, int64_t pad)
{
    int inner = layout == ATTN_LAYOUT_BLHD ? 1 : 2, outer = 3 - inner;
    t->strides[3] = 1;
    t->strides[inner] = t->dims[3] + pad;
    t->strides[outer] = t->dims[inner] * t->strides[inner] + pad;
    t->strides[0] = t->dims[outer] * t->strides[outer] + pad;
    return t->dims[0] * t->strides[0];
}

static void tensor_make(struct rig *g, struct test_tensor *t, int64_t H, int64_t L, int64_t D,
                        bool output)
{
    const int64_t dims[4] = {g->s.B, H, L, D};
    int32_t style = g->s.strides;
    bool keys = t == &g->k || t == &g->v;
    memcpy(t->dims, dims, sizeof dims);
    if (style == STRIDES_SHARED && keys) t->dims[0] = 1;
    int64_t n = lay_out(t, g->s.layout, style == STRIDES_PACKED ? 0 : rng_int(&g->rng, 1, 9));
    gbuf_make(&t->buf, n, g->s.misalign);
    t->at = t->buf.p;
    if (style == STRIDES_SHARED && keys) {
        t->dims[0] = g->s.B;
        t->strides[0] = 0;
    }
    for (int a = 0; a < 2 && style == STRIDES_NEGATIVE && !output; a++) {
        t->at += (dims[a] - 1) * t->strides[a];
        t->strides[a] = -t->strides[a];
    }
    for (int a = 0; a < 4 && style != STRIDES_PACKED; a++)
        if (dims[a] == 1) t->strides[a] = -77777; /* must be ignored */
}

static void tensor_fill(struct rig *g, struct test_tensor *t, double std)
{
    for (int64_t i = 0; i < test_count(t); i++) *test_nth(t, i) = rng_normal(&g->rng, std);
}

/* Keys outside the range hold NaN: they are never read. */
static void poison_outside(struct rig *g, struct test_tensor *t)
{
    if (g->s.strides == STRIDES_SHARED) return;
    for (int64_t i = 0; i < test_count(t); i++) {
        int64_t j = i / t->dims[3] % t->dims[2];
        int64_t b = i / t->dims[3] / t->dims[2] / t->dims[1];
        if (j < g->begin[b] || j >= g->end[b]) *test_nth(t, i) = NAN;
    }
}

/* ------------------------------------------------------- masks and ranges */

static int64_t mask_lay_out(struct rig *g, const struct mask_spec *m, int64_t dims[4],
                            int64_t strides[4], int64_t *first)
{
    const int64_t full[3] = {g->s.B, g->s.Hq, g->s.Lq};
    int64_t n = 1, pad = m->style == MASK_PACKED ? 0 : rng_int(&g->rng, 1, 5);
    dims[3] = g->s.Lk - m->cut;
    for (int a = 0; a < 3; a++) dims[a] = m->full >> a & 1 ? full[a] : 1;
    for (int a = 3; a >= 0; a--) {
        strides[a] = n;
        n = n * dims[a] + (a > 0 ? pad : 0);
    }
    *first = 0;
    for (int a = 0; a < 4 && m->style == MASK_NEGATIVE; a++) {
        if (dims[a] > 0) *first += (dims[a] - 1) * strides[a];
        strides[a] = -strides[a];
    }
    if (m->style == MASK_KEYS_BROADCAST) strides[3] = 0;
    return n;
}

static void mask_make(struct rig *g, const struct mask_spec *m, bool boolean)
{
    double density = m->density > 0 ? m->density : 0.7;
    int which = boolean ? 0 : 1;
    int64_t first, n;
    n = mask_lay_out(g, m, g->mask_dims[which], g->mask_strides[which], &first);
    if (boolean) {
        g->mask_bool = must_alloc((size_t)n, 1);
        for (int64_t i = 0; i < n; i++)
            g->mask_bool[i] =
                (uint8_t)(rng_chance(&g->rng, density) ? rng_int(&g->rng, 1, 255) : 0);
        g->mask_bool_at = g->mask_bool + first;
        return;
    }
    gbuf_make(&g->mask_add, n, g->s.misalign);
    for (int64_t i = 0; i < n; i++)
        g->mask_add.p[i] = !rng_chance(&g->rng, density) ? -INFINITY
                           : rng_chance(&g->rng, 0.02)   ? -1e30f
                                                         : rng_normal(&g->rng, 2);
    g->mask_add_at = g->mask_add.p + first;
}

static void ranges_make(struct rig *g)
{
    const int64_t far[4] = {INT64_MAX, INT64_MIN, INT64_MAX - 3, INT64_MIN + 3};
    const struct spec *s = &g->s;
    for (int64_t b = 0; b < RIG_B_MAX; b++) {
        g->begin[b] = 0;
        g->end[b] = s->Lk;
        if (s->range & RANGE_END) g->end[b] = rng_int(&g->rng, 0, s->Lk);
        if (s->range & RANGE_BEGIN) g->begin[b] = rng_int(&g->rng, 0, g->end[b]);
        g->pos[b] = s->pos == POS_EXTREME ? far[(b + (int64_t)(s->seed % 4)) % 4]
                                          : rng_int(&g->rng, -s->Lq, s->Lk + 3);
        if (s->begins != NULL && b < s->B) g->begin[b] = s->begins[b];
        if (s->ends != NULL && b < s->B) g->end[b] = s->ends[b];
        if (s->positions != NULL && b < s->B) g->pos[b] = s->positions[b];
    }
}

/* n ids in each of B rows; in order: runs of one id, at random places. */
static int32_t *segments_make(struct rig *g, int64_t n)
{
    int32_t count = g->s.segments < 0 ? -g->s.segments : g->s.segments;
    int32_t *ids = must_alloc((size_t)(g->s.B * n), sizeof *ids);
    for (int64_t i = 0; i < g->s.B * n; i++) {
        bool same = g->s.segments < 0 && i % n > 0;
        ids[i] = same ? ids[i - 1] : (int32_t)rng_int(&g->rng, 0, count - 1) - 1;
        if (same && rng_chance(&g->rng, (double)count / (double)n)) ids[i]++;
    }
    return ids;
}

static void heads_make(struct rig *g)
{
    for (int h = 0; h < RIG_H_MAX; h++) {
        g->slopes[h] = h % 5 == 4 ? -0.25f : 1 / (float)(1 << h % 8);
        g->sinks[h] = h % 4 == 3 ? -INFINITY : rng_normal(&g->rng, 2);
    }
    if (g->s.segments == 0) return;
    g->seg_q = segments_make(g, g->s.Lq);
    g->seg_k = segments_make(g, g->s.Lk);
}

static void outputs_make(struct rig *g)
{
    int64_t rows = g->s.B * g->s.Hq * g->s.Lq, mean_rows = g->s.B * g->s.Lq;
    for (int stage = 0; stage < REF_STAGES; stage++) {
        if (!(g->s.outs & OUT_STAGE(stage))) continue;
        int64_t n = g->s.outs & OUT_MEAN(stage) ? mean_rows : rows;
        gbuf_make(&g->stage[stage], n * g->s.Lk, g->s.misalign);
    }
    if (g->s.outs & OUT_LSE) gbuf_make(&g->lse, rows, g->s.misalign);
}

void rig_make(struct rig *g, const struct spec *s)
{
    memset(g, 0, sizeof *g);
    g->s = *s;
    if (g->s.B == 0) g->s.B = 1;
    if (g->s.Hq == 0) g->s.Hq = 1;
    if (g->s.Hk == 0) g->s.Hk = g->s.Hq;
    if (g->s.Dv == 0) g->s.Dv = g->s.Dk;
    if (g->s.std == 0) g->s.std = 1;
    g->isa = (int32_t)env_number("ATTN_TEST_ISA", ATTN_ISA_ALL);
    g->threads = g->s.threads > 0 ? g->s.threads : 1;
    g->rng = rng_make(s->seed);
    ranges_make(g);
    tensor_make(g, &g->q, g->s.Hq, g->s.Lq, g->s.Dk, false);
    tensor_make(g, &g->k, g->s.Hk, g->s.Lk, g->s.Dk, false);
    tensor_make(g, &g->v, g->s.Hk, g->s.Lk, g->s.Dv, false);
    tensor_make(g, &g->out, g->s.Hq, g->s.Lq, g->s.Dv, true);
    tensor_fill(g, &g->q, g->s.std);
    tensor_fill(g, &g->k, g->s.std);
    tensor_fill(g, &g->v, 1);
    poison_outside(g, &g->k);
    poison_outside(g, &g->v);
    if (g->s.mask_bool.on) mask_make(g, &g->s.mask_bool, true);
    if (g->s.mask_add.on) mask_make(g, &g->s.mask_add, false);
    if (g->s.alibi || g->s.sinks || g->s.segments != 0) heads_make(g);
    outputs_make(g);
}

void rig_reset(struct rig *g)
{
    attn_args_destroy(g->args);
    attn_op_destroy(g->op);
    g->args = NULL;
    g->op = NULL;
}

void rig_free(struct rig *g)
{
    rig_forget(g);
    rig_reset(g);
    gbuf_free(&g->q.buf);
    gbuf_free(&g->k.buf);
    gbuf_free(&g->v.buf);
    gbuf_free(&g->out.buf);
    gbuf_free(&g->lse);
    for (int stage = 0; stage < REF_STAGES; stage++) gbuf_free(&g->stage[stage]);
    gbuf_free(&g->mask_add);
    free(g->mask_bool);
    free(g->seg_q);
    free(g->seg_k);
    g->mask_bool = NULL;
    g->seg_q = g->seg_k = NULL;
}
