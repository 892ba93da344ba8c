/* SPDX-License-Identifier: MIT */
/*
 * A run of packed sequences, drawn from the number of its row, beside the
 * oracle's loop over the sequences.
 */
#ifndef ATTN_TEST_PACKED_RIG_H
#define ATTN_TEST_PACKED_RIG_H

#include "whitebox.h"

#define SEQUENCES_MAX 7

/* Random sequences, some of them empty, with tokens before, between and behind that belong to
   none. */
struct side {
    bool packed;
    int64_t L, first[SEQUENCES_MAX], count[SEQUENCES_MAX]; /* L: of the buffer, or of each item */
    int64_t offsets[SEQUENCES_MAX + 1];
    int32_t narrow[SEQUENCES_MAX + 1];
};

struct packed {
    int64_t row, B, Hq, Hk, Dk, Dv;
    struct side q, k;
    struct gbuf qb, kb, vb, out, lse;
    int64_t begin[SEQUENCES_MAX], end[SEQUENCES_MAX], pos[SEQUENCES_MAX];
    int32_t *seg_q, *seg_k;
    float slopes[8], sinks[8];
    bool range, positions, segments, alibi, sinks_on;
    int32_t causal;
    int64_t left, chunk;
};

void packed_make(struct packed *p, int64_t row);
void packed_free(struct packed *p);
attn_status packed_run(struct packed *p, int32_t isa, const struct tiles *tiles);
/* Each sequence is right, and nothing else was written; or the test fails. */
void packed_expect(struct packed *p, const struct tiles *tiles);

#endif
