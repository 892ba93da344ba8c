/* SPDX-License-Identifier: MIT */
/*
 * The float64 oracle: the whole meaning of attention as a plain triple loop,
 * with a bound of float32's rounding beside each number, and the comparator.
 *
 * A new rule goes into ref_sees() when it is boolean and into ref_bias() when
 * it is additive; nothing else changes. Packed sequences are one problem each.
 */
#ifndef ATTN_TEST_REF_H
#define ATTN_TEST_REF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Half an ulp of 1 in float32. */
#define REF_U 0x1p-24

struct ref_mask {
    const void *data; /* NULL: none */
    int64_t dims[4], strides[4];
};

/* One run. Tensors are packed (B, H, L, D) doubles, whatever the layout was. */
struct ref_problem {
    int64_t B, Hq, Hk, Lq, Lk, Dk, Dv;
    const double *q, *k, *v;
    const double *dq, *dk, *dv; /* bounds of errors that q, k, v already carry; may be NULL */
    double scale, softcap;      /* softcap 0: none */
    int32_t causal;
    int64_t left, right; /* window; -1: unbounded */
    struct ref_mask mask_bool, mask_add;
    const int64_t *begin, *end, *pos; /* B each; may be NULL */
    int64_t chunk;                    /* 0: none */
    const float *slopes, *sinks;      /* Hq each; may be NULL */
    const int32_t *seg_q, *seg_k;     /* (B, Lq) and (B, Lk); may be NULL */
    bool exact_scores; /* q . k and the scaling are exact in float32: no rounding allowed for */
};

/* Numbers and what each may be off by. */
struct ref_values {
    double *x, *tol;
};

enum { REF_RAW = 0, REF_CAPPED = 1, REF_MASKED = 2, REF_WEIGHTS = 3, REF_STAGES = 4 };

struct ref_result {
    struct ref_values out;               /* (B, Hq, Lq, Dv) */
    struct ref_values lse;               /* (B, Hq, Lq) */
    struct ref_values stage[REF_STAGES]; /* (B, Hq, Lq, Lk) */
    bool has_nan;                        /* some row is NaN */
};

/* Every rule off, the default scale. */
struct ref_problem ref_problem_make(int64_t B, int64_t Hq, int64_t Hk, int64_t Lq, int64_t Lk,
                                    int64_t Dk, int64_t Dv);
void ref_solve(const struct ref_problem *p, struct ref_result *r);
void ref_free(struct ref_result *r);
/* The mean over heads of a stage, (B, Lq, Lk). */
struct ref_values ref_mean_heads(const struct ref_problem *p, const struct ref_result *r,
                                 int stage);
void ref_values_free(struct ref_values *values);

/* The rules, one at a time. */
int64_t ref_offset(const struct ref_problem *p, int64_t b);
bool ref_exists(const struct ref_problem *p, int64_t b, int64_t j);
bool ref_sees(const struct ref_problem *p, int64_t b, int64_t h, int64_t i, int64_t j);
/* What is added to the score; *size gets the sum of magnitudes. */
double ref_bias(const struct ref_problem *p, int64_t b, int64_t h, int64_t i, int64_t j,
                double *size);

/* The packed doubles of a strided tensor of dims (B, H, L, D). From malloc. */
double *ref_gather(const float *x, const int64_t dims[4], const int64_t strides[4]);

/* What a float32 sum of n products may lose, relative to the sum of magnitudes. */
double ref_accumulation(int64_t n);

/* One dense map y = x w + bias of rows of doubles; dy gets the error bounds. */
struct ref_linear {
    int64_t n_in, n_out;
    const float *w;
    int64_t ld;
    bool out_in; /* w is (n_out, n_in), not (n_in, n_out) */
    const float *bias;
};
void ref_project(const struct ref_linear *linear, int64_t rows, const double *x, const double *dx,
                 double *y, double *dy);
/* (B, L, H, D) to (B, H, L, D), or back when L and H change places. From malloc. */
double *ref_swap_axes(const double *x, int64_t B, int64_t L, int64_t H, int64_t D);

/* ------------------------------------------------------------ comparator */

struct ref_margin {
    double worst; /* largest error over tolerance so far */
    int64_t seen, bad;
    int64_t at; /* the first bad element, or the worst one */
    double want, tol;
    float got;
};

/* NaN only equals NaN (if tol is infinite, also an infinity), an infinity only itself; else
   |got - want| <= tol. */
bool ref_close(double want, double tol, float got);
void ref_compare(struct ref_margin *margin, int64_t at, double want, double tol, float got);

#endif
