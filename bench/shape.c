/* SPDX-License-Identifier: MIT */
/* What a shape amounts to: visible pairs, flops, bytes; and the names of the axes' values. */
#include "bench.h"

#include <math.h>

/* With so few queries a run is bounded by reading K and V, not by arithmetic. */
#define DECODE_QUERIES 8

static const char *name_in(const char *const *names, size_t n, size_t i)
{
    return i < n ? names[i] : NULL;
}

const char *causal_name(size_t i)
{
    static const char *const names[] = {"none", "top-left", "bottom-right"};
    return name_in(names, sizeof names / sizeof *names, i);
}

const char *engine_name(size_t i)
{
    static const char *const names[] = {"blas", "vector"};
    return name_in(names, sizeof names / sizeof *names, i);
}

const char *isa_name(size_t i)
{
    static const char *const names[] = {"best", "base", "avx2", "avx512"};
    return name_in(names, sizeof names / sizeof *names, i);
}

const char *stage_name(size_t i)
{
    static const char *const names[STAGE_COUNT] = {"run",    "layer",   "project",
                                                   "scores", "softmax", "values"};
    return name_in(names, STAGE_COUNT, i);
}

void shape_sight(const struct shape *s, int64_t i, int64_t *lo, int64_t *hi)
{
    *lo = 0;
    *hi = s->k;
    if (s->causal == CAUSAL_NONE) return;
    int64_t off = s->causal == CAUSAL_BOTTOM_RIGHT ? s->k - s->q : 0;
    int64_t end = i + off + 1;
    *hi = end < 0 ? 0 : end < s->k ? end : s->k;
}

double shape_pairs(const struct shape *s)
{
    if (s->causal == CAUSAL_NONE) return (double)s->q * (double)s->k;
    double pairs = 0;
    for (int64_t i = 0; i < s->q; i++) {
        int64_t lo, hi;
        shape_sight(s, i, &lo, &hi);
        pairs += (double)(hi - lo);
    }
    return pairs;
}

int64_t shape_width(const struct shape *s) { return s->h * s->d; }

static double projection_flops(const struct shape *s)
{
    double E = (double)shape_width(s), q = (double)s->q, k = (double)s->k;
    double cols = q * (double)(s->h * s->d) + k * (double)(s->g * (s->d + s->dv)) +
                  q * (double)(s->h * s->dv);
    return 2 * (double)s->b * E * cols;
}

double shape_flops(const struct shape *s)
{
    double per_size = 2 * (double)s->b * (double)s->h * shape_pairs(s);
    double products = per_size * (double)(s->d + s->dv);
    switch (s->stage) {
    case STAGE_RUN:
        return products;
    case STAGE_LAYER:
        return products + projection_flops(s);
    case STAGE_PROJECT:
        return projection_flops(s);
    case STAGE_SCORES:
        return per_size * (double)s->d;
    case STAGE_VALUES:
        return per_size * (double)s->dv;
    default:
        return 0;
    }
}

double shape_decode_bytes(const struct shape *s)
{
    if (s->stage != STAGE_RUN || s->q > DECODE_QUERIES) return NAN;
    int64_t lo, hi, keys = 0;
    for (int64_t i = 0; i < s->q; i++) {
        shape_sight(s, i, &lo, &hi);
        keys = hi > keys ? hi : keys;
    }
    return (double)sizeof(float) * (double)s->b * (double)s->g * (double)keys *
           (double)(s->d + s->dv);
}

bool bytes_add(size_t *total, int64_t a, int64_t b, int64_t c)
{
    size_t n;
    if (__builtin_mul_overflow((size_t)a, (size_t)b, &n) ||
        __builtin_mul_overflow(n, (size_t)c, &n) || __builtin_mul_overflow(n, sizeof(float), &n))
        return false;
    return !__builtin_add_overflow(*total, n, total);
}
