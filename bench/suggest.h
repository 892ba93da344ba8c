/* SPDX-License-Identifier: MIT */
/* What was meant by a word that nobody knows. */
#ifndef BENCH_SUGGEST_H
#define BENCH_SUGGEST_H

#include <stddef.h>

/* The nearest candidate so far; begin with {0}. */
struct suggestion {
    const char *nearest; /* NULL: none is near enough to be named */
    size_t distance;
};

/* Dashes in front do not count, nor whether the rest of a candidate is missing (from three
   letters on). */
void suggest(struct suggestion *s, const char *word, const char *candidate);

#endif
