/* SPDX-License-Identifier: MIT */
/* Panels of random problems, for the tests of the vector engine's kernels. */
#ifndef ATTN_TESTS_PANEL_RIG_H
#define ATTN_TESTS_PANEL_RIG_H

#include "each_isa.h"
#include "whitebox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int64_t sizes[] = {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 67};
#define N_SIZES ((int64_t)(sizeof sizes / sizeof *sizes))

static float *aligned_floats(int64_t n)
{
    float *p = aligned_alloc(64, (size_t)round_up(n, LANES_MAX) * sizeof *p);
    assert_non_null(p);
    return p;
}

/* A panel of a random problem; lanes see nothing, something or everything. */
struct problem {
    struct pages k_pages, v_pages;
    struct panel t;
    bool cut; /* vectors have starts and ends of their own */
    int64_t lanes;
    int32_t lo[64], hi[64];
    float *old_o, old_m[64], old_l[64];
};

static bool sees(const struct problem *p, int64_t lane, int64_t j)
{
    return !p->t.lo || (j >= p->lo[lane] && j < p->hi[lane]);
}

/* The keys that the kernels form for this lane, seen or not. */
static int64_t start_of(const struct problem *p, int64_t lane)
{
    return p->t.starts[lane / kn->width];
}

static int64_t end_of(const struct problem *p, int64_t lane)
{
    return p->t.ends[lane / kn->width];
}

/* All keys; where cut, from the first to the last that lanes on that side of them see, in
   multiples of 8. */
static void problem_ends(struct problem *p)
{
    int32_t n = p->t.vectors;
    for (int32_t j = 0; j < n; j++) {
        int64_t start = p->t.keys, end = 0;
        for (int64_t i = 0; i < p->lanes; i++) {
            if (p->lo[i] >= p->hi[i]) continue;
            if (i < (j + 1) * kn->width) end = max64(end, round_up(p->hi[i], 8));
            if (i >= j * kn->width) start = min64(start, p->lo[i]);
        }
        p->t.ends[j] = p->cut && j + 1 < n ? min64(end, p->t.keys) : p->t.keys;
        p->t.starts[j] = p->cut && j > 0 ? min64(start, p->t.ends[0]) / 8 * 8 : 0;
    }
}

/* Lanes see any keys; where cut, mostly a window each that moves along the keys. */
static void problem_sees(struct problem *p, struct rng *rng)
{
    int64_t keys = p->t.keys, left = rng_int(rng, -1, keys), right = rng_int(rng, 0, keys);
    if (rng_chance(rng, 0.6)) {
        p->t.lo = p->lo;
        p->t.hi = p->hi;
        p->cut = rng_chance(rng, 0.6);
    }
    bool window = p->cut && rng_chance(rng, 0.8);
    for (int64_t i = 0; i < p->lanes; i++) {
        int64_t a = rng_int(rng, 0, keys), b = rng_int(rng, 0, keys), at = i * keys / p->lanes;
        p->lo[i] = (int32_t)(window ? max64(at - left, 0) : min64(a, b));
        p->hi[i] = (int32_t)(window ? min64(at + right, keys) : max64(a, b));
        p->t.all.lo = max64(p->t.all.lo, p->lo[i]);
        p->t.all.hi = min64(p->t.all.hi, p->hi[i]);
    }
    problem_ends(p);
}

static void problem_make(struct problem *p, struct rng *rng, int64_t vectors, int64_t keys,
                         int64_t Dk, int64_t Dv)
{
    memset(p, 0, sizeof *p);
    int64_t lanes = p->lanes = vectors * kn->width, ldk = Dk + rng_int(rng, 0, 3), ldv = Dv + 1;
    pages_end(&p->k_pages, (size_t)((keys - 1) * ldk + Dk) * sizeof(float));
    pages_end(&p->v_pages, (size_t)((keys - 1) * ldv + Dv) * sizeof(float));
    rng_normals(rng, (keys - 1) * ldk + Dk, p->k_pages.p, 1);
    rng_normals(rng, (keys - 1) * ldv + Dv, p->v_pages.p, 1);
    float *q = aligned_floats(Dk * lanes), *o = aligned_floats(Dv * lanes);
    rng_normals(rng, Dk * lanes, q, 1);
    rng_normals(rng, Dv * lanes, o, 1);
    p->old_o = copy_floats(o, Dv * lanes);
    p->t = (struct panel){.vectors = (int32_t)vectors,
                          .keys = keys,
                          .Dk = Dk,
                          .Dv = Dv,
                          .k = p->k_pages.p,
                          .v = p->v_pages.p,
                          .ldk = ldk,
                          .ldv = ldv,
                          .q = q,
                          .o = o,
                          .s = aligned_floats(keys * lanes),
                          .top = aligned_floats(lanes),
                          .m = aligned_floats(lanes),
                          .l = aligned_floats(lanes),
                          .all = {0, keys}};
    for (int64_t i = 0; i < lanes; i++) {
        bool begun = rng_chance(rng, 0.7);
        p->t.m[i] = p->old_m[i] = begun ? (float)rng_int(rng, -9, 9) : -INFINITY;
        p->t.l[i] = p->old_l[i] = begun ? (float)rng_int(rng, 1, 9) : 0.0f;
    }
    problem_sees(p, rng);
    if (rng_chance(rng, 0.5)) /* nowhere in memory */
        p->t.ahead[0] = p->t.ahead[1] = p->t.masks =
            (struct ahead){p->t.k, keys + 9, 4 * ldk + 256, 3999};
}

static void problem_free(struct problem *p)
{
    float *all[] = {(float *)(uintptr_t)p->t.q, p->t.o, p->t.s, p->t.top, p->t.m, p->t.l};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    free(p->old_o);
    pages_free(&p->k_pages);
    pages_free(&p->v_pages);
}

#endif
