/* SPDX-License-Identifier: MIT */
/* What the two files of the vector engine share. */
#ifndef ATTN_VECTOR_H
#define ATTN_VECTOR_H

#include "job.h"

/* A panel of a block: panels share its vectors evenly. */
struct panel_span {
    int64_t n, count;   /* the nth of so many */
    int64_t row0, rows; /* of the block */
    int64_t lanes;
};

/* -------------------------------------------------------- vector_rules.c */

/* The rows of a panel that belong to one head, from row r of it, as a strip of the keys of kv. */
struct strip attn_i_head_strip(const struct block *blk, const struct panel_span *p,
                               const struct kv_tile *kv, int64_t r);
/* Are scores asked for as they are after the rules? */
bool attn_i_gives_scores(const struct job *job);
/* Are there rules that are no intervals, outputs of scores, or a factor of them that is left? */
bool attn_i_has_rules(const struct job *job);
/* The factor that queries can take beforehand and lose nothing: the scale, or 1 and it is left to
   the scores. */
float attn_i_query_scale(const attn_op *op);
/* What the rows of a panel see together, by all rules. */
enum sight attn_i_panel_sight(const struct block *blk, const struct panel_span *p,
                              const struct kv_tile *kv);
/* What a mask says of a strip, to be fetched: nothing where all its rows are one, or keys are
   scattered. */
struct ahead attn_i_masks_ahead(const struct job *job, const struct strip *t);
/* What each lane sees of the tile, as far as intervals say, into t. */
void attn_i_panel_keys(const struct block *blk, const struct panel_span *p,
                       const struct kv_tile *kv, struct panel *t);
/* All rules on the scores of a panel, which are handed out, too; keys that are not seen have
   -inf, and t->top is the maximum of the others. */
void attn_i_apply_to_panel(const struct block *blk, const struct panel_span *p,
                           const struct kv_tile *kv, struct panel *t, enum sight sight);
/* The score outputs of a panel that sees nothing of the tile. */
void attn_i_panel_skip(const struct block *blk, const struct panel_span *p,
                       const struct kv_tile *kv);

#endif
