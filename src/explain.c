/* SPDX-License-Identifier: MIT */
/* What a run would do, in words. Integers only: no locale changes their form. */
#include "blas.h"
#include "job.h"

#include <stdarg.h>
#include <stdio.h>

void attn_i_say(struct text *text, const char *format, ...)
{
    if (!text) return;
    va_list list;
    va_start(list, format);
    size_t room = text->used < text->cap ? text->cap - text->used : 0;
    int n = vsnprintf(room ? text->at + text->used : NULL, room, format, list);
    va_end(list);
    if (n > 0) text->used += (size_t)n;
}

/* Counting flops must not take time that grows with the lengths or the items: so many are looked
   at, the rest goes by proportion. */
#define ROWS_COUNTED 4096
#define ITEMS_COUNTED 1024

/* The nth of `count` that are spread evenly over [0, of). */
static int64_t spread(int64_t n, int64_t count, int64_t of)
{
    return of / count * n + of % count * n / count;
}

/* Pairs that the interval rules of an item let through. */
static double visible_pairs(const struct job *job, const struct item *it)
{
    int64_t rows = min64(it->Lq, ROWS_COUNTED);
    double pairs = 0.0;
    for (int64_t r = 0; r < rows; r++) {
        struct span keys = attn_i_row_span(job, it, spread(r, rows, it->Lq));
        if (keys.lo < keys.hi) pairs += (double)(keys.hi - keys.lo);
    }
    return rows ? pairs * (double)it->Lq / (double)rows : 0.0;
}

/* Useful multiply-adds times two. */
static double visible_flops(const struct job *job)
{
    int64_t items = min64(job->B, ITEMS_COUNTED);
    double pairs = 0.0;
    for (int64_t n = 0; n < items; n++) {
        struct item it = attn_i_item(job, spread(n, items, job->B));
        pairs += visible_pairs(job, &it);
    }
    pairs *= (double)job->B / (double)items;
    return 2.0 * pairs * (double)job->op->Hq * (double)(job->op->Dk + job->op->Dv);
}

static void describe_cut(const struct job *job, const struct cut *cut, struct text *text)
{
    static const char *const paths[] = {
        [PATH_TILES] = "tiles by sgemm, keys transposed once per tile (small products)",
        [PATH_TILES_NT] = "tiles by sgemm, keys read in place (large products)",
        [PATH_VECTOR] = "tiles by vector kernels, queries along the lanes",
        [PATH_DECODE] = "few queries by vector kernels"};
    if (cut->strip_rows == 0) /* no item of this kind */
        return;
    attn_i_say(text, "path: %s; engine: %s; kernels: %s; ", paths[cut->path],
               job->op->engine == ATTN_ENGINE_BLAS ? "blas" : "vector", job->op->kernels->name);
    attn_i_say(text, "strips of %lld queries, tiles of %lld keys, %lld part%s of the keys; ",
               (long long)cut->strip_rows, (long long)cut->tile_keys, (long long)cut->n_parts,
               cut->n_parts == 1 ? "" : "s");
}

static void describe_plan(const struct job *job, const struct plan *p, struct text *text)
{
    describe_cut(job, &p->many, text);
    describe_cut(job, &p->few, text);
    int64_t rest = job->args->offsets_q ? 0 : attn_i_rest(job, p, job->Lq);
    if (rest > 0)
        attn_i_say(text, "the last %lld of %lld queries as if few; ", (long long)rest,
                   (long long)job->Lq);
    attn_i_say(text, "%lld unit%s of %lld head%s; threads: %d", (long long)p->n_units,
               p->n_units == 1 ? "" : "s", (long long)p->heads, p->heads == 1 ? "" : "s",
               p->crew.woken);
    if (p->crew.most > p->crew.woken) attn_i_say(text, ", or %d if awake,", p->crew.most);
    attn_i_say(text, " of %d; ", job->op->threads);
}

static attn_status explain(const struct job *job, struct text *text)
{
    struct plan plan;
    size_t bytes = 0;
    if (job->B == 0 || job->Lq == 0) {
        attn_i_say(text, "nothing to do: %s is 0", job->B == 0 ? "B" : "Lq");
        return ATTN_OK;
    }
    attn_status status = attn_i_plan(job, &plan);
    if (status != ATTN_OK) {
        attn_i_say(text, "the scratch memory that this run needs is too large");
        return status;
    }
    describe_plan(job, &plan, text);
    if (attn_i_workspace(job, &bytes) == ATTN_OK)
        attn_i_say(text, "scratch: %zu bytes, workspace: %zu bytes; ", attn_i_plan_bytes(&plan),
                   bytes);
    attn_i_say(text, "flops: %.0f; ", visible_flops(job));
    attn_i_blas_describe(text);
    return ATTN_OK;
}

/* An empty text is "", and needed counts the 0 at its end. */
static void finish(const struct text *text, size_t *needed)
{
    if (text->used == 0 && text->cap > 0) text->at[0] = '\0';
    if (needed) *needed = text->used + 1;
}

attn_status attn_explain(const attn_op *op, int64_t B, int64_t Lq, int64_t Lk, const void *q,
                         const void *k, const void *v, const void *out, const attn_args *args,
                         char *text, size_t cap, size_t *needed)
{
    struct job job;
    struct text t = {.at = text, .cap = cap};
    REQUIRE(text || cap == 0, ATTN_EINVAL);
    attn_status status = attn_i_check_run(op, B, Lq, Lk, q, k, v, out, args, &job, &t);
    if (status == ATTN_OK) status = explain(&job, &t);
    finish(&t, needed);
    return status;
}

attn_status attn_blas_info(char *text, size_t cap, size_t *needed)
{
    struct text t = {.at = text, .cap = cap};
    REQUIRE(text || cap == 0, ATTN_EINVAL);
    attn_i_blas_describe(&t);
    finish(&t, needed);
    return attn_i_blas_init();
}
