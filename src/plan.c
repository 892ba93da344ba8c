/* SPDX-License-Identifier: MIT */
/*
 * How a run is cut: path, strips of queries, tiles and parts of keys, units of
 * work. All of it follows from shapes, options, ISA and the name of the BLAS
 * core, never from the thread count or a timing, so that the bits do not either.
 */
#include "internal.h"

#include <math.h>

/* Rows of a kv head (queries x heads of its group) up to which the vector products of decode.c
   are taken: a GEMM of so few rows wastes most of its register tile. */
#define DECODE_ROWS 16
#define DECODE_TILE 128 /* keys: scores of 16 rows stay in L1 beside the key rows in flight */
/* Keys below which a part is not worth its merge, and tasks that are enough for any machine
   that we know: parts are cut until there are so many. */
#define PART_KEYS_MIN 512
#define TASKS_ENOUGH 32

/* Strips of 60 x 256 keep both products within SMALL_PRODUCT at D = 64 and S in L2; measured
   best of 30, 48, 60, 96 rows (design.md 5; Zen 4). Causal strips of 30 waste less on the
   diagonal. */
#define STRIP_ROWS 60
#define STRIP_ROWS_CAUSAL 30
#define TILE_KEYS 256
#define TILE_KEYS_MIN 64
/* Without the small path BLAS packs both operands of each call: larger tiles. */
#define STRIP_ROWS_NT 256
#define STRIP_ROWS_NT_CAUSAL 128
/* Query rows of all heads of a block: what shares one transposed key tile. */
#define BLOCK_ROWS 960
#define BLOCK_ROWS_MIN 240

/* A thread is not woken for less than this, in nanoseconds of estimated work. */
#define THREAD_WORTH_NS 25e3

static bool is_causal(const struct job *job) { return job->op->causal != ATTN_CAUSAL_NONE; }

/* Largest strip and tile of the small-matrix path; false when D is too large for it. */
static bool small_shape(const struct job *job, int64_t *rows, int64_t *keys)
{
    int64_t D = max64(job->op->Dk, job->op->Dv);
    *rows = is_causal(job) ? STRIP_ROWS_CAUSAL : STRIP_ROWS;
    *keys = min64(TILE_KEYS, SMALL_PRODUCT / (*rows * D) / LANES_MAX * LANES_MAX);
    if (*keys < 2 * TILE_KEYS_MIN) {
        *rows = STRIP_ROWS / 2;
        *keys = min64(TILE_KEYS, SMALL_PRODUCT / (*rows * D) / LANES_MAX * LANES_MAX);
    }
    return *keys >= TILE_KEYS_MIN;
}

static int64_t forced(int64_t by_test, int64_t by_plan) { return by_test > 0 ? by_test : by_plan; }

/* Largest strips and tiles of the tile path for this op. */
static void tile_shape(const struct job *job, struct plan *p)
{
    const struct tiles *t = &job->op->tiles;
    int64_t rows, keys;
    bool small = small_shape(job, &rows, &keys) && attn_i_blas_small_path();
    if (t->path)
        small = t->path == PATH_TILES;
    if (!small) {
        rows = is_causal(job) ? STRIP_ROWS_NT_CAUSAL : STRIP_ROWS_NT;
        keys = TILE_KEYS;
    }
    p->path = small ? PATH_TILES : PATH_TILES_NT;
    p->strip_rows = forced(t->strip_rows, rows);
    p->tile_keys = forced(t->tile_keys, max64(keys, LANES_MAX));
}

/* Strips in a block of at most this many rows of all its heads. */
static int64_t strips_in(const struct plan *p, int64_t rows)
{
    return max64(1, rows / (p->strip_rows * p->heads));
}

static void plan_tiles(const struct job *job, struct plan *p)
{
    const attn_op *op = job->op;
    tile_shape(job, p);
    p->n_strips = ceil_div(job->Lq, p->strip_rows);
    int64_t rows = BLOCK_ROWS, units = job->B * op->Hk;
    while (rows > BLOCK_ROWS_MIN &&
           units * ceil_div(p->n_strips, strips_in(p, rows)) < TASKS_ENOUGH)
        rows /= 2;
    p->block_strips = strips_in(p, rows);
    if (op->tiles.block_queries)
        p->block_strips = max64(1, op->tiles.block_queries / p->strip_rows);
    p->strip_rows = min64(p->strip_rows, job->Lq);
    p->n_parts = 1;
    p->part_keys = job->Lk;
}

static void plan_decode(const struct job *job, struct plan *p)
{
    const struct tiles *t = &job->op->tiles;
    p->path = PATH_DECODE;
    p->strip_rows = job->Lq;
    p->n_strips = 1;
    p->block_strips = 1;
    p->tile_keys = forced(t->tile_keys, DECODE_TILE);
    int64_t units = max64(1, min64(job->B * job->op->Hk, TASKS_ENOUGH));
    int64_t parts = min64(ceil_div(job->Lk, PART_KEYS_MIN), ceil_div(TASKS_ENOUGH, units));
    p->part_keys = forced(t->part_keys, ceil_div(job->Lk, max64(parts, 1)));
    p->part_keys = round_up(max64(p->part_keys, 1), p->tile_keys);
    p->n_parts = max64(1, ceil_div(job->Lk, p->part_keys));
}

static bool takes_decode(const struct job *job)
{
    int32_t path = job->op->tiles.path;
    if (path)
        return path == PATH_DECODE;
    return job->Lq == 1 || job->Lq * (job->op->Hq / job->op->Hk) <= DECODE_ROWS;
}

int32_t attn_i_mean_stages(const attn_args *args)
{
    int32_t n = 0;
    for (int s = 0; s < N_STAGES; s++)
        n += args->scores[s] && (args->score_flags[s] & ATTN_MEAN_HEADS);
    return n;
}

void attn_i_carve_thread(const struct job *job, const struct plan *plan, struct carver *c,
                         struct thread_scratch *scratch)
{
    const attn_op *op = job->op;
    bool decode = plan->path == PATH_DECODE;
    int64_t strips = plan->block_strips * plan->heads;
    int64_t rows = min64(plan->block_strips * plan->strip_rows, max64(job->Lq, 1)) * plan->heads;
    int64_t s_rows = decode ? rows : plan->strip_rows;
    int64_t lds = round_up(plan->tile_keys, LANES_MAX);
    scratch->s = attn_i_carve(c, s_rows * lds, sizeof(float));
    scratch->kt = attn_i_carve(c, plan->path == PATH_TILES ? op->Dk * lds : 0, sizeof(float));
    scratch->v_finite = attn_i_carve(c, plan->tile_keys * op->Dv, sizeof(float));
    scratch->m = attn_i_carve(c, rows, sizeof(float));
    scratch->l = attn_i_carve(c, rows, sizeof(float));
    scratch->q_rows = attn_i_carve(c, decode ? rows : 0, sizeof(float *));
    scratch->o_rows = attn_i_carve(c, decode ? rows : 0, sizeof(float *));
    scratch->sight = attn_i_carve(c, plan->strip_rows, sizeof(int32_t[2]));
    scratch->started = attn_i_carve(c, strips, 1);
    int32_t mean = attn_i_mean_stages(job->args);
    int64_t mean_rows;
    if (__builtin_mul_overflow(mean * plan->strip_rows, job->Lk, &mean_rows))
        mean_rows = -1;
    scratch->mean = attn_i_carve(c, mean_rows, sizeof(float));
}

void attn_i_carve_partials(const struct job *job, const struct plan *plan, struct carver *c,
                           struct partials *parts)
{
    int64_t slots = plan->n_parts > 1 ? plan->n_units * plan->n_parts : 0;
    int64_t rows = slots * plan->heads * plan->strip_rows;
    parts->o = attn_i_carve(c, rows, (size_t)job->op->Dv * sizeof(float));
    parts->m = attn_i_carve(c, rows, sizeof(float));
    parts->l = attn_i_carve(c, rows, sizeof(float));
    parts->left = attn_i_carve(c, slots, sizeof(int32_t));
}

/* Estimated time of the run on one thread, to decide how many are worth waking. */
static double work_ns(const struct job *job)
{
    const attn_op *op = job->op;
    double keys = (double)job->Lk;
    if (op->left >= 0 && (op->right >= 0 || is_causal(job)))
        keys = fmin(keys, (double)op->left + (double)max64(op->right, 0) + 1.0);
    double size = (double)(op->Dk + op->Dv);
    double flops = 2.0 * (double)(job->B * op->Hq) * (double)job->Lq * keys * size;
    double bytes = 4.0 * (double)(job->B * op->Hk) * keys * size;
    return fmax(flops / 100.0, bytes / 20.0); /* 100 GF/s, 20 GB/s */
}

static int32_t count_threads(const struct job *job, const struct plan *plan)
{
    double worth = work_ns(job) / THREAD_WORTH_NS;
    int64_t n = min64(job->op->threads, plan->n_tasks);
    if (worth < (double)n)
        n = (int64_t)worth;
    return (int32_t)max64(n, 1);
}

static void measure(const struct job *job, struct plan *p)
{
    struct carver c = {0};
    struct thread_scratch scratch;
    attn_i_carve_thread(job, p, &c, &scratch);
    p->thread_bytes = c.used;
    struct partials parts;
    c.used = 0;
    attn_i_carve_partials(job, p, &c, &parts);
    p->shared_bytes = c.used;
}

static size_t total_bytes(const struct plan *p, int64_t n_threads)
{
    struct carver c = {0};
    attn_i_carve(&c, 1, WORKSPACE_ALIGN); /* memory may begin anywhere */
    attn_i_carve(&c, n_threads, p->thread_bytes);
    attn_i_carve(&c, 1, p->shared_bytes);
    return c.used;
}

size_t attn_i_plan_bytes(const struct plan *plan) { return total_bytes(plan, plan->n_threads); }

attn_status attn_i_plan(const struct job *job, struct plan *plan)
{
    const attn_op *op = job->op;
    bool mean = attn_i_mean_stages(job->args) > 0;
    struct plan p = {.heads = mean ? 1 : op->Hq / op->Hk};
    if (takes_decode(job))
        plan_decode(job, &p);
    else
        plan_tiles(job, &p);
    if (mean)
        p.block_strips = 1;
    p.n_blocks = ceil_div(p.n_strips, p.block_strips);
    p.n_units = job->B * p.n_blocks * (mean ? 1 : op->Hk);
    p.n_tasks = mean ? p.n_units : p.n_units * p.n_parts;
    bool raw = job->args->scores[ATTN_STAGE_RAW] || job->args->scores[ATTN_STAGE_CAPPED];
    p.small_products = p.path == PATH_DECODE || (p.path == PATH_TILES && !raw);
    measure(job, &p);
    p.n_threads = count_threads(job, &p);
    *plan = p;
    return attn_i_plan_bytes(&p) >= WORKSPACE_TOO_LARGE ? ATTN_EOVERFLOW : ATTN_OK;
}

/* Slots for partial results that plan_decode may ask for: its B * Hk * parts stay below
   2 * TASKS_ENOUGH, or there is one part. */
static int64_t most_slots(const struct job *job)
{
    if (job->op->tiles.part_keys)
        return job->B * job->op->Hk * ceil_div(job->Lk, job->op->tiles.part_keys);
    const int64_t cap = 2 * TASKS_ENOUGH;
    return min64(cap, min64(cap, job->B) * min64(cap, job->op->Hk) *
                          min64(cap, ceil_div(job->Lk, PART_KEYS_MIN)));
}

/*
 * An upper bound of both paths in which every quantity grows with B, Lq and Lk,
 * so that one workspace serves every smaller shape, whatever its plan.
 */
attn_status attn_i_workspace(const struct job *job, size_t *bytes)
{
    const attn_op *op = job->op;
    int64_t G = op->Hq / op->Hk;
    struct plan tiles = {.heads = attn_i_mean_stages(job->args) ? 1 : G}, decode = tiles;
    tile_shape(job, &tiles);
    tiles.block_strips = strips_in(&tiles, max64(BLOCK_ROWS, op->tiles.block_queries * G));
    tiles.strip_rows = min64(tiles.strip_rows, job->Lq);
    tiles.n_parts = 1;
    measure(job, &tiles);

    struct job few = *job;
    if (op->tiles.path != PATH_DECODE)
        few.Lq = min64(job->Lq, max64(1, DECODE_ROWS / G));
    plan_decode(&few, &decode);
    decode.n_units = 1;
    decode.n_parts = most_slots(job);
    measure(&few, &decode);

    struct plan both = {
        .thread_bytes = tiles.thread_bytes > decode.thread_bytes ? tiles.thread_bytes
                                                                 : decode.thread_bytes,
        .shared_bytes = decode.shared_bytes,
    };
    double tasks = (double)job->B * (double)op->Hk * ((double)job->Lq + (double)most_slots(job));
    *bytes = total_bytes(&both, tasks < op->threads ? (int64_t)tasks : op->threads);
    return *bytes >= WORKSPACE_TOO_LARGE ? ATTN_EOVERFLOW : ATTN_OK;
}
