/* SPDX-License-Identifier: MIT */
/* See packing.h. */
#include "packing.h"

#include "bench.h"
#include "values.h"

#include <stdlib.h>
#include <string.h>

/* Tokens of a side fit BLAS's integers, and no product of a few sizes 64 bits. */
#define TOKENS_MAX ((int64_t)1 << 30)
#define SEQUENCES_MAX 65536

static size_t length_of(const char *value) { return strcspn(value, ","); }

static bool is_word(const char *value, const char *word)
{
    return length_of(value) == strlen(word) && strncmp(value, word, strlen(word)) == 0;
}

bool packing_is_none(const char *value) { return is_word(value, "none"); }
bool packing_is_list(const char *value)
{
    return !packing_is_none(value) && !is_word(value, "split");
}

/* The lengths of a sequence at *at, moved behind them and a '+'. False: they are none. */
static bool read_lengths(const char **at, int64_t *q, int64_t *k)
{
    if (!read_number(at, q)) return false;
    *k = *q;
    if (**at == ':') {
        ++*at;
        if (!read_number(at, k)) return false;
    }
    bool more = **at == '+';
    *at += more;
    return more || **at == '\0' || **at == ',';
}

/* Sticks above the limit. */
static int64_t add_tokens(int64_t all, int64_t n)
{
    return all > TOKENS_MAX || n > TOKENS_MAX - all ? TOKENS_MAX + 1 : all + n;
}

bool packing_check(const char *value, const char **why)
{
    int64_t n = 0, all_q = 0, all_k = 0, q, k;
    const char *at = value;
    if (!packing_is_list(value)) return true;
    *why = "is not none, split, or lengths like 100+8:32";
    do {
        if (!read_lengths(&at, &q, &k)) return false;
        n++;
        all_q = add_tokens(all_q, q);
        all_k = add_tokens(all_k, k);
    } while (*at != '\0' && *at != ',');
    if (at[-1] == '+') return false;
    *why = "is more than 2^30 tokens or 65536 sequences";
    if (all_q > TOKENS_MAX || all_k > TOKENS_MAX || n > SEQUENCES_MAX) return false;
    *why = "has no queries or no keys";
    return all_q > 0 && all_k > 0;
}

static int64_t count_list(const char *value)
{
    int64_t n = 1;
    for (size_t i = 0; i < length_of(value); i++) n += value[i] == '+';
    return n;
}

static void fill_list(struct packing *p, const char *value)
{
    const char *at = value;
    for (int64_t i = 0; i < p->n; i++) {
        int64_t q = 0, k = 0;
        read_lengths(&at, &q, &k);
        p->q[i + 1] = p->q[i] + q;
        p->k[i + 1] = p->k[i] + k;
    }
}

/* splitmix64, as the tensors are filled by. */
static double draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* total >= n in n parts of at least 1; what is beyond that in shares drawn uniformly, so that
   lengths reach from 1 to about twice the mean. */
static void fill_split(int64_t *offsets, int64_t n, int64_t total, uint64_t seed)
{
    double sum = 0, upto = 0;
    uint64_t state = seed;
    for (int64_t i = 0; i < n; i++) sum += draw(&state);
    state = seed;
    for (int64_t i = 0; i < n; i++) {
        upto += draw(&state);
        int64_t share = (int64_t)((double)(total - n) * (upto / sum));
        offsets[i + 1] = i + 1 + (i + 1 < n ? share : total - n);
    }
}

static int64_t longest(const int64_t *offsets, int64_t n)
{
    int64_t most = 0;
    for (int64_t i = 0; i < n; i++)
        if (offsets[i + 1] - offsets[i] > most) most = offsets[i + 1] - offsets[i];
    return most;
}

static bool allocate(struct packing *p, const char *value)
{
    size_t n = length_of(value);
    p->q = calloc((size_t)p->n + 1, sizeof *p->q);
    p->k = calloc((size_t)p->n + 1, sizeof *p->k);
    p->name = calloc(n + 1, 1);
    if (p->name) memcpy(p->name, value, n);
    return p->q && p->k && p->name;
}

struct packing *packing_make(const char *value, int64_t b, int64_t q, int64_t k, uint64_t seed,
                             bool *usage)
{
    bool list = packing_is_list(value);
    *usage = !list && (b > SEQUENCES_MAX || q > TOKENS_MAX / b || k > TOKENS_MAX / b);
    if (*usage) {
        complain("--varlen split: more than 2^30 tokens or 65536 sequences; try --help");
        return NULL;
    }
    struct packing *p = calloc(1, sizeof *p);
    if (p) p->n = list ? count_list(value) : b;
    if (!p || !allocate(p, value)) {
        packing_free(p);
        complain("no memory");
        return NULL;
    }
    if (list) {
        fill_list(p, value);
    } else {
        fill_split(p->q, b, b * q, seed);
        fill_split(p->k, b, b * k, q == k ? seed : seed + 1);
    }
    p->longest_q = longest(p->q, p->n);
    p->longest_k = longest(p->k, p->n);
    return p;
}

void packing_free(struct packing *p)
{
    if (!p) return;
    free(p->name);
    free(p->q);
    free(p->k);
    free(p);
}

int64_t packing_mean_q(const struct packing *p) { return p->q[p->n] / p->n; }
int64_t packing_mean_k(const struct packing *p) { return p->k[p->n] / p->n; }

bool packing_is_same(const struct packing *a, const struct packing *b)
{
    size_t bytes = ((size_t)a->n + 1) * sizeof *a->q;
    return a->n == b->n && strcmp(a->name, b->name) == 0 && memcmp(a->q, b->q, bytes) == 0 &&
           memcmp(a->k, b->k, bytes) == 0;
}

bool packing_is_self(const struct packing *p)
{
    return memcmp(p->q, p->k, ((size_t)p->n + 1) * sizeof *p->q) == 0;
}

int64_t packing_find(const struct packing *p, int64_t token)
{
    int64_t lo = 0, hi = p->n; /* q[lo] <= token < q[hi] */
    while (hi - lo > 1) {
        int64_t middle = lo + (hi - lo) / 2;
        if (p->q[middle] <= token)
            lo = middle;
        else
            hi = middle;
    }
    return lo;
}
