/* SPDX-License-Identifier: MIT */
/*
 * See reference.h. Where the tolerances come from, with u = 2^-24:
 *
 * The benchmark makes its own data, independent and of mean 0. The partial sums of a float32 sum
 * of n products x_i y_i are then random walks, and rounding them adds about u sqrt(n) |x.y|_2 to
 * the sum, |x.y|_2 being the root of the sum of squares (n roundings, each u times a partial sum;
 * compare Higham and Mary, SIAM J. Sci. Comput. 41, 2019). LAMBDA = 8 times that is never met by
 * chance, and missing one key of a thousand is far above it.
 *   score    e_j = LAMBDA u (sqrt(d) scale |q.k|_2 + |s|)
 *   rules    e_j + LAMBDA u (|s'| + slope |i + off - j|), s' being the score after them: tanh
 *            never widens an error; slope, bias and difference are rounded
 *   weight   w_j (e_j + sum w e + LAMBDA u (1 + sqrt(k)/2)): a score's error moves its own weight
 *            and the row's sum; then exp and the rounding of that sum
 *   output   sum w_j (e_j + sum w e + LAMBDA u) |v| + LAMBDA u sqrt(k) (|w.v|_2 + |o|)
 *   project  LAMBDA u sqrt(E) |x.W|_2
 *   layer    LAMBDA u (4 sqrt(E) + 2 sqrt(d) + sqrt(k) + sqrt(h dv) + 8 + 2 a) |o.W_O|_2: errors
 *            of Q and K move a score by 2 sqrt(E), as scale |q|_2 |k_j| is about 1 here; a is
 *            what ALiBi adds, as the weights see it
 */
#include "reference.h"

#include "packing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define U 0x1p-24
#define LAMBDA 8.0

bool reference_open(struct reference *r, const struct shape *s, const struct tensors *t,
                    bool skip_softmax)
{
    *r = (struct reference){.shape = s, .tensors = t, .skip_softmax = skip_softmax};
    size_t k = (size_t)shape_longest_k(s);
    r->s = malloc(k * sizeof(double));
    r->e = malloc(k * sizeof(double));
    r->wide = malloc((size_t)(s->h * (s->d > s->dv ? s->d : s->dv)) * 2 * sizeof(double));
    return r->s && r->e && r->wide;
}

void reference_close(struct reference *r)
{
    free(r->s);
    free(r->e);
    free(r->wide);
    *r = (struct reference){0};
}

/* ------------------------------------------------------- rows of attention */

/* A query of a head, and the item's keys and values. */
struct query {
    struct item item;
    int64_t h, i;
    const float *q, *k, *v;
    int64_t ldk, ldv;
};

static struct query query_at(const struct reference *r, int64_t row)
{
    const struct shape *s = r->shape;
    const struct tensors *t = r->tensors;
    int64_t group = s->h / s->g, b = row / s->q / s->h;
    struct query x = {.h = row / s->q % s->h, .i = row % s->q, .ldk = s->d, .ldv = s->dv};
    if (s->packing) { /* (token, head, size) */
        x.h = row % s->h;
        x.ldk = s->g * s->d;
        x.ldv = s->g * s->dv;
        b = packing_find(s->packing, row / s->h);
    }
    x.item = shape_item(s, b);
    if (s->packing) x.i = row / s->h - x.item.q0;
    int64_t kv = s->packing ? x.item.k0 * s->g + x.h / group : (b * s->g + x.h / group) * s->k;
    x.q = tensor_at(t, r->set, T_Q) + row * s->d;
    x.k = tensor_at(t, r->set, T_K) + kv * s->d;
    x.v = tensor_at(t, r->set, T_V) + kv * s->dv;
    return x;
}

static void row_scores(const struct reference *r, const struct query *x)
{
    double scale = 1 / sqrt((double)r->shape->d);
    const float *k = x->k;
    for (int64_t j = 0; j < x->item.k; j++, k += x->ldk) {
        double sum = 0;
        for (int64_t d = 0; d < r->shape->d; d++) sum += (double)x->q[d] * (double)k[d];
        r->s[j] = scale * sum;
    }
}

/* Of the scores that stand in r->s. */
static void score_tolerances(const struct reference *r, const struct query *x)
{
    double size = (double)r->shape->d, scale = 1 / sqrt(size);
    const float *k = x->k;
    for (int64_t j = 0; j < x->item.k; j++, k += x->ldk) {
        double squares = 0;
        for (int64_t d = 0; d < r->shape->d; d++) {
            double p = (double)x->q[d] * (double)k[d];
            squares += p * p;
        }
        r->e[j] = LAMBDA * U * (scale * sqrt(size * squares) + fabs(r->s[j]));
    }
}

/* Softcap and ALiBi on the scores in r->s, and what that adds to r->e (NULL: not wanted). */
static void row_rules(const struct reference *r, const struct item *it, int64_t h, int64_t i,
                      double *e)
{
    const struct shape *s = r->shape;
    double slope = shape_slope(s, h), at = (double)shape_position(s, it, i);
    if (s->softcap == 0 && slope == 0) return;
    for (int64_t j = 0; j < it->k; j++) {
        double bias = slope * fabs(at - (double)j);
        if (s->softcap > 0) r->s[j] = s->softcap * tanh(r->s[j] / s->softcap);
        r->s[j] -= bias;
        if (e) e[j] += LAMBDA * U * (fabs(r->s[j]) + bias);
    }
}

/* Scores to weights in place; 0 for keys that are not seen. */
static void row_softmax(const struct reference *r, int64_t k, int64_t lo, int64_t hi)
{
    double max = -INFINITY, sum = 0;
    for (int64_t j = lo; j < hi; j++) max = fmax(max, r->s[j]);
    for (int64_t j = 0; j < k; j++) {
        r->s[j] = j < lo || j >= hi ? 0 : exp(r->s[j] - max);
        sum += r->s[j];
    }
    for (int64_t j = lo; j < hi; j++) r->s[j] /= sum;
}

/* From those of scores to those of the weights that now stand in r->s. */
static void weight_tolerances(const struct reference *r, int64_t k)
{
    double mean = 0;
    for (int64_t j = 0; j < k; j++) mean += r->s[j] * r->e[j];
    for (int64_t j = 0; j < k; j++) r->e[j] = r->s[j] * (r->e[j] + mean + LAMBDA * U);
}

static void row_values(const struct reference *r, const struct query *x, double *o)
{
    int64_t dv = r->shape->dv;
    const float *v = x->v;
    memset(o, 0, (size_t)dv * sizeof *o);
    for (int64_t j = 0; j < x->item.k; j++, v += x->ldv)
        for (int64_t d = 0; d < dv; d++) o[d] += r->s[j] * (double)v[d];
}

static void value_tolerances(const struct reference *r, const struct query *x, const double *o,
                             double *tolerance)
{
    for (int64_t d = 0; d < r->shape->dv; d++) {
        double size = 0, squares = 0;
        const float *v = x->v + d;
        for (int64_t j = 0; j < x->item.k; j++, v += x->ldv) {
            double p = r->s[j] * (double)*v;
            size += r->e[j] * fabs((double)*v);
            squares += p * p;
        }
        tolerance[d] = size + LAMBDA * U * sqrt((double)x->item.k) * (sqrt(squares) + fabs(o[d]));
    }
}

static int64_t attention_row(struct reference *r, int64_t row, double *y, double *tolerance)
{
    const struct shape *s = r->shape;
    struct query x = query_at(r, row);
    int64_t lo, hi, k = x.item.k;
    bool matrix = s->stage == STAGE_SCORES || s->stage == STAGE_SOFTMAX;
    row_scores(r, &x);
    if (tolerance) score_tolerances(r, &x);
    if (s->stage != STAGE_SCORES && !r->skip_softmax) {
        row_rules(r, &x.item, x.h, x.i, tolerance ? r->e : NULL);
        shape_sight(s, &x.item, x.i, &lo, &hi);
        row_softmax(r, k, lo, hi);
        if (tolerance) weight_tolerances(r, k);
    }
    if (!matrix) {
        row_values(r, &x, y);
        if (tolerance) value_tolerances(r, &x, y, tolerance);
        return s->dv;
    }
    double sum = s->stage == STAGE_SOFTMAX ? LAMBDA * U * sqrt((double)k) / 2 : 0;
    for (int64_t j = 0; j < k; j++) {
        y[j] = r->s[j];
        if (tolerance) tolerance[j] = r->e[j] + sum * r->s[j];
    }
    return k;
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
    int64_t q = shape_all_q(s), k = shape_all_k(s);
    const int64_t rows[W_COUNT] = {q, k, k, q};
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

/* By how much ALiBi may move the output, in units of its roundings: the biases as the weights see
   them, one by one and in the row's sum. */
static double bias_seen(const struct reference *r, const struct item *it, int64_t h, int64_t i)
{
    double slope = shape_slope(r->shape, h), at = (double)shape_position(r->shape, it, i);
    double sum = 0, squares = 0, weights = 0;
    for (int64_t j = 0; slope > 0 && j < it->k; j++) {
        double x = r->s[j] * slope * fabs(at - (double)j);
        sum += x;
        squares += x * x;
        weights += r->s[j] * r->s[j];
    }
    return weights > 0 ? sum + sqrt(squares / weights) : 0;
}

/*
 * One head of one query of a layer, o (dv); returns bias_seen. K and V of all keys are never
 * formed: with W_K's and W_V's columns of the head,  q . (x_j W_K) = (W_K q) . x_j  and
 * sum w_j (x_j W_V) = (sum w_j x_j) W_V, so that a row costs k E and not k E d.
 */
static double layer_head(struct reference *r, const float *x_q, const float *x_kv,
                         const struct item *it, int64_t h, int64_t i, double *o)
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
    for (int64_t j = 0; j < it->k; j++) {
        r->s[j] = 0;
        for (int64_t e = 0; e < E; e++) r->s[j] += z[e] * (double)x_kv[j * E + e];
        r->s[j] /= sqrt((double)s->d);
    }
    row_rules(r, it, h, i, NULL);
    shape_sight(s, it, i, &lo, &hi);
    row_softmax(r, it->k, lo, hi);
    memset(z, 0, (size_t)E * sizeof *z);
    for (int64_t j = lo; j < hi; j++)
        for (int64_t e = 0; e < E; e++) z[e] += r->s[j] * (double)x_kv[j * E + e];
    for (int64_t d = 0; d < s->dv; d++) {
        o[d] = 0;
        for (int64_t e = 0; e < E; e++) o[d] += z[e] * (double)w_v[e * s->g * s->dv + d];
    }
    return bias_seen(r, it, h, i);
}

static int64_t layer_row(struct reference *r, int64_t row, double *x, double *tolerance)
{
    const struct shape *s = r->shape;
    const struct tensors *t = r->tensors;
    struct item it = shape_item(s, s->packing ? packing_find(s->packing, row) : row / s->q);
    int64_t i = row - it.q0, E = shape_width(s), n = s->h * s->dv;
    const float *x_q = tensor_at(t, r->set, T_Q) + row * E;
    const float *x_kv = tensor_at(t, r->set, t->n[T_K] ? T_K : T_Q) + it.k0 * E;
    const float *w = t->weights + t->w_at[W_O];
    int64_t size = s->d > s->dv ? s->d : s->dv; /* a head's query stands where its output will */
    double bias = 0;
    for (int64_t h = 0; h < s->h; h++)
        bias = fmax(bias, layer_head(r, x_q, x_kv, &it, h, i, r->wide + h * size));
    double c = LAMBDA * U *
               (4 * sqrt((double)E) + 2 * sqrt((double)s->d) + sqrt((double)it.k) +
                sqrt((double)n) + 8 + 2 * bias);
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
        return shape_all_q(s) * s->h;
    case STAGE_LAYER:
        return shape_all_q(s);
    case STAGE_PROJECT:
        return 2 * (shape_all_q(s) + shape_all_k(s));
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
    double E = (double)shape_width(s), h = (double)s->h, k = (double)shape_longest_k(s);
    if (s->stage == STAGE_PROJECT) return E * h * (double)(s->d > s->dv ? s->d : s->dv);
    if (s->stage == STAGE_LAYER) return h * 2 * (k * E + E * (double)(s->d + s->dv));
    return k * (double)(s->d + s->dv);
}

size_t reference_at(const struct shape *s, int64_t row)
{
    if (s->stage == STAGE_LAYER) return (size_t)(row * shape_width(s));
    if (s->stage != STAGE_PROJECT) return (size_t)(row * s->dv);
    int64_t cols[W_COUNT] = {s->h * s->d, s->g * s->d, s->g * s->dv, shape_width(s)};
    int64_t q = shape_all_q(s), k = shape_all_k(s);
    const int64_t rows[W_COUNT] = {q, k, k, q};
    size_t at = 0;
    int which = project_which(s, &row);
    for (int w = 0; w < which; w++) at += (size_t)(rows[w] * cols[w]);
    return at + (size_t)(row * cols[which]);
}
