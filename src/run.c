/* SPDX-License-Identifier: MIT */
/*
 * The job: query blocks over threads. Statistics inside the library are the
 * pair (m, l) of a row's maximum and sum with its unnormalized output; a row is
 * empty iff l is 0 at the end.
 */
#include "blas.h"
#include "job.h"

#include <math.h>
#include <string.h>

struct run {
    const struct job *job;
    const struct plan *plan;
    char *threads; /* crew.most pieces of thread_bytes */
    struct shared shared;
};

/* A thread's part in it: its scratch, and the cut that it is carved for. To do so for each unit
   takes 2 % of 8 x 32 x 64. */
struct worker {
    char *memory;
    struct thread_scratch scratch;
    const struct cut *carved;
};

/* ------------------------------------------------------------ one unit */

/* A unit of work: the heads h0 .. h0 + plan->heads - 1 of item b, block n of its queries. */
struct unit {
    int64_t index, b, h0, n;
};

/* Where the scores of a block go: to the caller, or to scratch to be averaged. */
static void point_at_scores(struct block *blk)
{
    const struct job *job = blk->job;
    float *mean = blk->scratch->mean;
    for (int s = 0; s < N_STAGES; s++) {
        float *to = job->args->scores[s];
        if (to && (job->args->score_flags[s] & ATTN_MEAN_HEADS)) {
            blk->scores[s] = mean;
            mean += blk->cut->strip_rows * job->Lk;
        } else if (to) {
            int64_t row = (blk->b * job->op->Hq + blk->h0) * job->Lq + blk->i0;
            blk->scores[s] = to + row * job->Lk;
            blk->scores_head = job->Lq * job->Lk; /* fits: attn_i_check_run saw to it */
        }
    }
}

/* Block u.n of the queries from q.lo to q.hi. */
static struct block block_of(const struct run *run, const struct cut *cut, const struct item *it,
                             struct span q, struct unit u, struct thread_scratch *scratch)
{
    const struct job *job = run->job;
    int64_t rows = strip_height(cut, q.hi - q.lo);
    int64_t s0 = u.n * cut->block_strips;
    int64_t s1 = min64(s0 + cut->block_strips, ceil_div(q.hi - q.lo, rows));
    struct block blk = {
        .job = job,
        .cut = cut,
        .item = *it,
        .b = u.b,
        .hk = u.h0 / (job->op->Hq / job->op->Hk),
        .h0 = u.h0,
        .heads = run->plan->heads,
        .strip_rows = rows,
        .s0 = s0,
        .s1 = s1,
        .i0 = q.lo + s0 * rows,
        .o_head = job->out.sh,
        .o_row = job->out.sl,
        .m = scratch->m,
        .l = scratch->l,
        .scratch = scratch,
    };
    blk.nq = min64(q.lo + s1 * rows, q.hi) - blk.i0;
    blk.o =
        job->out.data + u.b * job->out.sb + u.h0 * job->out.sh + (it->q0 + blk.i0) * job->out.sl;
    point_at_scores(&blk);
    return blk;
}

/* Slot of a part's results, as rows. */
static int64_t slot_rows(const struct run *run, int64_t unit, int64_t part)
{
    const struct plan *plan = run->plan;
    return (unit * plan->few.n_parts + part) * plan->heads * plan->few.strip_rows;
}

static void attend_part(const struct run *run, const struct block *whole, int64_t unit,
                        int64_t part)
{
    const struct cut *cut = whole->cut;
    struct block blk = *whole;
    int64_t begin = blk.item.begin + part * (cut->n_parts > 1 ? cut->part_keys : 0);
    blk.first_part = part == 0;
    blk.keys.lo = min64(begin, blk.item.end);
    blk.keys.hi = cut->n_parts > 1 ? min64(begin + cut->part_keys, blk.item.end) : blk.item.end;
    if (cut->n_parts > 1) {
        int64_t slot = slot_rows(run, unit, part), Dv = run->job->op->Dv;
        blk.o = run->shared.o + slot * Dv;
        blk.o_head = blk.nq * Dv;
        blk.o_row = Dv;
        blk.m = run->shared.m + slot;
        blk.l = run->shared.l + slot;
    }
    for (int64_t r = 0; r < blk.heads * blk.nq; r++) {
        blk.m[r] = -INFINITY;
        blk.l[r] = 0.0f;
    }
    if (cut->path == PATH_DECODE)
        attn_i_decode_attend(&blk);
    else if (cut->path == PATH_VECTOR)
        attn_i_vector_attend(&blk);
    else
        attn_i_blas_attend(&blk);
}

/* ------------------------------------------------------------- merging */

/* Fold part p of a row into (m, l, o). A part that saw nothing has l = 0, and its o means
   nothing; one that was underflowed away still hands on its NaN: 0 * NaN is NaN. */
static void merge_part(const struct kernels *kn, int64_t Dv, float *o, float *m, float *l,
                       const float *o_part, float m_part, float l_part)
{
    if (l_part == 0.0f) return;
    if (*l == 0.0f) { /* the first that saw something */
        memcpy(o, o_part, (size_t)Dv * sizeof *o);
        *m = m_part;
        *l = l_part;
        return;
    }
    float top = m_part > *m ? m_part : *m;
    float factor[2] = {*m == -INFINITY ? -INFINITY : *m - top,
                       m_part == -INFINITY ? -INFINITY : m_part - top};
    kn->exp_row(2, factor);
    *l = *l * factor[0] + l_part * factor[1];
    *m = top;
    kn->merge_row(Dv, o, factor[0], o_part, factor[1]);
}

/* All parts of a unit, in order, into the output and the statistics of its block. */
static void merge_parts(const struct run *run, const struct block *blk, int64_t unit)
{
    int64_t Dv = run->job->op->Dv;
    for (int64_t r = 0; r < blk->heads * blk->nq; r++) {
        float *o = blk->o + r / blk->nq * blk->o_head + r % blk->nq * blk->o_row;
        blk->m[r] = -INFINITY;
        blk->l[r] = 0.0f;
        for (int64_t p = 0; p < blk->cut->n_parts; p++) {
            int64_t slot = slot_rows(run, unit, p) + r;
            merge_part(run->job->op->kernels, Dv, o, blk->m + r, blk->l + r,
                       run->shared.o + slot * Dv, run->shared.m[slot], run->shared.l[slot]);
        }
    }
}

/* ----------------------------------------------------------- finishing */

static void fill_row(float *row, int64_t from, int64_t to, float x)
{
    for (int64_t j = from; j < to; j++) row[j] = x;
}

/* What the engine left of a row of scores: the keys its query saw. The rest is filled here. */
static void finish_scores(const struct block *blk, int64_t g, int64_t i)
{
    const struct job *job = blk->job;
    int64_t Lk = job->Lk, at = g * blk->scores_head + i * Lk, r = g * blk->nq + i;
    struct span keys = attn_i_row_span(job, &blk->item, blk->i0 + i);
    bool none = keys.lo >= keys.hi;
    int64_t lo = none ? 0 : keys.lo, hi = none ? 0 : keys.hi;
    for (int s = 0; s < N_STAGES; s++) {
        if (!blk->scores[s]) continue;
        float *row = blk->scores[s] + at;
        if (s == ATTN_STAGE_WEIGHTS) {
            job->op->kernels->weights_row(hi - lo, row + lo, blk->m[r], blk->l[r]);
            fill_row(row, 0, lo, 0.0f);
            fill_row(row, hi, Lk, 0.0f);
        } else if (s == ATTN_STAGE_MASKED) {
            fill_row(row, 0, lo, -INFINITY);
            fill_row(row, hi, Lk, -INFINITY);
        } else {
            fill_row(row, 0, blk->item.begin, -INFINITY);
            fill_row(row, blk->item.range_end, Lk, -INFINITY);
        }
    }
}

/* Add the scores of one head to the mean: heads come in order, on one thread. */
static void finish_mean(const struct block *blk)
{
    const struct job *job = blk->job;
    int64_t Lk = job->Lk, Hq = job->op->Hq;
    for (int s = 0; s < N_STAGES; s++) {
        if (!blk->scores[s] || !(job->args->score_flags[s] & ATTN_MEAN_HEADS)) continue;
        float *to = job->args->scores[s] + (blk->b * job->Lq + blk->i0) * Lk;
        const float *from = blk->scores[s];
        for (int64_t x = 0; x < blk->nq * Lk; x++) {
            float sum = blk->h0 == 0 ? from[x] : to[x] + from[x];
            to[x] = blk->h0 == Hq - 1 ? sum / (float)Hq : sum;
        }
    }
}

/* A sink is one more logit in the denominator, and may be the largest; an empty row stays empty.
   Returns the factor of what was summed up with the old maximum. */
static float add_sink(float sink, float *m, float *l)
{
    if (*l == 0.0f) return 1.0f;
    if (!(sink > *m)) {
        *l += expf(sink - *m);
        return 1.0f;
    }
    float c = expf(*m - sink);
    *l = *l * c + 1.0f;
    *m = sink;
    return c;
}

static void store_lse(const struct block *blk, int64_t g, const float *m, const float *l)
{
    const struct job *job = blk->job;
    int64_t item = job->args->offsets_q ? 0 : blk->b * job->op->Hq; /* packed: (Hq, total) */
    float *lse = job->args->lse + (item + blk->h0 + g) * job->Lq + blk->item.q0 + blk->i0;
    for (int64_t i = 0; i < blk->nq; i++) lse[i] = l[i] == 0.0f ? -INFINITY : m[i] + logf(l[i]);
}

/* The statistics of a row into its outputs but O; l becomes the factor that is left for O. */
static void finish_row(const struct block *blk, int64_t g, int64_t i, bool scores)
{
    const attn_args *args = blk->job->args;
    float *m = blk->m + g * blk->nq + i, *l = blk->l + g * blk->nq + i;
    float c = args->sinks ? add_sink(args->sinks[blk->h0 + g], m, l) : 1.0f;
    if (scores) finish_scores(blk, g, i);
    *l = *l == 0.0f ? EMPTY_ROW : c / *l;
}

static void finish_block(const struct block *blk)
{
    const struct job *job = blk->job;
    bool scores = false;
    for (int s = 0; s < N_STAGES; s++) scores |= blk->scores[s] != NULL;
    for (int64_t g = 0; g < blk->heads; g++) {
        float *m = blk->m + g * blk->nq, *l = blk->l + g * blk->nq;
        if (job->args->lse) store_lse(blk, g, m, l);
        for (int64_t i = 0; i < blk->nq; i++) finish_row(blk, g, i, scores);
        if (blk->cut->path != PATH_VECTOR)
            job->op->kernels->finish_rows(blk->nq, job->op->Dv, blk->o + g * blk->o_head,
                                          blk->o_row, l);
    }
    if (blk->cut->path == PATH_VECTOR) attn_i_vector_finish(blk);
    if (scores) finish_mean(blk);
}

/* --------------------------------------------------------------- tasks */

/* Packed queries: the sequence that block n of all lies in, by bisection. */
static int64_t sequence_of(const struct run *run, int64_t n)
{
    int64_t lo = 0, hi = run->job->B; /* first_block[lo] <= n < first_block[hi] */
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (run->shared.first_block[mid] <= n)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* Blocks of the last queries first: with a causal rule they are the longest, and threads that
   end on short ones finish together. */
static struct unit unit_of(const struct run *run, int64_t index)
{
    const struct plan *plan = run->plan;
    int64_t columns = plan->n_units / plan->n_blocks; /* heads, of all items unless packed */
    struct unit u = {.index = index, .n = plan->n_blocks - 1 - index / columns};
    int64_t column = index % columns;
    u.b = column / plan->columns;
    u.h0 = column % plan->columns * plan->heads;
    if (run->job->args->offsets_q) {
        u.b = sequence_of(run, u.n);
        u.n -= run->shared.first_block[u.b];
    }
    return u;
}

/* Part `part` of a unit of the heads from u.h0, or all parts. The last part done merges all. */
static void run_unit(const struct run *run, struct block *blk, int64_t unit, int64_t part,
                     bool all)
{
    int64_t n_parts = blk->cut->n_parts;
    for (int64_t p = all ? 0 : part; p < (all ? n_parts : part + 1); p++)
        attend_part(run, blk, unit, p);
    if (!all && atomic_fetch_sub_explicit(run->shared.left + unit, 1, memory_order_acq_rel) > 1)
        return;
    if (n_parts > 1) merge_parts(run, blk, unit);
    finish_block(blk);
}

/* The block that this thread will do next, if all go on as they do. Worth knowing for the vector
   engine, which has time to fetch it beside several panels. */
static const struct block *next_block(const struct run *run, const struct block *blk,
                                      int64_t index, struct block *next)
{
    const struct job *job = run->job;
    index += run->plan->crew.most;
    if (!run->plan->fetches_next || index >= run->plan->n_units ||
        blk->heads * blk->nq <= panel_lanes(job->op))
        return NULL;
    struct unit u = unit_of(run, index);
    struct item it = attn_i_item(job, u.b);
    const struct cut *cut = attn_i_cut(job, run->plan, it.Lq);
    struct span q = {0, it.Lq - attn_i_rest(job, run->plan, it.Lq)};
    *next = block_of(run, cut, &it, q, u, blk->scratch);
    return next;
}

static struct thread_scratch *scratch_for(const struct run *run, struct worker *w,
                                          const struct cut *cut)
{
    if (w->carved != cut) attn_i_carve_thread(run->job, run->plan, cut, w->memory, &w->scratch);
    w->carved = cut;
    return &w->scratch;
}

/* The queries q of a unit, or of a part of it. */
static void run_queries(const struct run *run, struct worker *worker, const struct cut *cut,
                        const struct item *it, struct span q, struct unit u, int64_t part,
                        bool all)
{
    struct thread_scratch *scratch = scratch_for(run, worker, cut);
    bool mean = attn_i_mean_stages(run->job->args) > 0;
    int64_t last = mean ? run->job->op->Hq - 1 : u.h0;
    for (; u.h0 <= last; u.h0++) {
        struct block blk = block_of(run, cut, it, q, u, scratch), next;
        blk.next = mean ? NULL : next_block(run, &blk, u.index, &next);
        run_unit(run, &blk, u.index, part, all);
    }
}

static void run_task(const struct run *run, struct worker *worker, int64_t task)
{
    const struct plan *plan = run->plan;
    bool all = plan->n_tasks == plan->n_units;
    struct unit u = unit_of(run, all ? task : task / plan->few.n_parts);
    struct item it = attn_i_item(run->job, u.b);
    const struct cut *cut = attn_i_cut(run->job, plan, it.Lq);
    struct span rest = {it.Lq - attn_i_rest(run->job, plan, it.Lq), it.Lq}, q = {0, rest.lo};
    run_queries(run, worker, cut, &it, q, u, all ? 0 : task % plan->few.n_parts, all);
    if (rest.lo < rest.hi && u.n + 1 == attn_i_item_blocks(run->job, plan, it.Lq)) {
        u.n = 0;
        run_queries(run, worker, &plan->rest, &it, rest, u, 0, true);
    }
}

static void run_tasks(void *context, int32_t worker, struct tasks *tasks)
{
    const struct run *run = context;
    struct worker w = {.memory = run->threads + (size_t)worker * run->plan->thread_bytes};
    int32_t saved = attn_i_blas_thread_enter();
    for (int64_t task; attn_i_next_task(tasks, &task);) run_task(run, &w, task);
    attn_i_blas_thread_leave(saved);
}

static void count_blocks(const struct job *job, const struct plan *plan, int64_t *first)
{
    const int64_t *offsets = job->args->offsets_q;
    first[0] = 0;
    for (int64_t b = 0; b < job->B; b++)
        first[b + 1] = first[b] + attn_i_item_blocks(job, plan, offsets[b + 1] - offsets[b]);
}

void attn_i_run_in(const struct job *job, const struct plan *plan, void *memory)
{
    struct run run = {.job = job, .plan = plan, .threads = attn_i_align(memory)};
    struct carver c = {.base = run.threads + (size_t)plan->crew.most * plan->thread_bytes};
    attn_i_carve_shared(job, plan, &c, &run.shared);
    if (plan->few.n_parts > 1)
        for (int64_t u = 0; u < plan->n_units; u++)
            atomic_init(run.shared.left + u, (int32_t)plan->few.n_parts);
    if (job->args->offsets_q) count_blocks(job, plan, run.shared.first_block);
    attn_i_blas_enter(plan->small_products);
    attn_i_parallel(plan->crew, plan->n_tasks, run_tasks, &run);
    attn_i_blas_leave(plan->small_products);
}

attn_status attn_i_run(const struct job *job, const struct plan *plan, struct scratch_list *list)
{
    if (job->args->workspace) {
        attn_i_run_in(job, plan, job->args->workspace);
        return ATTN_OK;
    }
    struct scratch *block = attn_i_scratch_take(list, attn_i_plan_bytes(plan));
    REQUIRE(block, ATTN_ENOMEM);
    attn_i_run_in(job, plan, block->memory);
    attn_i_scratch_put(block);
    return ATTN_OK;
}
