/* SPDX-License-Identifier: MIT */
/* See projections.h. */
#include "projections.h"

#include "blas.h"

/* Below so many rows a thread, columns are cut instead: W is then read once by all together,
   and that is what few rows cost. */
#define ROWS_PER_THREAD 32

struct call {
    const struct projection *p;
    int64_t threads;
};

static void share(int64_t n, int64_t threads, int64_t thread, int64_t *at, int64_t *count)
{
    int64_t part = (n + threads - 1) / threads;
    *at = part * thread;
    *count = *at + part < n ? part : n - *at;
}

static void run_share(void *context, int64_t thread)
{
    const struct call *call = context;
    const struct projection *p = call->p;
    int64_t row = 0, rows = p->rows, col = 0, cols = p->out;
    if (p->rows >= ROWS_PER_THREAD * call->threads)
        share(p->rows, call->threads, thread, &row, &rows);
    else
        share(p->out, call->threads, thread, &col, &cols);
    if (rows <= 0 || cols <= 0) return;
    blas_product(&(struct product){.m = rows,
                                   .n = cols,
                                   .k = p->in,
                                   .alpha = 1,
                                   .a = p->x + row * p->in,
                                   .lda = p->in,
                                   .b = p->w + col,
                                   .ldb = p->out,
                                   .c = p->y + row * p->out + col,
                                   .ldc = p->out});
}

void project(struct pool *pool, int64_t n, const struct projection *p)
{
    pool_run(pool, run_share, &(struct call){.p = p, .threads = n});
}
