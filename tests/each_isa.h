/* SPDX-License-Identifier: MIT */
/* A group of kernel tests, run with the table of each instruction set as kn. */
#ifndef ATTN_TEST_EACH_ISA_H
#define ATTN_TEST_EACH_ISA_H

#include "internal.h"
#include "rig.h"

static const struct kernels *kn;

static int choose_base(void **state)
{
    (void)state;
    kn = attn_i_kernels(ATTN_ISA_BASE);
    return 0;
}

static int choose_avx2(void **state)
{
    (void)state;
    kn = attn_i_kernels(rig_isas()[1]);
    return 0;
}

static int choose_best(void **state)
{
    int n = 0;
    (void)state;
    while (rig_isas()[n + 1] >= 0) n++;
    kn = attn_i_kernels(rig_isas()[n]);
    return 0;
}

/* tests is an array; the value is the number of failures. */
#define RUN_ON_EACH_ISA(name, tests)                                                        \
    (cmocka_run_group_tests_name(name ", base", tests, choose_base, NULL) +                 \
     (RIG_X86_64 ? cmocka_run_group_tests_name(name ", avx2", tests, choose_avx2, NULL) +   \
                       cmocka_run_group_tests_name(name ", best", tests, choose_best, NULL) \
                 : 0))

#endif
