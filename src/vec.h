/* SPDX-License-Identifier: MIT */
/*
 * Vectors of float for the kernels that are compiled once per instruction set.
 *
 * GCC and Clang vector extensions only: no intrinsics, so one source serves
 * every ISA, and no reliance on the auto-vectorizer. The width follows the
 * flags that the file is compiled with.
 */
#ifndef ATTN_VEC_H
#define ATTN_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define VEC_BYTES 64
#elif defined(__AVX__)
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif
#define W (VEC_BYTES / 4) /* floats in one vector */

typedef float vf __attribute__((vector_size(VEC_BYTES)));
typedef int32_t vi __attribute__((vector_size(VEC_BYTES)));
typedef uint32_t vu __attribute__((vector_size(VEC_BYTES)));
/* The same at any address that is good for a float; may alias any float. */
typedef float vf_any __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif

INLINE vf load(const float *p) { return *(const vf_any *)p; }
INLINE void store(float *p, vf x) { *(vf_any *)p = x; }
INLINE vf splat(float x) { return (vf){0} + x; }

/* 0, 1, 2, ... */
INLINE vi lanes(void)
{
    vi lane;
    UNROLL for (int i = 0; i < W; i++) lane[i] = i;
    return lane;
}

/* The cache line that lies so many bytes behind p into L2. It need not exist: no pointer is formed,
   nothing faults. */
INLINE void prefetch_line(const void *p, int64_t bytes)
{
    __builtin_prefetch((const void *)((uintptr_t)p + (size_t)bytes), 0, 2);
}

/* The one of p[at]. */
INLINE void prefetch(const float *p, int64_t at)
{
    prefetch_line(p, (int64_t)((size_t)at * sizeof *p));
}

/* W bytes, each as an integer. By lanes: of __builtin_convertvector GCC 12 makes scalar code. */
INLINE vi load_bytes(const uint8_t *p)
{
    int32_t lane[W];
    vi x;
    for (int i = 0; i < W; i++) lane[i] = p[i];
    memcpy(&x, lane, sizeof x);
    return x;
}

INLINE vi load_ints(const int32_t *p)
{
    vi x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* The first n < W lanes; the others are 0 and never read from memory. */
INLINE vf load_n(const float *p, int64_t n)
{
    vf x = {0};
    memcpy(&x, p, (size_t)n * sizeof(float));
    return x;
}

INLINE void store_n(float *p, vf x, int64_t n) { memcpy(p, &x, (size_t)n * sizeof(float)); }

/* GCC's C has no ?: on vectors. As a sum, since GCC makes one blend of it on each ISA; of | it
   makes three instructions with AVX-512. */
INLINE vf sel(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) + ((vi)b & ~mask)); }

/* a where it is greater, else b: b where either is NaN, as x86's maxps has it, so that a running
   maximum in b drops NaN. Of a comparison and sel Clang makes that instruction, GCC two. */
#if defined(__clang__)
INLINE vf vmax(vf a, vf b) { return sel(a > b, a, b); }
#else
INLINE vf vmax(vf a, vf b)
{
    float x[W], y[W];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
#pragma omp simd
    for (int i = 0; i < W; i++) y[i] = x[i] > y[i] ? x[i] : y[i];
    memcpy(&b, y, sizeof b);
    return b;
}
#endif

/* Lane l of the partner in an exchange over distance s. */
#define XLANES4(s, b) (b) ^ (s), ((b) + 1) ^ (s), ((b) + 2) ^ (s), ((b) + 3) ^ (s)
#if W == 4
#define XLANES(s) XLANES4(s, 0)
#elif W == 8
#define XLANES(s) XLANES4(s, 0), XLANES4(s, 4)
#else
#define XLANES(s) XLANES4(s, 0), XLANES4(s, 4), XLANES4(s, 8), XLANES4(s, 12)
#endif

/* Sum and maximum of all lanes, always in the same order. */
INLINE float hsum(vf x)
{
#if W >= 16
    x = x + SHUFFLE(x, x, XLANES(8));
#endif
#if W >= 8
    x = x + SHUFFLE(x, x, XLANES(4));
#endif
    x = x + SHUFFLE(x, x, XLANES(2));
    x = x + SHUFFLE(x, x, XLANES(1));
    return x[0];
}

INLINE float hmax(vf x)
{
#if W >= 16
    x = vmax(x, SHUFFLE(x, x, XLANES(8)));
#endif
#if W >= 8
    x = vmax(x, SHUFFLE(x, x, XLANES(4)));
#endif
    x = vmax(x, SHUFFLE(x, x, XLANES(2)));
    x = vmax(x, SHUFFLE(x, x, XLANES(1)));
    return x[0];
}

/*
 * What exponentials are made of: x = n ln2 + r with |r| <= ln2 / 2, and p with
 * exp(r) = 1 + r p. x becomes r; the last bits of t hold n + 127.
 *
 * n by adding and taking away 1.5 * 2^23 (rintf is a call in plain SSE2); ln2
 * is split so that n * LN2_HI is exact (Cody and Waite); 1 + r p is a minimax
 * polynomial: Remez, relative weight, on |r| <= 0.347; its error is 3e-9.
 *
 * Of several vectors step by step: one chain after the other, a core's
 * schedulers fill with instructions that wait (x1.3 with AVX2, Zen 4).
 */
#define VECTORS_MAX 4
#define EACH UNROLL for (int i = 0; i < count; i++)

INLINE void exp_parts(vf *x, vf *t, vf *p, int count)
{
    const float magic = 0x1.8p23f + 127, log2e = 0x1.715476p0f;
    const float ln2_hi = 0.693359375f, ln2_lo = -2.12194440e-4f;
    EACH t[i] = x[i] * log2e + magic;
    EACH p[i] = t[i] - magic;
    EACH x[i] = x[i] - p[i] * ln2_hi;
    EACH x[i] = x[i] - p[i] * ln2_lo;
    EACH p[i] = x[i] * 0.00138144670593f + 0.00836878041118f;
    EACH p[i] = p[i] * x[i] + 0.0416683942109f;
    EACH p[i] = p[i] * x[i] + 0.166665201078f;
    EACH p[i] = p[i] * x[i] + 0.499999934125f;
    EACH p[i] = p[i] * x[i] + 1.0f;
}

/* 2^n */
INLINE vf power_of_2(vf t) { return (vf)((vu)t << 23); }

/* The least x of an exponential: below, it is 0. LEAST_NORMAL is ln 2^-126. What goes into sums
   with values ends at LEAST_WEIGHT, ln 2^-100, so that its products are no denormals either, which
   cost an Intel core 150 cycles each: ALiBi at 12 x 1024 x 64 took 47 % more time than no rule
   with LEAST_NORMAL, and takes 8 % (Emerald Rapids). A weight of 2^-100 of the largest is 2^-76 of
   what rounding takes from a sum. */
#define LEAST_NORMAL (-87.33654f)
#define LEAST_WEIGHT (-69.31471f)

/*
 * exp(x) in place for least <= x <= 0: relative error <= 2 ulp. Exactly 0 below
 * least, a constant of the above, and for -inf; every NaN stays NaN.
 *
 * 2^n is applied by a float multiply: adding n to the exponent of the product
 * would turn NaN into numbers. What would fall below least is given n = -127,
 * whose 2^n comes out as 0; so -inf never enters arithmetic, which would raise
 * FE_INVALID.
 */
INLINE void vexps(vf *x, int count, float least)
{
    vf t[VECTORS_MAX], p[VECTORS_MAX];
    EACH x[i] = sel(x[i] < least, splat(-88.03f), x[i]);
    exp_parts(x, t, p, count);
    EACH p[i] = p[i] * x[i] + 1.0f;
    EACH x[i] = p[i] * power_of_2(t[i]);
}

INLINE vf vexp(vf x, float least)
{
    vexps(&x, 1, least);
    return x;
}

/* |x| */
INLINE vf vabs(vf x) { return (vf)((vi)x & 0x7fffffff); }

/* tanh(x) for |x| < TANH_SMALL: x + x^3 P(x^2), minimax, relative error 5e-9. */
#define TANH_SMALL 0.625f

INLINE vf small_tanh(vf x)
{
    vf z = x * x, p = z * -0.005704986599f + 0.0206390869f;
    p = p * z - 0.05373971498f;
    p = p * z + 0.133314422f;
    p = p * z - 0.3333328194f;
    return p * z * x + x;
}

/* |tanh(x)| in place for other x: -e / (2 + e), e = exp(-2 |x|) - 1. From 10 on it is 1. */
INLINE void large_tanhs(vf *x, int count)
{
    vf t[VECTORS_MAX], p[VECTORS_MAX];
    EACH x[i] = vabs(x[i]);
    EACH x[i] = sel(x[i] > 10.0f, splat(10.0f), x[i]) * -2.0f;
    exp_parts(x, t, p, count);
    EACH t[i] = power_of_2(t[i]);
    EACH x[i] = p[i] * x[i] * t[i] + (t[i] - 1.0f);
    EACH x[i] = vabs(x[i] / (x[i] + 2.0f));
}

/*
 * tanh(x) in place: relative error <= 3 * 2^-24; NaN stays NaN. Scores are
 * mostly a small part of their cap, and where all are no large one is formed;
 * what a lane gets does not depend on the way that its neighbours went.
 */
INLINE void vtanhs(vf *x, int count)
{
    vf most = splat(0.0f), large[VECTORS_MAX];
    EACH most = vmax(vabs(x[i]), most);
    if (hmax(most) < TANH_SMALL) {
        EACH x[i] = small_tanh(x[i]);
        return;
    }
    EACH large[i] = x[i];
    large_tanhs(large, count);
    EACH large[i] = (vf)((vi)large[i] | ((vi)x[i] & (int32_t)0x80000000));
    EACH
    {
        vi is_large = vabs(x[i]) >= TANH_SMALL;
        x[i] = sel(is_large, large[i], small_tanh(sel(is_large, splat(0.0f), x[i])));
    }
}

/* c tanh(s / c) in place, inv = 1 / c */
INLINE void vsoftcaps(vf *s, int count, float c, float inv)
{
    EACH s[i] = s[i] * inv;
    vtanhs(s, count);
    EACH s[i] = s[i] * c;
}

/* A score under an additive mask: -inf hides it, whatever it is. */
INLINE vf add_mask(vf s, vf mask) { return sel(mask == -INFINITY, mask, s + mask); }

/*
 * Pairs of vectors, interleaved. Only shuffles that are one instruction
 * everywhere: within 16 bytes first, then whole groups of 16 bytes.
 */
#define LOW_32(g) (g), (g) + W, (g) + 1, (g) + W + 1
#define HIGH_32(g) (g) + 2, (g) + W + 2, (g) + 3, (g) + W + 3
#define LOW_64(g) (g), (g) + 1, (g) + W, (g) + W + 1
#define HIGH_64(g) (g) + 2, (g) + 3, (g) + W + 2, (g) + W + 3
#define GROUP(g) (g), (g) + 1, (g) + 2, (g) + 3
#if W == 4
#define IN_16(f) f(0)
#elif W == 8
#define IN_16(f) f(0), f(4)
#define EVEN_GROUPS GROUP(0), GROUP(8)
#define ODD_GROUPS GROUP(4), GROUP(12)
#else
#define IN_16(f) f(0), f(4), f(8), f(12)
#define EVEN_GROUPS GROUP(0), GROUP(8), GROUP(16), GROUP(24)
#define ODD_GROUPS GROUP(4), GROUP(12), GROUP(20), GROUP(28)
#endif

/* x[i] and x[k] become the first and the second interleaving of both. */
#define INTERLEAVE(i, k, FIRST, SECOND) \
    do {                                \
        vf a_ = x[i], b_ = x[k];        \
        x[i] = SHUFFLE(a_, b_, FIRST);  \
        x[k] = SHUFFLE(a_, b_, SECOND); \
    } while (0)

/* The W x W transpose. */
INLINE void transpose_vectors(vf x[W])
{
    UNROLL for (int i = 0; i < W; i += 2) INTERLEAVE(i, i + 1, IN_16(LOW_32), IN_16(HIGH_32));
    UNROLL for (int i = 0; i < W; i += 4)
    {
        INTERLEAVE(i, i + 2, IN_16(LOW_64), IN_16(HIGH_64));
        INTERLEAVE(i + 1, i + 3, IN_16(LOW_64), IN_16(HIGH_64));
        vf second = x[i + 2];
        x[i + 2] = x[i + 1];
        x[i + 1] = second;
    }
#if W >= 8
    UNROLL for (int i = 0; i < W; i++) if (!(i & 4))
        INTERLEAVE(i, i + 4, EVEN_GROUPS, ODD_GROUPS);
#endif
#if W >= 16
    UNROLL for (int i = 0; i < 8; i++) INTERLEAVE(i, i + 8, EVEN_GROUPS, ODD_GROUPS);
#endif
}

#define SUM_PAIR(a, b, FIRST, SECOND) (SHUFFLE(a, b, FIRST) + SHUFFLE(a, b, SECOND))

/* Lane l of the result is the sum of all lanes of x[l], each in the same order. */
INLINE vf sums(vf x[W])
{
    UNROLL for (int i = 0; i < W; i += 2) x[i] =
        SUM_PAIR(x[i], x[i + 1], IN_16(LOW_32), IN_16(HIGH_32));
    UNROLL for (int i = 0; i < W; i += 4) x[i] =
        SUM_PAIR(x[i], x[i + 2], IN_16(LOW_64), IN_16(HIGH_64));
#if W >= 8
    UNROLL for (int i = 0; i < W; i += 8) x[i] =
        SUM_PAIR(x[i], x[i + 4], EVEN_GROUPS, ODD_GROUPS);
#endif
#if W >= 16
    x[0] = SUM_PAIR(x[0], x[8], EVEN_GROUPS, ODD_GROUPS);
#endif
    return x[0];
}

#endif
