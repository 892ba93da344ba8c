/* SPDX-License-Identifier: MIT */
/* See chain.h. */
#include "chain.h"

#include "blas.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#define ALIGN 64
#define ALIGN_FLOATS 16
/* Up to so many rows, the query heads of a group share one product: K is read once for all.
   With more rows a product of one head is large enough to be fast, and its matrix smaller. */
#define JOIN_ROWS 128
/* Fewer rows than this are not worth a part of their own. */
#define BLOCK_ROWS 16

static int64_t round_up(int64_t n)
{
    return (n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

/*
 * Threads of ours over heads and parts of heads, each with BLAS on one thread, beat BLAS's own
 * threads whenever there are enough tasks: the softmax is threaded too and nothing waits between
 * the steps. Too few tasks (decoding with one kv head), or a BLAS that cannot be called from two
 * threads: BLAS's own threads.
 */
static void cut_for_threads(struct cut *cut, const struct shape *s, int64_t threads)
{
    cut->threading = s->stage == STAGE_PROJECT ? "rows" : "heads";
    bool even = cut->n_tasks % threads == 0 || cut->n_tasks >= 4 * threads;
    if (!even && !cut->joined && s->q >= threads * BLOCK_ROWS) {
        cut->blocks = threads;
        cut->rows = (s->q + threads - 1) / threads;
        cut->n_tasks *= threads;
        cut->threading = "rows";
    }
    if (cut->n_tasks >= threads && blas_concurrent()) {
        cut->threads = threads;
        return;
    }
    cut->blas_threads = threads;
    cut->threading = "blas";
}

struct cut chain_cut(const struct config *c)
{
    const struct shape *s = &c->shape;
    int64_t group = s->h / s->g;
    struct cut cut = {.blocks = 1, .threads = 1, .blas_threads = 1, .threading = "one"};
    /* a layer's heads lie side by side, so the rows of two heads are no matrix */
    cut.joined = group > 1 && group * s->q <= JOIN_ROWS && (s->stage != STAGE_LAYER || s->q == 1);
    cut.rows = cut.joined ? group * s->q : s->q;
    cut.n_tasks = s->b * (cut.joined ? s->g : s->h);
    cut.ld = round_up(s->k);
    if (s->stage == STAGE_PROJECT) { /* no heads yet: nothing but threads */
        cut.rows = cut.ld = 0;
        cut.n_tasks = c->threads;
    }
    if (c->threads > 1) cut_for_threads(&cut, s, c->threads);
    return cut;
}

/* Rows of a head or group, for the table of what each sees. */
static int64_t sight_rows(const struct cut *cut, const struct shape *s)
{
    return cut->rows == 0 ? 0 : cut->joined ? cut->rows : s->q;
}

/* A size of 0 may give NULL, which would look like failure. */
static void *allocate(int64_t n, size_t size)
{
    return aligned_alloc(ALIGN, (size_t)round_up(n > 0 ? n : 1) * size);
}

bool chain_bytes(const struct config *c, size_t *bytes)
{
    struct cut cut = chain_cut(c);
    return bytes_add(bytes, cut.threads, cut.rows, cut.ld) &&
           bytes_add(bytes, 2, cut.threads, cut.rows) &&
           bytes_add(bytes, 2, sight_rows(&cut, &c->shape), 1);
}

static void make_sight(struct chain *chain)
{
    const struct shape *s = &chain->shape;
    for (int64_t r = 0; r < sight_rows(&chain->cut, s); r++) {
        int64_t lo, hi;
        shape_sight(s, r % s->q, &lo, &hi);
        chain->sight[r][0] = (int32_t)lo;
        chain->sight[r][1] = (int32_t)hi;
    }
}

static void single_thread(void *context, int64_t thread)
{
    (void)context;
    (void)thread;
    blas_single_thread();
}

bool chain_open(struct chain *chain, const struct config *c, const struct kernels *kernels)
{
    *chain = (struct chain){.shape = c->shape, .cut = chain_cut(c), .kernels = kernels};
    const struct cut *cut = &chain->cut;
    int64_t rows = cut->threads * cut->rows;
    chain->matrices = allocate(rows * cut->ld, sizeof(float));
    chain->m = allocate(rows, sizeof(float));
    chain->l = allocate(rows, sizeof(float));
    bool causal = c->shape.causal != CAUSAL_NONE;
    if (causal) chain->sight = allocate(sight_rows(cut, &c->shape), sizeof *chain->sight);
    chain->pool = pool_create(cut->threads);
    if (!chain->matrices || !chain->m || !chain->l || !chain->pool || (causal && !chain->sight)) {
        chain_close(chain);
        complain("no memory or no threads for the score matrix");
        return false;
    }
    if (causal) make_sight(chain);
    if (cut->threads > 1) pool_run(chain->pool, single_thread, NULL);
    return true;
}

void chain_close(struct chain *chain)
{
    pool_destroy(chain->pool);
    free(chain->matrices);
    free(chain->m);
    free(chain->l);
    free(chain->sight);
    *chain = (struct chain){0};
}

void chain_prepare(const struct chain *chain) { blas_set_threads(chain->cut.blas_threads); }

float *chain_matrix(const struct chain *chain, int64_t thread)
{
    return chain->matrices + thread * chain->cut.rows * chain->cut.ld;
}

static float *head_at(const struct heads *x, int64_t b, int64_t h)
{
    return x->data + b * x->sb + h * x->sh;
}

void chain_run_task(struct chain *chain, int steps, const struct heads *q, const struct heads *k,
                    const struct heads *v, const struct heads *out, int64_t thread, int64_t task)
{
    const struct shape *s = &chain->shape;
    const struct cut *cut = &chain->cut;
    int64_t group = s->h / s->g, per_item = cut->n_tasks / s->b;
    int64_t b = task / per_item, unit = task % per_item / cut->blocks;
    int64_t i0 = task % cut->blocks * cut->rows;
    int64_t h = cut->joined ? unit * group : unit, g = cut->joined ? unit : unit / group;
    int64_t rows = cut->joined || s->q - i0 > cut->rows ? cut->rows : s->q - i0;
    /* joined rows with one query each are one head apart, otherwise one query */
    int64_t ldq = cut->joined && s->q == 1 ? q->sh : q->sl;
    int64_t ldo = cut->joined && s->q == 1 ? out->sh : out->sl;
    float *matrix = chain_matrix(chain, thread), *o = head_at(out, b, h) + i0 * ldo;
    float *m = chain->m + thread * cut->rows, *l = chain->l + thread * cut->rows;
    if (rows <= 0) /* parts are rounded up: the last may be empty */
        return;

    if (steps & STEP_SCORES)
        blas_product(&(struct product){.m = rows,
                                       .n = s->k,
                                       .k = s->d,
                                       .b_transposed = true,
                                       .alpha = (float)(1 / sqrt((double)s->d)),
                                       .a = head_at(q, b, h) + i0 * ldq,
                                       .lda = ldq,
                                       .b = head_at(k, b, g),
                                       .ldb = k->sl,
                                       .c = matrix,
                                       .ldc = cut->ld});
    if (steps & STEP_SOFTMAX && chain->kernels)
        softmax_rows(chain->kernels, rows, s->k, matrix, cut->ld,
                     chain->sight ? (const int32_t(*)[2])chain->sight + i0 : NULL, m, l);
    if (steps & STEP_VALUES)
        blas_product(&(struct product){.m = rows,
                                       .n = s->dv,
                                       .k = s->k,
                                       .alpha = 1,
                                       .a = matrix,
                                       .lda = cut->ld,
                                       .b = head_at(v, b, g),
                                       .ldb = v->sl,
                                       .c = o,
                                       .ldc = ldo});
    if ((steps & STEP_ALL) == STEP_ALL && chain->kernels)
        softmax_finish(chain->kernels, rows, s->dv, o, ldo, l);
}

struct call {
    struct chain *chain;
    int steps;
    const struct heads *q, *k, *v, *out;
    atomic_int_fast64_t next;
};

static void run_tasks(void *context, int64_t thread)
{
    struct call *call = context;
    for (;;) {
        int64_t task = (int64_t)atomic_fetch_add(&call->next, 1);
        if (task >= call->chain->cut.n_tasks) return;
        chain_run_task(call->chain, call->steps, call->q, call->k, call->v, call->out, thread,
                       task);
    }
}

void chain_run(struct chain *chain, int steps, const struct heads *q, const struct heads *k,
               const struct heads *v, const struct heads *out)
{
    struct call call = {.chain = chain, .steps = steps, .q = q, .k = k, .v = v, .out = out};
    pool_run(chain->pool, run_tasks, &call);
}

void chain_normalize(struct chain *chain, int64_t thread)
{
    const float *l = chain->l + thread * chain->cut.rows;
    float *row = chain_matrix(chain, thread);
    for (int64_t r = 0; r < chain->cut.rows; r++, row += chain->cut.ld)
        for (int64_t j = 0; j < chain->shape.k; j++) row[j] /= l[r] == 0 ? 1 : l[r];
}
