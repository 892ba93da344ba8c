/* SPDX-License-Identifier: MIT */
/* Inputs and outputs of a shape: one block of memory, filled from the seed. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 64 /* bytes; rows of tensors in use are rarely worse aligned */
#define ALIGN_FLOATS (ALIGN / sizeof(float))

/* The extents of a tensor as three factors; a zero: the stage has no such tensor. Packed
   sequences are, as far as extents go, one long item. */
static void extents(const struct shape *s, int slot, int64_t x[3])
{
    int64_t E = shape_width(s), b = s->packing ? 1 : s->b;
    int64_t q = s->packing ? shape_all_q(s) : s->q, k = s->packing ? shape_all_k(s) : s->k;
    bool layer = s->stage == STAGE_LAYER, project = s->stage == STAGE_PROJECT;
    int64_t plain[T_COUNT][3] = {
        {b * s->h, q, s->d}, {b * s->g, k, s->d}, {b * s->g, k, s->dv}, {b * s->h, q, s->dv}};
    int64_t layers[T_COUNT][3] = {
        {b, q, E}, {b, shape_is_self(s) ? 0 : k, E}, {0, 0, 0}, {b, q, E}};
    int64_t projects[T_COUNT][3] = {{b, q, E},
                                    {b, k, E},
                                    {b, q, s->h * s->dv},
                                    {b, 1, q * (s->h * s->d + E) + k * s->g * (s->d + s->dv)}};
    memcpy(x, layer ? layers[slot] : project ? projects[slot] : plain[slot], 3 * sizeof *x);
}

static void weight_extents(const struct shape *s, int which, int64_t *rows, int64_t *cols)
{
    int64_t E = shape_width(s);
    int64_t in[W_COUNT] = {E, E, E, s->h * s->dv};
    int64_t out[W_COUNT] = {s->h * s->d, s->g * s->d, s->g * s->dv, E};
    bool has = s->stage == STAGE_LAYER || s->stage == STAGE_PROJECT;
    *rows = has ? in[which] : 0;
    *cols = has ? out[which] : 0;
}

static bool set_bytes(const struct shape *s, size_t *bytes)
{
    *bytes = 0;
    for (int slot = 0; slot < T_COUNT; slot++) {
        int64_t x[3];
        extents(s, slot, x);
        if (!bytes_add(bytes, x[0], x[1], x[2]) || !bytes_add(bytes, ALIGN_FLOATS, 1, 1))
            return false;
    }
    return true;
}

bool tensors_bytes(const struct shape *s, int64_t n_sets, size_t *bytes)
{
    size_t one;
    if (!set_bytes(s, &one) || __builtin_mul_overflow(one, (size_t)n_sets, bytes)) return false;
    for (int which = 0; which < W_COUNT; which++) {
        int64_t rows, cols;
        weight_extents(s, which, &rows, &cols);
        if (!bytes_add(bytes, rows, cols, 1)) return false;
    }
    return true;
}

int64_t tensors_sets(const struct shape *s, bool cold, size_t last_cache_bytes)
{
    size_t one;
    if (!cold || !set_bytes(s, &one)) return 1;
    return (int64_t)(2 * last_cache_bytes / one + 2);
}

/* splitmix64: every seed is good, and the numbers are the same everywhere. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform with mean 0 and this standard deviation. */
static void fill(float *x, size_t n, double deviation, uint64_t seed)
{
    uint64_t state = seed;
    double width = 2 * sqrt(3.0) * deviation;
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(((double)(next_random(&state) >> 11) * 0x1p-53 - 0.5) * width);
}

static void lay_out(struct tensors *t, const struct shape *s)
{
    size_t at = 0;
    for (int slot = 0; slot < T_COUNT; slot++) {
        int64_t x[3];
        extents(s, slot, x);
        t->at[slot] = at;
        t->n[slot] = (size_t)x[0] * (size_t)x[1] * (size_t)x[2];
        at += (t->n[slot] + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
    }
    t->set_floats = at;
    for (int which = 0; which < W_COUNT; which++) {
        weight_extents(s, which, &t->w_rows[which], &t->w_cols[which]);
        t->w_at[which] = t->weight_floats;
        t->weight_floats += (size_t)(t->w_rows[which] * t->w_cols[which]);
    }
}

static float *allocate(size_t floats)
{
    size_t bytes = (floats * sizeof(float) + ALIGN - 1) / ALIGN * ALIGN;
    return aligned_alloc(ALIGN, bytes ? bytes : ALIGN);
}

bool tensors_make(struct tensors *t, const struct shape *s, int64_t n_sets, uint64_t seed)
{
    *t = (struct tensors){.n_sets = n_sets};
    lay_out(t, s);
    t->sets = allocate(t->set_floats * (size_t)n_sets);
    t->weights = allocate(t->weight_floats);
    if (!t->sets || !t->weights) {
        tensors_free(t);
        complain("no memory for the tensors");
        return false;
    }
    for (int slot = 0; slot < T_OUT; slot++)
        fill(t->sets + t->at[slot], t->n[slot], 1, seed + (uint64_t)slot);
    /* weights of deviation 1 / sqrt(rows) keep that of what they project */
    for (int which = 0; which < W_COUNT; which++)
        fill(t->weights + t->w_at[which], (size_t)(t->w_rows[which] * t->w_cols[which]),
             1 / sqrt((double)t->w_rows[which]), seed + 16 + (uint64_t)which);
    tensors_spoil(t);
    for (int64_t i = 1; i < n_sets; i++)
        memcpy(t->sets + (size_t)i * t->set_floats, t->sets, t->set_floats * sizeof(float));
    return true;
}

void tensors_free(struct tensors *t)
{
    free(t->sets);
    free(t->weights);
    *t = (struct tensors){0};
}

float *tensor_at(const struct tensors *t, int64_t set, int slot)
{
    return t->sets + (size_t)set * t->set_floats + t->at[slot];
}

void tensors_spoil(const struct tensors *t)
{
    float *out = tensor_at(t, 0, T_OUT);
    for (size_t i = 0; i < t->n[T_OUT]; i++) out[i] = NAN;
}
