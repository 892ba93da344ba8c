/* SPDX-License-Identifier: MIT */
/*
 * Every stage in float64 by the loops of the book, row by row; with each number its tolerance.
 * Shared by impl_naive.c, which computes all rows, and verify.c, which computes some.
 */
#ifndef BENCH_REFERENCE_H
#define BENCH_REFERENCE_H

#include "bench.h"

/* Room for a row's work. */
struct reference {
    const struct shape *shape;
    const struct tensors *tensors;
    int64_t set;       /* of the tensors: 0 unless naive runs cold */
    bool skip_softmax; /* (Q K^T) V */
    double *s;         /* k: scores, then weights */
    double *e;         /* k: how far each may be off */
    double *wide;      /* of the model's width, twice */
};
bool reference_open(struct reference *r, const struct shape *s, const struct tensors *t,
                    bool skip_softmax);
void reference_close(struct reference *r);

/* Rows of the stage's result: of all heads, or of the first for the stages of one matrix. */
int64_t reference_rows(const struct shape *s);
/* Numbers in a row, at most over all rows. */
int64_t reference_width(const struct shape *s);
/* Multiplications of a row, roughly. */
double reference_cost(const struct shape *s);
/* Row r in float64 with tolerances (NULL: none wanted); returns how many numbers. */
int64_t reference_row(struct reference *r, int64_t row, double *x, double *tolerance);
/* Where the row stands in out (not for scores and softmax). */
size_t reference_at(const struct shape *s, int64_t row);

#endif
