/* SPDX-License-Identifier: MIT */
/*
 * What all files of libattn share: handles, scratch memory, threads. Read in
 * the order of a call: attn.c (exported, with check.c) -> run.c ->
 * engine_blas.c, engine_vector.c (with vector_rules.c) or engine_decode.c ->
 * strip.c -> softmax.c, panel.c, panel_rules.c or decode.c, with plan.c and rules.c beside
 * them. A run is described in job.h, the loops in kernels.h, BLAS in blas.h.
 */
#ifndef ATTN_INTERNAL_H
#define ATTN_INTERNAL_H

#include "kernels.h"

#include <stdatomic.h>
#include <string.h>

#define TRY(expr)                         \
    do {                                  \
        attn_status try_ = (expr);        \
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

/* Text under construction; see attn_explain. */
struct text {
    char *at;
    size_t cap, used;
};
void attn_i_say(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Say why, and return the status from the function. */
#define FAIL(code, ...)               \
    do {                              \
        attn_i_say(why, __VA_ARGS__); \
        return (code);                \
    } while (0)

#define LL(x) ((long long)(x))

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

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

struct scratch *attn_i_scratch_take(struct scratch_list *list,
                                    size_t bytes); /* NULL: no memory */
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
void *attn_i_align(void *p);                                         /* up to WORKSPACE_ALIGN */

/* -------------------------------------------------------------- handles */

/* Tile sizes forced by tests; 0: by plan. */
enum { PATH_AUTO = 0, PATH_TILES = 1, PATH_DECODE = 2, PATH_TILES_NT = 3, PATH_VECTOR = 4 };
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

extern const attn_args attn_i_no_args; /* what NULL means */

/* --------------------------------------------------------- cpu.c, threads.c */

/* The best table among the ISA bits of mask that this CPU has; never NULL. cpu.c */
const struct kernels *attn_i_kernels(int32_t mask);
/* The CPUs that this process may use, at least 1. */
int32_t attn_i_cpu_count(void);

/* How many threads may work on something, the caller's among them, and for how many of them it is
   worth to wake those that sleep. Neither decides what is computed. */
struct crew {
    int32_t most, woken;
};

/* Work that is worth a thread more, in nanoseconds as estimated at so many operations in one: one
   that sleeps takes 20 to 30 us to wake, one that looks for work is there in less than one. Two
   threads on 8 x 32 x 64 (21 us so estimated), 8 x 40 x 64 (33), 16 x 49 x 32 (49): x1.56, x1.74,
   x1.76 where the pool was awake, x0.71, x0.96, x1.22 where it slept (Zen 4 in a VM). */
#define WAKE_WORTH_NS 20e3
#define JOIN_WORTH_NS 5e3
#define FLOPS_PER_NS 100.0
struct crew attn_i_crew(double ns, int32_t threads, int64_t n_tasks);

/* work(context, worker, tasks) on at most crew.most threads at once, the caller's as worker 0 and
   others as 1 to crew.most - 1; each takes numbers of tasks from [0, n_tasks) while there are any.
   The tasks that worker w begins with are the same each time. Returns when all are done. */
struct tasks;
typedef void (*attn_i_work)(void *context, int32_t worker, struct tasks *tasks);
bool attn_i_next_task(struct tasks *tasks, int64_t *task);
void attn_i_parallel(struct crew crew, int64_t n_tasks, attn_i_work work, void *context);
void attn_i_fork_init(void); /* register the fork handlers, once; every op is made after it */

#endif
