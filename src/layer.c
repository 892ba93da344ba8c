/* SPDX-License-Identifier: MIT */
/* Layers: project, attend, project. attn.h is the manual of the exported functions. */
#include "blas.h"
#include "project.h"

#include <stdlib.h>

struct attn_layer {
    attn_op op;
    int64_t E_q, E_kv, E_out;
    struct matrix w[4];
};

attn_status attn_layer_create(attn_layer **layer, const attn_op *op, int64_t E_q, int64_t E_kv,
                              int64_t E_out)
{
    REQUIRE(layer, ATTN_EINVAL);
    *layer = NULL;
    REQUIRE(op && E_q >= 1 && E_kv >= 1 && E_out >= 1, ATTN_EINVAL);
    REQUIRE(E_q <= INT32_MAX && E_kv <= INT32_MAX && E_out <= INT32_MAX, ATTN_EOVERFLOW);
    REQUIRE(op->Dk <= INT32_MAX / op->Hq && op->Dv <= INT32_MAX / op->Hq, ATTN_EOVERFLOW);
    int64_t widest = max64(max64(op->Dk, op->Dv) * op->Hq, E_out) + LANES_MAX;
    REQUIRE(widest <=
                PTRDIFF_MAX / (int64_t)sizeof(float) / max64(max64(E_q, E_kv), op->Hq * op->Dv),
            ATTN_EOVERFLOW);
    attn_layer *made = calloc(1, sizeof *made);
    REQUIRE(made, ATTN_ENOMEM);
    attn_i_op_settings(&made->op, op);
    made->E_q = E_q;
    made->E_kv = E_kv;
    made->E_out = E_out;
    attn_i_matrix_shape(&made->w[ATTN_W_Q], E_q, op->Hq, op->Dk);
    attn_i_matrix_shape(&made->w[ATTN_W_K], E_kv, op->Hk, op->Dk);
    attn_i_matrix_shape(&made->w[ATTN_W_V], E_kv, op->Hk, op->Dv);
    attn_i_matrix_shape(&made->w[ATTN_W_O], op->Hq * op->Dv, 1, E_out);
    *layer = made;
    return ATTN_OK;
}

void attn_layer_destroy(attn_layer *layer)
{
    if (!layer) return;
    for (int i = 0; i < 4; i++) attn_i_matrix_clear(&layer->w[i]);
    attn_i_scratch_destroy(&layer->op.scratch);
    free(layer);
}

attn_status attn_layer_set_weights(attn_layer *layer, int32_t which, int32_t flags,
                                   const float *w, int64_t ld, const float *bias)
{
    REQUIRE(layer && which >= ATTN_W_Q && which <= ATTN_W_O, ATTN_EINVAL);
    REQUIRE((flags & ~(ATTN_IN_OUT | ATTN_OUT_IN | ATTN_W_BORROW)) == 0, ATTN_EINVAL);
    REQUIRE((flags & ATTN_W_BORROW) == 0, ATTN_EUNSUPPORTED);
    REQUIRE(flags == ATTN_IN_OUT || flags == ATTN_OUT_IN, ATTN_EINVAL);
    struct matrix *m = &layer->w[which];
    int64_t row = flags == ATTN_IN_OUT ? m->N : m->E;
    REQUIRE(ld == 0 || ld >= row, ATTN_EINVAL);
    if (!w) {
        attn_i_matrix_clear(m);
        return ATTN_OK;
    }
    ld = ld ? ld : row;
    return flags == ATTN_IN_OUT ? attn_i_matrix_set(m, w, ld, 1, bias)
                                : attn_i_matrix_set(m, w, 1, ld, bias);
}

/* Floats of one thread's tile; of four matrices the largest, so that it serves all. */
static size_t tile_floats(const attn_layer *layer)
{
    int64_t most = 0;
    for (int i = 0; i < 4; i++) most = max64(most, attn_i_matrix_tile(&layer->w[i]));
    return (size_t)round_up(most, WORKSPACE_ALIGN);
}

attn_status attn_layer_project(const attn_layer *layer, int32_t which, int64_t B, int64_t L,
                               const float *x, float *y, const int64_t y_strides[4])
{
    REQUIRE(layer && which >= ATTN_W_Q && which <= ATTN_W_O && B >= 0 && L >= 0, ATTN_EINVAL);
    const struct matrix *w = &layer->w[which];
    REQUIRE(w->panels, ATTN_ESTATE);
    struct projecting p = {&layer->op, B, L, w->E, x, {{.w = w}}, 1, NULL, 0, 0};
    const int64_t sizes[4] = {B, w->H, L, w->D};
    TRY(attn_i_check_project(sizes, w->E, x, y, y_strides, &p.to[0].y));
    if (B == 0 || L == 0) return ATTN_OK;
    p.tile_floats = tile_floats(layer);
    int64_t n_threads = min64(layer->op.threads, attn_i_matrix_tasks(w, B * L));
    struct scratch *block =
        attn_i_scratch_take(attn_i_scratch_of(&layer->op),
                            (size_t)n_threads * p.tile_floats * sizeof(float) + WORKSPACE_ALIGN);
    REQUIRE(block, ATTN_ENOMEM);
    p.tiles = attn_i_align(block->memory);
    bool small = attn_i_blas_small_path();
    attn_i_blas_enter(small);
    attn_i_project(&p);
    attn_i_blas_leave(small);
    attn_i_scratch_put(block);
    return ATTN_OK;
}

/* ------------------------------------------------------------------ run */

struct memory {
    float *q, *k, *v, *o, *tiles;
    char *attention;
};

/* The tokens of one side: rows [first, first + count) of each item. Packed sequences lie in one
   item, and tokens outside all of them are neither read nor written. */
struct side {
    int64_t items, first, count;
};

static struct side side_of(const int64_t *offsets, int64_t n_sequences, int64_t B, int64_t L)
{
    if (!offsets) return (struct side){B, 0, L};
    return (struct side){1, offsets[0], offsets[n_sequences] - offsets[0]};
}

static struct side side_q(const struct job *job)
{
    return side_of(job->args->offsets_q, job->args->n_sequences_q, job->B, job->Lq);
}

static struct side side_k(const struct job *job)
{
    return side_of(job->args->offsets_k, job->args->n_sequences_k, job->B, job->Lk);
}

/* Queries, keys and values lie head by head, so that the job reads them in one stride. */
static void carve(const attn_layer *layer, const struct job *job, size_t attention_bytes,
                  struct carver *c, struct memory *m)
{
    const attn_op *op = &layer->op;
    size_t rows_q = (size_t)op->Hq * sizeof(float), rows_k = (size_t)op->Hk * sizeof(float);
    int64_t tokens_q = side_q(job).items * job->Lq, tokens_k = side_k(job).items * job->Lk;
    m->q = attn_i_carve(c, tokens_q, (size_t)op->Dk * rows_q);
    m->k = attn_i_carve(c, tokens_k, (size_t)op->Dk * rows_k);
    m->v = attn_i_carve(c, tokens_k, (size_t)op->Dv * rows_k);
    m->o = attn_i_carve(c, layer->w[ATTN_W_O].panels ? tokens_q : 0, (size_t)op->Dv * rows_q);
    int64_t tasks = 0;
    for (int i = 0; i < 4; i++)
        tasks += min64(op->threads, attn_i_matrix_tasks(&layer->w[i], max64(tokens_q, tokens_k)));
    m->tiles = attn_i_carve(c, min64(op->threads, tasks), tile_floats(layer) * sizeof(float));
    m->attention = attn_i_carve(c, 1, attention_bytes);
}

static attn_status workspace_bytes(const attn_layer *layer, const struct job *job, size_t *bytes)
{
    size_t attention = 0;
    struct carver c = {0};
    struct memory m;
    if (job->B > 0 && job->Lq > 0) TRY(attn_i_workspace(job, &attention));
    attn_i_carve(&c, 1, WORKSPACE_ALIGN); /* memory may begin anywhere */
    carve(layer, job, attention, &c, &m);
    REQUIRE(c.used < WORKSPACE_TOO_LARGE, ATTN_EOVERFLOW);
    *bytes = c.used;
    return ATTN_OK;
}

attn_status attn_layer_workspace_bytes(const attn_layer *layer, int64_t B, int64_t Lq, int64_t Lk,
                                       const attn_args *args, size_t *bytes)
{
    struct job job;
    REQUIRE(layer && bytes, ATTN_EINVAL);
    TRY(attn_i_check_sizes(&layer->op, B, Lq, Lk, args, &job, NULL));
    return workspace_bytes(layer, &job, bytes);
}

static struct tensor head_major(float *data, int64_t items, int64_t H, int64_t L, int64_t D)
{
    struct tensor t = {data, items > 1 ? H * L * D : 0, L * D, D};
    return t;
}

static void project_side(const attn_layer *layer, const struct side *side, const float *x,
                         const struct projection *to, int32_t n, const struct memory *m)
{
    struct projecting p = {
        .op = &layer->op,
        .B = side->items,
        .L = side->count,
        .E = to->w->E,
        .x = x + side->first * to->w->E,
        .n = n,
        .tiles = m->tiles,
        .tile_floats = tile_floats(layer),
    };
    for (int32_t i = 0; i < n; i++) {
        p.to[i] = to[i];
        p.to[i].y.data += side->first * to[i].y.sl;
    }
    if (side->count > 0) attn_i_project(&p);
}

/* Project x_q and x_kv; in self-attention all three together, x being read once. */
static void project_inputs(const attn_layer *layer, const struct job *job, const float *x_q,
                           const float *x_kv, const struct memory *m)
{
    const struct projection to[3] = {{&layer->w[ATTN_W_Q], job->q},
                                     {&layer->w[ATTN_W_K], job->k},
                                     {&layer->w[ATTN_W_V], job->v}};
    struct side q = side_q(job), k = side_k(job);
    bool self = x_kv == x_q && layer->E_q == layer->E_kv && job->Lq == job->Lk &&
                q.items == k.items && q.first == k.first && q.count == k.count;
    project_side(layer, &q, x_q, to, self ? 3 : 1, m);
    if (!self) project_side(layer, &k, x_kv, to + 1, 2, m);
}

static void project_output(const attn_layer *layer, const struct job *job, const struct memory *m,
                           float *out)
{
    const struct matrix *w = &layer->w[ATTN_W_O];
    const struct projection to = {w, {out, job->Lq * w->N, w->N, w->N}};
    struct side q = side_q(job);
    project_side(layer, &q, m->o, &to, 1, m);
}

static void run_in(const attn_layer *layer, struct job *job, const struct plan *plan,
                   const float *x_q, const float *x_kv, float *out, char *memory, size_t bytes)
{
    const attn_op *op = &layer->op;
    struct carver c = {.base = attn_i_align(memory)};
    struct memory m;
    carve(layer, job, bytes, &c, &m);
    float *o = layer->w[ATTN_W_O].panels ? m.o : out;
    job->q = head_major(m.q, side_q(job).items, op->Hq, job->Lq, op->Dk);
    job->k = head_major(m.k, side_k(job).items, op->Hk, job->Lk, op->Dk);
    job->v = head_major(m.v, side_k(job).items, op->Hk, job->Lk, op->Dv);
    int64_t width = op->Hq * op->Dv;
    job->out = (struct tensor){o, side_q(job).items > 1 ? job->Lq * width : 0, op->Dv, width};
    bool small = attn_i_blas_small_path();
    attn_i_blas_enter(small);
    project_inputs(layer, job, x_q, x_kv, &m);
    attn_i_run_in(job, plan, m.attention);
    if (layer->w[ATTN_W_O].panels) project_output(layer, job, &m, out);
    attn_i_blas_leave(small);
}

static attn_status check_run(const attn_layer *layer, int64_t Lq, int64_t Lk, const float *x_kv)
{
    REQUIRE(layer, ATTN_EINVAL);
    const struct matrix *w = layer->w;
    REQUIRE(w[ATTN_W_Q].panels && w[ATTN_W_K].panels && w[ATTN_W_V].panels, ATTN_ESTATE);
    REQUIRE(w[ATTN_W_O].panels || layer->E_out == layer->op.Hq * layer->op.Dv, ATTN_EINVAL);
    REQUIRE(x_kv || Lk == 0 || (layer->E_q == layer->E_kv && Lq == Lk), ATTN_EINVAL);
    return ATTN_OK;
}

attn_status attn_layer_run(const attn_layer *layer, int64_t B, int64_t Lq, int64_t Lk,
                           const float *x_q, const float *x_kv, float *out, const attn_args *args)
{
    struct job job;
    struct plan plan;
    TRY(check_run(layer, Lq, Lk, x_kv));
    const int64_t widths[3] = {layer->E_q, layer->E_kv, layer->E_out};
    TRY(attn_i_check_sizes(&layer->op, B, Lq, Lk, args, &job, NULL));
    /* x_q as x_kv has the batch axis of the queries */
    REQUIRE(x_kv || Lk == 0 || !job.args->offsets_q == !job.args->offsets_k, ATTN_EINVAL);
    if (!x_kv) x_kv = x_q;
    TRY(attn_i_check_layer(&job, widths, x_q, x_kv, out));
    if (B == 0 || Lq == 0) return ATTN_OK;
    size_t needed;
    TRY(workspace_bytes(layer, &job, &needed));
    REQUIRE(!job.args->workspace || job.args->workspace_bytes >= needed, ATTN_EINVAL);
    TRY(attn_i_plan(&job, &plan));
    size_t attention = attn_i_plan_bytes(&plan);
    if (job.args->workspace) {
        run_in(layer, &job, &plan, x_q, x_kv, out, job.args->workspace, attention);
        return ATTN_OK;
    }
    struct scratch *block = attn_i_scratch_take(attn_i_scratch_of(&layer->op), needed);
    REQUIRE(block, ATTN_ENOMEM);
    run_in(layer, &job, &plan, x_q, x_kv, out, block->memory, attention);
    attn_i_scratch_put(block);
    return ATTN_OK;
}
