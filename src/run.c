/* SPDX-License-Identifier: MIT */
/*
 * The job: query blocks over threads. Statistics inside the library are the
 * pair (m, l) of a row's maximum and sum with its unnormalized output; a row is
 * empty iff l is 0 at the end.
 */
#include "internal.h"

#include <math.h>
#include <string.h>

struct run {
    const struct job *job;
    const struct plan *plan;
    char *threads; /* n_threads pieces of thread_bytes */
    struct partials parts;
};

/* ------------------------------------------------------------ one unit */

/* A unit of work: the heads h0 .. h0 + plan->heads - 1 of item b, block n. */
struct unit {
    int64_t index, b, h0, n;
};

static struct block block_of(const struct run *run, struct thread_scratch *scratch, struct unit u)
{
    const struct job *job = run->job;
    const struct plan *plan = run->plan;
    int64_t s0 = u.n * plan->block_strips;
    int64_t s1 = min64(s0 + plan->block_strips, plan->n_strips);
    struct block blk = {
        .job = job,
        .plan = plan,
        .item = attn_i_item(job, u.b),
        .b = u.b,
        .hk = u.h0 / (job->op->Hq / job->op->Hk),
        .h0 = u.h0,
        .heads = plan->heads,
        .s0 = s0,
        .s1 = s1,
        .i0 = strip_start(job->Lq, plan->n_strips, s0),
        .o_head = job->out.sh,
        .o_row = job->out.sl,
        .m = scratch->m,
        .l = scratch->l,
        .scores_head = job->Lq * job->Lk,
        .scratch = scratch,
    };
    blk.nq = strip_start(job->Lq, plan->n_strips, s1) - blk.i0;
    blk.o = job->out.data + u.b * job->out.sb + u.h0 * job->out.sh + blk.i0 * job->out.sl;
    float *mean = scratch->mean;
    for (int s = 0; s < N_STAGES; s++) {
        float *to = job->args->scores[s];
        if (to && (job->args->score_flags[s] & ATTN_MEAN_HEADS)) {
            blk.scores[s] = mean; /* summed by finish_mean */
            mean += plan->strip_rows * job->Lk;
        } else if (to) {
            blk.scores[s] =
                to + ((u.b * job->op->Hq + u.h0) * job->Lq + blk.i0) * job->Lk;
        }
    }
    return blk;
}

/* Slot of a part's results, as rows. */
static int64_t slot_rows(const struct run *run, int64_t unit, int64_t part)
{
    const struct plan *plan = run->plan;
    return (unit * plan->n_parts + part) * plan->heads * plan->strip_rows;
}

static void attend_part(const struct run *run, const struct block *whole, int64_t unit,
                        int64_t part)
{
    const struct plan *plan = run->plan;
    struct block blk = *whole;
    int64_t begin = blk.item.begin + part * plan->part_keys;
    blk.first_part = part == 0;
    blk.keys.lo = min64(begin, blk.item.end);
    blk.keys.hi = min64(begin + plan->part_keys, blk.item.end);
    if (plan->n_parts > 1) {
        int64_t slot = slot_rows(run, unit, part), Dv = run->job->op->Dv;
        blk.o = run->parts.o + slot * Dv;
        blk.o_head = blk.nq * Dv;
        blk.o_row = Dv;
        blk.m = run->parts.m + slot;
        blk.l = run->parts.l + slot;
    }
    for (int64_t r = 0; r < blk.heads * blk.nq; r++) {
        blk.m[r] = -INFINITY;
        blk.l[r] = 0.0f;
    }
    if (plan->path == PATH_DECODE)
        attn_i_decode_attend(&blk);
    else
        attn_i_blas_attend(&blk);
}

/* ------------------------------------------------------------- merging */

/* Fold part p of a row into (m, l, o). Factors are 0, not NaN, where nothing was seen. */
static void merge_part(const struct kernels *kn, int64_t Dv, float *o, float *m, float *l,
                       const float *o_part, float m_part, float l_part)
{
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
        for (int64_t p = 0; p < run->plan->n_parts; p++) {
            int64_t slot = slot_rows(run, unit, p) + r;
            merge_part(run->job->op->kernels, Dv, o, blk->m + r, blk->l + r,
                       run->parts.o + slot * Dv, run->parts.m[slot], run->parts.l[slot]);
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
        if (!blk->scores[s])
            continue;
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
        if (!blk->scores[s] || !(job->args->score_flags[s] & ATTN_MEAN_HEADS))
            continue;
        float *to = job->args->scores[s] + (blk->b * job->Lq + blk->i0) * Lk;
        const float *from = blk->scores[s];
        for (int64_t x = 0; x < blk->nq * Lk; x++) {
            float sum = blk->h0 == 0 ? from[x] : to[x] + from[x];
            to[x] = blk->h0 == Hq - 1 ? sum / (float)Hq : sum;
        }
    }
}

static void finish_block(const struct block *blk)
{
    const struct job *job = blk->job;
    const struct kernels *kn = job->op->kernels;
    for (int64_t g = 0; g < blk->heads; g++) {
        const float *m = blk->m + g * blk->nq, *l = blk->l + g * blk->nq;
        kn->finish_rows(blk->nq, job->op->Dv, blk->o + g * blk->o_head, blk->o_row, l);
        if (job->args->lse) {
            float *lse =
                job->args->lse + (blk->b * job->op->Hq + blk->h0 + g) * job->Lq + blk->i0;
            for (int64_t i = 0; i < blk->nq; i++)
                lse[i] = l[i] == 0.0f ? -INFINITY : m[i] + logf(l[i]);
        }
        for (int64_t i = 0; i < blk->nq; i++) finish_scores(blk, g, i);
    }
    finish_mean(blk);
}

/* --------------------------------------------------------------- tasks */

/* Blocks of the last queries first: with a causal rule they are the longest, and threads that
   end on short ones finish together. */
static struct unit unit_of(const struct run *run, int64_t index)
{
    const struct plan *plan = run->plan;
    int64_t per_item = run->job->op->Hq / plan->heads;
    int64_t columns = run->plan->n_units / plan->n_blocks;
    struct unit u = {.index = index, .n = plan->n_blocks - 1 - index / columns};
    int64_t column = index % columns;
    if (columns == run->job->B * per_item) {
        u.b = column / per_item;
        u.h0 = column % per_item * plan->heads;
    } else { /* averaged: the unit walks over the heads itself */
        u.b = column;
    }
    return u;
}

static void run_task(void *context, int32_t worker, int64_t task)
{
    const struct run *run = context;
    const struct plan *plan = run->plan;
    struct carver c = {.base = run->threads + (size_t)worker * plan->thread_bytes};
    struct thread_scratch scratch;
    attn_i_carve_thread(run->job, plan, &c, &scratch);
    int32_t saved = attn_i_blas_thread_enter();

    bool walk = plan->n_tasks == plan->n_units; /* all parts of a unit in this task */
    struct unit u = unit_of(run, walk ? task : task / plan->n_parts);
    int64_t last_head = attn_i_mean_stages(run->job->args) ? run->job->op->Hq - 1 : u.h0;
    for (; u.h0 <= last_head; u.h0++) {
        struct block blk = block_of(run, &scratch, u);
        int64_t part = walk ? 0 : task % plan->n_parts, end = walk ? plan->n_parts : part + 1;
        for (int64_t p = part; p < end; p++) attend_part(run, &blk, u.index, p);
        /* who finishes the last part merges them all, in their order */
        if (!walk && atomic_fetch_sub_explicit(run->parts.left + u.index, 1,
                                               memory_order_acq_rel) > 1)
            break;
        if (plan->n_parts > 1)
            merge_parts(run, &blk, u.index);
        finish_block(&blk);
    }
    attn_i_blas_thread_leave(saved);
}

void attn_i_run_in(const struct job *job, const struct plan *plan, void *memory)
{
    struct run run = {.job = job, .plan = plan, .threads = attn_i_align(memory)};
    struct carver c = {.base = run.threads + (size_t)plan->n_threads * plan->thread_bytes};
    attn_i_carve_partials(job, plan, &c, &run.parts);
    if (plan->n_parts > 1)
        for (int64_t u = 0; u < plan->n_units; u++)
            atomic_init(run.parts.left + u, (int32_t)plan->n_parts);
    attn_i_blas_enter(plan->small_products);
    attn_i_parallel(plan->n_threads, plan->n_tasks, run_task, &run);
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
