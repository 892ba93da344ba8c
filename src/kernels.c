/* SPDX-License-Identifier: MIT */
/* The table of one instruction set's kernels. Compiled once per set, as they are. */
#include "internal.h"
#include "kernel_isa.h"
#include "vec.h"

#if defined(__AVX512F__)
#define ISA_NEEDED ATTN_ISA_AVX512 /* cpu.c tells it only together with AVX2 */
#elif defined(__AVX2__)
#define ISA_NEEDED ATTN_ISA_AVX2
#else
#define ISA_NEEDED ATTN_ISA_BASE
#endif

extern const struct kernels KERNEL(table);
const struct kernels KERNEL(table) = {
    .name = TEXT(ATTN_ISA_NAME),
    .isa = ISA_NEEDED,
    .width = W,
    .softmax_rows = KERNEL(softmax_rows),
    .finish_rows = KERNEL(finish_rows),
    .scale_row = KERNEL(scale_row),
    .merge_row = KERNEL(merge_row),
    .weights_row = KERNEL(weights_row),
    .exp_row = KERNEL(exp_row),
    .softcap_row = KERNEL(softcap_row),
    .mask_add_row = KERNEL(mask_add_row),
    .mask_bool_row = KERNEL(mask_bool_row),
    .segment_row = KERNEL(segment_row),
    .alibi_row = KERNEL(alibi_row),
    .mask_sight = KERNEL(mask_sight),
    .segment_sight = KERNEL(segment_sight),
    .transpose = KERNEL(transpose),
    .all_finite = KERNEL(all_finite),
    .add_bias = KERNEL(add_bias),
    .dot_rows = KERNEL(dot_rows),
    .add_rows = KERNEL(add_rows),
    .panel_in = KERNEL(panel_in),
    .panel_out = KERNEL(panel_out),
    .panel_scores = KERNEL(panel_scores),
    .panel_rules = KERNEL(panel_rules),
    .panel_softmax = KERNEL(panel_softmax),
    .panel_values = KERNEL(panel_values),
};
