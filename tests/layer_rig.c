/* SPDX-License-Identifier: MIT */
/* A layer, its weights, its inputs, and what it should give. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "layer_rig.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void print_spec(const struct layer_rig *g, const char *what)
{
    const struct layer_spec *s = &g->s;
    print_error("%s: seed %" PRIu64 " row %" PRId64 ": B %" PRId64 " Hq %" PRId64 " Hk %" PRId64
                " Dk %" PRId64 " Dv %" PRId64 " E %" PRId64 " %" PRId64 " %" PRId64 " Lq %" PRId64
                " Lk %" PRId64 "\n",
                what, s->seed, s->row, s->B, s->Hq, s->Hk, s->Dk, s->Dv, s->E_q, s->E_kv,
                s->E_out, s->Lq, s->Lk);
    print_error("  flags %d %d %d %d ld_pad %" PRId64 " bias %d no_output %d self %d range %d "
                "causal %d layout %d threads %d isa %d\n",
                s->flags[0], s->flags[1], s->flags[2], s->flags[3], s->ld_pad, s->bias,
                s->no_output, s->self, s->range, s->causal, s->layout, s->threads, s->isa);
    print_error("  again: ATTN_TEST_ONLY=%" PRId64 " and this test's executable\n", s->row);
}

static void linear_make(struct layer_rig *g, struct rng *rng, int w, int64_t n_in, int64_t n_out)
{
    struct ref_linear *l = &g->linear[w];
    l->n_in = n_in;
    l->n_out = n_out;
    l->out_in = g->s.flags[w] == ATTN_OUT_IN;
    l->ld = (l->out_in ? n_in : n_out) + g->s.ld_pad;
    gbuf_make(&g->w[w], (l->out_in ? n_out : n_in) * l->ld, w + 1);
    for (int64_t n = 0; n < n_in * n_out; n++) {
        int64_t row = l->out_in ? n / n_in : n / n_out, col = l->out_in ? n % n_in : n % n_out;
        g->w[w].p[row * l->ld + col] = rng_normal(rng, 1 / sqrt((double)n_in));
    }
    gbuf_make(&g->bias[w], n_out, w + 3);
    rng_normals(rng, n_out, g->bias[w].p, 0.5);
    gbuf_make(&g->w_copy[w], g->w[w].n, 0);
    memcpy(g->w_copy[w].p, g->w[w].p, (size_t)g->w[w].n * sizeof(float));
    gbuf_make(&g->bias_copy[w], n_out, 0);
    memcpy(g->bias_copy[w].p, g->bias[w].p, (size_t)n_out * sizeof(float));
    l->w = g->w_copy[w].p;
    l->bias = g->s.bias >> w & 1 ? g->bias_copy[w].p : NULL;
}

void layer_make(struct layer_rig *g, const struct layer_spec *spec)
{
    struct rng rng = rng_make(spec->seed + 99);
    memset(g, 0, sizeof *g);
    g->s = *spec;
    struct layer_spec *s = &g->s;
    if (s->B == 0) s->B = 1;
    for (int w = 0; w < 4; w++)
        if (s->flags[w] == 0) s->flags[w] = ATTN_IN_OUT;
    gbuf_make(&g->x_q, s->B * s->Lq * s->E_q, 1);
    gbuf_make(&g->x_kv, s->B * s->Lk * s->E_kv, 5);
    gbuf_make(&g->out, s->B * s->Lq * s->E_out, 7);
    gbuf_make(&g->weights, s->B * s->Hq * s->Lq * s->Lk, 1);
    gbuf_make(&g->lse, s->B * s->Hq * s->Lq, 1);
    rng_normals(&rng, g->x_q.n, g->x_q.p, 1);
    rng_normals(&rng, g->x_kv.n, g->x_kv.p, 1);
    linear_make(g, &rng, ATTN_W_Q, s->E_q, s->Hq * s->Dk);
    linear_make(g, &rng, ATTN_W_K, s->E_kv, s->Hk * s->Dk);
    linear_make(g, &rng, ATTN_W_V, s->E_kv, s->Hk * s->Dv);
    linear_make(g, &rng, ATTN_W_O, s->Hq * s->Dv, s->E_out);
    for (int64_t b = 0; b < RIG_B_MAX; b++)
        g->end[b] = s->range ? rng_int(&rng, 0, s->Lk) : s->Lk;
}

void layer_free(struct layer_rig *g)
{
    struct gbuf *all[] = {&g->x_q, &g->x_kv, &g->out, &g->weights, &g->lse};
    for (int n = 0; n < 5; n++) gbuf_free(all[n]);
    for (int w = 0; w < 4; w++) {
        gbuf_free(&g->w[w]);
        gbuf_free(&g->w_copy[w]);
        gbuf_free(&g->bias[w]);
        gbuf_free(&g->bias_copy[w]);
    }
    attn_args_destroy(g->args);
    attn_layer_destroy(g->layer);
    attn_op_destroy(g->op);
    free(g->workspace);
    if (!g->solved) return;
    free(g->want);
    free(g->want_tol);
    ref_free(&g->ref);
}

static void prepare_weights(struct layer_rig *g)
{
    for (int32_t w = 0; w < 4; w++) {
        const struct ref_linear *l = &g->linear[w];
        if (w == ATTN_W_O && g->s.no_output) continue;
        assert_int_equal(attn_layer_set_weights(g->layer, w, g->s.flags[w], g->w[w].p,
                                                g->s.ld_pad == 0 ? 0 : l->ld,
                                                l->bias == NULL ? NULL : g->bias[w].p),
                         ATTN_OK);
    }
}

void layer_prepare(struct layer_rig *g)
{
    const struct layer_spec *s = &g->s;
    if (g->op != NULL) return;
    assert_int_equal(attn_op_create(&g->op, s->Hq, s->Hk, s->Dk, s->Dv), ATTN_OK);
    assert_int_equal(attn_op_set_causal(g->op, s->causal), ATTN_OK);
    assert_int_equal(attn_op_set_layout(g->op, s->layout), ATTN_OK);
    assert_int_equal(attn_op_set_threads(g->op, s->threads > 0 ? s->threads : 1), ATTN_OK);
    assert_int_equal(attn_op_set_isa(g->op, s->isa), ATTN_OK);
    assert_int_equal(attn_layer_create(&g->layer, g->op, s->E_q, s->E_kv, s->E_out), ATTN_OK);
    prepare_weights(g);
    assert_int_equal(attn_args_create(&g->args), ATTN_OK);
    if (s->range) assert_int_equal(attn_args_set_key_range(g->args, s->B, NULL, g->end), ATTN_OK);
    if (!s->weights) return;
    assert_int_equal(attn_args_set_weights(g->args, g->weights.p), ATTN_OK);
    assert_int_equal(attn_args_set_lse(g->args, g->lse.p), ATTN_OK);
}

attn_status layer_run(struct layer_rig *g)
{
    const struct layer_spec *s = &g->s;
    bool plain = !s->range && !s->weights && g->workspace == NULL;
    layer_prepare(g);
    gbuf_reset(&g->out);
    gbuf_reset(&g->weights);
    gbuf_reset(&g->lse);
    return attn_layer_run(g->layer, s->B, s->Lq, s->Lk, g->x_q.p, s->self ? NULL : g->x_kv.p,
                          g->out.p, plain ? NULL : g->args);
}

void layer_workspace(struct layer_rig *g, bool enough)
{
    const struct layer_spec *s = &g->s;
    size_t bytes = 0;
    layer_prepare(g);
    assert_int_equal(attn_layer_workspace_bytes(g->layer, s->B, s->Lq, s->Lk, g->args, &bytes),
                     ATTN_OK);
    if (!enough) bytes--;
    free(g->workspace);
    g->workspace = malloc(bytes + 1);
    assert_non_null(g->workspace);
    memset(g->workspace, 0xff, bytes + 1); /* NaN */
    assert_int_equal(attn_args_set_workspace(g->args, (char *)g->workspace + 1, bytes), ATTN_OK);
}

/* ------------------------------------------------------------ the oracle */

/* A projection as packed (B, H, L, D) numbers and their error bounds. */
static void project_heads(const struct ref_linear *l, int64_t B, int64_t L, int64_t H,
                          const double *x, double **y, double **dy)
{
    size_t n = (size_t)(B * L * l->n_out);
    double *flat = must_alloc(n, sizeof *flat), *err = must_alloc(n, sizeof *err);
    ref_project(l, B * L, x, NULL, flat, err);
    *y = ref_swap_axes(flat, B, L, H, l->n_out / H);
    *dy = ref_swap_axes(err, B, L, H, l->n_out / H);
    free(flat);
    free(err);
}

static double *doubles(const float *x, int64_t n)
{
    double *y = must_alloc((size_t)n, sizeof *y);
    for (int64_t i = 0; i < n; i++) y[i] = (double)x[i];
    return y;
}

static void solve(struct layer_rig *g)
{
    const struct layer_spec *s = &g->s;
    if (g->solved) return;
    struct ref_problem p = ref_problem_make(s->B, s->Hq, s->Hk, s->Lq, s->Lk, s->Dk, s->Dv);
    double *x_q = doubles(g->x_q.p, g->x_q.n), *own = doubles(g->x_kv.p, g->x_kv.n);
    const double *x_kv = s->self ? x_q : own;
    double *t[6];
    project_heads(&g->linear[ATTN_W_Q], s->B, s->Lq, s->Hq, x_q, &t[0], &t[1]);
    project_heads(&g->linear[ATTN_W_K], s->B, s->Lk, s->Hk, x_kv, &t[2], &t[3]);
    project_heads(&g->linear[ATTN_W_V], s->B, s->Lk, s->Hk, x_kv, &t[4], &t[5]);
    p.q = t[0], p.dq = t[1], p.k = t[2], p.dk = t[3], p.v = t[4], p.dv = t[5];
    p.causal = s->causal;
    if (s->range) p.end = g->end;
    ref_solve(&p, &g->ref);
    g->want = ref_swap_axes(g->ref.out.x, s->B, s->Hq, s->Lq, s->Dv);
    g->want_tol = ref_swap_axes(g->ref.out.tol, s->B, s->Hq, s->Lq, s->Dv);
    if (!s->no_output) {
        double *heads = g->want, *tol = g->want_tol;
        g->want = must_alloc((size_t)g->out.n, sizeof(double));
        g->want_tol = must_alloc((size_t)g->out.n, sizeof(double));
        ref_project(&g->linear[ATTN_W_O], s->B * s->Lq, heads, tol, g->want, g->want_tol);
        free(heads);
        free(tol);
    }
    for (int n = 0; n < 6; n++) free(t[n]);
    free(x_q);
    free(own);
    g->solved = true;
}

/* -------------------------------------------------------------- checking */

static void expect_fine(struct layer_rig *g, const char *what, const struct ref_margin *m,
                        bool intact)
{
    if (m->bad == 0 && intact) {
        rig_margin_note(m->worst);
        return;
    }
    print_error("%s: %" PRId64 " wrong; element %" PRId64 " is %.9g, should be %.9g +- %.3g%s\n",
                what, m->bad, m->at, (double)m->got, m->want, m->tol,
                intact ? "" : "; written outside");
    print_spec(g, "wrong layer");
    fail();
}

static void expect_values(struct layer_rig *g, const char *what, const double *x,
                          const double *tol, const struct gbuf *got)
{
    struct ref_margin m = {0};
    for (int64_t n = 0; n < got->n; n++) ref_compare(&m, n, x[n], tol[n], got->p[n]);
    expect_fine(g, what, &m, gbuf_intact(got));
}

void layer_expect(struct layer_rig *g)
{
    attn_status status = layer_run(g);
    if (status != ATTN_OK) {
        print_spec(g, attn_status_string(status));
        fail();
    }
    solve(g);
    expect_values(g, "out", g->want, g->want_tol, &g->out);
    if (!g->s.weights) return;
    expect_values(g, "weights", g->ref.stage[REF_WEIGHTS].x, g->ref.stage[REF_WEIGHTS].tol,
                  &g->weights);
    expect_values(g, "lse", g->ref.lse.x, g->ref.lse.tol, &g->lse);
}

void layer_expect_rows(struct layer_rig *g, int64_t from, int64_t n, const float *rows)
{
    struct ref_margin m = {0};
    int64_t E = g->s.E_out;
    solve(g);
    for (int64_t at = 0; at < g->s.B * n * E; at++) {
        int64_t b = at / E / n, i = at / E % n, want = ((b * g->s.Lq) + from + i) * E + at % E;
        ref_compare(&m, at, g->want[want], g->want_tol[want], rows[at]);
    }
    expect_fine(g, "rows", &m, true);
}

void layer_expect_projection(struct layer_rig *g, int32_t which, bool strided)
{
    const struct ref_linear *l = &g->linear[which];
    const int64_t heads[4] = {g->s.Hq, g->s.Hk, g->s.Hk, 1};
    int64_t H = heads[which], D = l->n_out / H, L = g->s.Lq, n = g->s.B * L;
    int64_t strides[4] = {H * (L * (D + 3) + 7) + 5, L * (D + 3) + 7, D + 3, 1};
    struct gbuf x, y;
    struct ref_margin m = {0};
    struct rng rng = rng_make(g->s.seed + 5);
    layer_prepare(g);
    gbuf_make(&x, n * l->n_in, 3);
    rng_normals(&rng, x.n, x.p, 1);
    gbuf_make(&y, strided ? g->s.B * strides[0] : n * l->n_out, 1);
    attn_status status =
        attn_layer_project(g->layer, which, g->s.B, L, x.p, y.p, strided ? strides : NULL);
    assert_int_equal(status, ATTN_OK);
    double *xd = doubles(x.p, x.n), *want = must_alloc((size_t)(n * l->n_out), sizeof *want);
    double *tol = must_alloc((size_t)(n * l->n_out), sizeof *tol);
    ref_project(l, n, xd, NULL, want, tol);
    for (int64_t at = 0; at < n * l->n_out; at++) {
        int64_t b = at / l->n_out / L, i = at / l->n_out % L, h = at % l->n_out / D, d = at % D;
        int64_t to = strided ? b * strides[0] + h * strides[1] + i * strides[2] + d : at;
        ref_compare(&m, at, want[at], tol[at], y.p[to]);
        y.p[to] = prefill();
    }
    expect_fine(g, strided ? "strided projection" : "projection", &m, gbuf_untouched(&y));
    free(xd);
    free(want);
    free(tol);
    gbuf_free(&x);
    gbuf_free(&y);
}
