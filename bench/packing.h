/* SPDX-License-Identifier: MIT */
/* Sequences of different lengths, packed one after the other without padding. */
#ifndef BENCH_PACKING_H
#define BENCH_PACKING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct packing {
    struct packing *next; /* the plan's list */
    char *name;           /* as on the command line */
    int64_t n;
    int64_t *q, *k; /* n + 1 offsets each, from 0 to the total */
    int64_t longest_q, longest_k;
};

/*
 * A value of --varlen, ended by a comma or the string's end:
 *   none       no packing
 *   split      b sequences of lengths drawn by the seed, b q tokens in all (b k of keys)
 *   100+8:32   these sequences: lengths of both sides, or of queries:keys
 */
/* Is it one? If not, a few words in *why. */
bool packing_check(const char *value, const char **why);
bool packing_is_none(const char *value);
/* Does it say the lengths itself, so that b, q and k are its own? */
bool packing_is_list(const char *value);
/* The sequences; NULL after a sentence, with *usage telling whether the sizes are to blame. */
struct packing *packing_make(const char *value, int64_t b, int64_t q, int64_t k, uint64_t seed,
                             bool *usage);
void packing_free(struct packing *p); /* NULL is fine */

/* Rounded down. */
int64_t packing_mean_q(const struct packing *p);
int64_t packing_mean_k(const struct packing *p);
bool packing_is_same(const struct packing *a, const struct packing *b);
/* Are the lengths of both sides the same? */
bool packing_is_self(const struct packing *p);
/* The sequence that a query token belongs to. */
int64_t packing_find(const struct packing *p, int64_t token);

#endif
