/* SPDX-License-Identifier: MIT */
/* The rules of attention: which keys a query sees, where it stands among them, and how many
   pairs that makes. libattn is not asked: these are its answers' judge. */
#include "bench.h"
#include "packing.h"

#include <math.h>
#include <string.h>

struct item shape_item(const struct shape *s, int64_t b)
{
    const struct packing *p = s->packing;
    if (!p) return (struct item){s->q, s->k, b * s->q, b * s->k};
    return (struct item){p->q[b + 1] - p->q[b], p->k[b + 1] - p->k[b], p->q[b], p->k[b]};
}

int64_t shape_all_q(const struct shape *s)
{
    return s->packing ? s->packing->q[s->packing->n] : s->b * s->q;
}

int64_t shape_all_k(const struct shape *s)
{
    return s->packing ? s->packing->k[s->packing->n] : s->b * s->k;
}

int64_t shape_longest_q(const struct shape *s)
{
    return s->packing ? s->packing->longest_q : s->q;
}

int64_t shape_longest_k(const struct shape *s)
{
    return s->packing ? s->packing->longest_k : s->k;
}

bool shape_is_self(const struct shape *s)
{
    return s->packing ? packing_is_self(s->packing) : s->q == s->k;
}

int64_t shape_position(const struct shape *s, const struct item *it, int64_t i)
{
    return s->causal == CAUSAL_TOP_LEFT ? i : i + it->k - it->q;
}

void shape_sight(const struct shape *s, const struct item *it, int64_t i, int64_t *lo,
                 int64_t *hi)
{
    const struct window *w = s->window;
    int64_t at = shape_position(s, it, i), from = 0, to = it->k;
    if (s->causal != CAUSAL_NONE && to > at + 1) to = at + 1;
    if (w && w->left >= 0 && from < at - w->left) from = at - w->left;
    if (w && w->right >= 0 && to > at + w->right + 1) to = at + w->right + 1;
    *hi = to > 0 ? to : 0;
    *lo = from < *hi ? from : *hi;
}

double shape_slope(const struct shape *s, int64_t h)
{
    double n = 1; /* of heads, the power of two that is not above it */
    while (2 * n <= (double)s->h) n *= 2;
    double step = (double)h < n ? ((double)h + 1) / n : ((double)h - n + 0.5) / n;
    return s->alibi ? exp2(-8 * step) : 0;
}

static double item_pairs(const struct shape *s, const struct item *it)
{
    if (s->causal == CAUSAL_NONE && !s->window) return (double)it->q * (double)it->k;
    double pairs = 0;
    for (int64_t i = 0; i < it->q; i++) {
        int64_t lo, hi;
        shape_sight(s, it, i, &lo, &hi);
        pairs += (double)(hi - lo);
    }
    return pairs;
}

double shape_pairs(const struct shape *s)
{
    double pairs = 0;
    for (int64_t b = 0; b < (s->packing ? s->b : 1); b++) {
        struct item it = shape_item(s, b);
        pairs += item_pairs(s, &it);
    }
    return s->packing ? pairs : (double)s->b * pairs;
}

bool shape_same_tensors(const struct shape *a, const struct shape *b)
{
    return a->model == b->model && a->b == b->b && a->q == b->q && a->k == b->k && a->h == b->h &&
           a->g == b->g && a->d == b->d && a->dv == b->dv && a->stage == b->stage &&
           a->packing == b->packing;
}

bool shape_same_rules(const struct shape *a, const struct shape *b)
{
    return a->causal == b->causal && strcmp(window_name(a), window_name(b)) == 0 &&
           a->softcap == b->softcap && a->alibi == b->alibi;
}
