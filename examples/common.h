/* SPDX-License-Identifier: MIT */
/*
 * What every example shares: stop on an error, make numbers, print a table, and
 * write tensors for test_examples.py. Nothing here is part of libattn.
 */
#ifndef EXAMPLES_COMMON_H
#define EXAMPLES_COMMON_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"

/* Stop with a message unless the call succeeded. */
static inline void must(attn_status status, const char *call)
{
    if (status != ATTN_OK) {
        fprintf(stderr, "%s: %s (%d)\n", call, attn_status_string(status), (int)status);
        exit(EXIT_FAILURE);
    }
}

/* n zeros; to be freed. */
static inline float *new_floats(int n)
{
    float *x = calloc(n > 0 ? (size_t)n : 1, sizeof *x);
    if (!x) {
        fputs("out of memory\n", stderr);
        exit(EXIT_FAILURE);
    }
    return x;
}

/* The same "random" numbers on every machine, with mean 0 and this standard
 * deviation: sums of four uniform ones, so bounded and without a call of libm. */
static inline void fill_noise(float *x, int n, float deviation, uint32_t seed)
{
    for (int i = 0; i < n; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) {
            seed = seed * 1664525u + 1013904223u;
            sum += (float)(seed >> 8) / 16777216.0f - 0.5f;
        }
        x[i] = sum * deviation * 1.7320508f; /* the variance of the sum is 4/12 */
    }
}

/* Print x, n_rows of n_cols numbers, as a table with a name for each row and
 * column; NULL names are numbers. ld is the distance of two rows in x. With mark,
 * a star follows the largest number of each row. */
static inline void print_table(const char *title, const char *const *rows,
                               const char *const *cols, const float *x, int n_rows, int n_cols,
                               int ld, int mark)
{
    printf("\n%s\n%12s", title, "");
    for (int j = 0; j < n_cols; j++) {
        if (cols)
            printf("%9s ", cols[j]);
        else
            printf("%9d ", j);
    }
    putchar('\n');
    for (int i = 0; i < n_rows; i++) {
        const float *row = x + i * ld;
        int largest = 0;
        for (int j = 1; j < n_cols; j++)
            if (row[j] > row[largest]) largest = j;
        if (rows)
            printf("%12s", rows[i]);
        else
            printf("%12d", i);
        for (int j = 0; j < n_cols; j++)
            printf("%9.2f%c", row[j], mark && j == largest ? '*' : ' ');
        putchar('\n');
    }
}

static inline float max_difference(const float *x, const float *y, int n)
{
    float largest = 0;
    for (int i = 0; i < n; i++) {
        float d = x[i] > y[i] ? x[i] - y[i] : y[i] - x[i];
        if (d > largest || d != d) largest = d; /* NaN stays */
    }
    return largest;
}

/* Was the program started with --dump? */
static inline int dump_wanted(int argc, char **argv)
{
    return argc == 2 && strcmp(argv[1], "--dump") == 0;
}

/* Write one tensor for test_examples.py: "tensor NAME D0 D1 ...", then one line
 * for each row. dims is the text of the extents. Nine digits give a float back
 * exactly. */
static inline void dump(const char *name, const char *dims, const float *x)
{
    int n = 1, row = 1, used = 0;
    for (const char *s = dims; sscanf(s, "%d%n", &row, &used) == 1; s += used) n *= row;
    printf("tensor %s %s\n", name, dims);
    for (int i = 0; i < n; i++) printf("%.9g%c", (double)x[i], (i + 1) % row == 0 ? '\n' : ' ');
}

#endif /* EXAMPLES_COMMON_H */
