/* SPDX-License-Identifier: MIT */
/* The names of the kernels of one instruction set; what they do stands at struct kernels. */
#ifndef ATTN_KERNEL_ISA_H
#define ATTN_KERNEL_ISA_H

#include "kernels.h"

/* Kernel names carry the ISA: attn_i_softmax_rows_avx2. */
#define KERNEL_NAME_(name, isa) attn_i_##name##_##isa
#define KERNEL_NAME(name, isa) KERNEL_NAME_(name, isa)
#define KERNEL(name) KERNEL_NAME(name, ATTN_ISA_NAME)
#define KERNEL_BELOW(name) KERNEL_NAME(name, ATTN_ISA_BELOW)

void KERNEL(softmax_rows)(const struct softmax_rows *t);
void KERNEL(finish_rows)(int64_t rows, int64_t Dv, float *o, int64_t ldo, const float *factor);
void KERNEL(scale_row)(int64_t n, float *o, float c);
void KERNEL(merge_row)(int64_t n, float *acc, float a, const float *part, float b);
void KERNEL(weights_row)(int64_t n, float *s, float m, float l);
void KERNEL(exp_row)(int64_t n, float *x);
void KERNEL(softcap_row)(int64_t n, float *s, float cap);
void KERNEL(mask_add_row)(int64_t n, float *s, const float *mask, int64_t stride, int64_t ahead);
void KERNEL(mask_bool_row)(int64_t n, float *s, const uint8_t *mask, int64_t stride);
void KERNEL(segment_row)(int64_t n, float *s, const int32_t *ids, int32_t id);
void KERNEL(alibi_row)(int64_t n, float *s, float slope, float at);
enum sight KERNEL(mask_sight)(int64_t n, const uint8_t *mask);
enum sight KERNEL(segment_sight)(int64_t n, const int32_t *ids, int32_t id);
void KERNEL(transpose)(int64_t rows, int64_t cols, const float *x, int64_t ldx, float *y,
                       int64_t ldy);
bool KERNEL(all_finite)(int64_t rows, int64_t cols, const float *x, int64_t ldx);
void KERNEL(add_bias)(int64_t rows, int64_t cols, const float *x, int64_t ldx, const float *bias,
                      float *y, int64_t ldy);
void KERNEL(dot_rows)(const struct few_rows *t);
void KERNEL(add_rows)(const struct few_rows *t);
#ifdef ATTN_ISA_BELOW
void KERNEL_BELOW(dot_rows)(const struct few_rows *t);
void KERNEL_BELOW(add_rows)(const struct few_rows *t);
#endif
void KERNEL(panel_in)(int64_t rows, int32_t vectors, int64_t D, const float *const *x,
                      float scale, float *y);
void KERNEL(panel_out)(int64_t rows, int32_t vectors, int64_t D, const float *y,
                       const float *factor, float *const *x);
void KERNEL(panel_scores)(const struct panel *t);
void KERNEL(panel_rules)(const struct panel *t, const struct panel_rules *r);
void KERNEL(panel_softmax)(const struct panel *t);
void KERNEL(panel_values)(const struct panel *t);

#endif
