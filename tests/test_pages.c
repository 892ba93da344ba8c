/* SPDX-License-Identifier: MIT */
/*
 * Reads and writes past the end: every tensor ends (or begins) at a page that
 * cannot be touched (OpenBLAS#535, numpy#32017). And what is never read at
 * all: keys, values and masks outside the key range lie in such pages.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rig.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void ok(attn_status status) { assert_int_equal(status, ATTN_OK); }

/* From the first to the last element of a tensor, strides being what they are. */
static int64_t extent_of(const struct test_tensor *t)
{
    int64_t extent = 1;
    for (int a = 0; a < 4; a++)
        if (t->dims[a] > 1) extent += (t->dims[a] - 1) * t->strides[a];
    return test_count(t) == 0 ? 0 : extent;
}

static void place(struct pages *pages, bool at_end, const void *data, size_t bytes)
{
    if (at_end)
        pages_end(pages, bytes);
    else
        pages_begin(pages, bytes);
    if (data != NULL) memcpy(pages->p, data, bytes);
}

struct placed {
    struct pages q, k, v, out, mask_bool, mask_add, lse, stage[REF_STAGES];
};

static size_t stage_bytes(const struct rig *g, int stage)
{
    return (size_t)g->stage[stage].n * sizeof(float);
}

/* Copy everything that the rig holds to the edge of pages, and point the args there. */
static void place_all(struct rig *g, struct placed *p, bool at_end)
{
    size_t f = sizeof(float);
    place(&p->q, at_end, g->q.at, (size_t)extent_of(&g->q) * f);
    place(&p->k, at_end, g->k.at, (size_t)extent_of(&g->k) * f);
    place(&p->v, at_end, g->v.at, (size_t)extent_of(&g->v) * f);
    place(&p->out, at_end, NULL, (size_t)extent_of(&g->out) * f);
    place(&p->lse, at_end, NULL, (size_t)g->lse.n * f);
    ok(attn_args_set_lse(g->args, p->lse.p));
    size_t bools = (size_t)(g->mask_dims[0][2] * g->mask_dims[0][3]);
    place(&p->mask_bool, at_end, g->mask_bool, bools);
    if (g->mask_bool != NULL)
        ok(attn_args_set_mask_bool(g->args, p->mask_bool.p, g->mask_dims[0], NULL));
    place(&p->mask_add, at_end, g->mask_add.p, (size_t)g->mask_add.n * f);
    if (g->mask_add.p != NULL)
        ok(attn_args_set_mask_add(g->args, p->mask_add.p, g->mask_dims[1], NULL));
    for (int stage = 0; stage < REF_STAGES; stage++) {
        place(&p->stage[stage], at_end, NULL, stage_bytes(g, stage));
        int32_t flags = g->s.outs & OUT_MEAN(stage) ? ATTN_MEAN_HEADS : 0;
        if (stage_bytes(g, stage) > 0)
            ok(attn_args_set_scores_out(g->args, stage, p->stage[stage].p, flags));
    }
}

/* Copy what was written back to where the rig checks it. */
static void take_back(struct rig *g, struct placed *p)
{
    const float *from = p->out.p;
    for (int64_t n = 0; n < test_count(&g->out); n++) {
        int64_t d = n % g->s.Dv, l = n / g->s.Dv % g->s.Lq;
        int64_t h = n / g->s.Dv / g->s.Lq % g->s.Hq, b = n / g->s.Dv / g->s.Lq / g->s.Hq;
        float *to = test_at(&g->out, b, h, l, d);
        *to = from[to - g->out.at];
    }
    memcpy(g->lse.p, p->lse.p, (size_t)g->lse.n * sizeof(float));
    for (int stage = 0; stage < REF_STAGES; stage++)
        if (stage_bytes(g, stage) > 0)
            memcpy(g->stage[stage].p, p->stage[stage].p, stage_bytes(g, stage));
    struct pages *all[] = {&p->q,         &p->k,        &p->v,       &p->out,
                           &p->mask_bool, &p->mask_add, &p->lse,     &p->stage[0],
                           &p->stage[1],  &p->stage[2], &p->stage[3]};
    for (int n = 0; n < 11; n++) pages_free(all[n]);
}

static void test_tensors_at_the_edge(void **state)
{
    static const int64_t lengths[][2] = {{1, 13}, {1, 130}, {3, 33},
                                         {17, 5}, {61, 67}, {70, 300}};
    static const int64_t sizes[] = {1, 2, 3, 7, 8, 15, 17, 31, 33, 64, 65, 100};
    (void)state;
    for (int64_t row = 0; row < 2 * 6 * 12; row++) {
        int64_t n = row / 2;
        struct spec s = {.seed = (uint64_t)row, .row = row, .B = 1 + n % 2, .Hq = 4, .Hk = 2};
        struct placed p;
        struct rig g;
        if (rig_skip(row)) continue;
        s.Lq = lengths[n % 6][0];
        s.Lk = lengths[n % 6][1];
        s.Dk = sizes[n / 6];
        s.Dv = sizes[(n * 5 + 1) % 12];
        s.causal = (int32_t)(n % 3);
        s.layout = (int32_t)(n / 2 % 2);
        s.strides = (int32_t)(n / 3 % 2);
        s.threads = 1 + (int32_t)(n % 2);
        s.outs = OUT_LSE | (n % 4 == 0 ? OUT_ALL : n % 4 == 1 ? OUT_ALL_MEAN : 0);
        s.mask_bool = (struct mask_spec){.on = n % 3 == 0, .full = FULL_Q};
        s.mask_add = (struct mask_spec){.on = n % 3 == 1, .full = FULL_Q};
        rig_make(&g, &s);
        for (const int32_t *isa = rig_isas(); *isa >= 0; isa++) {
            g.isa = *isa;
            rig_reset(&g);
            ok(rig_run(&g)); /* resets the outputs; overwritten below */
            place_all(&g, &p, row % 2 == 0);
            ok(attn_run_args(g.op, g.s.B, s.Lq, s.Lk, p.q.p, p.k.p, p.v.p, p.out.p, g.args));
            take_back(&g, &p);
            if (rig_check(&g)) continue;
            rig_print(&g, "wrong at the edge");
            fail();
        }
        rig_free(&g);
    }
}

/* ------------------------------------------------------- never read */

/* n bytes of whole pages, [0, from) and [to, n) of them unreadable. */
static void *with_holes(struct pages *pages, const void *data, size_t n, size_t from, size_t to)
{
    pages_end(pages, n);
    memcpy(pages->p, data, n);
    assert_int_equal((uintptr_t)pages->p % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
    if (from > 0) assert_int_equal(mprotect(pages->p, from, PROT_NONE), 0);
    if (n > to) assert_int_equal(mprotect((char *)pages->p + to, n - to, PROT_NONE), 0);
    return pages->p;
}

/* One page holds exactly `step` keys of K, V and of both masks. */
static void never_read(int64_t row, int64_t Lq, int32_t outs, bool with_masks)
{
    const int64_t page = sysconf(_SC_PAGESIZE), D = 32, step = page / (D * 4), Lk = 8 * step;
    const int64_t begin = row % 2 ? 2 * step : 0, end = row % 3 == 2 ? Lk : 5 * step;
    struct spec s = {.seed = (uint64_t)row,
                     .row = row,
                     .Lq = Lq,
                     .Lk = Lk,
                     .Dk = D,
                     .Hq = 3,
                     .Hk = 1,
                     .begins = &begin,
                     .ends = &end,
                     .outs = outs,
                     .range = RANGE_BEGIN | RANGE_END,
                     .causal = (int32_t)(row % 3)};
    struct pages k, v, mask[2];
    struct rig g;
    s.mask_bool.on = s.mask_add.on = with_masks;
    s.threads = 1 + (int32_t)(row % 2);
    rig_make(&g, &s);
    rig_solve(&g);
    ok(rig_run(&g));
    size_t bytes = (size_t)(Lk * D) * 4, from = (size_t)(begin * D) * 4,
           to = (size_t)(end * D) * 4;
    const float *k_at = with_holes(&k, g.k.at, bytes, from, to);
    const float *v_at = with_holes(&v, g.v.at, bytes, from, to);
    const int64_t dims[4] = {1, 1, 1, Lk}, bools[4] = {0, 0, 0, D * 4}, adds[4] = {0, 0, 0, D};
    if (with_masks) { /* one element every D * 4 bytes, so that a page holds `step` of them */
        char *spread[2] = {must_alloc(bytes, 1), must_alloc(bytes, 1)};
        for (int64_t j = 0; j < Lk; j++) {
            spread[0][j * D * 4] = (char)g.mask_bool[j];
            memcpy(spread[1] + j * D * 4, &g.mask_add.p[j], sizeof(float));
        }
        ok(attn_args_set_mask_bool(g.args, with_holes(&mask[0], spread[0], bytes, from, to), dims,
                                   bools));
        ok(attn_args_set_mask_add(g.args, with_holes(&mask[1], spread[1], bytes, from, to), dims,
                                  adds));
        free(spread[0]);
        free(spread[1]);
    }
    gbuf_reset(&g.out.buf);
    ok(attn_run_args(g.op, 1, Lq, Lk, g.q.at, k_at, v_at, g.out.at, g.args));
    if (!rig_check(&g)) {
        rig_print(&g, "wrong with holes");
        fail();
    }
    pages_free(&k);
    pages_free(&v);
    for (int n = 0; n < 2 && with_masks; n++) pages_free(&mask[n]);
    rig_free(&g);
}

static void test_outside_the_range_is_never_read(void **state)
{
    static const int64_t lengths[] = {1, 2, 5, 40, 70, 200};
    (void)state;
    for (int64_t row = 0; row < 6 * 6; row++) {
        int32_t outs = row / 6 % 3 == 0 ? 0 : row / 6 % 3 == 1 ? OUT_ALL : OUT_ALL_MEAN;
        if (!rig_skip(row)) never_read(row, lengths[row % 6], outs, row / 18 == 1);
    }
}

/* An empty range: K and V are not looked at, wherever they point. */
static void test_empty_range_reads_nothing(void **state)
{
    struct pages pages;
    (void)state;
    pages_end(&pages, 4);
    const float *bad = (const float *)pages.p + 1; /* the unreadable page */
    for (int64_t Lq = 1; Lq <= 40; Lq += 39) {
        const int64_t zero = 0, seven = 7;
        struct spec s = {.seed = 1,
                         .Lq = Lq,
                         .Lk = 9,
                         .Dk = 4,
                         .range = RANGE_BEGIN | RANGE_END,
                         .outs = OUT_ALL};
        s.begins = s.ends = Lq == 1 ? &zero : &seven;
        struct rig g;
        rig_make(&g, &s);
        ok(rig_run(&g));
        gbuf_reset(&g.out.buf);
        ok(attn_run_args(g.op, 1, Lq, 9, g.q.at, bad, bad + 64, g.out.at, g.args));
        assert_true(rig_check(&g));
        rig_free(&g);
    }
    pages_free(&pages);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors_at_the_edge),
        cmocka_unit_test(test_outside_the_range_is_never_read),
        cmocka_unit_test(test_empty_range_reads_nothing),
    };
    return cmocka_run_group_tests_name("pages", tests, NULL, NULL);
}
