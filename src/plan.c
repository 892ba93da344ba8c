/* SPDX-License-Identifier: MIT */
/*
 * How a run is cut: path, strips of queries, tiles and parts of keys, units of
 * work. All of it follows from shapes, options, ISA and the name of the BLAS
 * core, never from the thread count or a timing, so that the bits do not either.
 */
#include "blas.h"
#include "job.h"

#include <math.h>

/* Rows of a kv head (queries x heads of its group) up to which the vector products of decode.c
   are taken: a GEMM of so few rows wastes most of its register tile. */
#define DECODE_ROWS 16
#define DECODE_TILE 128 /* keys: scores of 16 rows stay in L1 beside the key rows in flight */
/* Keys below which a part is not worth its merge, and tasks that are enough for any machine
   that we know: parts are cut until there are so many. */
#define PART_KEYS_MIN 512
#define TASKS_ENOUGH 32

/* A strip of scores stays in L1 between its two products and the softmax: 16 rows of 448 keys, or
   up to 60 of fewer. Measured against 60 x 256 (30 x 256 causal), both within SMALL_PRODUCT, Zen
   4: causal x1.03 to 1.09, dense x1.01 to 1.04, 4 x 197 x 64 x1.06 (with whole register tiles); 8
   to 48 rows and 192 to 512 keys lie between; 512, a power of two, loses to its own stride. */
#define STRIP_SCORES (16 * 448)
#define STRIP_ROWS 60
#define STRIP_ROWS_MIN 16
#define TILE_KEYS 448
#define TILE_KEYS_MIN 64
/* Without the small path BLAS packs both operands of each call: larger tiles. */
#define STRIP_ROWS_NT 256
#define TILE_KEYS_NT 256
/* Measured under the Haswell core against 128 x 256, 48 to 512 rows and 192 to 512 keys: 12 x 128
   x 64 x1.20, 12 x 384 x1.08, 12 x 1024 x1.01, 4 x 2048 x 128 x1.06, 4 x 4096 x 64 x1.00. */
#define STRIP_ROWS_NT_CAUSAL 96
#define TILE_KEYS_NT_CAUSAL 384
/* The vector engine: the panels of a block share a key tile (8 for 4: x1.02 at D 64, x1.05 at D
   128; fewer where there are few tasks; 4 to 16 are equal on Emerald Rapids) and stay in L2. Keys:
   64 to 256 are flat within 2 % around it with two vectors in a panel (Zen 4), and with three; 192
   against 106, which is no multiple of a register tile, x1.02 to 1.03 (Emerald Rapids). */
#define VECTOR_PANELS 8
#define VECTOR_PANELS_MIN 4
#define VECTOR_FLOATS (64 * 1024)
#define VECTOR_KEYS 192
/* Up to how many queries the last ones, which fill little of a vector, go the way of few: of 49 =
   48 + 1 and 197 = 192 + 5. More of them hide the waste. */
#define REST_QUERIES 1024
/* Query rows of all heads of a block: what shares one transposed key tile. */
#define BLOCK_ROWS 960
#define BLOCK_ROWS_MIN 240

static bool is_causal(const struct job *job) { return job->op->causal != ATTN_CAUSAL_NONE; }

/* Strips and tiles of the small-matrix path against up to Lk keys; false when D is too large for
   it. Small strips waste less on the diagonal of a causal rule, and cost more calls. */
static bool small_shape(const struct job *job, int64_t Lk, int64_t *rows, int64_t *keys)
{
    int64_t D = max64(job->op->Dk, round_up(job->op->Dv, LANES_MAX));
    *keys = min64(TILE_KEYS, SMALL_PRODUCT / (STRIP_ROWS_MIN * D) / LANES_MAX * LANES_MAX);
    int64_t used = max64(1, min64(*keys, round_up(Lk, LANES_MAX)));
    *rows = min64(STRIP_SCORES / used, SMALL_PRODUCT / (used * D));
    *rows = max64(STRIP_ROWS_MIN, min64(*rows / 4 * 4, STRIP_ROWS));
    if (is_causal(job)) *rows = STRIP_ROWS_MIN;
    return *keys >= TILE_KEYS_MIN;
}

static int64_t forced(int64_t by_test, int64_t by_plan)
{
    return by_test > 0 ? by_test : by_plan;
}

/* Queries of a block that fill whole vectors together with those of all its heads. */
static int64_t vector_unit(const struct job *job, int64_t heads)
{
    int64_t unit = job->op->kernels->width;
    while (unit > 1 && heads % 2 == 0) {
        unit /= 2;
        heads /= 2;
    }
    return unit;
}

/* Strips of the vector engine are whole blocks. */
static struct cut vector_shape(const struct job *job, int64_t heads)
{
    const attn_op *op = job->op;
    int64_t lanes = panel_lanes(op);
    int64_t panels = min64(VECTOR_PANELS, VECTOR_FLOATS / (lanes * (op->Dk + op->Dv)));
    struct cut cut = {
        .path = PATH_VECTOR,
        .strip_rows = forced(op->tiles.strip_rows, max64(1, max64(panels, 1) * lanes / heads)),
        .strip_unit = vector_unit(job, heads),
        .tile_keys = forced(op->tiles.tile_keys, VECTOR_KEYS),
        .block_strips = 1,
        .n_parts = 1,
        .part_keys = INT64_MAX,
    };
    return cut;
}

/* May a block of the vector engine have half the rows? */
static bool can_halve(const struct job *job, int64_t rows, int64_t heads)
{
    int64_t least = max64(1, VECTOR_PANELS_MIN * panel_lanes(job->op) / heads);
    return !job->op->tiles.strip_rows && rows / 2 >= least;
}

/* Fewer rows in a block where there would be few blocks. */
static void share_vector(const struct job *job, struct cut *cut, int64_t heads, int64_t Lq)
{
    int64_t units = job->B * job->op->Hk;
    while (can_halve(job, cut->strip_rows, heads) &&
           units * ceil_div(Lq, cut->strip_rows) < TASKS_ENOUGH)
        cut->strip_rows /= 2;
    cut->strip_rows = min64(cut->strip_rows, Lq);
}

/* Largest strips and tiles of the tile path for this op and up to Lk keys. */
static struct cut tile_shape(const struct job *job, int64_t heads, int64_t Lk)
{
    if (job->op->engine == ATTN_ENGINE_VECTOR) return vector_shape(job, heads);
    const struct tiles *t = &job->op->tiles;
    int64_t rows, keys;
    bool small = small_shape(job, Lk, &rows, &keys) && attn_i_blas_small_path();
    if (t->path) small = t->path == PATH_TILES;
    if (!small) {
        rows = is_causal(job) ? STRIP_ROWS_NT_CAUSAL : STRIP_ROWS_NT;
        keys = is_causal(job) ? TILE_KEYS_NT_CAUSAL : TILE_KEYS_NT;
    }
    struct cut cut = {
        .path = small ? PATH_TILES : PATH_TILES_NT,
        .strip_unit = 4, /* rows of a register tile */
        .strip_rows = forced(t->strip_rows, rows),
        .tile_keys = forced(t->tile_keys, max64(keys, LANES_MAX)),
        .n_parts = 1,
        .part_keys = INT64_MAX,
    };
    return cut;
}

/* Strips in a block of at most this many rows of all its heads. */
static int64_t strips_in(const struct cut *cut, int64_t heads, int64_t rows)
{
    return max64(1, rows / (cut->strip_rows * heads));
}

/* For items of up to Lq queries and Lk keys. */
static struct cut cut_many(const struct job *job, int64_t heads, int64_t Lq, int64_t Lk)
{
    const attn_op *op = job->op;
    struct cut cut = tile_shape(job, heads, Lk);
    if (cut.path == PATH_VECTOR) {
        share_vector(job, &cut, heads, Lq);
        return cut;
    }
    int64_t rows = BLOCK_ROWS, units = job->B * op->Hk, n_strips = ceil_div(Lq, cut.strip_rows);
    while (rows > BLOCK_ROWS_MIN &&
           units * ceil_div(n_strips, strips_in(&cut, heads, rows)) < TASKS_ENOUGH)
        rows /= 2;
    cut.block_strips = strips_in(&cut, heads, rows);
    if (op->tiles.block_queries)
        cut.block_strips = max64(1, op->tiles.block_queries / cut.strip_rows);
    cut.strip_rows = min64(cut.strip_rows, Lq);
    return cut;
}

/* For items of up to Lq queries and Lk keys. */
static struct cut cut_few(const struct job *job, int64_t Lq, int64_t Lk)
{
    const struct tiles *t = &job->op->tiles;
    struct cut cut = {
        .path = PATH_DECODE,
        .strip_rows = Lq,
        .strip_unit = 1,
        .tile_keys = forced(t->tile_keys, DECODE_TILE),
        .block_strips = 1,
    };
    int64_t units = max64(1, min64(job->B * job->op->Hk, TASKS_ENOUGH));
    int64_t parts = min64(ceil_div(Lk, PART_KEYS_MIN), ceil_div(TASKS_ENOUGH, units));
    cut.part_keys = forced(t->part_keys, ceil_div(Lk, max64(parts, 1)));
    cut.part_keys = round_up(max64(cut.part_keys, 1), cut.tile_keys);
    cut.n_parts = max64(1, ceil_div(Lk, cut.part_keys));
    return cut;
}

/* Rows of all heads that go through the kernels for few rather than fill a part of a vector: 5 of
   16, 3 of 8. One row is x1.05 to 1.15 (193 and 49 queries, heads of 32 to 128), 5 of 16 x1.01 to
   1.09, 6 x0.99 to 1.08; 3 of 8 x1.02 to 1.06 (Emerald Rapids). */
static int64_t rest_rows(const attn_op *op) { return op->kernels->width / 4 + 1; }

static struct cut cut_rest(const struct job *job, int64_t heads, int64_t Lq, int64_t Lk)
{
    struct cut cut = cut_few(job, min64(max64(1, rest_rows(job->op) / heads), Lq), Lk);
    cut.n_parts = 1;
    cut.part_keys = INT64_MAX;
    return cut;
}

static bool takes_few(const struct job *job, int64_t Lq)
{
    int32_t path = job->op->tiles.path;
    if (path) return path == PATH_DECODE;
    return Lq == 1 || Lq * (job->op->Hq / job->op->Hk) <= DECODE_ROWS;
}

const struct cut *attn_i_cut(const struct job *job, const struct plan *plan, int64_t Lq)
{
    return takes_few(job, Lq) ? &plan->few : &plan->many;
}

int64_t attn_i_rest(const struct job *job, const struct plan *plan, int64_t Lq)
{
    const struct cut *cut = attn_i_cut(job, plan, Lq);
    if (cut->path != PATH_VECTOR || Lq > REST_QUERIES) return 0;
    /* G, not plan->heads: asking for an average over heads changes no bits */
    int64_t G = job->op->Hq / job->op->Hk, rest = Lq % vector_unit(job, G);
    return rest < Lq && rest * G <= rest_rows(job->op) ? rest : 0;
}

int32_t attn_i_mean_stages(const attn_args *args)
{
    int32_t n = 0;
    for (int s = 0; s < N_STAGES; s++)
        n += args->scores[s] && (args->score_flags[s] & ATTN_MEAN_HEADS);
    return n;
}

bool attn_i_pads_values(const attn_op *op, const struct cut *cut)
{
    int64_t rest = op->Dv % LANES_MAX;
    return cut->path == PATH_TILES && rest >= 1 && rest <= 8;
}

/* -------------------------------------------------------------- the plan */

/* Estimated time of the run on one thread. */
static double work_ns(const struct job *job)
{
    const attn_op *op = job->op;
    const attn_args *args = job->args;
    double keys = (double)job->Lk;
    if (op->left >= 0 && (op->right >= 0 || is_causal(job)))
        keys = fmin(keys, (double)op->left + (double)max64(op->right, 0) + 1.0);
    if (op->chunk > 0) keys = fmin(keys, (double)op->chunk);
    double B = (double)job->B, size = (double)(op->Dk + op->Dv);
    double queries = args->offsets_q ? (double)job->Lq : B * (double)job->Lq;
    if (args->offsets_k) /* as if all sequences were of one length */
        keys /= B;
    double flops = 2.0 * (double)op->Hq * queries * keys * size;
    double bytes = 4.0 * B * (double)op->Hk * keys * size;
    return fmax(flops / FLOPS_PER_NS, bytes / 20.0); /* 20 GB/s */
}

/* Bytes of all tensors from which on a unit fetches for the next: they lie beyond L2. 32 x 12 x
   128 x 64, of 50 MB, x1.12 to 1.16, 8 x 12 x 384 x 64, of 38 MB, x1.03 to 1.07, packed sequences
   of 25 MB x1.05 to 1.1, 12 x 384 x 64, of 4.7 MB, x1.00; below that it costs up to 4 % (Emerald
   Rapids, one and two threads). */
#define FETCH_BYTES 6e6

static bool is_large(const struct job *job)
{
    const attn_op *op = job->op;
    double queries = (double)job->Lq * (job->args->offsets_q ? 1.0 : (double)job->B);
    double keys = (double)job->Lk * (job->args->offsets_k ? 1.0 : (double)job->B);
    double rows = queries * (double)op->Hq + keys * (double)op->Hk;
    return rows * (double)(op->Dk + op->Dv) * sizeof(float) >= FETCH_BYTES;
}

/* The longest sequences of each kind, and the blocks of all. */
struct lengths {
    int64_t Lq_many, Lq_few, Lk; /* 0: none of that kind */
    int64_t n_blocks;
};

static struct lengths measure_items(const struct job *job)
{
    struct lengths most = {.Lk = job->Lk};
    const attn_args *args = job->args;
    if (args->offsets_k) {
        most.Lk = 0;
        for (int64_t b = 0; b < job->B; b++)
            most.Lk = max64(most.Lk, args->offsets_k[b + 1] - args->offsets_k[b]);
    }
    for (int64_t b = 0; b < (args->offsets_q ? job->B : 1); b++) {
        int64_t Lq = args->offsets_q ? args->offsets_q[b + 1] - args->offsets_q[b] : job->Lq;
        int64_t *kind = takes_few(job, Lq) ? &most.Lq_few : &most.Lq_many;
        *kind = max64(*kind, Lq);
    }
    return most;
}

int64_t attn_i_item_blocks(const struct job *job, const struct plan *plan, int64_t Lq)
{
    const struct cut *cut = attn_i_cut(job, plan, Lq);
    if (Lq == 0) return 0;
    if (cut->path == PATH_DECODE) return 1;
    Lq -= attn_i_rest(job, plan, Lq);
    return ceil_div(ceil_div(Lq, cut->strip_rows), cut->block_strips);
}

static void count_work(const struct job *job, struct plan *p)
{
    const attn_args *args = job->args;
    p->n_blocks = args->offsets_q ? 0 : attn_i_item_blocks(job, p, job->Lq);
    for (int64_t b = 0; b < job->B && args->offsets_q; b++)
        p->n_blocks += attn_i_item_blocks(job, p, args->offsets_q[b + 1] - args->offsets_q[b]);
    p->n_units = p->n_blocks * p->columns * (args->offsets_q ? 1 : job->B);
    bool whole = attn_i_mean_stages(args) > 0; /* a unit does all its parts itself */
    p->n_tasks = whole ? p->n_units : p->n_units * p->few.n_parts;
}

/* What a thread needs that goes by either cut. */
static size_t most_bytes(const struct job *job, const struct cut *a, const struct cut *b,
                         int64_t heads)
{
    size_t bytes_a = attn_i_cut_bytes(job, a, heads), bytes_b = attn_i_cut_bytes(job, b, heads);
    return bytes_a > bytes_b ? bytes_a : bytes_b;
}

attn_status attn_i_plan(const struct job *job, struct plan *plan)
{
    const attn_op *op = job->op;
    const attn_args *args = job->args;
    bool mean = attn_i_mean_stages(args) > 0;
    struct plan p = {.heads = mean ? 1 : op->Hq / op->Hk, .columns = mean ? 1 : op->Hk};
    struct lengths most = measure_items(job);
    p.few.n_parts = 1;
    p.small_products = true;
    if (most.Lq_many > 0) {
        p.many = cut_many(job, p.heads, most.Lq_many, most.Lk);
        if (mean) p.many.block_strips = 1;
        bool raw = args->scores[ATTN_STAGE_RAW] || args->scores[ATTN_STAGE_CAPPED];
        bool small = p.many.path == PATH_TILES && !raw && attn_i_blas_small_path();
        p.small_products = small || p.many.path == PATH_VECTOR; /* which makes none */
        p.rest = cut_rest(job, p.heads, most.Lq_many, most.Lk);
        p.thread_bytes = most_bytes(job, &p.many, &p.rest, p.heads);
    }
    if (most.Lq_few > 0) {
        p.few = cut_few(job, most.Lq_few, most.Lk);
        if (args->offsets_q) { /* items of both kinds may be there: no parts */
            p.few.n_parts = 1;
            p.few.part_keys = INT64_MAX;
        }
        size_t bytes = attn_i_cut_bytes(job, &p.few, p.heads);
        p.thread_bytes = bytes > p.thread_bytes ? bytes : p.thread_bytes;
    }
    count_work(job, &p);
    struct carver c = {0};
    struct shared shared;
    attn_i_carve_shared(job, &p, &c, &shared);
    p.shared_bytes = c.used;
    p.crew = attn_i_crew(work_ns(job), op->threads, p.n_tasks);
    p.fetches_next = p.many.path == PATH_VECTOR && is_large(job);
    *plan = p;
    return attn_i_plan_bytes(&p) >= WORKSPACE_TOO_LARGE ? ATTN_EOVERFLOW : ATTN_OK;
}

/* ---------------------------------------------------------- the workspace */

/* Slots for partial results that cut_few may ask for: its B * Hk * parts stay below
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
    bool mean = attn_i_mean_stages(job->args) > 0;
    int64_t heads = mean ? 1 : G;
    struct cut many = tile_shape(job, heads, job->Lk);
    if (many.path == PATH_TILES) /* few rows make many strips */
        many.strip_rows = forced(op->tiles.strip_rows, STRIP_ROWS_MIN);
    int64_t rows = many.strip_rows; /* of a block, at least */
    while (many.path == PATH_VECTOR && can_halve(job, rows, heads)) rows /= 2;
    int64_t most_blocks = ceil_div(job->Lq, rows) + 1; /* of an item, on average */
    if (many.path != PATH_VECTOR)
        many.block_strips =
            strips_in(&many, heads, max64(BLOCK_ROWS, op->tiles.block_queries * G));
    many.strip_rows = min64(tile_shape(job, heads, 1).strip_rows, job->Lq);

    int64_t Lq = min64(job->Lq, max64(DECODE_ROWS / G, max64(1, rest_rows(op) / heads)));
    struct cut few = cut_few(job, op->tiles.path == PATH_DECODE ? job->Lq : Lq, job->Lk);

    struct carver c = {0};
    struct shared shared;
    int64_t slots = most_slots(job);
    attn_i_carve_slots(job, slots > 1 ? slots : 0, heads * few.strip_rows, &c, &shared);
    double tasks = (double)job->B * (double)op->Hk * (double)most_blocks + (double)slots;
    *bytes = attn_i_total_bytes(most_bytes(job, &many, &few, heads), c.used,
                                tasks < op->threads ? (int64_t)tasks : op->threads);
    return *bytes >= WORKSPACE_TOO_LARGE ? ATTN_EOVERFLOW : ATTN_OK;
}
