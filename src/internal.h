/* SPDX-License-Identifier: MIT */
/*
 * What the files of libattn share. Read in the order of a call:
 * attn.c (exported, with check.c) -> run.c -> engine_blas.c or decode.c ->
 * softmax.c, with plan.c and rules.c beside them.
 */
#ifndef ATTN_INTERNAL_H
#define ATTN_INTERNAL_H

#include "attn.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#define TRY(expr)                        \
    do {                                 \
        attn_status try_ = (expr);       \
        if (try_ != ATTN_OK) return try_; \
    } while (0)

#define REQUIRE(condition, code)         \
    do {                                 \
        if (!(condition)) return (code); \
    } while (0)

static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

/* Rows of score tiles are padded to this many floats: the widest vector. */
#define LANES_MAX 16

/* Text under construction; see attn_explain. */
struct text {
    char *at;
    size_t cap, used;
};
void attn_i_say(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ------------------------------------------- kernels: softmax.c, decode.c */

/* A tile of scores and the running statistics of its rows: kernels->softmax_rows. */
struct softmax_rows {
    int64_t rows, cols;
    float *s;                   /* [rows][lds]: in, scores; out, exp(s - max) */
    int64_t lds;                /* a multiple of LANES_MAX; s is aligned to 64 */
    const int32_t (*sight)[2];  /* per row, the columns [lo, hi) it sees; NULL: all */
    float *m, *l;               /* per row: running maximum and sum */
    float *o;                   /* [rows][ldo]: rescaled where a maximum grew; NULL: none yet */
    int64_t ldo, Dv;
};

/* Products of a few rows with many keys, by vectors: kernels->dot_rows, add_rows. */
struct few_rows {
    int64_t rows, keys, D;
    const float *const *q;      /* dot_rows: rows pointers to D floats */
    float *const *o;            /* add_rows: rows pointers to D floats */
    const float *x;             /* keys (or values): [keys][ldx] */
    int64_t ldx;
    const float *next;          /* what is read after this: prefetched with stride ld_next */
    int64_t ld_next, D_next;
    float scale;                /* dot_rows: s = scale * (q . k) */
    bool first;                 /* add_rows: o = p v, not o += p v */
    float *s;                   /* [rows][lds]: scores or weights */
    int64_t lds;
};

/* The loops that are ours, one table per instruction set. */
struct kernels {
    const char *name;
    int32_t isa;   /* the ATTN_ISA_* bits it needs */
    int32_t width; /* floats in a vector */
    void (*softmax_rows)(const struct softmax_rows *t);
    /* o = o / l, or 0 where l == 0 */
    void (*finish_rows)(int64_t rows, int64_t Dv, float *o, int64_t ldo, const float *l);
    /* o *= c; the rescaling of one row */
    void (*scale_row)(int64_t n, float *o, float c);
    /* acc = a * acc + b * part, each term absent where its factor is 0 */
    void (*merge_row)(int64_t n, float *acc, float a, const float *part, float b);
    /* s in place to exp(s - m) / l; all 0 where l == 0 */
    void (*weights_row)(int64_t n, float *s, float m, float l);
    void (*exp_row)(int64_t n, float *x); /* exp in place, x <= 0 or NaN */
    void (*softcap_row)(int64_t n, float *s, float cap);
    /* masks along a row of keys; stride in elements. -inf in add means "not" */
    void (*mask_add_row)(int64_t n, float *s, const float *mask, int64_t stride);
    void (*mask_bool_row)(int64_t n, float *s, const uint8_t *mask, int64_t stride);
    void (*segment_row)(int64_t n, float *s, const int32_t *ids, int32_t id); /* keep where equal */
    /* s[j] -= slope * |at - j| */
    void (*alibi_row)(int64_t n, float *s, float slope, float at);
    /* how many of n elements are nonzero, or equal to id */
    int64_t (*count_nonzero)(int64_t n, const uint8_t *mask);
    int64_t (*count_equal)(int64_t n, const int32_t *ids, int32_t id);
    void (*transpose)(int64_t rows, int64_t cols, const float *x, int64_t ldx, float *y,
                      int64_t ldy); /* y[c][r] = x[r][c] */
    bool (*all_finite)(int64_t rows, int64_t cols, const float *x, int64_t ldx);
    void (*add_bias)(int64_t rows, int64_t cols, const float *x, int64_t ldx, const float *bias,
                     float *y, int64_t ldy); /* y = x + bias; bias may be NULL */
    void (*dot_rows)(const struct few_rows *t);
    void (*add_rows)(const struct few_rows *t);
};

/* The best table among the ISA bits of mask that this CPU has; never NULL. cpu.c */
const struct kernels *attn_i_kernels(int32_t mask);
/* The CPUs that this process may use, at least 1. */
int32_t attn_i_cpu_count(void);

/* ---------------------------------------------------------- workspace.c */

/* Scratch blocks of an op: a list that only grows; a block is taken by its flag. */
struct scratch {
    struct scratch *next;
    _Atomic int32_t busy;
    _Atomic size_t bytes;
    void *memory; /* from malloc; touched by who holds the block */
};

struct scratch_list {
    struct scratch *_Atomic head;
};

struct scratch *attn_i_scratch_take(struct scratch_list *list, size_t bytes); /* NULL: no memory */
void attn_i_scratch_put(struct scratch *block);
void attn_i_scratch_trim(struct scratch_list *list);
void attn_i_scratch_destroy(struct scratch_list *list);

/* Cuts arrays out of memory, or, with base NULL, only counts how much they need: one function
   does both, so that they cannot disagree. Arrays are aligned to WORKSPACE_ALIGN. */
#define WORKSPACE_ALIGN 64
#define WORKSPACE_TOO_LARGE (SIZE_MAX / 2) /* where counting sticks */
struct carver {
    char *base;
    size_t used;
};
void *attn_i_carve(struct carver *c, int64_t count, size_t element); /* NULL when counting */
void *attn_i_align(void *p); /* up to WORKSPACE_ALIGN */

/* -------------------------------------------------------------- handles */

/* Tile sizes forced by tests; 0: by plan. */
enum { PATH_AUTO = 0, PATH_TILES = 1, PATH_DECODE = 2, PATH_TILES_NT = 3 };
struct tiles {
    int64_t strip_rows, tile_keys, block_queries, part_keys;
    int32_t path;
};

struct attn_op {
    int64_t Hq, Hk, Dk, Dv;
    float scale, softcap;
    int64_t left, right; /* window, -1 unbounded */
    int64_t chunk;       /* 0: none */
    int32_t causal, layout, engine, threads;
    const struct kernels *kernels;
    struct tiles tiles;
    struct scratch_list scratch; /* last: see attn_i_op_settings */
};

void attn_i_op_test_tiles(attn_op *op, struct tiles t);

/* Copy what an op means, not its scratch. */
static inline void attn_i_op_settings(attn_op *to, const attn_op *from)
{
    memcpy(to, from, offsetof(attn_op, scratch));
}

/* A run changes the scratch list of an op, but nothing of what the op means; handles come from
   malloc, so casting const away is sound. */
static inline struct scratch_list *attn_i_scratch_of(const attn_op *op)
{
    return &((attn_op *)(uintptr_t)op)->scratch;
}

struct mask {
    const void *data; /* NULL: none */
    int64_t dims[4], strides[4];
};

#define N_STAGES 4

struct attn_args {
    bool has_strides[4];
    int64_t strides[4][4];
    struct mask mask_bool, mask_add;
    const int32_t *segments_q, *segments_k;
    /* copies of ours, NULL: none; n_* is their number of elements */
    int64_t *key_begin, *key_end, *positions, *offsets_q, *offsets_k;
    int64_t n_range, n_positions, n_sequences_q, n_sequences_k;
    float *slopes, *sinks;
    int64_t n_slopes, n_sinks;
    float *scores[N_STAGES];
    int32_t score_flags[N_STAGES];
    float *lse;
    void *workspace;
    size_t workspace_bytes;
};

/* ------------------------------------------------------------ one run */

/* A tensor of a run: strides of batch, head and length; the inner one is 1. */
struct tensor {
    float *data; /* read only for q, k, v */
    int64_t sb, sh, sl;
};

/* Everything that is fixed during a run. */
struct job {
    const attn_op *op;
    const attn_args *args; /* never NULL */
    int64_t B, Lq, Lk;
    struct tensor q, k, v, out;
};

/* What a batch item, or a sequence of a packed batch, looks like. */
struct item {
    int64_t Lq;         /* its queries */
    int64_t q0, k0;     /* where its rows begin along L: 0, or an offset of a packed side */
    int64_t begin, end; /* keys that any query may see */
    int64_t range_end;  /* end of the keys that exist; end may be less, by a short mask */
    int64_t off;        /* query i stands at key i + off */
};

struct span {
    int64_t lo, hi; /* [lo, hi); empty when lo >= hi */
};

static inline struct span span_and(struct span a, struct span b)
{
    struct span both = {max64(a.lo, b.lo), min64(a.hi, b.hi)};
    return both;
}

/* ------------------------------------------------------------- rules.c */

struct item attn_i_item(const struct job *job, int64_t b);
/* The keys that query i may see, by the rules that are intervals. */
struct span attn_i_row_span(const struct job *job, const struct item *it, int64_t i);
/* The union over queries [i0, i1), i0 < i1. */
struct span attn_i_rows_span(const struct job *job, const struct item *it, int64_t i0, int64_t i1);
/* Does this query see this key? By every rule. */
bool attn_i_visible(const struct job *job, const struct item *it, int64_t b, int64_t h, int64_t i,
                    int64_t j);

/* A strip of scores: `rows` queries of head h from i0 against `cols` keys from j0. */
enum sight { SEES_NONE, SEES_SOME, SEES_ALL };
struct strip {
    int64_t b, h, i0, rows, j0, cols;
    float *s;
    int64_t lds;
    enum sight sight;
};

/* Which keys of a strip do its rows see? SOME is always a correct answer. */
enum sight attn_i_strip_sight(const struct job *job, const struct item *it, const struct strip *t);
/* All rules on the scores of a strip. Unless it SEES_ALL, fills columns with what each row may
   see; a key inside that is hidden all the same has score -inf. */
void attn_i_apply_rules(const struct job *job, const struct item *it, const struct strip *t,
                        int32_t (*columns)[2]);

/* -------------------------------------------------------------- plan.c */

/* How the queries and keys of an item are cut. */
struct cut {
    int32_t path;         /* PATH_TILES, PATH_DECODE or PATH_TILES_NT */
    int64_t strip_rows;   /* queries in a strip, at most; strips share them evenly */
    int64_t tile_keys;    /* keys in a tile; tiles are counted from an item's first key */
    int64_t block_strips; /* strips in one unit of work */
    int64_t part_keys;    /* keys in one part, a multiple of tile_keys */
    int64_t n_parts;      /* parts of a unit, merged in order */
};

struct plan {
    struct cut many, few;   /* for items of many queries, and of few */
    int64_t heads;          /* heads of a block: G, or 1 when heads are averaged */
    int64_t columns;        /* kv heads, or 1 when a unit walks over all heads to average them */
    int64_t n_blocks;       /* units per (item, column); of packed queries the sum over all items */
    int64_t n_units, n_tasks;
    int32_t n_threads;
    bool small_products;    /* every product takes BLAS's small-matrix path */
    size_t thread_bytes;    /* scratch of one thread */
    size_t shared_bytes;    /* partial results of all units */
};

/* The cut for an item of Lq queries. */
const struct cut *attn_i_cut(const struct job *job, const struct plan *plan, int64_t Lq);
/* Blocks of an item of Lq queries; 0 of none. */
int64_t attn_i_item_blocks(const struct job *job, const struct plan *plan, int64_t Lq);

/* First query of strip n of a plan for Lq queries. */
static inline int64_t strip_start(int64_t Lq, int64_t n_strips, int64_t n)
{
    return Lq / n_strips * n + min64(n, Lq % n_strips);
}

/* The scratch of one thread. */
struct thread_scratch {
    float *s;             /* strip_rows x tile_keys, padded: a strip of scores */
    float *kt;            /* Dk x tile_keys: a key tile, transposed */
    float *v_finite;      /* tile_keys x Dv: a value tile with NaN and Inf as 0 */
    float *m, *l;         /* rows of a block */
    float *mean;          /* per averaged stage: strip_rows x Lk */
    const float **q_rows; /* decode: pointers to rows */
    float **o_rows;
    int32_t (*columns)[2]; /* strip_rows */
    uint8_t *started;      /* per strip of a block: is there output already? */
};

/* What the threads of a run share. */
struct shared {
    float *o, *m, *l;      /* partial results, [n_units][n_parts][rows] */
    _Atomic int32_t *left; /* parts of a unit that are not done */
    int64_t *first_block;  /* packed queries: blocks of the sequences before b */
};

attn_status attn_i_plan(const struct job *job, struct plan *plan);
void attn_i_carve_thread(const struct job *job, const struct plan *plan, const struct cut *cut,
                         char *memory, struct thread_scratch *scratch);
void attn_i_carve_shared(const struct job *job, const struct plan *plan, struct carver *c,
                         struct shared *shared);
/* Bytes that the run takes with this plan. */
size_t attn_i_plan_bytes(const struct plan *plan);
/* What a caller's workspace must hold: grows with every size, never less than the plan's. */
attn_status attn_i_workspace(const struct job *job, size_t *bytes);
int32_t attn_i_mean_stages(const attn_args *args); /* how many stages are averaged */

/* --------------------------------------------------------------- run.c */

/* A query block: the queries of strips [s0, s1) of one item, of `heads` heads from h0 that share
   one kv head, against the keys of one part. The unit of work, and the seam between run.c and
   the engines. Row g * nq + i of a block is query i0 + i of head h0 + g. */
struct block {
    const struct job *job;
    const struct cut *cut;
    struct item item;
    int64_t b, hk, h0, heads;
    int64_t n_strips;        /* of the item */
    int64_t s0, s1, i0, nq;
    struct span keys;        /* the part; strips look at their own span of it */
    bool first_part;
    float *o;                /* unnormalized output, of head h0 and query i0 */
    int64_t o_head, o_row;   /* its strides */
    float *m, *l;            /* running maximum and sum: -inf and 0 at the start */
    float *scores[N_STAGES]; /* where a stage of (h0, i0) goes, or NULL */
    int64_t scores_head;     /* its stride of heads; rows are Lk apart */
    struct thread_scratch *scratch;
};

attn_status attn_i_run(const struct job *job, const struct plan *plan, struct scratch_list *list);
/* The same in memory of attn_i_plan_bytes. */
void attn_i_run_in(const struct job *job, const struct plan *plan, void *memory);

/* Engines: attend one block. O, m, l are unnormalized results afterwards; rows that saw nothing
   have l = 0, and their o means nothing. */
void attn_i_blas_attend(const struct block *blk);   /* engine_blas.c */
void attn_i_decode_attend(const struct block *blk); /* engine_decode.c */

/* ------------------------------------------------- strip.c: shared by engines */

/* Keys and values [j0, j0 + count) of a kv head: the one place that knows where they lie. */
struct kv_tile {
    const float *k, *v;
    int64_t ldk, ldv, j0, count;
};
struct kv_tile attn_i_kv_tile(const struct block *blk, int64_t j0, int64_t count);
/* The tile with non-finite values as 0, in scratch. */
struct kv_tile attn_i_finite_values(const struct block *blk, const struct kv_tile *tile);
bool attn_i_values_finite(const struct block *blk, const struct kv_tile *tile);

/* Where the queries of a strip lie; rows are q.sl apart. */
const float *attn_i_queries(const struct block *blk, int64_t g, int64_t i0);
/* A strip that sees nothing: only its score outputs. */
void attn_i_strip_skip(const struct block *blk, const struct strip *t);
/* Rules, softmax and score outputs of one strip; rows of m, l begin at row0 of the block; o is
   rescaled when not NULL. */
void attn_i_strip_softmax(const struct block *blk, const struct strip *t, int64_t row0, float *o);
/* Add weight * value of each non-finite value of the tile to the rows that see its key. */
void attn_i_strip_repair(const struct block *blk, const struct strip *t,
                         const struct kv_tile *tile, float *o);
/* Where raw scores of query i (counted from i0) and head h0 + g go; NULL: nobody asked. */
float *attn_i_raw_scores(const struct block *blk, int64_t g, int64_t i);
/* Fill the raw and capped outputs of a block from its raw scores of all keys in the range. */
void attn_i_finish_raw(const struct block *blk);

/* -------------------------------------------------------------- blas.c */

/* c = alpha a b + beta c, or alpha a b^T + beta c; row-major; sizes >= 1 and within blasint. */
struct product {
    int64_t m, n, k;
    float alpha, beta;
    const float *a, *b;
    float *c;
    int64_t lda, ldb, ldc;
    bool b_transposed;
};
void attn_i_sgemm(const struct product *p);

/* Multiply-adds of an NN product up to which OpenBLAS takes its small-matrix path. */
#define SMALL_PRODUCT 1000000

attn_status attn_i_blas_init(void); /* once a process; the same answer ever after */
bool attn_i_blas_small_path(void);  /* does this BLAS core have a small-matrix path? */
void attn_i_blas_describe(struct text *text);
/* Around every run. With small products only, nothing of BLAS needs to be set. */
void attn_i_blas_enter(bool small_products);
void attn_i_blas_leave(bool small_products);
/* Around the products that one thread makes in a run; leave gets what enter gave. */
int32_t attn_i_blas_thread_enter(void);
void attn_i_blas_thread_leave(int32_t saved);
/* Called by threads.c around fork. */
void attn_i_blas_before_fork(void);
void attn_i_blas_after_fork(bool child);

/* ------------------------------------------------------------ threads.c */

/* fn(context, worker, task) for every task in [0, n_tasks) on at most n_threads threads, the
   caller's among them as worker 0; worker < n_threads. Returns when all are done. */
typedef void (*attn_i_task)(void *context, int32_t worker, int64_t task);
void attn_i_parallel(int32_t n_threads, int64_t n_tasks, attn_i_task fn, void *context);
void attn_i_fork_init(void); /* register the fork handlers, once */

/* -------------------------------------------------------------- check.c */

/* Check the arguments of a run and fill job; the words about an error go to why, if not NULL. */
attn_status attn_i_check_run(const attn_op *op, int64_t B, int64_t Lq, int64_t Lk, const void *q,
                             const void *k, const void *v, const void *out, const attn_args *args,
                             struct job *job, struct text *why);
/* The part of it that needs no tensor. */
attn_status attn_i_check_sizes(const attn_op *op, int64_t B, int64_t Lq, int64_t Lk,
                               const attn_args *args, struct job *job, struct text *why);
/* The arguments of a layer's run, job filled by attn_i_check_sizes. x_kv: given, or x_q. */
attn_status attn_i_check_layer(const struct job *job, const int64_t widths[3], const float *x_q,
                               const float *x_kv, const float *out);
/* Those of a projection; y is filled with the strides to use. */
attn_status attn_i_check_project(const int64_t sizes[4], int64_t E, const float *x, float *y,
                                 const int64_t y_strides[4], struct tensor *to);
extern const attn_args attn_i_no_args;

#endif
