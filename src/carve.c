/* SPDX-License-Identifier: MIT */
/*
 * The memory of a run: what each path needs for a thread, and what the threads
 * share. The same functions count it and cut it.
 */
#include "job.h"

/* What the paths by strips need, row after row. */
static void carve_strips(const struct job *job, const struct cut *cut, int64_t heads,
                         struct carver *c, struct thread_scratch *scratch)
{
    const attn_op *op = job->op;
    bool few = cut->path == PATH_DECODE;
    int64_t lds = round_up(cut->tile_keys, LANES_MAX), Dv = round_up(op->Dv, LANES_MAX);
    int64_t rows = few ? cut->strip_rows * heads : cut->strip_rows;
    scratch->s = attn_i_carve(c, rows * lds, sizeof(float));
    scratch->kt = attn_i_carve(c, cut->path == PATH_TILES ? op->Dk * lds : 0, sizeof(float));
    scratch->o_tile =
        attn_i_carve(c, attn_i_pads_values(op, cut) ? cut->strip_rows * Dv : 0, sizeof(float));
    scratch->columns = attn_i_carve(c, cut->strip_rows, sizeof(int32_t[2]));
    scratch->started = attn_i_carve(c, cut->block_strips * heads, 1);
}

/* What the vector engine needs, panel after panel. */
static void carve_panels(const struct job *job, const struct cut *cut, int64_t rows,
                         struct carver *c, struct thread_scratch *scratch)
{
    const attn_op *op = job->op;
    int64_t lanes = panel_lanes(op);
    scratch->s = attn_i_carve(c, longest_tile(cut) * lanes, sizeof(float));
    scratch->k_copy = attn_i_carve(c, longest_tile(cut) * op->Dk, sizeof(float));
    scratch->q_panels = attn_i_carve(c, op->Dk * rows, sizeof(float));
    scratch->o_panels = attn_i_carve(c, op->Dv * rows, sizeof(float));
    scratch->top = attn_i_carve(c, lanes, sizeof(float));
    scratch->lo = attn_i_carve(c, lanes, sizeof(int32_t));
    scratch->hi = attn_i_carve(c, lanes, sizeof(int32_t));
    scratch->slopes = attn_i_carve(c, lanes, sizeof(float));
    scratch->at = attn_i_carve(c, lanes, sizeof(float));
    scratch->id = attn_i_carve(c, lanes, sizeof(int32_t));
    scratch->keep = attn_i_carve(c, lanes, sizeof(uint8_t *));
    scratch->add = attn_i_carve(c, lanes, sizeof(float *));
    scratch->strip = attn_i_carve(c, lanes * STRIP_KEYS, sizeof(float));
}

static void carve_cut(const struct job *job, const struct cut *cut, int64_t heads,
                      struct carver *c, struct thread_scratch *scratch)
{
    const attn_op *op = job->op;
    int64_t rows = min64(cut->block_strips * cut->strip_rows, max64(job->Lq, 1)) * heads;
    rows = round_up(rows, LANES_MAX);
    scratch->m = attn_i_carve(c, rows, sizeof(float));
    scratch->l = attn_i_carve(c, rows, sizeof(float));
    scratch->v_copy = attn_i_carve(c, min64(longest_tile(cut), job->Lk),
                                   (size_t)round_up(op->Dv, LANES_MAX) * sizeof(float));
    bool pointers = cut->path == PATH_DECODE || cut->path == PATH_VECTOR;
    scratch->q_rows = attn_i_carve(c, pointers ? rows : 0, sizeof(float *));
    scratch->o_rows = attn_i_carve(c, pointers ? rows : 0, sizeof(float *));
    int32_t mean = attn_i_mean_stages(job->args);
    int64_t floats;
    if (__builtin_mul_overflow(mean * cut->strip_rows, job->Lk, &floats))
        floats = -1; /* too large, says attn_i_carve */
    scratch->mean = attn_i_carve(c, floats, sizeof(float));
    if (cut->path == PATH_VECTOR)
        carve_panels(job, cut, rows, c, scratch);
    else
        carve_strips(job, cut, heads, c, scratch);
}

void attn_i_carve_thread(const struct job *job, const struct plan *plan, const struct cut *cut,
                         char *memory, struct thread_scratch *scratch)
{
    struct carver c = {.base = memory};
    carve_cut(job, cut, plan->heads, &c, scratch);
}

size_t attn_i_cut_bytes(const struct job *job, const struct cut *cut, int64_t heads)
{
    struct carver c = {0};
    struct thread_scratch scratch;
    carve_cut(job, cut, heads, &c, &scratch);
    return c.used;
}

void attn_i_carve_slots(const struct job *job, int64_t slots, int64_t rows, struct carver *c,
                        struct shared *shared)
{
    shared->o = attn_i_carve(c, slots * rows, (size_t)job->op->Dv * sizeof(float));
    shared->m = attn_i_carve(c, slots * rows, sizeof(float));
    shared->l = attn_i_carve(c, slots * rows, sizeof(float));
    shared->left = attn_i_carve(c, slots, sizeof(int32_t));
    shared->first_block = attn_i_carve(c, job->args->offsets_q ? job->B + 1 : 0, sizeof(int64_t));
}

void attn_i_carve_shared(const struct job *job, const struct plan *plan, struct carver *c,
                         struct shared *shared)
{
    int64_t slots = plan->few.n_parts > 1 ? plan->n_units * plan->few.n_parts : 0;
    attn_i_carve_slots(job, slots, plan->heads * plan->few.strip_rows, c, shared);
}

size_t attn_i_total_bytes(size_t thread_bytes, size_t shared_bytes, int64_t n_threads)
{
    struct carver c = {0};
    attn_i_carve(&c, 1, WORKSPACE_ALIGN); /* memory may begin anywhere */
    attn_i_carve(&c, n_threads, thread_bytes);
    attn_i_carve(&c, 1, shared_bytes);
    return c.used;
}

size_t attn_i_plan_bytes(const struct plan *plan)
{
    return attn_i_total_bytes(plan->thread_bytes, plan->shared_bytes, plan->crew.most);
}
