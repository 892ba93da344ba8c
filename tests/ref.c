/* SPDX-License-Identifier: MIT */
/*
 * The oracle. Where the tolerances come from, with u = 2^-24:
 *
 * - a sum of n float32 products is off by at most acc(n) = u min(n + 2,
 *   2 sqrt(n) + 2) times the sum of magnitudes: the worst case where n is
 *   small, else several times what independent roundings give (Higham and Mary,
 *   SIAM J. Sci. Comput. 41, 2019);
 * - a score is off by ds = scale acc(Dk) sum |q_d k_d|, plus an ulp or two for
 *   each of the scaling, the softcap, the mask and s - m;
 * - a weight w_j is then off by w_j (ds_j + E), where E = sum_j w_j ds_j is
 *   what the sum of the row inherits, and an output by max |v| 2 E;
 * - both sums over keys add acc(Lk) each, exp and the division 8 u.
 */
#include "ref.h"

#include "attn.h"
#include "mem.h"

#include <math.h>
#include <stdlib.h>

#define TINY 0x1p-126  /* weights below are 0 */
#define FAINT 0x1p-99  /* below they may be 0 in out: times an infinity they are it, or NaN */
#define LEAST 0x1p-149 /* what a product near 0 may be off by */

double ref_accumulation(int64_t n)
{
    return REF_U * fmin((double)n + 2, 2 * sqrt((double)n) + 2);
}

struct ref_problem ref_problem_make(int64_t B, int64_t Hq, int64_t Hk, int64_t Lq, int64_t Lk,
                                    int64_t Dk, int64_t Dv)
{
    struct ref_problem p = {.B = B, .Hq = Hq, .Hk = Hk, .Lq = Lq, .Lk = Lk, .Dk = Dk, .Dv = Dv};
    p.scale = 1 / sqrt((double)Dk);
    p.left = p.right = -1;
    return p;
}

/* ---------------------------------------------------------------- rules */

static int64_t saturating_add(int64_t a, int64_t b)
{
    if (b > 0 && a > INT64_MAX - b) return INT64_MAX;
    if (b < 0 && a < INT64_MIN - b) return INT64_MIN;
    return a + b;
}

static int64_t end_of(const struct ref_problem *p, int64_t b)
{
    return p->end != NULL ? p->end[b] : p->Lk;
}

int64_t ref_offset(const struct ref_problem *p, int64_t b)
{
    if (p->pos != NULL) return p->pos[b];
    return p->causal == ATTN_CAUSAL_TOP_LEFT ? 0 : end_of(p, b) - p->Lq;
}

bool ref_exists(const struct ref_problem *p, int64_t b, int64_t j)
{
    return j >= (p->begin != NULL ? p->begin[b] : 0) && j < end_of(p, b);
}

static int64_t mask_at(const struct ref_mask *m, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t index[4] = {b, h, i, j};
    int64_t at = 0;
    for (int a = 0; a < 4; a++)
        if (m->dims[a] != 1) at += index[a] * m->strides[a];
    return at;
}

/* Does the boolean side of a mask let this key through? */
static bool mask_passes(const struct ref_problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const struct ref_mask *m = &p->mask_bool, *a = &p->mask_add;
    if (m->data != NULL) {
        if (j >= m->dims[3]) return false;
        if (((const uint8_t *)m->data)[mask_at(m, b, h, i, j)] == 0) return false;
    }
    if (a->data != NULL) {
        if (j >= a->dims[3]) return false;
        if (((const float *)a->data)[mask_at(a, b, h, i, j)] == -INFINITY) return false;
    }
    return true;
}

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

bool ref_sees(const struct ref_problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    int64_t at = saturating_add(i, ref_offset(p, b));
    if (!ref_exists(p, b, j)) return false;
    if (p->causal != ATTN_CAUSAL_NONE && j > at) return false;
    if (p->left >= 0 && j < saturating_add(at, -p->left)) return false;
    if (p->right >= 0 && j > saturating_add(at, p->right)) return false;
    if (p->chunk > 0 && floor_div(at, p->chunk) != floor_div(j, p->chunk)) return false;
    if (p->seg_q != NULL && p->seg_q[b * p->Lq + i] != p->seg_k[b * p->Lk + j]) return false;
    return mask_passes(p, b, h, i, j);
}

/* Asked for visible keys only. */
double ref_bias(const struct ref_problem *p, int64_t b, int64_t h, int64_t i, int64_t j,
                double *size)
{
    const struct ref_mask *a = &p->mask_add;
    double mask = 0, alibi = 0;
    if (a->data != NULL) mask = (double)((const float *)a->data)[mask_at(a, b, h, i, j)];
    if (p->slopes != NULL) {
        double at = (double)saturating_add(i, ref_offset(p, b));
        alibi = -(double)p->slopes[h] * fabs(at - (double)j);
    }
    *size = fabs(mask) + fabs(alibi);
    return mask + alibi;
}

/* -------------------------------------------------------------- one row */

struct row {
    double *raw, *capped, *masked, *weight; /* Lk each */
    double *err, *bias;                     /* of the score so far; size of the bias */
    double *size;                           /* Dv: the largest |v| that is seen */
    bool *sees;
    double max, sum;
    double mean_err, sum_err; /* of the scores, by weight; of the logarithm of the sum */
    bool nan, empty;
};

static void row_score(const struct ref_problem *p, struct row *r, const double *q,
                      const double *dq, const double *k, const double *dk, int64_t j)
{
    double dot = 0, size = 0, inherited = 0, under = 0;
    for (int64_t d = 0; d < p->Dk; d++) {
        dot += q[d] * k[d];
        size += fabs(q[d] * k[d]);
        under += LEAST * (1 + fabs(k[d])); /* of the product, or of scale * q */
        if (dq != NULL) inherited += dq[d] * fabs(k[d]) + fabs(q[d]) * dk[d];
    }
    double s = p->scale * dot;
    double err = fabs(p->scale) * ((ref_accumulation(p->Dk) + 2 * REF_U) * size + inherited) +
                 under * fmax(1, fabs(p->scale));
    r->raw[j] = s;
    r->err[j] = p->exact_scores || isinf(s) ? 0 : err;
    r->capped[j] = p->softcap > 0 ? p->softcap * tanh(s / p->softcap) : s;
}

static void row_scores(const struct ref_problem *p, struct row *r, int64_t b, int64_t h,
                       int64_t i)
{
    int64_t g = h / (p->Hq / p->Hk);
    int64_t q_at = ((b * p->Hq + h) * p->Lq + i) * p->Dk;
    int64_t k_at = (b * p->Hk + g) * p->Lk * p->Dk;
    for (int64_t j = 0; j < p->Lk; j++) {
        r->sees[j] = ref_sees(p, b, h, i, j);
        r->raw[j] = r->capped[j] = r->masked[j] = -INFINITY;
        r->err[j] = r->bias[j] = r->weight[j] = 0;
        if (!ref_exists(p, b, j)) continue;
        const double *dk = p->dk != NULL ? p->dk + k_at + j * p->Dk : NULL;
        row_score(p, r, p->q + q_at, p->dq != NULL ? p->dq + q_at : NULL, p->k + k_at + j * p->Dk,
                  dk, j);
        if (r->sees[j]) {
            r->masked[j] = r->capped[j] + ref_bias(p, b, h, i, j, &r->bias[j]);
        }
    }
}

/* What the score of key j may be off by after the softcap, and after the bias. */
static double err_capped(const struct ref_problem *p, const struct row *r, int64_t j)
{
    double cap = p->softcap; /* s / cap may underflow */
    return r->err[j] + (cap > 0 ? 8 * REF_U * fabs(r->capped[j]) + 2 * (cap + 1) * LEAST : 0);
}

static double err_masked(const struct ref_problem *p, const struct row *r, int64_t j)
{
    bool biased = p->mask_add.data != NULL || p->slopes != NULL;
    double rounding = (p->slopes != NULL ? 3 : 1) * REF_U * (fabs(r->masked[j]) + r->bias[j]);
    return err_capped(p, r, j) + (biased && !p->exact_scores ? rounding : 0);
}

/* A sink takes part in the denominator only; r->sum stays without it, for the log-sum-exp. */
static void row_softmax(const struct ref_problem *p, struct row *r, double sink)
{
    r->max = -INFINITY;
    r->sum = r->mean_err = r->sum_err = 0;
    r->nan = false;
    for (int64_t j = 0; j < p->Lk; j++) {
        if (!r->sees[j]) continue;
        if (isnan(r->masked[j]) || r->masked[j] == INFINITY) r->nan = true;
        if (r->masked[j] > r->max) r->max = r->masked[j];
    }
    r->empty = !r->nan && r->max == -INFINITY;
    if (r->empty) return;
    for (int64_t j = 0; j < p->Lk; j++)
        if (r->sees[j]) r->sum += r->weight[j] = r->nan ? NAN : exp(r->masked[j] - r->max);
    for (int64_t j = 0; j < p->Lk; j++) {
        if (!r->sees[j] || r->nan || r->weight[j] == 0) continue;
        double err = err_masked(p, r, j) + REF_U * fabs(r->masked[j] - r->max);
        r->sum_err += r->weight[j] / r->sum * err;
        r->weight[j] = r->weight[j] < TINY ? 0 : r->weight[j] / (r->sum + exp(sink - r->max));
        r->mean_err += r->weight[j] * err;
    }
}

/* ------------------------------------------------------- rows to results */

static void put(struct ref_values *to, int64_t at, double x, double tol)
{
    to->x[at] = x;
    to->tol[at] = tol;
}

static void put_out(const struct ref_problem *p, struct ref_result *res, const struct row *r,
                    int64_t b, int64_t h, int64_t i)
{
    int64_t v_at = (b * p->Hk + h / (p->Hq / p->Hk)) * p->Lk * p->Dv;
    double *o = res->out.x + ((b * p->Hq + h) * p->Lq + i) * p->Dv;
    double *tol = res->out.tol + ((b * p->Hq + h) * p->Lq + i) * p->Dv;
    double rel = 2.5 * r->mean_err + 2 * ref_accumulation(p->Lk) + 8 * REF_U;
    for (int64_t d = 0; d < p->Dv; d++) o[d] = tol[d] = r->size[d] = 0;
    for (int64_t j = 0; j < p->Lk && !r->empty; j++) {
        const double *v = p->v + v_at + j * p->Dv, w = r->weight[j];
        for (int64_t d = 0; d < p->Dv && r->sees[j]; d++) {
            o[d] += w * v[d];
            r->size[d] = fmax(r->size[d], fabs(v[d]));
            if (p->dv != NULL) tol[d] += w * p->dv[v_at + j * p->Dv + d];
            if (w < FAINT && isinf(v[d])) o[d] = NAN, tol[d] = INFINITY;
        }
    }
    for (int64_t d = 0; d < p->Dv && !r->empty; d++)
        if (!isnan(o[d]))
            tol[d] += rel * r->size[d] + (double)(p->Lk + 1) * LEAST;
        else if (tol[d] != INFINITY)
            tol[d] = 0;
}

static void put_scores(const struct ref_problem *p, struct ref_result *res, const struct row *r,
                       int64_t row)
{
    for (int64_t j = 0; j < p->Lk; j++) {
        int64_t at = row * p->Lk + j;
        double masked_err = err_masked(p, r, j), w = r->weight[j];
        double rel = 1.5 * (masked_err + r->mean_err + REF_U * fabs(r->masked[j] - r->max)) +
                     ref_accumulation(p->Lk) + 8 * REF_U;
        put(&res->stage[REF_RAW], at, r->raw[j], r->err[j]);
        put(&res->stage[REF_CAPPED], at, r->capped[j], err_capped(p, r, j));
        put(&res->stage[REF_MASKED], at, r->masked[j], masked_err);
        /* below 2^-126 it may be 0; scores coarser than 1 (ALiBi at 2^60) say nothing */
        double tol = r->mean_err + masked_err > 0.5 ? 1 : w * rel + 2 * TINY;
        put(&res->stage[REF_WEIGHTS], at, w, r->masked[j] == -INFINITY ? 0 : tol);
    }
}

static void put_lse(const struct ref_problem *p, struct ref_result *res, const struct row *r,
                    int64_t row)
{
    double lse = r->empty ? -INFINITY : r->nan ? NAN : r->max + log(r->sum);
    double tol =
        1.5 * r->sum_err + ref_accumulation(p->Lk) + 4 * REF_U * (1 + fabs(lse) + fabs(r->max));
    put(&res->lse, row, lse, tol);
}

static struct ref_values values_make(int64_t n)
{
    struct ref_values v = {must_alloc((size_t)n, sizeof(double)),
                           must_alloc((size_t)n, sizeof(double))};
    return v;
}

void ref_values_free(struct ref_values *values)
{
    free(values->x);
    free(values->tol);
    values->x = values->tol = NULL;
}

static struct row row_make(int64_t Lk, int64_t Dv)
{
    size_t n = (size_t)Lk, w = sizeof(double);
    struct row r = {.raw = must_alloc(n, w), .capped = must_alloc(n, w)};
    r.masked = must_alloc(n, w);
    r.weight = must_alloc(n, w);
    r.err = must_alloc(n, w);
    r.bias = must_alloc(n, w);
    r.sees = must_alloc(n, sizeof(bool));
    r.size = must_alloc((size_t)Dv, w);
    return r;
}

static void row_free(struct row *r)
{
    free(r->raw);
    free(r->capped);
    free(r->masked);
    free(r->weight);
    free(r->err);
    free(r->bias);
    free(r->sees);
    free(r->size);
}

void ref_solve(const struct ref_problem *p, struct ref_result *res)
{
    int64_t rows = p->B * p->Hq * p->Lq;
    struct row r = row_make(p->Lk, p->Dv);
    res->has_nan = false;
    res->out = values_make(rows * p->Dv);
    res->lse = values_make(rows);
    for (int s = 0; s < REF_STAGES; s++) res->stage[s] = values_make(rows * p->Lk);
    for (int64_t row = 0; row < rows; row++) {
        int64_t i = row % p->Lq, h = row / p->Lq % p->Hq, b = row / p->Lq / p->Hq;
        row_scores(p, &r, b, h, i);
        row_softmax(p, &r, p->sinks != NULL ? (double)p->sinks[h] : (double)-INFINITY);
        put_out(p, res, &r, b, h, i);
        put_scores(p, res, &r, row);
        put_lse(p, res, &r, row);
        res->has_nan = res->has_nan || r.nan;
    }
    row_free(&r);
}

void ref_free(struct ref_result *r)
{
    ref_values_free(&r->out);
    ref_values_free(&r->lse);
    for (int s = 0; s < REF_STAGES; s++) ref_values_free(&r->stage[s]);
}

struct ref_values ref_mean_heads(const struct ref_problem *p, const struct ref_result *r,
                                 int stage)
{
    int64_t n = p->Lq * p->Lk;
    struct ref_values mean = values_make(p->B * n);
    for (int64_t at = 0; at < p->B * n; at++) {
        double sum = 0, tol = 0, size = 0;
        for (int64_t h = 0; h < p->Hq; h++) {
            int64_t from = (at / n * p->Hq + h) * n + at % n;
            sum += r->stage[stage].x[from];
            size += fabs(r->stage[stage].x[from]);
            tol += r->stage[stage].tol[from];
        }
        put(&mean, at, sum / (double)p->Hq,
            (tol + (ref_accumulation(p->Hq) + 2 * REF_U) * size) / (double)p->Hq);
    }
    return mean;
}

/* ------------------------------------------------------ layers, gathering */

double *ref_gather(const float *x, const int64_t dims[4], const int64_t strides[4])
{
    int64_t n = dims[0] * dims[1] * dims[2] * dims[3];
    double *y = must_alloc((size_t)n, sizeof *y);
    for (int64_t at = 0; at < n; at++) {
        int64_t rest = at, from = 0;
        for (int a = 3; a >= 0; a--) {
            if (dims[a] > 1) from += rest % dims[a] * strides[a];
            rest /= dims[a];
        }
        y[at] = (double)x[from];
    }
    return y;
}

void ref_project(const struct ref_linear *linear, int64_t rows, const double *x, const double *dx,
                 double *y, double *dy)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < linear->n_out; n++) {
            double sum = linear->bias != NULL ? (double)linear->bias[n] : 0;
            double size = fabs(sum), inherited = 0;
            for (int64_t e = 0; e < linear->n_in; e++) {
                int64_t at = linear->out_in ? n * linear->ld + e : e * linear->ld + n;
                double w = (double)linear->w[at], term = x[r * linear->n_in + e] * w;
                sum += term;
                size += fabs(term);
                if (dx != NULL) inherited += dx[r * linear->n_in + e] * fabs(w);
            }
            y[r * linear->n_out + n] = sum;
            dy[r * linear->n_out + n] = ref_accumulation(linear->n_in + 1) * size + inherited;
        }
}

double *ref_swap_axes(const double *x, int64_t B, int64_t L, int64_t H, int64_t D)
{
    double *y = must_alloc((size_t)(B * L * H * D), sizeof *y);
    for (int64_t b = 0; b < B; b++)
        for (int64_t l = 0; l < L; l++)
            for (int64_t h = 0; h < H; h++)
                for (int64_t d = 0; d < D; d++)
                    y[((b * H + h) * L + l) * D + d] = x[((b * L + l) * H + h) * D + d];
    return y;
}

/* ------------------------------------------------------------ comparator */

bool ref_close(double want, double tol, float got)
{
    if (isnan(want)) return isnan(got) || (isinf(got) && tol == INFINITY);
    if (isinf(want)) return (double)got == want;
    return isfinite(got) && fabs((double)got - want) <= tol;
}

void ref_compare(struct ref_margin *margin, int64_t at, double want, double tol, float got)
{
    bool close = ref_close(want, tol, got);
    double ratio = close ? 0 : INFINITY;
    if (isfinite(want) && isfinite(got) && tol > 0) ratio = fabs((double)got - want) / tol;
    margin->seen++;
    if ((!close && margin->bad == 0) || (margin->bad == 0 && ratio > margin->worst)) {
        margin->at = at;
        margin->want = want;
        margin->tol = tol;
        margin->got = got;
    }
    if (!close) margin->bad++;
    if (ratio > margin->worst) margin->worst = ratio;
}
