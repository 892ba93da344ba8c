/* SPDX-License-Identifier: MIT */
/* Packed sequences, and what each of them should give. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "packed_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void side_make(struct side *s, struct rng *rng, int64_t B, bool packed, int64_t longest)
{
    s->packed = packed;
    s->L = packed ? rng_int(rng, 0, 3) : longest;
    for (int64_t b = 0; b <= B && packed; b++) {
        s->offsets[b] = s->L;
        s->narrow[b] = (int32_t)s->L;
        if (b < B) s->L += rng_chance(rng, 0.2) ? 0 : rng_int(rng, 1, longest);
    }
    for (int64_t b = 0; b < B; b++) {
        s->first[b] = packed ? s->offsets[b] : b * longest;
        s->count[b] = packed ? s->offsets[b + 1] - s->offsets[b] : longest;
    }
    if (packed) s->L += rng_int(rng, 0, 3); /* tokens behind the last sequence */
}

/* Tokens of a side in its buffer. */
static int64_t tokens(const struct packed *p, const struct side *s)
{
    return s->packed ? s->L : p->B * s->L;
}

/* The packed layout is (token, head, D); so is BLHD of a side that is not packed. */
void packed_make(struct packed *p, int64_t row)
{
    static const int64_t heads[][2] = {{1, 1}, {4, 2}, {3, 1}, {2, 2}};
    struct rng rng = rng_make((uint64_t)row + 31);
    memset(p, 0, sizeof *p);
    p->row = row;
    p->B = rng_int(&rng, 1, SEQUENCES_MAX);
    p->Hq = heads[row % 4][0];
    p->Hk = heads[row % 4][1];
    p->Dk = rng_int(&rng, 1, 20);
    p->Dv = rng_int(&rng, 1, 20);
    side_make(&p->q, &rng, p->B, row % 3 != 1, row % 5 == 0 ? 3 : 40);
    side_make(&p->k, &rng, p->B, row % 3 != 2, 50);
    p->causal = (int32_t)rng_int(&rng, 0, 2);
    p->left = rng_chance(&rng, 0.3) ? rng_int(&rng, 0, 20) : -1;
    p->chunk = rng_chance(&rng, 0.2) ? 7 : 0;
    p->range = rng_chance(&rng, 0.4);
    p->positions = rng_chance(&rng, 0.3);
    p->segments = rng_chance(&rng, 0.3);
    p->alibi = rng_chance(&rng, 0.3);
    p->sinks_on = rng_chance(&rng, 0.3);
    gbuf_make(&p->qb, tokens(p, &p->q) * p->Hq * p->Dk, row % 16);
    gbuf_make(&p->kb, tokens(p, &p->k) * p->Hk * p->Dk, 1);
    gbuf_make(&p->vb, tokens(p, &p->k) * p->Hk * p->Dv, 2);
    gbuf_make(&p->out, tokens(p, &p->q) * p->Hq * p->Dv, 3);
    gbuf_make(&p->lse, tokens(p, &p->q) * p->Hq, 4);
    rng_normals(&rng, p->qb.n, p->qb.p, 1);
    rng_normals(&rng, p->kb.n, p->kb.p, 1);
    rng_normals(&rng, p->vb.n, p->vb.p, 1);
    for (int64_t b = 0; b < p->B; b++) {
        p->end[b] = rng_int(&rng, 0, p->k.count[b]);
        p->begin[b] = rng_int(&rng, 0, p->end[b]);
        p->pos[b] = rng_int(&rng, -5, 40);
    }
    p->seg_q = must_alloc((size_t)tokens(p, &p->q), sizeof *p->seg_q);
    p->seg_k = must_alloc((size_t)tokens(p, &p->k), sizeof *p->seg_k);
    for (int64_t n = 0; n < tokens(p, &p->q); n++) p->seg_q[n] = (int32_t)rng_int(&rng, 0, 2);
    for (int64_t n = 0; n < tokens(p, &p->k); n++) p->seg_k[n] = (int32_t)rng_int(&rng, 0, 2);
    for (int h = 0; h < 8; h++) p->slopes[h] = rng_normal(&rng, 0.3), p->sinks[h] = (float)h - 3;
}

void packed_free(struct packed *p)
{
    struct gbuf *all[] = {&p->qb, &p->kb, &p->vb, &p->out, &p->lse};
    for (int n = 0; n < 5; n++) gbuf_free(all[n]);
    free(p->seg_q);
    free(p->seg_k);
}

static void set_offsets(attn_args *args, const struct packed *p)
{
    bool narrow = p->row % 2 == 1;
    const void *q = narrow ? (const void *)p->q.narrow : p->q.offsets;
    const void *k = narrow ? (const void *)p->k.narrow : p->k.offsets;
    int32_t type = narrow ? ATTN_I32 : ATTN_I64;
    if (p->q.packed) assert_int_equal(attn_args_set_offsets_q(args, q, type, p->B), ATTN_OK);
    if (p->k.packed) assert_int_equal(attn_args_set_offsets_k(args, k, type, p->B), ATTN_OK);
}

attn_status packed_run(struct packed *p, int32_t isa, const struct tiles *tiles)
{
    attn_op *op;
    attn_args *args;
    assert_int_equal(attn_op_create(&op, p->Hq, p->Hk, p->Dk, p->Dv), ATTN_OK);
    attn_op_set_layout(op, ATTN_LAYOUT_BLHD);
    attn_op_set_causal(op, p->causal);
    attn_op_set_window(op, p->left, -1);
    attn_op_set_chunk(op, p->chunk);
    attn_op_set_isa(op, isa);
    attn_op_set_threads(op, 1 + (int32_t)(p->row % 3));
    attn_i_op_test_tiles(op, *tiles);
    assert_int_equal(attn_args_create(&args), ATTN_OK);
    set_offsets(args, p);
    if (p->range) attn_args_set_key_range(args, p->B, p->begin, p->end);
    if (p->positions) attn_args_set_positions(args, p->B, p->pos);
    if (p->segments) attn_args_set_segments(args, p->seg_q, p->seg_k);
    if (p->alibi) attn_args_set_alibi(args, p->Hq, p->slopes);
    if (p->sinks_on) attn_args_set_sinks(args, p->Hq, p->sinks);
    attn_args_set_lse(args, p->lse.p);
    gbuf_reset(&p->out);
    gbuf_reset(&p->lse);
    attn_status status =
        attn_run_args(op, p->B, p->q.L, p->k.L, p->qb.p, p->kb.p, p->vb.p, p->out.p, args);
    attn_args_destroy(args);
    attn_op_destroy(op);
    return status;
}

/* ------------------------------------------------------------ the oracle */

/* Sequence b of (token, head, D) as a packed (1, H, L, D) of doubles. */
static double *sequence(const float *x, int64_t first, int64_t L, int64_t H, int64_t D)
{
    const int64_t dims[4] = {1, H, L, D}, strides[4] = {0, D, H * D, 1};
    return ref_gather(x + first * H * D, dims, strides);
}

static void compare_sequence(struct packed *p, int64_t b, struct ref_margin *m)
{
    int64_t Lq = p->q.count[b], Lk = p->k.count[b], q0 = p->q.first[b], k0 = p->k.first[b];
    struct ref_problem ref = ref_problem_make(1, p->Hq, p->Hk, Lq, Lk, p->Dk, p->Dv);
    struct ref_result r;
    ref.q = sequence(p->qb.p, q0, Lq, p->Hq, p->Dk);
    ref.k = sequence(p->kb.p, k0, Lk, p->Hk, p->Dk);
    ref.v = sequence(p->vb.p, k0, Lk, p->Hk, p->Dv);
    ref.causal = p->causal;
    ref.left = p->left;
    ref.chunk = p->chunk;
    if (p->range) ref.begin = &p->begin[b], ref.end = &p->end[b];
    if (p->positions) ref.pos = &p->pos[b];
    if (p->segments) ref.seg_q = p->seg_q + q0, ref.seg_k = p->seg_k + k0;
    if (p->alibi) ref.slopes = p->slopes;
    if (p->sinks_on) ref.sinks = p->sinks;
    ref_solve(&ref, &r);
    for (int64_t n = 0; n < p->Hq * Lq * p->Dv; n++) {
        int64_t d = n % p->Dv, i = n / p->Dv % Lq, h = n / p->Dv / Lq;
        float *got = &p->out.p[((q0 + i) * p->Hq + h) * p->Dv + d];
        ref_compare(m, n, r.out.x[n], r.out.tol[n], *got);
        *got = prefill();
    }
    for (int64_t n = 0; n < p->Hq * Lq; n++) {
        int64_t h = n / Lq, i = n % Lq;
        float *got = p->q.packed ? &p->lse.p[h * p->q.L + q0 + i]
                                 : &p->lse.p[(b * p->Hq + h) * p->q.L + i];
        ref_compare(m, n, r.lse.x[n], r.lse.tol[n], *got);
        *got = prefill();
    }
    ref_free(&r);
    free((void *)(uintptr_t)ref.q);
    free((void *)(uintptr_t)ref.k);
    free((void *)(uintptr_t)ref.v);
}

void packed_expect(struct packed *p, const struct tiles *tiles)
{
    struct ref_margin m = {0};
    for (int64_t b = 0; b < p->B; b++) compare_sequence(p, b, &m);
    if (m.bad == 0 && gbuf_untouched(&p->out) && gbuf_untouched(&p->lse)) return;
    print_error(
        "row %d: B %d Hq %d Hk %d Dk %d Dv %d Lq %d (packed %d) Lk %d (packed %d) causal %d "
        "range %d pos %d segments %d alibi %d sinks %d left %d chunk %d\n",
        (int)p->row, (int)p->B, (int)p->Hq, (int)p->Hk, (int)p->Dk, (int)p->Dv, (int)p->q.L,
        p->q.packed, (int)p->k.L, p->k.packed, p->causal, p->range, p->positions, p->segments,
        p->alibi, p->sinks_on, (int)p->left, (int)p->chunk);
    print_tiles(tiles);
    fail_msg("%d wrong: element %d is %.9g, not %.9g", (int)m.bad, (int)m.at, (double)m.got,
             m.want);
}
