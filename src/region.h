/* SPDX-License-Identifier: MIT */
/* Where tensors lie: what check.c asks of strides and overlaps. */
#ifndef ATTN_REGION_H
#define ATTN_REGION_H

#include "job.h"

/* What a tensor touches, in elements from its pointer, and its axes (B, H, L, D). */
struct region {
    const char *name;
    const char *at;
    int64_t len[4], stride[4];
    size_t element;
    int64_t lo, hi; /* [lo, hi) */
};

/* Fill lo and hi. */
attn_status attn_i_region_extent(struct region *r, struct text *why);
/* Pointer and strides of a tensor of floats with inner stride 1; strides of axes of length <= 1
   are made harmless, lo and hi filled. An output must not overlap itself. */
attn_status attn_i_region_check(struct region *r, bool output, struct text *why);
/* Have the two an element in common? Exact for boxes that interleave on one stride. */
bool attn_i_overlap(const struct region *a, const struct region *b);

#endif
