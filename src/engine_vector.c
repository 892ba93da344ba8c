/* SPDX-License-Identifier: MIT */
/*
 * One query block by tiles of our own, see panel.c: no BLAS, nothing packed.
 * The rows of all heads of a kv head lie side by side in the lanes of panels,
 * row g * nq + i for query i of head g, and each tile of keys meets each panel.
 *
 * Rules that are intervals are two numbers a lane; for others see
 * vector_rules.c.
 */
#include "vector.h"

#include <math.h>

static int64_t block_rows(const struct block *blk) { return blk->heads * blk->nq; }

/* Panel n, from which the vectors from on are not in panels yet. */
static struct panel_span panel_at(const struct block *blk, int64_t n, int64_t count, int64_t from)
{
    int64_t W = blk->job->op->kernels->width, rows = block_rows(blk);
    int64_t to = ceil_div(rows, W) * (n + 1) / count;
    struct panel_span p = {
        .n = n,
        .count = count,
        .row0 = from * W,
        .rows = min64(to * W, rows) - from * W,
        .lanes = (to - from) * W,
    };
    return p;
}

static struct panel_span first_panel(const struct block *blk)
{
    const struct kernels *kn = blk->job->op->kernels;
    int64_t vectors = ceil_div(block_rows(blk), kn->width);
    return panel_at(blk, 0, ceil_div(vectors, PANEL_VECTORS), 0);
}

/* After the last, n is count. */
static struct panel_span next_panel(const struct block *blk, const struct panel_span *p)
{
    int64_t W = blk->job->op->kernels->width;
    return panel_at(blk, p->n + 1, p->count, (p->row0 + p->lanes) / W);
}

/* The queries of a panel, as a range: all where it holds more than one head. */
static struct span panel_queries(const struct block *blk, const struct panel_span *p)
{
    int64_t first = p->row0 % blk->nq;
    if (first + p->rows > blk->nq) return (struct span){blk->i0, blk->i0 + blk->nq};
    return (struct span){blk->i0 + first, blk->i0 + first + p->rows};
}

/* The keys [keys.lo, keys.hi) of a tile. */
static struct kv_tile cut_tile(const struct kv_tile *tile, struct span keys)
{
    struct kv_tile kv = *tile;
    kv.k += (keys.lo - tile->j0) * tile->ldk;
    kv.v += (keys.lo - tile->j0) * tile->ldv;
    kv.j0 = keys.lo;
    kv.count = keys.hi - keys.lo;
    return kv;
}

/* ----------------------------------------------------------------- tiles */

/* Values that are NaN or Inf, for the rows that see their key. */
static void repair(const struct block *blk, const struct panel_span *p, const struct kv_tile *kv,
                   const struct panel *t)
{
    for (int64_t r = 0; r < p->rows;) {
        struct strip strip = attn_i_head_strip(blk, p, kv, r);
        struct grid weights = {t->s + r, 1, p->lanes}, o = {t->o + r, 1, p->lanes};
        attn_i_strip_repair(blk, &strip, kv, &weights, &o);
        r += strip.rows;
    }
}

/* The keys as panels read them: in place, or as a copy. */
static struct kv_tile keys_of(const struct block *blk, const struct kv_tile *kv)
{
    int64_t Dk = blk->job->op->Dk;
    struct kv_tile keys = *kv;
    if (!attn_i_rows_alias(blk, kv->ldk, Dk)) return keys;
    keys.k = blk->scratch->k_copy;
    keys.ldk = Dk;
    for (int64_t j = 0; j < kv->count; j++)
        memcpy(blk->scratch->k_copy + j * Dk, kv->k + j * kv->ldk, (size_t)Dk * sizeof *kv->k);
    return keys;
}

static struct panel panel_state(const struct block *blk, const struct panel_span *p,
                                const struct kv_tile *keys)
{
    const attn_op *op = blk->job->op;
    struct panel t = {
        .vectors = (int32_t)(p->lanes / op->kernels->width),
        .keys = keys->count,
        .Dk = op->Dk,
        .Dv = op->Dv,
        .k = keys->k,
        .ldk = keys->ldk,
        .q = blk->scratch->q_panels + p->row0 * op->Dk,
        .s = blk->scratch->s,
        .top = blk->scratch->top,
        .m = blk->m + p->row0,
        .l = blk->l + p->row0,
        .o = blk->scratch->o_panels + p->row0 * op->Dv,
    };
    return t;
}

/* What the queries of vectors j0 to j1 of a panel see, in keys from the tile's first on. */
static struct span vectors_see(const struct block *blk, const struct panel_span *p,
                               const struct kv_tile *kv, int64_t j0, int64_t j1)
{
    int64_t W = blk->job->op->kernels->width;
    struct panel_span part = *p;
    part.row0 += j0 * W;
    part.rows = min64(j1 * W, p->rows) - j0 * W;
    struct span i = panel_queries(blk, &part);
    struct span keys = attn_i_rows_span(blk->job, &blk->item, i.lo, i.hi);
    return (struct span){keys.lo - kv->j0, keys.hi - kv->j0};
}

/* Under rules that let later queries see later keys, the later vectors of a panel begin after the
   earlier ones, and go on alone where those end: by the starts a window of 128 keys is x1.07
   (AVX-512) and x1.02 (AVX2; 12 x 1024 x 64, Zen 4). Scores that are asked for are formed for
   all. */
static void panel_ends(const struct block *blk, const struct panel_span *p,
                       const struct kv_tile *kv, struct panel *t)
{
    bool all = attn_i_gives_scores(blk->job) || (t->all.lo <= 0 && t->all.hi >= kv->count);
    int64_t n = t->vectors;
    for (int64_t j = 0; j < n; j++) {
        int64_t hi = all || j + 1 == n ? kv->count : vectors_see(blk, p, kv, 0, j + 1).hi;
        t->ends[j] = min64(round_up(max64(hi, 0), ENDS_UNIT), kv->count);
        int64_t lo = all || j == 0 ? 0 : vectors_see(blk, p, kv, j, n).lo;
        t->starts[j] = min64(max64(lo, 0), t->ends[0]) / ENDS_UNIT * ENDS_UNIT;
    }
}

/* From scores to weights. Intervals alone are hidden as the scores are made. */
static void panel_weights(const struct block *blk, const struct panel_span *p,
                          const struct kv_tile *kv, struct panel *t, enum sight sight)
{
    const struct kernels *kn = blk->job->op->kernels;
    bool rules = attn_i_has_rules(blk->job);
    panel_ends(blk, p, kv, t);
    if (!rules && sight != SEES_ALL) attn_i_panel_keys(blk, p, kv, t);
    kn->panel_scores(t);
    if (rules) attn_i_apply_to_panel(blk, p, kv, t, sight);
    kn->panel_softmax(t);
}

/* n rows of `size` floats, ld floats apart, to be fetched. */
static struct ahead rows_ahead(const float *rows, int64_t n, int64_t ld, int64_t size)
{
    const int64_t bytes = sizeof *rows;
    return (struct ahead){rows, n, ld * bytes, size * bytes};
}

/* The next block: with the first panel its keys, with the others its queries, head by head, and the
   rows that they write themselves. */
static void fetch_block(const struct block *blk, const struct panel_span *p, struct panel *t)
{
    const struct block *next = blk->next;
    if (p->n == 0) {
        struct span all = attn_i_rows_span(blk->job, &next->item, next->i0, next->i0 + next->nq);
        int64_t n = min64(next->cut->tile_keys, all.hi - all.lo);
        struct kv_tile first = attn_i_kv_tile(next, all.lo, n);
        if (n > 0) t->ahead[1] = rows_ahead(first.k, n, first.ldk, t->Dk);
        return;
    }
    if (p->n - 1 < next->heads)
        t->ahead[0] =
            rows_ahead(attn_i_queries(next, p->n - 1, next->i0), next->nq, blk->job->q.sl, t->Dk);
    t->ahead[1] = rows_ahead(blk->scratch->o_rows[p->row0],
                             min64(p->rows, blk->nq - p->row0 % blk->nq), blk->o_row, t->Dv);
}

/* What is fetched beside the work on a panel: with the very first the tile's values, with each its
   share of the next tile, with the last tile the next block. The next tile in shares and not all
   with the first panel: 4 x 4096 x 128 x1.02, causal x1.01, with AVX2 x1.015, 4 x 4096 x 64 x1.003
   (Zen 4). */
static void fetch_ahead(const struct block *blk, const struct panel_span *p,
                        const struct kv_tile *kv, bool more, struct panel *t)
{
    bool begins = t->first && p->n == 0;
    if (more) {
        int64_t from = kv->count * p->n / p->count, n = kv->count * (p->n + 1) / p->count - from;
        from += kv->count;
        t->ahead[0] = rows_ahead(kv->k + from * kv->ldk, n, kv->ldk, t->Dk);
        t->ahead[1] = rows_ahead(kv->v + from * kv->ldv, n, kv->ldv, t->Dv);
    } else if (blk->next) {
        fetch_block(blk, p, t);
    }
    if (begins) t->ahead[0] = rows_ahead(kv->v, kv->count, kv->ldv, t->Dv);
}

/* The masks of the panel that comes next, or of the first with the tile that does: a boolean one
   of each head cost 15 % at 12 x 1024 x 64 and costs 12 (Zen 4). */
static void fetch_masks(const struct block *blk, const struct panel_span *p,
                        const struct kv_tile *kv, bool more, struct panel *t)
{
    bool last = p->n + 1 == p->count;
    if (last && !more) return;
    struct panel_span next = last ? first_panel(blk) : next_panel(blk, p);
    struct kv_tile keys = {.j0 = last ? kv->j0 + kv->count : kv->j0, .count = kv->count};
    struct strip rows = attn_i_head_strip(blk, &next, &keys, 0);
    t->masks = attn_i_masks_ahead(blk->job, &rows);
}

/* more: other tiles follow. */
static void attend_panel(const struct block *blk, struct kv_state *tile,
                         const struct panel_span *p, bool more)
{
    struct span i = panel_queries(blk, p);
    struct span all = attn_i_rows_span(blk->job, &blk->item, i.lo, i.hi);
    struct span keys = {tile->kv.j0, tile->kv.j0 + tile->kv.count};
    keys = span_and(all, keys);
    if (keys.lo >= keys.hi) return;
    struct kv_tile kv = cut_tile(&tile->kv, keys), k = cut_tile(&tile->keys, keys);
    struct panel t = panel_state(blk, p, &k);
    t.first = keys.lo == max64(all.lo, blk->keys.lo);
    t.all.lo = attn_i_row_span(blk->job, &blk->item, i.hi - 1).lo - kv.j0;
    t.all.hi = attn_i_row_span(blk->job, &blk->item, i.lo).hi - kv.j0;
    enum sight sight = t.all.lo <= 0 && t.all.hi >= kv.count ? SEES_ALL : SEES_SOME;
    bool rules = attn_i_has_rules(blk->job);
    if (rules) sight = attn_i_panel_sight(blk, p, &kv);
    if (sight == SEES_NONE) {
        attn_i_panel_skip(blk, p, &kv);
        if (t.first) memset(t.o, 0, (size_t)(p->lanes * t.Dv) * sizeof *t.o);
        return;
    }
    fetch_ahead(blk, p, &kv, more, &t);
    if (rules) fetch_masks(blk, p, &kv, more, &t);
    panel_weights(blk, p, &kv, &t, sight);
    bool copy = sight != SEES_ALL && attn_i_has_nan(blk, tile);
    struct kv_tile values = cut_tile(attn_i_values_for(blk, tile, copy), keys);
    t.v = values.v;
    t.ldv = values.ldv;
    blk->job->op->kernels->panel_values(&t);
    if (copy) repair(blk, p, &kv, &t);
}

/* ----------------------------------------------------------------- blocks */

static void panels_in(const struct block *blk)
{
    const attn_op *op = blk->job->op;
    for (struct panel_span p = first_panel(blk); p.n < p.count; p = next_panel(blk, &p)) {
        op->kernels->panel_in(p.rows, (int32_t)(p.lanes / op->kernels->width), op->Dk,
                              blk->scratch->q_rows + p.row0, attn_i_query_scale(op),
                              blk->scratch->q_panels + p.row0 * op->Dk);
        for (int64_t r = p.rows; r < p.lanes; r++) { /* lanes to spare */
            blk->m[p.row0 + r] = -INFINITY;
            blk->l[p.row0 + r] = 0.0f;
        }
    }
}

void attn_i_vector_finish(const struct block *blk)
{
    const attn_op *op = blk->job->op;
    for (struct panel_span p = first_panel(blk); p.n < p.count; p = next_panel(blk, &p)) {
        for (int64_t r = p.rows; r < p.lanes; r++) blk->l[p.row0 + r] = EMPTY_ROW;
        op->kernels->panel_out(p.rows, (int32_t)(p.lanes / op->kernels->width), op->Dv,
                               blk->scratch->o_panels + p.row0 * op->Dv, blk->l + p.row0,
                               blk->scratch->o_rows + p.row0);
    }
}

/* Where the tile at j ends: tiles are counted from the first key, whatever the block sees. */
static int64_t tile_end(const struct block *blk, int64_t j)
{
    int64_t rest = blk->keys.hi - j;
    return rest <= longest_tile(blk->cut) ? blk->keys.hi : j + blk->cut->tile_keys;
}

void attn_i_vector_attend(const struct block *blk)
{
    struct span keys = attn_i_rows_span(blk->job, &blk->item, blk->i0, blk->i0 + blk->nq);
    keys = span_and(keys, blk->keys);
    attn_i_point_at_rows(blk);
    if (attn_i_raw_scores(blk, 0, 0)) attn_i_raw_by_rows(blk);
    if (keys.lo >= keys.hi) return;
    panels_in(blk);
    for (int64_t j = blk->keys.lo, end; j < keys.hi; j = end) {
        end = tile_end(blk, j);
        if (end <= keys.lo) continue;
        int64_t hi = min64(end, keys.hi);
        struct kv_state tile = {.kv = attn_i_kv_tile(blk, j, hi - j)};
        tile.keys = keys_of(blk, &tile.kv);
        for (struct panel_span p = first_panel(blk); p.n < p.count; p = next_panel(blk, &p))
            attend_panel(blk, &tile, &p, hi < keys.hi);
    }
}
