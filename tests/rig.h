/* SPDX-License-Identifier: MIT */
/*
 * One attention run, described by a struct spec: makes the tensors from the
 * seed, runs the library, and compares everything it wrote with the oracle.
 *
 *     struct rig g;
 *     rig_make(&g, &(struct spec){.seed = 7, .Lq = 5, .Lk = 9, .Dk = 16});
 *     rig_expect(&g);                  // run and check, fail with a repro line
 *     rig_free(&g);
 *
 * Between make and expect a test may change tensors, masks and the ISA; call rig_forget() when an oracle result exists already.
 *
 * Environment of the tests (the library reads none):
 *     ATTN_TEST_ONLY=n    run only row n of a sweep
 *     ATTN_TEST_STEP=n    run only each nth row (valgrind, sanitizers, emulators)
 *     ATTN_TEST_EMULATOR=1  under qemu-user: no threads in forked children
 *     ATTN_TEST_ISA=mask  ANDed to every ISA mask (valgrind knows no AVX-512)
 */
#ifndef ATTN_TEST_RIG_H
#define ATTN_TEST_RIG_H

#include "attn.h"
#include "mem.h"
#include "ref.h"

/* Elsewhere there is one instruction set of kernels: the base. */
#ifdef __x86_64__
#define RIG_X86_64 1
#else
#define RIG_X86_64 0
#endif

/* How a mask is laid out. */
enum { MASK_PACKED = 0, MASK_PADDED = 1, MASK_NEGATIVE = 2, MASK_KEYS_BROADCAST = 3 };
enum { FULL_B = 1, FULL_H = 2, FULL_Q = 4, FULL_ALL = 7 };

struct mask_spec {
    int32_t on;
    int32_t full;   /* FULL_*: the axes that are not broadcast by an extent of 1 */
    int64_t cut;    /* how many keys the last extent falls short of Lk */
    int32_t style;  /* MASK_* */
    double density; /* of visible keys; 0: 0.7 */
};

/* How tensors are laid out: 0 packed; padded rows, heads and items with NaN
   between; the same backwards for the inputs; K and V shared by all items. */
enum { STRIDES_PACKED = 0, STRIDES_PADDED = 1, STRIDES_NEGATIVE = 2, STRIDES_SHARED = 3 };
enum { RANGE_BEGIN = 1, RANGE_END = 2 };
enum { POS_SMALL = 1, POS_EXTREME = 2 };

#define OUT_STAGE(stage) (1 << (stage))
#define OUT_MEAN(stage) (16 << (stage)) /* with OUT_STAGE: averaged over heads */
#define OUT_LSE 256
#define OUT_ALL (15 | OUT_LSE)
#define OUT_ALL_MEAN (15 | 240 | OUT_LSE)

#define RIG_B_MAX 16
#define RIG_H_MAX 64

/* Zero means the default in every field. */
struct spec {
    uint64_t seed;
    int64_t row;                       /* of a sweep, for the repro line */
    int64_t B, Hq, Hk, Lq, Lk, Dk, Dv; /* B, Hq 1; Hk = Hq; Dv = Dk */
    int32_t layout, strides, causal, range, pos, outs, threads;
    bool window;
    int64_t left, right;
    bool has_scale;
    double scale, softcap;
    struct mask_spec mask_bool, mask_add;
    int64_t chunk;
    bool alibi, sinks;
    int32_t segments; /* number of ids; negative: in order, as packed documents are */
    int64_t misalign; /* every buffer starts this many floats off 64 bytes */
    double std;       /* of q and k; 0: 1 */
    bool exact;       /* the test fills in scores that are exact in float32 */
    const int64_t *begins, *ends, *positions; /* B each, instead of drawn ones; NULL: drawn */
};

/* A tensor of dims (B, H, L, D) somewhere in a guarded buffer. */
struct test_tensor {
    struct gbuf buf;
    float *at;
    int64_t dims[4], strides[4];
};

struct rig {
    struct spec s;
    struct rng rng;
    struct test_tensor q, k, v, out;
    struct gbuf stage[REF_STAGES], lse;
    uint8_t *mask_bool;
    struct gbuf mask_add;
    const void *mask_bool_at;
    const float *mask_add_at;
    int64_t mask_dims[2][4], mask_strides[2][4]; /* of the boolean, the additive */
    int64_t begin[RIG_B_MAX], end[RIG_B_MAX], pos[RIG_B_MAX];
    float slopes[RIG_H_MAX], sinks[RIG_H_MAX];
    int32_t *seg_q, *seg_k;
    int32_t isa, threads;
    void (*hook)(attn_op *op, const void *context); /* after the setters; white-box tests */
    const void *hook_context;
    struct ref_problem problem;
    struct ref_result ref;
    bool solved;
    struct ref_margin margin; /* over all checks of this rig */
    attn_op *op;              /* of the last run; kept between runs with the same settings */
    attn_args *args;
};

void rig_make(struct rig *g, const struct spec *s);
void rig_free(struct rig *g);
void rig_solve(struct rig *g);       /* the oracle's answer, once */
void rig_forget(struct rig *g);      /* inputs changed */
attn_status rig_run(struct rig *g);  /* into reset outputs */
bool rig_check(struct rig *g);       /* prints what is wrong */
void rig_expect(struct rig *g);      /* run, check, fail the test */
void rig_once(const struct spec *s); /* make, expect, free */
void rig_print(const struct rig *g, const char *what);
/* The op and the args of this rig, as rig_run makes them. Owned by the rig. */
void rig_prepare(struct rig *g);
/* Drop op and args: settings changed. */
void rig_reset(struct rig *g);

/* Element n, counted as if packed. */
float *test_nth(const struct test_tensor *t, int64_t n);
float *test_at(const struct test_tensor *t, int64_t b, int64_t h, int64_t l, int64_t d);
/* The packed copy of a tensor, from malloc; for comparing bits. */
float *test_packed(const struct test_tensor *t);
int64_t test_count(const struct test_tensor *t);

/* Run with these settings; the packed output, from malloc. */
float *rig_output(struct rig *g);
/* Do two arrays have the same bits? Prints the first difference. */
bool same_bits(const char *what, const float *a, const float *b, int64_t n);

/* ISA masks worth testing, ended by -1. */
const int32_t *rig_isas(void);
/* Is this row of a sweep to be left out? */
bool rig_skip(int64_t row);
/* How often to repeat what is repeated to meet a race: n times, fewer with ATTN_TEST_STEP. */
int rig_times(int n);
/* The largest error over tolerance of all rigs so far. */
double rig_worst(void);
void rig_margin_note(double worst);

#endif
