/* SPDX-License-Identifier: MIT */
/*
 * What the files of attn-bench share. Nothing here knows libattn: only
 * impl_fused.c includes <attn.h>, only vector_softmax.c the library's internals.
 *
 *   main.c      axes -> groups of trials -> records
 *   options.c, values.c  the command line  models.c   shapes by name
 *   shape.c     names, flops, bytes        rules.c    who sees whom
 *   packing.c   lengths of sequences       tensors.c  inputs and outputs
 *   impl_*.c    what is measured           chain.c    the unfused chain
 *   reference.c float64, and tolerances    verify.c   comparing with it
 *   timing.c    samples (of anything)      stats.c    minimum, median, spread
 *   peaks.c     ceilings of the machine    machine.c  what it is, warnings
 *   memory.c    peak memory of one run     report.c, printers.c  the output
 *   plot.c, plot_panel.c, svg.c  --plot    terminal.c, suggest.c  for people
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the program returns. */
enum { RESULT_OK = 0, RESULT_WRONG = 1, RESULT_USAGE = 2, RESULT_ENVIRONMENT = 3 };

/* The numbers of libattn's ATTN_CAUSAL_*. */
enum { CAUSAL_NONE, CAUSAL_TOP_LEFT, CAUSAL_BOTTOM_RIGHT };

/* The numbers of libattn's ATTN_ENGINE_*. */
enum { ENGINE_BLAS, ENGINE_VECTOR };

enum { ISA_BEST, ISA_BASE, ISA_AVX2, ISA_AVX512 };

/* What of attention a trial does; every name, with its meaning, is in shape.c. */
enum {
    STAGE_RUN,     /* softmax(Q K^T) V */
    STAGE_LAYER,   /* the projections of Q, K, V, then run, then the output's */
    STAGE_PROJECT, /* the four projections alone */
    STAGE_SCORES,  /* Q K^T alone */
    STAGE_SOFTMAX, /* the softmax alone, over the whole matrix of a head */
    STAGE_VALUES,  /* A V alone */
    STAGE_COUNT
};

/* How many keys left and right of its own position a query sees; negative: all. */
struct window {
    int64_t left, right;
    char name[48]; /* as on the command line */
};

struct packing; /* packing.h */

/* A problem. b batch items, q queries, k keys, h query heads, g key/value heads, d the size of a
   query or key head, dv of a value head. */
struct shape {
    const char *model; /* the preset it came from, or NULL */
    int64_t b, q, k, h, g, d, dv;
    int causal, stage;
    /* rules that are NULL or 0 are not there */
    const struct window *window;
    double softcap;
    int alibi;
    const struct packing *packing; /* b sequences of their own lengths; q, k are the means */
};

/* One item: its lengths, and how many queries and keys the items before it have. */
struct item {
    int64_t q, k, q0, k0;
};

struct impl;

/* One row of the output: who does it, and how. */
struct config {
    struct shape shape;
    const struct impl *impl;
    int engine, isa;
    int64_t threads;
};

/* ------------------------------------------------------------- shape.c */

const char *causal_name(size_t i); /* NULL past the last; so are the other names */
const char *engine_name(size_t i);
const char *isa_name(size_t i);
const char *stage_name(size_t i);
const char *alibi_name(size_t i);
const char *window_name(const struct shape *s);
const char *packing_name(const struct shape *s);

/* Sizes and rules in a line of words, for messages. */
enum { SHAPE_TEXT = 256 };
const char *shape_text(const struct shape *s, char text[SHAPE_TEXT]);
/* Multiplications and additions that the stage needs; 0 for the softmax. */
double shape_flops(const struct shape *s);
/* Bytes of K and V that any query sees, each read once; NAN unless decoding. */
double shape_decode_bytes(const struct shape *s);
/* Width of the model around the heads (layer and project). */
int64_t shape_width(const struct shape *s);

/* *total += a * b * c floats, in bytes; false when that overflows. */
bool bytes_add(size_t *total, int64_t a, int64_t b, int64_t c);

/* ------------------------------------------------------------- rules.c */

struct item shape_item(const struct shape *s, int64_t b);
/* Queries and keys of all items, and of the longest. */
int64_t shape_all_q(const struct shape *s);
int64_t shape_all_k(const struct shape *s);
int64_t shape_longest_q(const struct shape *s);
int64_t shape_longest_k(const struct shape *s);
/* Do queries and keys come from the same tokens (in a layer)? */
bool shape_is_self(const struct shape *s);

/* Where query i of an item stands on the key axis. */
int64_t shape_position(const struct shape *s, const struct item *it, int64_t i);
/* The keys [*lo, *hi) that it sees. */
void shape_sight(const struct shape *s, const struct item *it, int64_t i, int64_t *lo,
                 int64_t *hi);
/* ALiBi's slope of a head; 0: none. */
double shape_slope(const struct shape *s, int64_t h);
/* Visible (query, key) pairs of one head, of all items. */
double shape_pairs(const struct shape *s);
/* Two shapes are the same if both hold. */
bool shape_same_tensors(const struct shape *a, const struct shape *b);
bool shape_same_rules(const struct shape *a, const struct shape *b);

/* ----------------------------------------------------------- tensors.c */

/*
 * run, scores, softmax, values: q (b, h, q, d), k (b, g, k, d), v (b, g, k, dv),
 * out (b, h, q, dv); of packed sequences (token, head, size) all four.
 * layer: T_Q is x (b, q, E), T_K the other side's x (b, k, E), absent for self-attention; out
 * (b, q, E). Packed sequences: (token, E), here and below.
 * project: T_Q x (b, q, E), T_K x (b, k, E), T_V the joined heads (b, q, h dv), out the four
 * results one after another. Weights are in (in, out) order.
 */
enum { T_Q, T_K, T_V, T_OUT, T_COUNT };
enum { W_Q, W_K, W_V, W_O, W_COUNT };

struct tensors {
    float *sets; /* n_sets times the four tensors: more than one with --cold */
    int64_t n_sets;
    size_t set_floats;
    size_t at[T_COUNT], n[T_COUNT];
    float *weights;
    size_t weight_floats, w_at[W_COUNT];
    int64_t w_rows[W_COUNT], w_cols[W_COUNT];
};

/* Bytes of tensors_make; false when that overflows. */
bool tensors_bytes(const struct shape *s, int64_t n_sets, size_t *bytes);
/* Sets of buffers that together exceed the last cache twice; 1 when not cold. */
int64_t tensors_sets(const struct shape *s, bool cold, size_t last_cache_bytes);
bool tensors_make(struct tensors *t, const struct shape *s, int64_t n_sets, uint64_t seed);
void tensors_free(struct tensors *t);
float *tensor_at(const struct tensors *t, int64_t set, int slot);
/* NaN into the output of set 0, so that what a run leaves out is seen. */
void tensors_spoil(const struct tensors *t);

/* --------------------------------------------------------------- impls */

/* One configuration, opened: what timing.c runs. */
struct trial {
    struct config config;
    const struct tensors *tensors;
    void *state;           /* the impl's own */
    const char *threading; /* how it uses its threads, in a word */
    bool blas_threads;     /* BLAS's own are among them */
    int64_t next_set;      /* --cold: the buffers of the next run */
    /* scores and softmax: where a checking run leaves the first rows of head 0 */
    const float *matrix;
    int64_t matrix_ld, matrix_rows;
};

struct impl {
    const char *name, *what;
    unsigned stages; /* bits 1 << STAGE_* */
    bool uses_engine, uses_isa, uses_threads;
    bool skips_softmax; /* its output is (Q K^T) V */
    /* Can this CPU and library do it? A word why not in *why. NULL: always. */
    bool (*available)(const struct config *c, const char **why);
    /* Add to *bytes what open() takes; false when that overflows. NULL: a little. */
    bool (*bytes)(const struct config *c, size_t *bytes);
    bool (*open)(struct trial *t);    /* false after a message, here and below */
    bool (*prepare)(struct trial *t); /* before a sample, not timed; NULL: nothing */
    bool (*run)(struct trial *t, int64_t set);
    /* run() for comparing: of set 0, and only head 0 where a stage works in place. NULL: run(). */
    bool (*check)(struct trial *t);
    void (*close)(struct trial *t);
};

extern const struct impl impl_fused, impl_unfused, impl_naive, impl_gemm;
const struct impl *impl_at(size_t i);
const char *impl_name(size_t i);

/* The library under test. */
const char *library_version(void);
/* Its words about the BLAS in one line; false when it cannot be used. */
bool library_blas(char *text, size_t cap);

/* A sentence on stderr, with the program's name before it. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
