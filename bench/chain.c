/* SPDX-License-Identifier: MIT */
/* See chain.h. */
#include "chain.h"

#include "blas.h"
#include "packing.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

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
        cut->rows = (cut->rows + threads - 1) / threads;
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
    int64_t group = s->h / s->g, q = shape_longest_q(s);
    struct cut cut = {.blocks = 1, .threads = 1, .blas_threads = 1, .threading = "one"};
    /* where heads lie side by side, the rows of two heads are no matrix */
    bool by_heads = s->stage != STAGE_LAYER && !s->packing;
    cut.joined = group > 1 && group * q <= JOIN_ROWS && (by_heads || q == 1);
    cut.rows = cut.joined ? group * q : q;
    cut.n_tasks = s->b * (cut.joined ? s->g : s->h);
    cut.ld = round_up(shape_longest_k(s));
    if (s->stage == STAGE_PROJECT) { /* no heads yet: nothing but threads */
        cut.rows = cut.ld = 0;
        cut.n_tasks = c->threads;
    }
    if (c->threads > 1) cut_for_threads(&cut, s, c->threads);
    return cut;
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
           bytes_add(bytes, 2, cut.threads, cut.rows);
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
    chain->pool = pool_create(cut->threads);
    if (!chain->matrices || !chain->m || !chain->l || !chain->pool) {
        chain_close(chain);
        complain("no memory or no threads for the score matrix");
        return false;
    }
    if (cut->threads > 1) pool_run(chain->pool, single_thread, NULL);
    return true;
}

void chain_close(struct chain *chain)
{
    pool_destroy(chain->pool);
    free(chain->matrices);
    free(chain->m);
    free(chain->l);
    *chain = (struct chain){0};
}

void chain_prepare(const struct chain *chain) { blas_set_threads(chain->cut.blas_threads); }

float *chain_matrix(const struct chain *chain, int64_t thread)
{
    return chain->matrices + thread * chain->cut.rows * chain->cut.ld;
}

static void set_strides(const struct shape *s, bool by_heads, struct heads x[T_COUNT])
{
    const int64_t heads[T_COUNT] = {s->h, s->g, s->g, s->h};
    const int64_t length[T_COUNT] = {s->q, s->k, s->k, s->q};
    const int64_t size[T_COUNT] = {s->d, s->d, s->dv, s->dv};
    for (int i = 0; i < T_COUNT; i++) {
        x[i] = (struct heads){.sb = heads[i] * length[i] * size[i],
                              .sh = by_heads ? length[i] * size[i] : size[i],
                              .sl = by_heads ? size[i] : heads[i] * size[i]};
        if (s->packing) x[i].rows = i == T_Q || i == T_OUT ? s->packing->q : s->packing->k;
    }
}

void chain_tensors(const struct trial *t, int64_t set, struct heads x[T_COUNT])
{
    set_strides(&t->config.shape, !t->config.shape.packing, x);
    for (int i = 0; i < T_COUNT; i++) x[i].data = tensor_at(t->tensors, set, i);
}

void chain_tokens(const struct shape *s, float *data, struct heads x[T_COUNT])
{
    set_strides(s, false, x);
    for (int i = 0; i < T_COUNT; i++) {
        x[i].data = data;
        data += x[i].sl * (i == T_Q || i == T_OUT ? shape_all_q(s) : shape_all_k(s));
    }
}

static float *head_at(const struct heads *x, int64_t b, int64_t h)
{
    return x->data + (x->rows ? x->rows[b] * x->sl : b * x->sb) + h * x->sh;
}

/* One matrix: rows from i0 on of head h, or, joined, all rows of the heads from h on. */
struct task {
    struct item item;
    int64_t b, h, g, i0, rows, ld;
    float *matrix, *m, *l;
};

static struct task make_task(const struct chain *chain, int64_t thread, int64_t number)
{
    const struct shape *s = &chain->shape;
    const struct cut *cut = &chain->cut;
    int64_t group = s->h / s->g, per_item = cut->n_tasks / s->b;
    int64_t unit = number % per_item / cut->blocks;
    struct task t = {.b = number / per_item,
                     .h = cut->joined ? unit * group : unit,
                     .g = cut->joined ? unit : unit / group,
                     .matrix = chain_matrix(chain, thread),
                     .m = chain->m + thread * cut->rows,
                     .l = chain->l + thread * cut->rows};
    t.item = shape_item(s, t.b);
    t.ld = round_up(t.item.k);
    int64_t part = (t.item.q + cut->blocks - 1) / cut->blocks;
    t.i0 = number % cut->blocks * part;
    int64_t left = t.item.q - t.i0; /* parts are rounded up: none may be left for the last */
    t.rows = cut->joined ? group * t.item.q : left < part ? left : part;
    return t;
}

/* Rules are applied to a row while it is in the first cache, and not matrix by matrix. */
static void weigh(const struct chain *chain, const struct task *t)
{
    const struct shape *s = &chain->shape;
    bool rules = s->causal != CAUSAL_NONE || s->window || s->softcap > 0 || s->alibi;
    if (!rules) {
        softmax_rows(chain->kernels, t->rows, t->item.k, t->matrix, t->ld, NULL, t->m, t->l);
        return;
    }
    float slope = 0;
    for (int64_t r = 0; r < t->rows; r++) {
        int64_t row = t->i0 + r, i = row % t->item.q, lo, hi;
        if (r == 0 || i == 0) slope = (float)shape_slope(s, t->h + row / t->item.q);
        shape_sight(s, &t->item, i, &lo, &hi);
        struct row_rules by = {.softcap = (float)s->softcap,
                               .slope = slope,
                               .at = (float)shape_position(s, &t->item, i),
                               .lo = (int32_t)lo,
                               .hi = (int32_t)hi};
        softmax_row_by_rules(chain->kernels, &by, t->item.k, t->matrix + r * t->ld, t->ld,
                             t->m + r, t->l + r);
    }
}

static void no_keys(const struct task *t, float *o, int64_t ldo, int64_t dv)
{
    for (int64_t r = 0; r < t->rows; r++) memset(o + r * ldo, 0, (size_t)dv * sizeof *o);
}

void chain_run_task(struct chain *chain, int steps, const struct heads *q, const struct heads *k,
                    const struct heads *v, const struct heads *out, int64_t thread, int64_t task)
{
    const struct shape *s = &chain->shape;
    struct task t = make_task(chain, thread, task);
    /* joined rows with one query each are one head apart, otherwise one query */
    bool across = chain->cut.joined && t.item.q == 1;
    int64_t ldq = across ? q->sh : q->sl, ldo = across ? out->sh : out->sl;
    float *o = head_at(out, t.b, t.h) + t.i0 * ldo;
    struct product scores = {.m = t.rows,
                             .n = t.item.k,
                             .k = s->d,
                             .b_transposed = true,
                             .alpha = (float)(1 / sqrt((double)s->d)),
                             .a = head_at(q, t.b, t.h) + t.i0 * ldq,
                             .lda = ldq,
                             .b = head_at(k, t.b, t.g),
                             .ldb = k->sl,
                             .c = t.matrix,
                             .ldc = t.ld};
    struct product values = {.m = t.rows,
                             .n = s->dv,
                             .k = t.item.k,
                             .alpha = 1,
                             .a = t.matrix,
                             .lda = t.ld,
                             .b = head_at(v, t.b, t.g),
                             .ldb = v->sl,
                             .c = o,
                             .ldc = ldo};
    if (t.rows <= 0) return;
    if (t.item.k == 0) {
        no_keys(&t, o, ldo, s->dv);
        return;
    }
    if (steps & STEP_SCORES) blas_product(&scores);
    if (steps & STEP_SOFTMAX && chain->kernels) weigh(chain, &t);
    if (steps & STEP_VALUES) blas_product(&values);
    if ((steps & STEP_ALL) == STEP_ALL && chain->kernels)
        softmax_finish(chain->kernels, t.rows, s->dv, o, ldo, t.l);
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
