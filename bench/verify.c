/* SPDX-License-Identifier: MIT */
/* See verify.h. */
#include "verify.h"

#include "reference.h"

#include <math.h>
#include <stdlib.h>

/* Multiplications to spend on reference rows: about a tenth of a second. */
#define BUDGET 1e8
#define ROWS_MIN 4
#define ROWS_MAX 2048

static int64_t choose_count(const struct shape *s)
{
    int64_t all = reference_rows(s);
    double afford = BUDGET / reference_cost(s);
    int64_t n = afford > ROWS_MAX ? ROWS_MAX : afford < ROWS_MIN ? ROWS_MIN : (int64_t)afford;
    return n < all ? n : all;
}

/* xorshift64*: only to draw rows. */
static uint64_t draw(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1du;
}

static void choose_rows(struct verify *v, int64_t all, uint64_t seed)
{
    uint64_t state = seed ^ 0x9e3779b97f4a7c15u;
    if (state == 0) /* the one state that xorshift cannot leave */
        state = 1;
    for (int64_t i = 0; i < v->n; i++)
        v->rows[i] = v->n == all ? i : (int64_t)(draw(&state) % (uint64_t)all);
    v->rows[0] = 0;
    v->rows[v->n - 1] = all - 1;
}

bool verify_open(struct verify *v, const struct shape *s, const struct tensors *t,
                 bool skip_softmax, uint64_t seed)
{
    struct reference r;
    *v = (struct verify){.n = choose_count(s), .width = reference_width(s)};
    size_t n = (size_t)v->n, size = (size_t)v->width * sizeof(double);
    v->rows = calloc(n, sizeof *v->rows);
    v->counts = calloc(n, sizeof *v->counts);
    v->want = calloc(n, size);
    v->tolerance = calloc(n, size);
    bool opened = reference_open(&r, s, t, skip_softmax);
    bool ok = opened && v->rows && v->counts && v->want && v->tolerance;
    if (ok) {
        choose_rows(v, reference_rows(s), seed);
        for (int64_t i = 0; i < v->n; i++)
            v->counts[i] = reference_row(&r, v->rows[i], v->want + i * v->width,
                                         v->tolerance + i * v->width);
    } else {
        complain("no memory for the verification");
        verify_close(v);
    }
    reference_close(&r);
    return ok;
}

void verify_close(struct verify *v)
{
    free(v->rows);
    free(v->counts);
    free(v->want);
    free(v->tolerance);
    *v = (struct verify){0};
}

static void compare_row(const struct verify *v, int64_t i, const float *got, struct verdict *d)
{
    for (int64_t c = 0; c < v->counts[i]; c++) {
        double error = fabs((double)got[c] - v->want[i * v->width + c]);
        double tolerance = v->tolerance[i * v->width + c];
        /* not "error > tolerance": a NaN must fail */
        if (!(error <= tolerance)) d->right = false;
        if (isnan(error) || error > d->max_error) d->max_error = error;
        double ratio = error == 0 ? 0 : error / tolerance;
        if (isnan(ratio) || ratio > d->of_tolerance) d->of_tolerance = ratio;
        if (isnan(error)) return;
    }
}

/* Inputs are finite, so anything else in the output was never written or is wrong. */
static bool all_finite(const struct trial *t)
{
    const float *out = tensor_at(t->tensors, 0, T_OUT);
    for (size_t i = 0; i < t->tensors->n[T_OUT]; i++)
        if (!isfinite(out[i])) return false;
    return true;
}

bool verify_trial(const struct verify *v, struct trial *t, struct verdict *verdict)
{
    const struct shape *s = &t->config.shape;
    const struct impl *impl = t->config.impl;
    bool matrix = s->stage == STAGE_SCORES || s->stage == STAGE_SOFTMAX;
    bool part = matrix || s->stage == STAGE_VALUES; /* only the rows of the first matrix */
    tensors_spoil(t->tensors);
    if (impl->prepare && !impl->prepare(t)) return false;
    if (!(impl->check ? impl->check(t) : impl->run(t, 0))) return false;
    *verdict = (struct verdict){.right = true};
    for (int64_t i = 0; i < v->n && !isnan(verdict->max_error); i++) {
        int64_t row = v->rows[i];
        if (part && row >= t->matrix_rows) continue;
        const float *got = matrix ? t->matrix + row * t->matrix_ld
                                  : tensor_at(t->tensors, 0, T_OUT) + reference_at(s, row);
        compare_row(v, i, got, verdict);
    }
    if (!matrix && !all_finite(t)) {
        verdict->right = false;
        verdict->max_error = verdict->of_tolerance = NAN;
    }
    return true;
}
