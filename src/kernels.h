/* SPDX-License-Identifier: MIT */
/* The loops that are ours: one table per instruction set, from softmax.c, decode.c, panel.c and
   panel_rules.c. */
#ifndef ATTN_KERNELS_H
#define ATTN_KERNELS_H

#include "attn.h"

#include <stdbool.h>

/* Rows of score tiles are padded to this many floats: the widest vector. */
#define LANES_MAX 16

/* Which of some keys are seen; of two rules, the lesser is a correct answer. */
enum sight { SEES_NONE, SEES_SOME, SEES_ALL };

/* What two sets of rows see together. */
static inline enum sight sight_of_both(enum sight a, enum sight b)
{
    return a == b ? a : SEES_SOME;
}

/* A tile of scores and the running statistics of its rows: kernels->softmax_rows. */
struct softmax_rows {
    int64_t rows, cols;
    float *s;                  /* [rows][lds]: in, scores; out, exp(s - max) */
    int64_t lds;               /* a multiple of LANES_MAX; s is aligned to 64 */
    const int32_t (*sight)[2]; /* per row, the columns [lo, hi) it sees; NULL: all */
    float *m, *l;              /* per row: running maximum and sum */
    float *o;                  /* [rows][ldo]: rescaled where a maximum grew; NULL: none yet */
    int64_t ldo, Dv;
};

/* Products of a few rows with many keys, by vectors: kernels->dot_rows, add_rows. */
struct few_rows {
    int64_t rows, keys, D;
    const float *const *q; /* dot_rows: rows pointers to D floats */
    float *const *o;       /* add_rows: rows pointers to D floats */
    const float *x;        /* keys (or values): [keys][ldx] */
    int64_t ldx;
    float scale; /* dot_rows: s = scale * (q . k) */
    bool first;  /* add_rows: o = p v, not o += p v */
    float *s;    /* [rows][lds]: scores or weights */
    int64_t lds;
};

/* Rows that are needed next, and are fetched into L2 beside the work. */
struct ahead {
    const void *rows;
    int64_t n, ld, size; /* in bytes; n rows: 0, none */
};

/* The most vectors of queries in a panel. */
#define PANEL_VECTORS 3

/* Whole register tiles of keys, whatever the instruction set. */
#define ENDS_UNIT 8

/* A panel of queries against a tile of keys: kernels->panel_*. A query is a lane; arrays of lanes
   have vectors * width of them, and are aligned to 64. */
struct panel {
    int32_t vectors; /* 1 to PANEL_VECTORS */
    int64_t keys, Dk, Dv;
    const float *k, *v; /* [keys][ldk], [keys][ldv] */
    int64_t ldk, ldv;
    const float *q;                /* [Dk][lanes], scaled */
    float *s;                      /* [keys][lanes]: scores, then exp(s - max) */
    int64_t starts[PANEL_VECTORS]; /* no lane from vector j on sees a key before starts[j]: the
                                      first is 0, none less than the one before, multiples of
                                      ENDS_UNIT and at most ends[0] */
    int64_t ends[PANEL_VECTORS];   /* no lane of vectors 0 to j sees a key from ends[j] on: never
                                      less than the one before, a multiple of ENDS_UNIT or keys,
                                      which the last one is */
    const int32_t *lo, *hi; /* [lanes]: sees keys [lo, hi) of the tile; NULL: all see all */
    struct {
        int64_t lo, hi;
    } all;        /* keys that every lane sees */
    float *top;   /* [lanes]: maximum of the tile's scores, then the factor of o */
    float *m, *l; /* [lanes]: running maximum and sum */
    float *o;     /* [Dv][lanes] */
    bool first;   /* o is not there yet: panel_values sets it */
    struct ahead ahead[2], masks; /* fetched while K, and while V, is in use; masks with K */
};

/* What changes the scores of a panel, beyond intervals: kernels->panel_rules. In this order. */
struct panel_rules {
    float scale, cap;         /* s *= scale; s = cap tanh(s / cap) where cap > 0 */
    const float *slopes, *at; /* [lanes]: s -= slope * |at - key|; NULL: none */
    const float *const *add;  /* [lanes]: the masks' rows, from the tile's first key on; added, */
    const uint8_t *const *keep; /* -inf hides, and so does a 0; NULL: none */
    int64_t add_stride, keep_stride;
    const int32_t *ids, *id; /* of the tile's keys, and [lanes]: others are hidden; NULL: none */
};

/* The factor of a row that saw no key, whatever it holds. */
#define EMPTY_ROW (-1.0f)

struct kernels {
    const char *name;
    int32_t isa;   /* the ATTN_ISA_* bits it needs */
    int32_t width; /* floats in a vector */
    void (*softmax_rows)(const struct softmax_rows *t);
    /* o *= factor, or 0 where that is EMPTY_ROW */
    void (*finish_rows)(int64_t rows, int64_t Dv, float *o, int64_t ldo, const float *factor);
    /* o *= c; the rescaling of one row */
    void (*scale_row)(int64_t n, float *o, float c);
    /* acc = a * acc + b * part; 0 * NaN is NaN */
    void (*merge_row)(int64_t n, float *acc, float a, const float *part, float b);
    /* s in place to exp(s - m) / l; all 0 where l == 0 */
    void (*weights_row)(int64_t n, float *s, float m, float l);
    void (*exp_row)(int64_t n, float *x); /* exp in place, x <= 0 or NaN */
    void (*softcap_row)(int64_t n, float *s, float cap);
    /* masks along a row of keys; stride in elements. -inf in add means "not". What lies `ahead`
       elements further is fetched beside */
    void (*mask_add_row)(int64_t n, float *s, const float *mask, int64_t stride, int64_t ahead);
    void (*mask_bool_row)(int64_t n, float *s, const uint8_t *mask, int64_t stride);
    void (*segment_row)(int64_t n, float *s, const int32_t *ids,
                        int32_t id); /* keep where equal */
    /* s[j] -= slope * |at - j| */
    void (*alibi_row)(int64_t n, float *s, float slope, float at);
    /* which of n keys: those that are not 0, or equal to id */
    enum sight (*mask_sight)(int64_t n, const uint8_t *mask);
    enum sight (*segment_sight)(int64_t n, const int32_t *ids, int32_t id);
    void (*transpose)(int64_t rows, int64_t cols, const float *x, int64_t ldx, float *y,
                      int64_t ldy); /* y[c][r] = x[r][c] */
    bool (*all_finite)(int64_t rows, int64_t cols, const float *x, int64_t ldx);
    void (*add_bias)(int64_t rows, int64_t cols, const float *x, int64_t ldx, const float *bias,
                     float *y, int64_t ldy); /* y = x + bias; bias may be NULL */
    void (*dot_rows)(const struct few_rows *t);
    void (*add_rows)(const struct few_rows *t);
    /* y[d][r] = scale * x[r][d] for the lanes r of so many vectors; those past the last row repeat
       it. And x[r][d] = y[d][r] * factor[r], or 0, for rows only. */
    void (*panel_in)(int64_t rows, int32_t vectors, int64_t D, const float *const *x, float scale,
                     float *y);
    void (*panel_out)(int64_t rows, int32_t vectors, int64_t D, const float *y,
                      const float *factor, float *const *x);
    void (*panel_scores)(const struct panel *t); /* s and top, from q and k */
    /* s by the rules and by lo and hi, and top */
    void (*panel_rules)(const struct panel *t, const struct panel_rules *r);
    void (*panel_softmax)(const struct panel *t); /* s, top, m and l */
    void (*panel_values)(const struct panel *t);  /* o = top * o + v^T s */
};

#endif
