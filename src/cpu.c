/* SPDX-License-Identifier: MIT */
/* What this CPU has: instruction sets, and how many cores this process may use. */
#define _GNU_SOURCE
#include "internal.h"

#include <sched.h>
#include <unistd.h>

extern const struct kernels attn_i_table_base;
#ifdef ATTN_HAVE_X86_KERNELS
extern const struct kernels attn_i_table_avx2, attn_i_table_avx512;

/* libgcc's test looks at CPUID and at what the system saves of the registers. */
static int32_t cpu_isa(void)
{
    int32_t isa = ATTN_ISA_BASE;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) isa |= ATTN_ISA_AVX2;
    if (isa && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        isa |= ATTN_ISA_AVX512;
    return isa;
}
#endif

const struct kernels *attn_i_kernels(int32_t mask)
{
#ifdef ATTN_HAVE_X86_KERNELS
    static const struct kernels *const best_first[] = {&attn_i_table_avx512, &attn_i_table_avx2};
    int32_t isa = mask & cpu_isa();
    for (size_t i = 0; i < sizeof best_first / sizeof *best_first; i++)
        if ((best_first[i]->isa & ~isa) == 0) return best_first[i];
#endif
    (void)mask;
    return &attn_i_table_base;
}

int32_t attn_i_cpu_count(void)
{
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > 4096 ? 4096 : (int32_t)n;
}
