/* SPDX-License-Identifier: MIT */
/* See suggest.h. */
#include "suggest.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

/* Longer words are not looked at. */
#define LENGTH_MAX 40
/* A letter more, less, other, or two that change places, cost EDIT; a capital costs less. */
#define EDIT 2
#define CAPITAL 1
#define PREFIX 1
#define PREFIX_LENGTH 3

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static size_t replacing(char a, char b)
{
    if (a == b) return 0;
    return tolower((unsigned char)a) == tolower((unsigned char)b) ? CAPITAL : EDIT;
}

/* Optimal string alignment, row by row: d[i][j] from the first i and j letters. */
static size_t distance(const char *a, size_t n, const char *b, size_t m)
{
    size_t d[LENGTH_MAX + 1][LENGTH_MAX + 1];
    for (size_t i = 0; i <= n; i++)
        for (size_t j = 0; j <= m; j++) {
            d[i][j] = i == 0 ? j * EDIT : i * EDIT;
            if (i == 0 || j == 0) continue;
            d[i][j] = least(least(d[i - 1][j], d[i][j - 1]) + EDIT,
                            d[i - 1][j - 1] + replacing(a[i - 1], b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = least(d[i][j], d[i - 2][j - 2] + EDIT);
        }
    return d[n][m];
}

void suggest(struct suggestion *s, const char *word, const char *candidate)
{
    const char *a = word + strspn(word, "-"), *b = candidate + strspn(candidate, "-");
    size_t n = strlen(a), m = strlen(b);
    if (n == 0 || n > LENGTH_MAX || m > LENGTH_MAX) return;
    bool prefix = n >= PREFIX_LENGTH && strncmp(a, b, n) == 0;
    size_t d = prefix ? PREFIX : distance(a, n, b, m);
    /* one edit from four letters on, two from eight */
    if (d > CAPITAL + EDIT * (n / 4) || (s->nearest && d >= s->distance)) return;
    s->nearest = candidate;
    s->distance = d;
}
