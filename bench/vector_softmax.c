/* SPDX-License-Identifier: MIT */
/* The one file that knows the library's internals; it links the library's own kernel objects. */
#include "vector_softmax.h"

#include "internal.h"

#include <math.h>

/* In the order of bench.h's ISA_*, whose names are not known here: what is allowed, and what the
   kernels found then call themselves. */
static const struct {
    int32_t mask, found;
} isas[] = {{ATTN_ISA_ALL, 0},
            {ATTN_ISA_BASE, ATTN_ISA_BASE},
            {ATTN_ISA_AVX2, ATTN_ISA_AVX2},
            {ATTN_ISA_AVX2 | ATTN_ISA_AVX512, ATTN_ISA_AVX512}};
#define ISA_COUNT ((int)(sizeof isas / sizeof *isas))

const struct kernels *softmax_kernels(int isa)
{
    const struct kernels *found = attn_i_kernels(isas[isa].mask);
    /* the table may be a lesser one than what was asked for */
    if (isa != 0 && found->isa != isas[isa].found) return NULL;
    return found;
}

int softmax_best_isa(void)
{
    for (int isa = ISA_COUNT - 1; isa > 1; isa--)
        if (softmax_kernels(isa)) return isa;
    return 1;
}

void softmax_rows(const struct kernels *kernels, int64_t rows, int64_t cols, float *s,
                  int64_t lds, const int32_t (*sight)[2], float *m, float *l)
{
    for (int64_t r = 0; r < rows; r++) {
        m[r] = -INFINITY;
        l[r] = 0;
    }
    struct softmax_rows t = {
        .rows = rows, .cols = cols, .s = s, .lds = lds, .sight = sight, .m = m, .l = l};
    kernels->softmax_rows(&t);
}

void softmax_row_by_rules(const struct kernels *kernels, const struct row_rules *rules,
                          int64_t cols, float *s, int64_t lds, float *m, float *l)
{
    const int32_t sight[1][2] = {{rules->lo, rules->hi}};
    if (rules->softcap > 0) kernels->softcap_row(cols, s, rules->softcap);
    if (rules->slope > 0) kernels->alibi_row(cols, s, rules->slope, rules->at);
    softmax_rows(kernels, 1, cols, s, lds, sight, m, l);
}

void softmax_finish(const struct kernels *kernels, int64_t rows, int64_t dv, float *o,
                    int64_t ldo, const float *l)
{
    for (int64_t r = 0; r < rows; r++) {
        const float factor = l[r] == 0 ? EMPTY_ROW : 1 / l[r];
        kernels->finish_rows(1, dv, o + r * ldo, ldo, &factor);
    }
}
