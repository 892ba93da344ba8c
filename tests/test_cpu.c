/* SPDX-License-Identifier: MIT */
/*
 * What the library finds out about the CPU: instruction sets by every mask, and
 * the number of cores, also where the system does not say. sched_getaffinity()
 * and sysconf() are interposed by this executable.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "internal.h"

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

/* What the system says: cores of the affinity mask, -1 to fail; and processors. */
static int affinity = -1;
static long processors;

int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set) /* NOLINT */
{
    (void)pid;
    CPU_ZERO_S(bytes, set);
    for (int i = 0; i < affinity; i++) CPU_SET_S((size_t)i, bytes, set);
    return affinity < 0 ? -1 : 0;
}

long sysconf(int name)
{
    if (name == _SC_NPROCESSORS_ONLN) return processors;
    long (*real)(int);
    void *found = dlsym(RTLD_NEXT, "sysconf");
    memcpy(&real, &found, sizeof found);
    return real(name);
}

static void test_cores(void **state)
{
    (void)state;
    processors = 7;
    affinity = 3;
    assert_int_equal(attn_i_cpu_count(), 3);
    for (affinity = -1; affinity <= 0; affinity++) /* no answer, and an empty one */
        assert_int_equal(attn_i_cpu_count(), 7);
    affinity = -1;
    processors = -1;
    assert_int_equal(attn_i_cpu_count(), 1);
    processors = 4097;
    assert_int_equal(attn_i_cpu_count(), 4096);
}

/* The best table of those that a mask allows and this CPU has. */
static void test_tables(void **state)
{
    int32_t best = attn_i_kernels(ATTN_ISA_ALL)->isa;
    (void)state;
    assert_int_equal(attn_i_kernels(ATTN_ISA_BASE)->isa, ATTN_ISA_BASE);
    for (int32_t mask = 0; mask < 8; mask++) {
        const struct kernels *kn = attn_i_kernels(mask);
        assert_int_equal(kn->isa & ~mask, 0);
        if (mask & best) assert_int_equal(kn->isa, best);
        assert_true(kn->width >= 4 && kn->width <= LANES_MAX);
    }
    assert_ptr_equal(attn_i_kernels(best), attn_i_kernels(ATTN_ISA_ALL));
    assert_ptr_equal(attn_i_kernels(4), attn_i_kernels(ATTN_ISA_BASE)); /* a bit of no set */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cores),
        cmocka_unit_test(test_tables),
    };
    return cmocka_run_group_tests_name("cpu", tests, NULL, NULL);
}
