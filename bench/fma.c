/* SPDX-License-Identifier: MIT */
/*
 * The FMA peak of one thread: independent chains of multiply-adds in registers. Compiled with
 * -O2 -ffp-contract=fast in every configuration, for without contraction the loop would be of
 * multiplications and additions.
 *
 * Latency 4 and two units (Zen, Intel since Skylake) need 8 chains, four units (Neoverse V) 16.
 * 12 accumulators and two constants fit the 16 registers before AVX-512.
 */
#include "peaks.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* x -> x/2 + 1/2 stays at 1: no denormals, no overflow. The start is not a constant to the
   compiler, or it would compute the result itself. */
#define FMA_LOOP(name, target, bytes, chains)                                  \
    target static double name(int64_t rounds, float *sink)                     \
    {                                                                          \
        typedef float vec __attribute__((vector_size(bytes)));                 \
        vec half = {0}, a[chains];                                             \
        half += *sink * 0.5f;                                                  \
        UNROLL for (int i = 0; i < chains; i++) a[i] = half + (float)i;        \
        for (int64_t r = 0; r < rounds; r++) {                                 \
            UNROLL for (int i = 0; i < chains; i++) a[i] = a[i] * half + half; \
        }                                                                      \
        UNROLL for (int i = 1; i < chains; i++) a[0] += a[i];                  \
        *sink = a[0][0] / (float)chains;                                       \
        return (double)rounds * chains * (double)(bytes / sizeof(float)) * 2;  \
    }

#if defined(__x86_64__)
FMA_LOOP(fma_base, , 16, 12)
FMA_LOOP(fma_avx2, __attribute__((target("avx2,fma"))), 32, 12)
FMA_LOOP(fma_avx512, __attribute__((target("avx512f"))), 64, 16)

int fma_variants(void)
{
    if (__builtin_cpu_supports("avx512f")) return 3;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 2 : 1;
}

double fma_run(int variant, int64_t rounds, float *sink)
{
    switch (variant) {
    case 2:
        return fma_avx512(rounds, sink);
    case 1:
        return fma_avx2(rounds, sink);
    default:
        return fma_base(rounds, sink);
    }
}
#else
FMA_LOOP(fma_base, , 16, 16)

int fma_variants(void) { return 1; }

double fma_run(int variant, int64_t rounds, float *sink)
{
    (void)variant;
    return fma_base(rounds, sink);
}
#endif
