/* SPDX-License-Identifier: MIT */
/* Weight matrices of a layer, and projections y = x W + b: see project.c. */
#ifndef ATTN_PROJECT_H
#define ATTN_PROJECT_H

#include "job.h"

struct matrix {
    int64_t E, N;         /* y (.., N) = x (.., E) W */
    int64_t H, D;         /* N = H * D */
    int64_t width, depth; /* of a panel and of its pieces */
    int64_t rows;         /* of x in one product */
    float *panels;        /* NULL: not set. Panel n0 at n0 * E, its piece k0 at k0 * its width */
    float *bias;          /* N, or NULL */
};

/* An empty matrix (E, H * D), shaped for the BLAS core in use. */
void attn_i_matrix_shape(struct matrix *w, int64_t E, int64_t H, int64_t D);
/* Copy w[k * by_k + n * by_n] and the bias (or NULL); on failure the matrix stays as it was. */
attn_status attn_i_matrix_set(struct matrix *w, const float *from, int64_t by_k, int64_t by_n,
                              const float *bias);
void attn_i_matrix_clear(struct matrix *w);
/* Tasks of a projection of so many rows of x: no more threads than that are of use. */
int64_t attn_i_matrix_tasks(const struct matrix *w, int64_t rows);
/* Floats that one thread needs to project by this matrix. */
int64_t attn_i_matrix_tile(const struct matrix *w);

/* Projections of one input that are made together. */
struct projection {
    const struct matrix *w;
    struct tensor y;
};
struct projecting {
    const attn_op *op;
    int64_t B, L, E;
    const float *x;
    struct projection to[3];
    int32_t n;
    float *tiles;
    size_t tile_floats;
    int64_t row_blocks;
};
void attn_i_project(struct projecting *p);

#endif
