/* SPDX-License-Identifier: MIT */
/*
 * See reference.h. Where the tolerances come from, with u = 2^-24:
 *
 * The benchmark makes its own data, independent and of mean 0. The partial sums of a float32 sum
 * of n products x_i y_i are then random walks, and rounding them adds about u sqrt(n) |x.y|_2 to
 * the sum, |x.y|_2 being the root of the sum of squares (n roundings, each u times a partial sum;
 * compare Higham and Mary, SIAM J. Sci. Comput. 41, 2019). LAMBDA = 8 times that is never met by
 * chance, and missing one key of a thousand is far above it.
 *   score    e = LAMBDA u (sqrt(d) scale |q.k|_2 + |s|)
 *   weight   w (2 max e + LAMBDA u (1 + sqrt(k)/2)): exp and the row's sum
 *   output   (2 max e + LAMBDA u) sum w|v| + LAMBDA u sqrt(k) (|w.v|_2 + |o|)
 *   project  LAMBDA u sqrt(E) |x.W|_2
 *   layer    LAMBDA u (4 sqrt(E) + 2 sqrt(d) + sqrt(k) + sqrt(h dv) + 8) |o.W_O|_2: errors of Q
 *            and K move a score by 2 sqrt(E), as scale |q|_2 |k_j| is about 1 here
 */
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define U 0x1p-24
#define LAMBDA 8.0

bool reference_open(struct reference *r, const struct shape *s, const struct tensors *t,
                    bool skip_softmax)
{
    *r = (struct reference){.shape = s, .tensors = t, .skip_softmax = skip_softmax};
    r->s = malloc((size_t)s->k * sizeof(double));
    r->wide = malloc((size_t)(s->h * (s->d > s->dv ? s->d : s->dv)) * 2 * sizeof(double));
    return r->s && r->wide;
}

void reference_close(struct reference *r)
{
    free(r->s);
    free(r->wide);
    *r = (struct reference){0};
}

/* ------------------------------------------------------- rows of attention */

static void row_scores(const struct reference *r, const float *q, const float *k)
{
    const struct shape *s = r->shape;
    double scale = 1 / sqrt((double)s->d);
    for (int64_t j = 0; j < s->k; j++, k += s->d) {
        double sum = 0;
        for (int64_t d = 0; d < s->d; d++) sum += (double)q[d] * (double)k[d];
        r->s[j] = scale * sum;
    }
}

/* Of the scores that stand in r->s; returns the largest. */
static double score_tolerances(const struct reference *r, const float *q, const float *k,
                               double *tolerance)
{
    const struct shape *s = r->shape;
    double scale = 1 / sqrt((double)s->d), largest = 0;
    for (int64_t j = 0; j < s->k; j++, k += s->d) {
        double squares = 0;
        for (int64_t d = 0; d < s->d; d++)
            squares += (double)q[d] * (double)k[d] * ((double)q[d] * (double)k[d]);
        double e = LAMBDA * U * (scale * sqrt((double)s->d * squares) + fabs(r->s[j]));
        if (tolerance) tolerance[j] = e;
        largest = fmax(largest, e);
    }
    return largest;
}

/* Scores to weights in place; 0 for keys that are not seen. */
static void row_softmax(const struct reference *r, int64_t lo, int64_t hi)
{
    double max = -INFINITY, sum = 0;
    for (int64_t j = lo; j < hi; j++) max = fmax(max, r->s[j]);
    for (int64_t j = 0; j < r->shape->k; j++) {
        r->s[j] = j < lo || j >= hi ? 0 : exp(r->s[j] - max);
        sum += r->s[j];
    }
    for (int64_t j = lo; j < hi; j++) r->s[j] /= sum;
}

static void row_values(const struct reference *r, const float *v, double *o)
{
    int64_t dv = r->shape->dv;
    memset(o, 0, (size_t)dv * sizeof *o);
    for (int64_t j = 0; j < r->shape->k; j++)
        for (int64_t d = 0; d < dv; d++) o[d] += r->s[j] * (double)v[j * dv + d];
}

/* e is the tolerance of a weight relative to it, or of a score where there are no weights. */
static void value_tolerances(const struct reference *r, const float *v, double e, const double *o,
                             double *tolerance)
{
    int64_t k = r->shape->k, dv = r->shape->dv;
    for (int64_t d = 0; d < dv; d++) {
        double size = 0, squares = 0, v_size = 0;
        for (int64_t j = 0; j < k; j++) {
            double y = (double)v[j * dv + d], x = r->s[j] * y;
            size += fabs(x);
            squares += x * x;
            v_size += fabs(y);
        }
        tolerance[d] = e * (r->skip_softmax ? v_size : size) +
                       LAMBDA * U * sqrt((double)k) * (sqrt(squares) + fabs(o[d]));
    }
}

static int64_t attention_row(struct reference *r, int64_t row, double *x, double *tolerance)
{
    const struct shape *s = r->shape;
    const struct tensors *t = r->tensors;
    int64_t i = row % s->q, h = row / s->q % s->h, b = row / s->q / s->h;
    int64_t kv = b * s->g + h / (s->h / s->g);
    const float *q = tensor_at(t, r->set, T_Q) + row * s->d;
    const float *k = tensor_at(t, r->set, T_K) + kv * s->k * s->d;
    const float *v = tensor_at(t, r->set, T_V) + kv * s->k * s->dv;
    int64_t lo, hi;
    double e = 0;

    row_scores(r, q, k);
    if (tolerance) e = score_tolerances(r, q, k, s->stage == STAGE_SCORES ? tolerance : NULL);
    if (s->stage != STAGE_SCORES && !r->skip_softmax) {
        shape_sight(s, i, &lo, &hi);
        row_softmax(r, lo, hi);
        e = 2 * e + LAMBDA * U;
    }
    if (s->stage == STAGE_SCORES || s->stage == STAGE_SOFTMAX) {
        memcpy(x, r->s, (size_t)s->k * sizeof *x);
        for (int64_t j = 0; tolerance && s->stage == STAGE_SOFTMAX && j < s->k; j++)
            tolerance[j] = r->s[j] * (e + LAMBDA * U * sqrt((double)s->k) / 2);
        return s->k;
    }
    row_values(r, v, x);
    if (tolerance) value_tolerances(r, v, e, x, tolerance);
    return s->dv;
}

/* ------------------------------------------------------- rows of a layer */

/* y = x W for `cols` columns of W from `col` on. */
static void row_project(const struct reference *r, int which, const float *x, int64_t col,
                        int64_t cols, double *y, double *tolerance)
{
    const struct tensors *t = r->tensors;
    const float *w = t->weights + t->w_at[which];
    int64_t rows = t->w_rows[which], ld = t->w_cols[which];
    for (int64_t c = 0; c < cols; c++) {
        double sum = 0, squares = 0;
        for (int64_t e = 0; e < rows; e++) {
            double p = (double)x[e] * (double)w[e * ld + col + c];
            sum += p;
            squares += p * p;
        }
        y[c] = sum;
        if (tolerance) tolerance[c] = LAMBDA * U * sqrt((double)rows * squares);
    }
}

/* Which projection a row of the stage belongs to, and which of its rows it is. */
static int project_which(const struct shape *s, int64_t *row)
{
    const int64_t rows[W_COUNT] = {s->b * s->q, s->b * s->k, s->b * s->k, s->b * s->q};
    int which = 0;
    for (; which < W_O && *row >= rows[which]; which++) *row -= rows[which];
    return which;
}

static int64_t project_row(struct reference *r, int64_t row, double *x, double *tolerance)
{
    static const int source[W_COUNT] = {T_Q, T_K, T_K, T_V};
    int which = project_which(r->shape, &row);
    int64_t in = r->tensors->w_rows[which], out = r->tensors->w_cols[which];
    row_project(r, which, tensor_at(r->tensors, r->set, source[which]) + row * in, 0, out, x,
                tolerance);
    return out;
}

/*
 * One head of one query of a layer, o (dv). K and V of all keys are never formed: with W_K's and
 * W_V's columns of the head,  q . (x_j W_K) = (W_K q) . x_j  and  sum w_j (x_j W_V) =
 * (sum w_j x_j) W_V, so that a row costs k E and not k E d.
 */
static void layer_head(struct reference *r, const float *x_q, const float *x_kv, int64_t h,
                       int64_t i, double *o)
{
    const struct shape *s = r->shape;
    const struct tensors *t = r->tensors;
    int64_t E = shape_width(s), g = h / (s->h / s->g), lo, hi;
    const float *w_k = t->weights + t->w_at[W_K] + g * s->d;
    const float *w_v = t->weights + t->w_at[W_V] + g * s->dv;
    double *q = o, *z = r->wide + s->h * (s->d > s->dv ? s->d : s->dv);
    row_project(r, W_Q, x_q, h * s->d, s->d, q, NULL);
    for (int64_t e = 0; e < E; e++) {
        z[e] = 0;
        for (int64_t d = 0; d < s->d; d++) z[e] += q[d] * (double)w_k[e * s->g * s->d + d];
    }
    for (int64_t j = 0; j < s->k; j++) {
        r->s[j] = 0;
        for (int64_t e = 0; e < E; e++) r->s[j] += z[e] * (double)x_kv[j * E + e];
        r->s[j] /= sqrt((double)s->d);
    }
    shape_sight(s, i, &lo, &hi);
    row_softmax(r, lo, hi);
    memset(z, 0, (size_t)E * sizeof *z);
    for (int64_t j = lo; j < hi; j++)
        for (int64_t e = 0; e < E; e++) z[e] += r->s[j] * (double)x_kv[j * E + e];
    for (int64_t d = 0; d < s->dv; d++) {
        o[d] = 0;
        for (int64_t e = 0; e < E; e++) o[d] += z[e] * (double)w_v[e * s->g * s->dv + d];
    }
}

static int64_t layer_row(struct reference *r, int64_t row, double *x, double *tolerance)
{
    const struct shape *s = r->shape;
    const struct tensors *t = r->tensors;
    int64_t b = row / s->q, i = row % s->q, E = shape_width(s), n = s->h * s->dv;
    const float *x_q = tensor_at(t, r->set, T_Q) + row * E;
    const float *x_kv = tensor_at(t, r->set, t->n[T_K] ? T_K : T_Q) + b * s->k * E;
    const float *w = t->weights + t->w_at[W_O];
    int64_t size = s->d > s->dv ? s->d : s->dv; /* a head's query stands where its output will */
    for (int64_t h = 0; h < s->h; h++) layer_head(r, x_q, x_kv, h, i, r->wide + h * size);
    double c =
        LAMBDA * U *
        (4 * sqrt((double)E) + 2 * sqrt((double)s->d) + sqrt((double)s->k) + sqrt((double)n) + 8);
    for (int64_t e = 0; e < E; e++) {
        double sum = 0, squares = 0;
        for (int64_t d = 0; d < n; d++) {
            double p = r->wide[d / s->dv * size + d % s->dv] * (double)w[d * E + e];
            sum += p;
            squares += p * p;
        }
        x[e] = sum;
        if (tolerance) tolerance[e] = c * sqrt(squares);
    }
    return E;
}

/* ---------------------------------------------------------------- shared */

int64_t reference_row(struct reference *r, int64_t row, double *x, double *tolerance)
{
    switch (r->shape->stage) {
    case STAGE_LAYER:
        return layer_row(r, row, x, tolerance);
    case STAGE_PROJECT:
        return project_row(r, row, x, tolerance);
    default:
        return attention_row(r, row, x, tolerance);
    }
}

int64_t reference_rows(const struct shape *s)
{
    switch (s->stage) {
    case STAGE_RUN:
        return s->b * s->h * s->q;
    case STAGE_LAYER:
        return s->b * s->q;
    case STAGE_PROJECT:
        return 2 * s->b * (s->q + s->k);
    default:
        return s->q;
    }
}

int64_t reference_width(const struct shape *s)
{
    if (s->stage == STAGE_RUN || s->stage == STAGE_VALUES) return s->dv;
    if (s->stage == STAGE_SCORES || s->stage == STAGE_SOFTMAX) return s->k;
    return s->h * (s->d > s->dv ? s->d : s->dv);
}

double reference_cost(const struct shape *s)
{
    double E = (double)shape_width(s), h = (double)s->h, k = (double)s->k;
    if (s->stage == STAGE_PROJECT) return E * h * (double)(s->d > s->dv ? s->d : s->dv);
    if (s->stage == STAGE_LAYER) return h * 2 * (k * E + E * (double)(s->d + s->dv));
    return k * (double)(s->d + s->dv);
}

size_t reference_at(const struct shape *s, int64_t row)
{
    if (s->stage == STAGE_LAYER) return (size_t)(row * shape_width(s));
    if (s->stage != STAGE_PROJECT) return (size_t)(row * s->dv);
    int64_t cols[W_COUNT] = {s->h * s->d, s->g * s->d, s->g * s->dv, shape_width(s)};
    const int64_t rows[W_COUNT] = {s->b * s->q, s->b * s->k, s->b * s->k, s->b * s->q};
    size_t at = 0;
    int which = project_which(s, &row);
    for (int w = 0; w < which; w++) at += (size_t)(rows[w] * cols[w]);
    return at + (size_t)(row * cols[which]);
}
