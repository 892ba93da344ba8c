/* SPDX-License-Identifier: MIT */
/*
 * Attention with whole score matrices: product, softmax, product. What unfused and gemm are
 * made of. One matrix a thread, used again for each head: the strongest form of the chain, in
 * speed and in memory.
 */
#ifndef BENCH_CHAIN_H
#define BENCH_CHAIN_H

#include "bench.h"
#include "pool.h"
#include "vector_softmax.h"

/* A tensor by heads; the inner stride is 1. Items are sb apart, or begin at these rows. */
struct heads {
    float *data;
    int64_t sb, sh, sl;
    const int64_t *rows;
};

/* How the work is cut. A task is one matrix: rows of one head, or all query heads of a group. */
struct cut {
    bool joined;    /* the heads of a group are rows of one product */
    int64_t blocks; /* parts of a head's rows */
    int64_t rows;   /* of a task, at most */
    int64_t n_tasks;
    int64_t threads, blas_threads; /* ours; BLAS's in each product */
    int64_t ld;                    /* of the matrix, at most */
    const char *threading;
};
struct cut chain_cut(const struct config *c);

struct chain {
    struct shape shape;
    struct cut cut;
    const struct kernels *kernels; /* NULL: no softmax */
    struct pool *pool;
    float *matrices; /* one a thread */
    float *m, *l;    /* rows a thread */
};

/* Which steps a run does. */
enum { STEP_SCORES = 1, STEP_SOFTMAX = 2, STEP_VALUES = 4, STEP_ALL = 7 };

bool chain_bytes(const struct config *c, size_t *bytes);
bool chain_open(struct chain *chain, const struct config *c, const struct kernels *kernels);
void chain_close(struct chain *chain);
/* Views of the packed tensors of a set: heads outside of lengths, or (token, head, size). */
void chain_tensors(const struct trial *t, int64_t set, struct heads x[T_COUNT]);
/* The same of other buffers, one after the other from data on: lengths outside of heads. */
void chain_tokens(const struct shape *s, float *data, struct heads x[T_COUNT]);
/* The tensors are the caller's; k and v have the group's heads. */
void chain_run(struct chain *chain, int steps, const struct heads *q, const struct heads *k,
               const struct heads *v, const struct heads *out);
/* One task by the caller's thread, in the matrix of this one. */
void chain_run_task(struct chain *chain, int steps, const struct heads *q, const struct heads *k,
                    const struct heads *v, const struct heads *out, int64_t thread, int64_t task);
/* The rows of a thread's matrix to sum 1, after STEP_SOFTMAX of a full task. */
void chain_normalize(struct chain *chain, int64_t thread);
float *chain_matrix(const struct chain *chain, int64_t thread);
/* Tell BLAS how many threads of its own the next runs use. */
void chain_prepare(const struct chain *chain);

#endif
