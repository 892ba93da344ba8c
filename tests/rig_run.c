/* SPDX-License-Identifier: MIT */
/* The running and checking half of the rig. */
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

/* ------------------------------------------------------------ the oracle */

static struct ref_mask mask_of(const struct rig *g, int which, const void *at)
{
    struct ref_mask m = {.data = at};
    memcpy(m.dims, g->mask_dims[which], sizeof m.dims);
    memcpy(m.strides, g->mask_strides[which], sizeof m.strides);
    return m;
}

static double *gather(const struct test_tensor *t)
{
    return ref_gather(t->at, t->dims, t->strides);
}

void rig_solve(struct rig *g)
{
    const struct spec *s = &g->s;
    if (g->solved) return;
    struct ref_problem p = ref_problem_make(s->B, s->Hq, s->Hk, s->Lq, s->Lk, s->Dk, s->Dv);
    p.q = gather(&g->q);
    p.k = gather(&g->k);
    p.v = gather(&g->v);
    p.causal = s->causal;
    p.softcap = s->softcap;
    p.exact_scores = s->exact;
    if (s->has_scale) p.scale = s->scale;
    if (s->window) {
        p.left = s->left;
        p.right = s->right;
    }
    p.mask_bool = mask_of(g, 0, g->mask_bool_at);
    p.mask_add = mask_of(g, 1, g->mask_add_at);
    if (s->range & RANGE_BEGIN) p.begin = g->begin;
    if (s->range & RANGE_END) p.end = g->end;
    if (s->pos) p.pos = g->pos;
    p.chunk = s->chunk;
    if (s->alibi) p.slopes = g->slopes;
    if (s->sinks) p.sinks = g->sinks;
    p.seg_q = g->seg_q;
    p.seg_k = g->seg_k;
    g->problem = p;
    ref_solve(&p, &g->ref);
    g->solved = true;
}

void rig_forget(struct rig *g)
{
    if (!g->solved) return;
    free((void *)(uintptr_t)g->problem.q);
    free((void *)(uintptr_t)g->problem.k);
    free((void *)(uintptr_t)g->problem.v);
    ref_free(&g->ref);
    g->solved = false;
}

/* ----------------------------------------------------------- the library */

static void prepare_op(struct rig *g)
{
    const struct spec *s = &g->s;
    assert_int_equal(attn_op_create(&g->op, s->Hq, s->Hk, s->Dk, s->Dv), ATTN_OK);
    assert_int_equal(attn_op_set_layout(g->op, s->layout), ATTN_OK);
    assert_int_equal(attn_op_set_causal(g->op, s->causal), ATTN_OK);
    assert_int_equal(attn_op_set_threads(g->op, g->threads), ATTN_OK);
    assert_int_equal(attn_op_set_isa(g->op, g->isa), ATTN_OK);
    assert_int_equal(attn_op_set_softcap(g->op, s->softcap), ATTN_OK);
    if (s->has_scale) assert_int_equal(attn_op_set_scale(g->op, s->scale), ATTN_OK);
    if (s->window) assert_int_equal(attn_op_set_window(g->op, s->left, s->right), ATTN_OK);
    if (s->chunk > 0) assert_int_equal(attn_op_set_chunk(g->op, s->chunk), ATTN_OK);
    if (g->hook != NULL) g->hook(g->op, g->hook_context);
}

static void prepare_strides(struct rig *g)
{
    const struct test_tensor *tensors[4] = {&g->q, &g->k, &g->v, &g->out};
    for (int32_t slot = ATTN_Q; slot <= ATTN_OUT; slot++)
        assert_int_equal(attn_args_set_strides(g->args, slot, tensors[slot]->strides), ATTN_OK);
}

static const int64_t *mask_strides_of(const struct rig *g, int which)
{
    const struct mask_spec *m = which == 0 ? &g->s.mask_bool : &g->s.mask_add;
    return m->style == MASK_PACKED ? NULL : g->mask_strides[which];
}

static void prepare_args(struct rig *g)
{
    const struct spec *s = &g->s;
    assert_int_equal(attn_args_create(&g->args), ATTN_OK);
    if (s->strides != STRIDES_PACKED) prepare_strides(g);
    assert_int_equal(
        attn_args_set_mask_bool(g->args, g->mask_bool_at, g->mask_dims[0], mask_strides_of(g, 0)),
        ATTN_OK);
    assert_int_equal(
        attn_args_set_mask_add(g->args, g->mask_add_at, g->mask_dims[1], mask_strides_of(g, 1)),
        ATTN_OK);
    if (s->range != 0)
        assert_int_equal(attn_args_set_key_range(g->args, s->B,
                                                 s->range & RANGE_BEGIN ? g->begin : NULL,
                                                 s->range & RANGE_END ? g->end : NULL),
                         ATTN_OK);
    if (s->pos != 0) assert_int_equal(attn_args_set_positions(g->args, s->B, g->pos), ATTN_OK);
    if (s->alibi) assert_int_equal(attn_args_set_alibi(g->args, s->Hq, g->slopes), ATTN_OK);
    if (s->sinks) assert_int_equal(attn_args_set_sinks(g->args, s->Hq, g->sinks), ATTN_OK);
    assert_int_equal(attn_args_set_segments(g->args, g->seg_q, g->seg_k), ATTN_OK);
    for (int stage = 0; stage < REF_STAGES; stage++)
        if (s->outs & OUT_STAGE(stage))
            assert_int_equal(
                attn_args_set_scores_out(g->args, stage, g->stage[stage].p,
                                         s->outs & OUT_MEAN(stage) ? ATTN_MEAN_HEADS : 0),
                ATTN_OK);
    if (s->outs & OUT_LSE) assert_int_equal(attn_args_set_lse(g->args, g->lse.p), ATTN_OK);
}

void rig_prepare(struct rig *g)
{
    if (g->op == NULL) prepare_op(g);
    if (g->args == NULL) prepare_args(g);
}

static bool needs_args(const struct spec *s)
{
    return s->strides != STRIDES_PACKED || s->mask_bool.on || s->mask_add.on || s->range != 0 ||
           s->pos != 0 || s->outs != 0 || s->alibi || s->sinks || s->segments != 0;
}

attn_status rig_run(struct rig *g)
{
    const struct spec *s = &g->s;
    rig_prepare(g);
    gbuf_reset(&g->out.buf);
    if (g->lse.base != NULL) gbuf_reset(&g->lse);
    for (int stage = 0; stage < REF_STAGES; stage++)
        if (g->stage[stage].base != NULL) gbuf_reset(&g->stage[stage]);
    if (!needs_args(s) && s->seed % 2 == 0)
        return attn_run(g->op, s->B, s->Lq, s->Lk, g->q.at, g->k.at, g->v.at, g->out.at);
    return attn_run_args(g->op, s->B, s->Lq, s->Lk, g->q.at, g->k.at, g->v.at, g->out.at,
                         g->args);
}

float *rig_output(struct rig *g)
{
    attn_status status = rig_run(g);
    if (status != ATTN_OK) {
        rig_print(g, attn_status_string(status));
        fail();
    }
    return test_packed(&g->out);
}

/* -------------------------------------------------------------- checking */

void rig_print(const struct rig *g, const char *what)
{
    const struct spec *s = &g->s;
    const struct mask_spec *mb = &s->mask_bool, *ma = &s->mask_add;
    print_error("%s: seed %" PRIu64 " row %" PRId64 ": B %" PRId64 " Hq %" PRId64 " Hk %" PRId64
                " Lq %" PRId64 " Lk %" PRId64 " Dk %" PRId64 " Dv %" PRId64 "\n",
                what, s->seed, s->row, s->B, s->Hq, s->Hk, s->Lq, s->Lk, s->Dk, s->Dv);
    print_error("  layout %d strides %d causal %d range %d pos %d outs %d threads %d isa %d "
                "window %d (%" PRId64 ", %" PRId64
                ") scale %g softcap %g std %g misalign %" PRId64 "\n",
                s->layout, s->strides, s->causal, s->range, s->pos, s->outs, g->threads, g->isa,
                s->window, s->left, s->right, s->has_scale ? s->scale : 0.0, s->softcap, s->std,
                s->misalign);
    print_error("  mask_bool on %d full %d cut %" PRId64
                " style %d, mask_add on %d full %d cut %" PRId64 " style %d\n",
                mb->on, mb->full, mb->cut, mb->style, ma->on, ma->full, ma->cut, ma->style);
    print_error("  chunk %" PRId64 " alibi %d sinks %d segments %d\n", s->chunk, s->alibi,
                s->sinks, s->segments);
    for (int64_t b = 0; b < s->B && b < 4; b++)
        print_error("  item %" PRId64 ": begin %" PRId64 " end %" PRId64 " pos %" PRId64 "\n", b,
                    g->begin[b], g->end[b], g->pos[b]);
    print_error("  again: ATTN_TEST_ONLY=%" PRId64 " and this test's executable\n", s->row);
}

static bool report(struct rig *g, const char *what, const struct ref_margin *m)
{
    if (m->worst > g->margin.worst) g->margin = *m;
    if (m->bad == 0) return true;
    print_error("%s: %" PRId64 " of %" PRId64 " wrong; element %" PRId64
                " is %.9g, should be %.9g +- %.3g\n",
                what, m->bad, m->seen, m->at, (double)m->got, m->want, m->tol);
    return false;
}

/* Elements between the rows of out must be as they were. */
static bool gaps_untouched(const struct test_tensor *t)
{
    unsigned char *ours = must_alloc((size_t)t->buf.n, 1);
    bool fine = true;
    for (int64_t i = 0; i < test_count(t); i++) {
        int64_t d = i % t->dims[3], l = i / t->dims[3] % t->dims[2];
        int64_t h = i / t->dims[3] / t->dims[2] % t->dims[1];
        int64_t b = i / t->dims[3] / t->dims[2] / t->dims[1];
        ours[test_at(t, b, h, l, d) - t->buf.p] = 1;
    }
    for (int64_t n = 0; n < t->buf.n; n++) fine = fine && (ours[n] || is_prefill(t->buf.p[n]));
    free(ours);
    if (!fine) print_error("out: written between its rows\n");
    return fine;
}

static bool check_values(struct rig *g, const char *what, const struct ref_values *want,
                         const float *got, int64_t n)
{
    struct ref_margin m = {0};
    for (int64_t i = 0; i < n; i++) {
        ref_compare(&m, i, want->x[i], want->tol[i], got[i]);
        if (is_prefill(got[i])) m.bad++;
    }
    return report(g, what, &m);
}

/* In a NaN row a visible key whose score is -inf may have weight NaN or 0: -inf looks like "not
   visible" by then. An invisible key's weight is 0 there as everywhere. */
static bool may_be_zero(const struct rig *g, int64_t n)
{
    return isnan(g->ref.stage[REF_WEIGHTS].x[n]) && g->ref.stage[REF_MASKED].x[n] == -INFINITY;
}

static void forgive_nan_rows(const struct rig *g, float *got)
{
    for (int64_t n = 0; n < g->s.B * g->s.Hq * g->s.Lq * g->s.Lk; n++)
        if (may_be_zero(g, n) && got[n] == 0) got[n] = NAN;
}

/* The same for means over heads: a number where NaN was due must be the mean with those weights 0. */
static void forgive_nan_means(const struct rig *g, const float *got, struct ref_values *mean)
{
    int64_t rows = g->s.Lq * g->s.Lk, n = g->s.B * g->s.Hq * rows;
    struct ref_result zeros = {.stage[REF_WEIGHTS] = {must_alloc((size_t)n, sizeof(double)),
                                                      g->ref.stage[REF_WEIGHTS].tol}};
    for (int64_t i = 0; i < n; i++)
        zeros.stage[REF_WEIGHTS].x[i] = may_be_zero(g, i) ? 0 : g->ref.stage[REF_WEIGHTS].x[i];
    struct ref_values other = ref_mean_heads(&g->problem, &zeros, REF_WEIGHTS);
    for (int64_t i = 0; i < g->s.B * rows; i++)
        if (isnan(mean->x[i]) && !isnan(got[i])) {
            mean->x[i] = other.x[i];
            mean->tol[i] = other.tol[i];
        }
    ref_values_free(&other);
    free(zeros.stage[REF_WEIGHTS].x);
}

static bool check_stage(struct rig *g, int stage)
{
    static const char *const names[] = {"raw scores", "capped scores", "masked scores",
                                        "weights"};
    int64_t rows = g->s.B * g->s.Lq * g->s.Lk;
    if (g->stage[stage].base == NULL) return true;
    bool intact = gbuf_intact(&g->stage[stage]);
    if (!intact) print_error("%s: written outside\n", names[stage]);
    if (!(g->s.outs & OUT_MEAN(stage))) {
        float *got = copy_floats(g->stage[stage].p, rows * g->s.Hq);
        if (stage == REF_WEIGHTS && g->ref.has_nan) forgive_nan_rows(g, got);
        bool fine = check_values(g, names[stage], &g->ref.stage[stage], got, rows * g->s.Hq);
        free(got);
        return fine && intact;
    }
    struct ref_values mean = ref_mean_heads(&g->problem, &g->ref, stage);
    if (stage == REF_WEIGHTS && g->ref.has_nan) forgive_nan_means(g, g->stage[stage].p, &mean);
    bool fine = check_values(g, names[stage], &mean, g->stage[stage].p, rows);
    ref_values_free(&mean);
    return fine && intact;
}

bool rig_check(struct rig *g)
{
    bool fine = true;
    rig_solve(g);
    float *out = test_packed(&g->out);
    fine = check_values(g, "out", &g->ref.out, out, test_count(&g->out)) && fine;
    free(out);
    fine = gaps_untouched(&g->out) && fine;
    if (!gbuf_intact(&g->out.buf)) {
        print_error("out: written outside\n");
        fine = false;
    }
    for (int stage = 0; stage < REF_STAGES; stage++) fine = check_stage(g, stage) && fine;
    if (g->lse.base != NULL) {
        fine = check_values(g, "lse", &g->ref.lse, g->lse.p, g->lse.n) && fine;
        fine = gbuf_intact(&g->lse) && fine;
    }
    return fine;
}

void rig_expect(struct rig *g)
{
    attn_status status = rig_run(g);
    if (status != ATTN_OK) {
        rig_print(g, attn_status_string(status));
        fail();
    }
    if (!rig_check(g)) {
        rig_print(g, "wrong result");
        fail();
    }
    rig_margin_note(g->margin.worst);
}

void rig_once(const struct spec *s)
{
    struct rig g;
    rig_make(&g, s);
    rig_expect(&g);
    rig_free(&g);
}

bool same_bits(const char *what, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (bits_of_float(a[i]) == bits_of_float(b[i])) continue;
        print_error("%s: element %" PRId64 " is %.9g here and %.9g there\n", what, i,
                    (double)a[i], (double)b[i]);
        return false;
    }
    return true;
}
