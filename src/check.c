/* SPDX-License-Identifier: MIT */
/*
 * The arguments of a run: the last place where they can be wrong. Every error
 * is a status and, for attn_explain, a sentence; nothing has been written yet.
 */
#include "region.h"

/* --------------------------------------------------------------- sizes */

/* a * b * c * d floats fit an address space. */
static bool fits(int64_t a, int64_t b, int64_t c, int64_t d)
{
    int64_t n;
    return !__builtin_mul_overflow(a, b, &n) && !__builtin_mul_overflow(n, c, &n) &&
           !__builtin_mul_overflow(n, d, &n) && n <= PTRDIFF_MAX / (int64_t)sizeof(float);
}

attn_status attn_i_check_sizes(const attn_op *op, int64_t B, int64_t Lq, int64_t Lk,
                               const attn_args *args, struct job *job, struct text *why)
{
    if (!op) FAIL(ATTN_EINVAL, "op is NULL");
    if (B < 0 || Lq < 0 || Lk < 0)
        FAIL(ATTN_EINVAL, "a size is negative: B %lld, Lq %lld, Lk %lld", LL(B), LL(Lq), LL(Lk));
    args = args ? args : &attn_i_no_args;
    int64_t D = max64(op->Dk, op->Dv), L = max64(Lq, Lk);
    bool packed = args->offsets_q && args->offsets_k; /* then no tensor has an axis B */
    if (!fits(packed ? 1 : max64(B, 1), op->Hq, max64(L, 1), D) ||
        !fits(max64(B, 1), op->Hq, 1, sizeof(int64_t)))
        FAIL(ATTN_EOVERFLOW, "a tensor of B %lld x %lld heads x L %lld x D %lld is too large",
             LL(B), LL(op->Hq), LL(L), LL(D));
    bool scores = false;
    for (int s = 0; s < N_STAGES; s++) scores |= args->scores[s] != NULL;
    if (scores && !fits(max64(B, 1), op->Hq, max64(Lq, 1), max64(Lk, 1)))
        FAIL(ATTN_EOVERFLOW, "scores of %lld x %lld x %lld x %lld are too large", LL(B),
             LL(op->Hq), LL(Lq), LL(Lk));
    if (scores && Lk > INT32_MAX)
        FAIL(ATTN_EOVERFLOW, "scores of %lld keys exceed BLAS's integer", LL(Lk));
    *job = (struct job){.op = op, .args = args, .B = B, .Lq = Lq, .Lk = Lk};
    return ATTN_OK;
}

/* ------------------------------------------------------------- tensors */

static const char *const slot_names[4] = {"q", "k", "v", "out"};

static bool is_packed(const struct job *job, int32_t slot)
{
    return slot == ATTN_Q || slot == ATTN_OUT ? job->args->offsets_q != NULL
                                              : job->args->offsets_k != NULL;
}

static void packed(int32_t layout, const int64_t len[4], int64_t stride[4])
{
    bool heads_outside = layout == ATTN_LAYOUT_BHLD;
    stride[3] = 1;
    stride[2] = heads_outside ? len[3] : len[1] * len[3];
    stride[1] = heads_outside ? len[2] * len[3] : len[3];
    stride[0] = len[1] * len[2] * len[3];
}

/* The tensor of a slot, its strides checked; those of axes of length <= 1 made harmless. */
static attn_status check_tensor(const struct job *job, int32_t slot, const void *data,
                                struct region *r, struct tensor *t, struct text *why)
{
    const attn_op *op = job->op;
    bool query = slot == ATTN_Q || slot == ATTN_OUT;
    int64_t D = slot == ATTN_Q || slot == ATTN_K ? op->Dk : op->Dv;
    bool tokens = is_packed(job, slot); /* (token, head, D): one item, whatever the layout */
    *r = (struct region){
        .name = slot_names[slot],
        .at = data,
        .len = {tokens ? 1 : job->B, query ? op->Hq : op->Hk, query ? job->Lq : job->Lk, D},
        .element = sizeof(float)};
    if (job->args->has_strides[slot])
        for (int a = 0; a < 4; a++) r->stride[a] = job->args->strides[slot][a];
    else
        packed(tokens ? ATTN_LAYOUT_BLHD : op->layout, r->len, r->stride);
    TRY(attn_i_region_check(r, slot == ATTN_OUT, why));
    *t = (struct tensor){(float *)(uintptr_t)data, r->stride[0], r->stride[1], r->stride[2]};
    return ATTN_OK;
}

/* ----------------------------------------------------- optional tensors */

#define N_INPUTS 7  /* q, k, v, both masks, both segment ids */
#define N_OUTPUTS 7 /* out, log-sum-exp, four stages, workspace */

static attn_status check_mask(const struct job *job, const struct mask *m, size_t element,
                              struct region *r, struct text *why)
{
    const int64_t full[4] = {job->B, job->op->Hq, job->Lq, job->Lk};
    static const char *const axes[4] = {"B", "Hq", "Lq", "Lk"};
    const char *name = element == 1 ? "the boolean mask" : "the additive mask";
    if (!m->data) return ATTN_OK;
    if ((uintptr_t)m->data % element) FAIL(ATTN_EINVAL, "%s is not aligned to its element", name);
    *r = (struct region){.name = name, .at = m->data, .element = element};
    for (int a = 0; a < 4; a++) {
        bool fit = m->dims[a] == full[a] || (a == 3 ? m->dims[a] < full[a] : m->dims[a] == 1);
        if (!fit)
            FAIL(ATTN_EINVAL, "extent %d of %s is %lld, which does not fit %s = %lld", a, name,
                 LL(m->dims[a]), axes[a], LL(full[a]));
        r->len[a] = m->dims[a];
        r->stride[a] = m->strides[a];
    }
    return attn_i_region_extent(r, why);
}

static attn_status check_offsets(const struct job *job, const int64_t *offsets, int64_t n,
                                 int64_t L, const char *name, struct text *why)
{
    if (!offsets) return ATTN_OK;
    if (n != job->B)
        FAIL(ATTN_EINVAL, "offsets of %lld sequences of %s for B = %lld", LL(n), name,
             LL(job->B));
    if (offsets[n] > L)
        FAIL(ATTN_EINVAL, "the offsets of %s end at %lld, beyond its %lld tokens", name,
             LL(offsets[n]), LL(L));
    return ATTN_OK;
}

/* Packed sequences have no rectangle of scores: nothing of that shape may be asked. */
static attn_status check_packed_sequences(const struct job *job, struct text *why)
{
    const attn_args *args = job->args;
    TRY(check_offsets(job, args->offsets_q, args->n_sequences_q, job->Lq, "queries", why));
    TRY(check_offsets(job, args->offsets_k, args->n_sequences_k, job->Lk, "keys", why));
    bool scores = args->mask_bool.data || args->mask_add.data;
    for (int s = 0; s < N_STAGES; s++) scores |= args->scores[s] != NULL;
    if (scores && (args->offsets_q || args->offsets_k))
        FAIL(ATTN_EUNSUPPORTED, "masks and score outputs do not go with packed sequences");
    if ((uintptr_t)args->segments_q % sizeof(int32_t) ||
        (uintptr_t)args->segments_k % sizeof(int32_t))
        FAIL(ATTN_EINVAL, "segment ids are not aligned to 4 bytes");
    return ATTN_OK;
}

static attn_status check_ranges(const struct job *job, struct text *why)
{
    const attn_args *args = job->args;
    if (args->n_range && args->n_range != job->B)
        FAIL(ATTN_EINVAL, "key ranges of %lld items for B = %lld", LL(args->n_range), LL(job->B));
    if (args->slopes && args->n_slopes != job->op->Hq)
        FAIL(ATTN_EINVAL, "ALiBi slopes of %lld heads for Hq = %lld", LL(args->n_slopes),
             LL(job->op->Hq));
    if (args->sinks && args->n_sinks != job->op->Hq)
        FAIL(ATTN_EINVAL, "sinks of %lld heads for Hq = %lld", LL(args->n_sinks),
             LL(job->op->Hq));
    if (args->positions && args->n_positions != job->B)
        FAIL(ATTN_EINVAL, "positions of %lld items for B = %lld", LL(args->n_positions),
             LL(job->B));
    for (int64_t b = 0; b < job->B && (args->key_begin || args->key_end); b++) {
        int64_t begin = args->key_begin ? args->key_begin[b] : 0;
        int64_t Lk = args->offsets_k ? args->offsets_k[b + 1] - args->offsets_k[b] : job->Lk;
        int64_t end = args->key_end ? args->key_end[b] : Lk;
        if (begin < 0 || begin > end || end > Lk)
            FAIL(ATTN_EINVAL, "the key range of item %lld, [%lld, %lld), is not within [0, %lld)",
                 LL(b), LL(begin), LL(end), LL(Lk));
    }
    return ATTN_OK;
}

static void packed_array(struct region *r, const char *name, const void *data, int64_t elements,
                         size_t element)
{
    *r = (struct region){.name = name, .at = data, .element = element, .hi = elements};
    r->len[3] = elements;
    r->stride[3] = 1;
}

static attn_status check_outputs(const struct job *job, const struct region inputs[N_INPUTS],
                                 struct region outputs[N_OUTPUTS], struct text *why)
{
    static const char *const stages[N_STAGES] = {"the raw scores", "the capped scores",
                                                 "the masked scores", "the weights"};
    const attn_args *args = job->args;
    int64_t rows = (args->offsets_q ? 1 : job->B) * job->op->Hq * job->Lq;
    packed_array(&outputs[1], "the log-sum-exp", args->lse, args->lse ? rows : 0, sizeof(float));
    for (int s = 0; s < N_STAGES; s++) {
        bool mean = args->score_flags[s] & ATTN_MEAN_HEADS;
        packed_array(&outputs[2 + s], stages[s], args->scores[s],
                     args->scores[s] ? (mean ? rows / job->op->Hq : rows) * job->Lk : 0,
                     sizeof(float));
    }
    packed_array(&outputs[6], "the workspace", args->workspace,
                 (int64_t)(args->workspace_bytes & INT64_MAX), 1);
    for (int o = 0; o < N_OUTPUTS; o++) {
        if (o != 6 && (uintptr_t)outputs[o].at % sizeof(float))
            FAIL(ATTN_EINVAL, "%s is not aligned to 4 bytes", outputs[o].name);
        if (outputs[o].lo == outputs[o].hi) /* nearly always all but out */
            continue;
        for (int i = 0; i < N_INPUTS; i++)
            if (attn_i_overlap(&outputs[o], &inputs[i]))
                FAIL(ATTN_EINVAL, "%s overlaps %s", outputs[o].name, inputs[i].name);
        for (int p = 0; p < o; p++)
            if (attn_i_overlap(&outputs[o], &outputs[p]))
                FAIL(ATTN_EINVAL, "%s overlaps %s", outputs[o].name, outputs[p].name);
    }
    return ATTN_OK;
}

/* Optional inputs; their regions from inputs[3] on. */
static attn_status check_options(const struct job *job, struct region inputs[N_INPUTS],
                                 struct text *why)
{
    const attn_args *args = job->args;
    TRY(check_packed_sequences(job, why));
    TRY(check_ranges(job, why));
    TRY(check_mask(job, &args->mask_bool, 1, &inputs[3], why));
    TRY(check_mask(job, &args->mask_add, sizeof(float), &inputs[4], why));
    packed_array(&inputs[5], "the segment ids of queries", args->segments_q,
                 args->offsets_q ? job->Lq : job->B * job->Lq, sizeof(int32_t));
    packed_array(&inputs[6], "the segment ids of keys", args->segments_k,
                 args->offsets_k ? job->Lk : job->B * job->Lk, sizeof(int32_t));
    return ATTN_OK;
}

static attn_status check_workspace(const struct job *job, struct text *why)
{
    size_t needed;
    if (!job->args->workspace) return ATTN_OK;
    attn_status status = attn_i_workspace(job, &needed);
    if (status != ATTN_OK) FAIL(status, "the workspace that this run needs is too large");
    if (job->args->workspace_bytes < needed)
        FAIL(ATTN_EINVAL, "the workspace has %zu bytes and needs %zu", job->args->workspace_bytes,
             needed);
    return ATTN_OK;
}

attn_status attn_i_check_run(const attn_op *op, int64_t B, int64_t Lq, int64_t Lk, const void *q,
                             const void *k, const void *v, const void *out, const attn_args *args,
                             struct job *job, struct text *why)
{
    struct region inputs[N_INPUTS] = {{0}}, outputs[N_OUTPUTS] = {{0}};
    TRY(attn_i_check_sizes(op, B, Lq, Lk, args, job, why));
    TRY(check_options(job, inputs, why));
    if (B == 0 || Lq == 0) return ATTN_OK;
    TRY(check_tensor(job, ATTN_Q, q, &inputs[0], &job->q, why));
    TRY(check_tensor(job, ATTN_K, k, &inputs[1], &job->k, why));
    TRY(check_tensor(job, ATTN_V, v, &inputs[2], &job->v, why));
    TRY(check_tensor(job, ATTN_OUT, out, &outputs[0], &job->out, why));
    TRY(check_outputs(job, inputs, outputs, why));
    return check_workspace(job, why);
}

/* --------------------------------------------------------------- layers */

static attn_status check_packed(struct region *r, const char *name, const void *data,
                                const int64_t len[4], bool output, struct text *why)
{
    *r = (struct region){.name = name, .at = data, .element = sizeof(float)};
    for (int a = 0; a < 4; a++) r->len[a] = len[a];
    packed(ATTN_LAYOUT_BLHD, r->len, r->stride);
    if (!fits(len[0], len[1], len[2], len[3])) FAIL(ATTN_EOVERFLOW, "%s is too large", name);
    return attn_i_region_check(r, output, why);
}

attn_status attn_i_check_layer(const struct job *job, const int64_t widths[3], const float *x_q,
                               const float *x_kv, const float *out)
{
    struct region inputs[N_INPUTS] = {{0}}, outputs[N_OUTPUTS] = {{0}};
    int64_t B_q = job->args->offsets_q ? 1 : job->B, B_k = job->args->offsets_k ? 1 : job->B;
    const int64_t len_q[4] = {B_q, 1, job->Lq, widths[0]};
    const int64_t len_kv[4] = {B_k, 1, job->Lk, widths[1]};
    const int64_t len_out[4] = {B_q, 1, job->Lq, widths[2]};
    for (int slot = ATTN_Q; slot <= ATTN_OUT; slot++)
        REQUIRE(!job->args->has_strides[slot], ATTN_EINVAL);
    TRY(check_options(job, inputs, NULL));
    if (job->B == 0 || job->Lq == 0) return ATTN_OK;
    TRY(check_packed(&inputs[0], "x_q", x_q, len_q, false, NULL));
    TRY(check_packed(&inputs[1], "x_kv", x_kv, len_kv, false, NULL));
    TRY(check_packed(&outputs[0], "out", out, len_out, true, NULL));
    return check_outputs(job, inputs, outputs, NULL);
}

attn_status attn_i_check_project(const int64_t sizes[4], int64_t E, const float *x, float *y,
                                 const int64_t y_strides[4], struct tensor *to)
{
    struct region in, out;
    const int64_t len[4] = {sizes[0], 1, sizes[2], E};
    TRY(check_packed(&in, "x", x, len, false, NULL));
    TRY(check_packed(&out, "y", y, sizes, y_strides == NULL, NULL));
    if (y_strides) {
        for (int a = 0; a < 4; a++) out.stride[a] = y_strides[a];
        TRY(attn_i_region_check(&out, true, NULL));
    }
    REQUIRE(!attn_i_overlap(&out, &in), ATTN_EINVAL);
    *to = (struct tensor){y, out.stride[0], out.stride[1], out.stride[2]};
    return ATTN_OK;
}
