/* SPDX-License-Identifier: MIT */
/*
 * One run: what it is (job), how it is cut (plan), what its rules let through,
 * and the block of queries that run.c hands to an engine.
 */
#ifndef ATTN_JOB_H
#define ATTN_JOB_H

#include "internal.h"

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
struct span attn_i_rows_span(const struct job *job, const struct item *it, int64_t i0,
                             int64_t i1);
/* Does this query see this key? By every rule. */
bool attn_i_visible(const struct job *job, const struct item *it, int64_t b, int64_t h, int64_t i,
                    int64_t j);

/* i + off - j as a float. */
float attn_i_distance(const struct item *it, int64_t i, int64_t j);
/* Elements of the masks, which must be there. */
const uint8_t *attn_i_bool_at(const struct job *job, int64_t b, int64_t h, int64_t i, int64_t j);
const float *attn_i_add_at(const struct job *job, int64_t b, int64_t h, int64_t i, int64_t j);
/* Segments of a query, and of the keys from j on. */
int32_t attn_i_query_segment(const struct job *job, const struct item *it, int64_t b, int64_t i);
const int32_t *attn_i_key_segments(const struct job *job, const struct item *it, int64_t b,
                                   int64_t j);

/* A strip of scores: `rows` queries of head h from i0 against `cols` keys from j0. */
struct strip {
    int64_t b, h, i0, rows, j0, cols;
    float *s;
    int64_t lds;
    enum sight sight;
};

/* The factor of a score product, and what is left to do to n raw scores, and for the softcap. */
float attn_i_alpha(const attn_op *op);
void attn_i_scale_row(const attn_op *op, int64_t n, float *s);
void attn_i_cap_row(const attn_op *op, int64_t n, float *s);

/* Which keys of a strip do its rows see? SOME is always a correct answer. */
enum sight attn_i_strip_sight(const struct job *job, const struct item *it,
                              const struct strip *t);
/* All rules on the scores of a strip. Unless it SEES_ALL, fills columns with what each row may
   see; a key inside that is hidden all the same has score -inf. */
void attn_i_apply_rules(const struct job *job, const struct item *it, const struct strip *t,
                        int32_t (*columns)[2]);

/* -------------------------------------------------------------- plan.c */

/* How the queries and keys of an item are cut. */
struct cut {
    int32_t path;         /* PATH_TILES, PATH_TILES_NT, PATH_VECTOR or PATH_DECODE */
    int64_t strip_rows;   /* queries in a strip, at most */
    int64_t strip_unit;   /* its queries are a multiple of this where there is a choice */
    int64_t tile_keys;    /* keys in a tile; tiles are counted from an item's first key */
    int64_t block_strips; /* strips in one unit of work */
    int64_t part_keys;    /* keys in one part, a multiple of tile_keys */
    int64_t n_parts;      /* parts of a unit, merged in order */
};

struct plan {
    struct cut many, few; /* for items of many queries, and of few */
    struct cut rest;      /* the last queries of many, if not all go through many */
    int64_t heads;        /* heads of a block: G, or 1 when heads are averaged */
    int64_t columns;      /* kv heads, or 1 when a unit walks over all heads to average them */
    int64_t n_blocks;     /* units per (item, column); of packed queries the sum over all items */
    int64_t n_units, n_tasks;
    struct crew crew;
    bool small_products; /* every product takes BLAS's small-matrix path */
    bool fetches_next;   /* units of several panels fetch for the next one */
    size_t thread_bytes; /* scratch of one thread */
    size_t shared_bytes; /* partial results of all units */
};

/* The cut for an item of Lq queries. */
const struct cut *attn_i_cut(const struct job *job, const struct plan *plan, int64_t Lq);
/* How many of the Lq queries of an item, the last ones, are left to plan->rest. */
int64_t attn_i_rest(const struct job *job, const struct plan *plan, int64_t Lq);
/* Blocks of an item of Lq queries; 0 of none. The last does the rest, too. */
int64_t attn_i_item_blocks(const struct job *job, const struct plan *plan, int64_t Lq);

/* Queries in a full panel of the vector engine. */
static inline int64_t panel_lanes(const attn_op *op)
{
    return (int64_t)op->kernels->width * PANEL_VECTORS;
}

/* Keys in a strip of the vector engine: its rows, and the lanes they came from, stay in L1. */
#define STRIP_KEYS 64

/* Keys in a tile, at most. The vector engine makes no tile of its own of a short rest (197 keys:
   x1.02, Zen 4). */
static inline int64_t longest_tile(const struct cut *cut)
{
    return cut->tile_keys + (cut->path == PATH_VECTOR ? cut->tile_keys / 4 : 0);
}

/* Queries in each strip but the last of an item of Lq > 0: about even shares of whole units. */
static inline int64_t strip_height(const struct cut *cut, int64_t Lq)
{
    int64_t share = ceil_div(Lq, ceil_div(Lq, cut->strip_rows));
    return min64(round_up(share, cut->strip_unit), cut->strip_rows);
}

/* The scratch of one thread. */
struct thread_scratch {
    float *s;             /* strip_rows x tile_keys, padded: a strip of scores */
    float *kt;            /* Dk x tile_keys: a key tile, transposed */
    float *v_copy;        /* tile_keys x padded Dv: a value tile, see attn_i_copy_values */
    float *k_copy;        /* of the vector engine: tile_keys x Dk */
    float *o_tile;        /* strip_rows x padded Dv, where attn_i_pads_values */
    float *m, *l;         /* rows of a block */
    float *mean;          /* per averaged stage: strip_rows x Lk */
    const float **q_rows; /* decode and vector: pointers to rows */
    float **o_rows;
    int32_t (*columns)[2]; /* strip_rows */
    uint8_t *started;      /* per strip of a block: is there output already? */
    /* vector: panels of queries and of output; for one panel the maxima, what its lanes see,
       their rules, and STRIP_KEYS keys of scores row by row */
    float *q_panels, *o_panels, *top, *slopes, *at, *strip;
    int32_t *lo, *hi, *id;
    const uint8_t **keep;
    const float **add;
};

/* What the threads of a run share. */
struct shared {
    float *o, *m, *l;      /* partial results, [n_units][n_parts][rows] */
    _Atomic int32_t *left; /* parts of a unit that are not done */
    int64_t *first_block;  /* packed queries: blocks of the sequences before b */
};

attn_status attn_i_plan(const struct job *job, struct plan *plan);
/* Must the value products of this cut have columns to spare? See engine_blas.c. */
bool attn_i_pads_values(const attn_op *op, const struct cut *cut);
/* What a caller's workspace must hold: grows with every size, never less than the plan's. */
attn_status attn_i_workspace(const struct job *job, size_t *bytes);
int32_t attn_i_mean_stages(const attn_args *args); /* how many stages are averaged */

/* ------------------------------------------------------------- carve.c */

void attn_i_carve_thread(const struct job *job, const struct plan *plan, const struct cut *cut,
                         char *memory, struct thread_scratch *scratch);
void attn_i_carve_shared(const struct job *job, const struct plan *plan, struct carver *c,
                         struct shared *shared);
/* Bytes that the run takes with this plan. */
size_t attn_i_plan_bytes(const struct plan *plan);
/* For a bound of it: one thread's part for a cut, slots of so many rows for the results of parts,
   and the whole. */
size_t attn_i_cut_bytes(const struct job *job, const struct cut *cut, int64_t heads);
void attn_i_carve_slots(const struct job *job, int64_t slots, int64_t rows, struct carver *c,
                        struct shared *shared);
size_t attn_i_total_bytes(size_t thread_bytes, size_t shared_bytes, int64_t n_threads);

/* --------------------------------------------------------------- run.c */

/* A query block: the queries of strips [s0, s1) of one item, of `heads` heads from h0 that share
   one kv head, against the keys of one part. The unit of work, and the seam between run.c and
   the engines. Row g * nq + i of a block is query i0 + i of head h0 + g. */
struct block {
    const struct job *job;
    const struct cut *cut;
    struct item item;
    int64_t b, hk, h0, heads;
    int64_t strip_rows; /* queries in each strip but the last of the item */
    int64_t s0, s1, i0, nq;
    struct span keys; /* the part; strips look at their own span of it */
    bool first_part;
    float *o;                /* unnormalized output, of head h0 and query i0 */
    int64_t o_head, o_row;   /* its strides */
    float *m, *l;            /* running maximum and sum: -inf and 0 at the start */
    float *scores[N_STAGES]; /* where a stage of (h0, i0) goes, or NULL */
    int64_t scores_head;     /* its stride of heads; rows are Lk apart */
    struct thread_scratch *scratch;
    const struct block *next; /* what this thread may well do next, to be fetched; or NULL */
};

attn_status attn_i_run(const struct job *job, const struct plan *plan, struct scratch_list *list);
/* The same in memory of attn_i_plan_bytes. */
void attn_i_run_in(const struct job *job, const struct plan *plan, void *memory);

/* Engines: attend one block. O, m, l are unnormalized results afterwards; rows that saw nothing
   have l = 0, and their o means nothing. */
void attn_i_blas_attend(const struct block *blk);   /* engine_blas.c */
void attn_i_vector_attend(const struct block *blk); /* engine_vector.c */
void attn_i_vector_finish(
    const struct block *blk); /* its O, which is in panels, into the output */
void attn_i_decode_attend(const struct block *blk); /* engine_decode.c */

/* ------------------------------------------------- strip.c: shared by engines */

/* Keys and values [j0, j0 + count) of a kv head: the one place that knows where they lie. */
struct kv_tile {
    const float *k, *v;
    int64_t ldk, ldv, j0, count;
};
struct kv_tile attn_i_kv_tile(const struct block *blk, int64_t j0, int64_t count);
/* The tile with rows of ld floats, 0 behind Dv, in scratch; finite: with NaN and Inf as 0. */
struct kv_tile attn_i_copy_values(const struct block *blk, const struct kv_tile *tile, int64_t ld,
                                  bool finite);
bool attn_i_values_finite(const struct block *blk, const struct kv_tile *tile);

/* Are rows of this size, ld apart, to be copied before a block meets them? */
bool attn_i_rows_alias(const struct block *blk, int64_t ld, int64_t size);

/* A tile, and what was found out about its values: kv is given, the rest begins as 0. */
struct kv_state {
    struct kv_tile kv, copy, keys; /* keys: of the vector engine, K as panels read it */
    enum copied { NOTHING, AS_IS, WITHOUT_NAN } copied;
    enum finiteness { UNKNOWN, FINITE, NOT_FINITE } values;
};
/* 0 * NaN is NaN: values that are not finite must not meet rows that do not see their key. */
bool attn_i_has_nan(const struct block *blk, struct kv_state *tile);
/* The values as a strip needs them: in place, or as a copy made at most once for strips that need
   the same. */
const struct kv_tile *attn_i_values_for(const struct block *blk, struct kv_state *tile,
                                        bool without_nan);

/* Where the queries of a strip lie; rows are q.sl apart. */
const float *attn_i_queries(const struct block *blk, int64_t g, int64_t i0);
/* The score outputs of a strip whose rules are applied, columns [lo, hi) of each row; NULL: all. */
void attn_i_strip_hand_out(const struct block *blk, const struct strip *t,
                           const int32_t (*columns)[2]);
/* A strip that sees nothing: only its score outputs. */
void attn_i_strip_skip(const struct block *blk, const struct strip *t);
/* Rules and score outputs of one strip; what its rows see, NULL: all. */
const int32_t (*attn_i_strip_rules(const struct block *blk, const struct strip *t))[2];
/* Rules, softmax and score outputs of one strip; rows of m, l begin at row0 of the block; o is
   rescaled when not NULL. */
void attn_i_strip_softmax(const struct block *blk, const struct strip *t, int64_t row0, float *o);
/* Add weight * value of each non-finite value of the tile to the rows that see its key. */
struct grid {
    float *at;
    int64_t row, column; /* strides */
};
void attn_i_strip_repair(const struct block *blk, const struct strip *t,
                         const struct kv_tile *tile, const struct grid *weights,
                         const struct grid *o);
/* Fill q_rows and o_rows, for row g * nq + i of the block. */
void attn_i_point_at_rows(const struct block *blk);
/* Where raw scores of query i (counted from i0) and head h0 + g go; NULL: nobody asked. */
float *attn_i_raw_scores(const struct block *blk, int64_t g, int64_t i);
/* Raw and capped outputs of a block, by dot products; q_rows are filled. */
void attn_i_raw_by_rows(const struct block *blk);
/* Fill the raw and capped outputs of a block from its raw scores of all keys in the range. */
void attn_i_finish_raw(const struct block *blk);

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

#endif
