/* SPDX-License-Identifier: MIT */
/* What a shape amounts to: flops, bytes; and the names of the axes' values. */
#include "bench.h"
#include "packing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

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

const char *alibi_name(size_t i)
{
    static const char *const names[] = {"off", "on"};
    return name_in(names, sizeof names / sizeof *names, i);
}

const char *window_name(const struct shape *s) { return s->window ? s->window->name : "none"; }

const char *packing_name(const struct shape *s) { return s->packing ? s->packing->name : "none"; }

const char *shape_text(const struct shape *s, char text[SHAPE_TEXT])
{
    int n = snprintf(text, SHAPE_TEXT,
                     "b=%" PRId64 " q=%" PRId64 " k=%" PRId64 " h=%" PRId64 " g=%" PRId64
                     " d=%" PRId64 " dv=%" PRId64 " %s",
                     s->b, s->q, s->k, s->h, s->g, s->d, s->dv, causal_name((size_t)s->causal));
    if (s->window) n += snprintf(text + n, SHAPE_TEXT - (size_t)n, " window %s", s->window->name);
    if (s->softcap > 0)
        n += snprintf(text + n, SHAPE_TEXT - (size_t)n, " softcap %g", s->softcap);
    if (s->alibi) n += snprintf(text + n, SHAPE_TEXT - (size_t)n, " alibi");
    if (s->packing) /* of any length: may be cut */
        snprintf(text + n, SHAPE_TEXT - (size_t)n, " varlen %s", s->packing->name);
    return text;
}

int64_t shape_width(const struct shape *s) { return s->h * s->d; }

static double projection_flops(const struct shape *s)
{
    double E = (double)shape_width(s), q = (double)shape_all_q(s), k = (double)shape_all_k(s);
    double cols = q * (double)(s->h * s->d) + k * (double)(s->g * (s->d + s->dv)) +
                  q * (double)(s->h * s->dv);
    return 2 * E * cols;
}

double shape_flops(const struct shape *s)
{
    double per_size = 2 * (double)s->h * shape_pairs(s);
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

/* Keys of an item that any of its queries sees: what consecutive queries see hangs together. */
static int64_t keys_seen(const struct shape *s, const struct item *it)
{
    int64_t first = it->k, last = 0;
    for (int64_t i = 0; i < it->q; i++) {
        int64_t lo, hi;
        shape_sight(s, it, i, &lo, &hi);
        if (lo == hi) continue;
        first = lo < first ? lo : first;
        last = hi > last ? hi : last;
    }
    return last > first ? last - first : 0;
}

double shape_decode_bytes(const struct shape *s)
{
    if (s->stage != STAGE_RUN || shape_longest_q(s) > DECODE_QUERIES) return NAN;
    double keys = 0;
    for (int64_t b = 0; b < (s->packing ? s->b : 1); b++) {
        struct item it = shape_item(s, b);
        keys += (double)keys_seen(s, &it);
    }
    return (double)sizeof(float) * (s->packing ? 1 : (double)s->b) * (double)s->g * keys *
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
