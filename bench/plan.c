/* SPDX-License-Identifier: MIT */
/* See plan.h. */
#include "plan.h"

#include "models.h"
#include "packing.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define CONFIGS_MAX 20000
#define MERGED_MAX 32
/* BLAS's buffers, the reference rows of the verification, the program. */
#define MEMORY_ASIDE ((size_t)192 << 20)

static const struct impl *const impls[] = {&impl_fused, &impl_unfused, &impl_naive, &impl_gemm};
#define N_IMPLS (sizeof impls / sizeof *impls)

const struct impl *impl_at(size_t i) { return i < N_IMPLS ? impls[i] : NULL; }
const char *impl_name(size_t i) { return i < N_IMPLS ? impls[i]->name : NULL; }

/* ---------------------------------------------------------------- members */

/* Why something was left out: said once, and it decides the result when nothing is left. */
struct omitted {
    bool stage[N_IMPLS][STAGE_COUNT], packed[STAGE_COUNT], unavailable[8];
    bool any_unavailable;
};

static bool add_config(struct plan *plan, const struct config *c)
{
    if (plan->n_configs == CONFIGS_MAX) {
        complain("more than %d rows; try --help", CONFIGS_MAX);
        return false;
    }
    plan->configs[plan->n_configs++] = *c;
    plan->groups[plan->n_groups].n++;
    if (c->threads > plan->threads_max) plan->threads_max = c->threads;
    return true;
}

static bool is_available(const struct config *c, struct omitted *omitted)
{
    const char *why = "";
    if (!c->impl->available || c->impl->available(c, &why)) return true;
    bool *said = &omitted->unavailable[c->engine * 4 + c->isa];
    if (!*said)
        complain("warning: engine %s, isa %s left out: %s", engine_name((size_t)c->engine),
                 isa_name((size_t)c->isa), why);
    *said = omitted->any_unavailable = true;
    return false;
}

/* An axis that an implementation does not have is not multiplied out. */
static size_t axis_size(const struct list *list, bool used)
{
    return used && list->n ? list->n : 1;
}
static int64_t axis_value(const struct list *list, bool used, size_t i, int64_t otherwise)
{
    return used && list->n ? list->v[i] : otherwise;
}

static bool add_impl(struct plan *plan, const struct options *o, const struct shape *s,
                     size_t which, struct omitted *omitted)
{
    const struct impl *impl = impls[which];
    if (!(impl->stages & 1u << s->stage)) {
        if (!omitted->stage[which][s->stage])
            complain("warning: %s has no stage %s: left out", impl->name,
                     stage_name((size_t)s->stage));
        omitted->stage[which][s->stage] = true;
        return true;
    }
    for (size_t t = 0; t < axis_size(&o->threads, impl->uses_threads); t++)
        for (size_t e = 0; e < axis_size(&o->engine, impl->uses_engine); e++)
            for (size_t i = 0; i < axis_size(&o->isa, impl->uses_isa); i++) {
                struct config c = {.shape = *s, .impl = impl};
                c.threads = axis_value(&o->threads, impl->uses_threads, t, 1);
                c.engine = (int)axis_value(&o->engine, impl->uses_engine, e, ENGINE_BLAS);
                c.isa = (int)axis_value(&o->isa, impl->uses_isa, i, ISA_BEST);
                if (is_available(&c, omitted) && !add_config(plan, &c)) return false;
            }
    return true;
}

/* The steps of the chain that work in one matrix have one size of it. */
static bool is_packable(const struct shape *s, struct omitted *omitted)
{
    bool matrix = s->stage != STAGE_RUN && s->stage != STAGE_LAYER && s->stage != STAGE_PROJECT;
    if (!s->packing || !matrix) return true;
    if (!omitted->packed[s->stage])
        complain("warning: stage %s has no packed sequences: left out",
                 stage_name((size_t)s->stage));
    omitted->packed[s->stage] = true;
    return false;
}

static bool add_group(struct plan *plan, const struct options *o, const struct shape *s,
                      struct omitted *omitted)
{
    if (!is_packable(s, omitted)) return true;
    plan->groups[plan->n_groups] = (struct group){.first = plan->n_configs, .n_sets = 1};
    if (o->impl.n == 0) {
        for (size_t i = 0; i < 2; i++)
            if (!add_impl(plan, o, s, i, omitted)) return false;
    }
    for (size_t i = 0; i < o->impl.n; i++)
        if (!add_impl(plan, o, s, (size_t)o->impl.v[i], omitted)) return false;
    plan->n_groups += plan->groups[plan->n_groups].n > 0;
    return true;
}

/* ----------------------------------------------------------------- shapes */

/* The axes of a shape: a counter with a digit an axis. Those that change no tensor come last, so
   that shapes with the same tensors follow each other. */
enum {
    AXIS_B,
    AXIS_Q,
    AXIS_K,
    AXIS_H,
    AXIS_G,
    AXIS_D,
    AXIS_DV,
    AXIS_STAGE,
    AXIS_VARLEN,
    AXIS_CAUSAL,
    AXIS_WINDOW,
    AXIS_SOFTCAP,
    AXIS_ALIBI,
    AXES
};

/* NULL: the axis does not hold whole numbers or names. */
static const struct list *axis_list(const struct options *o, int axis)
{
    const struct list *const lists[AXES] = {
        [AXIS_B] = &o->b,        [AXIS_Q] = &o->q,         [AXIS_K] = &o->k,
        [AXIS_H] = &o->h,        [AXIS_G] = &o->g,         [AXIS_D] = &o->d,
        [AXIS_DV] = &o->dv,      [AXIS_STAGE] = &o->stage, [AXIS_CAUSAL] = &o->causal,
        [AXIS_ALIBI] = &o->alibi};
    return lists[axis];
}

static size_t axis_values(const struct options *o, int axis)
{
    switch (axis) {
    case AXIS_WINDOW:
        return o->window.n;
    case AXIS_SOFTCAP:
        return o->softcap.n;
    case AXIS_VARLEN:
        return o->varlen.n;
    default:
        return axis_list(o, axis)->n;
    }
}

static int64_t number_at(const struct options *o, int axis, const size_t at[AXES],
                         int64_t otherwise)
{
    const struct list *list = axis_list(o, axis);
    return list->n ? list->v[at[axis]] : otherwise;
}

/* The sizes at the counter's position: what is not given is the model's, and what the model ties
   together (k to q in self-attention, g to h, dv to d) stays tied. */
static struct shape sizes_at(const struct options *o, const struct shape *model,
                             const size_t at[AXES])
{
    struct shape s = *model;
    s.b = number_at(o, AXIS_B, at, model->b);
    s.q = number_at(o, AXIS_Q, at, model->q);
    s.k = number_at(o, AXIS_K, at, model->k == model->q ? s.q : model->k);
    s.h = number_at(o, AXIS_H, at, model->h);
    s.g = number_at(o, AXIS_G, at, model->g == model->h ? s.h : model->g);
    s.d = number_at(o, AXIS_D, at, model->d);
    s.dv = number_at(o, AXIS_DV, at, model->dv == model->d ? s.d : model->dv);
    s.stage = (int)number_at(o, AXIS_STAGE, at, model->stage);
    s.causal = (int)number_at(o, AXIS_CAUSAL, at, model->causal);
    s.alibi = (int)number_at(o, AXIS_ALIBI, at, model->alibi);
    if (o->softcap.n) s.softcap = o->softcap.v[at[AXIS_SOFTCAP]];
    if (o->window.n) s.window = &o->window.v[at[AXIS_WINDOW]];
    if (s.window && s.window->left < 0 && s.window->right < 0) s.window = NULL;
    return s;
}

/* Sequences for a shape: those that a shape of the same sizes has already, or new ones. */
static int pack(struct plan *plan, struct shape *s, const char *value, uint64_t seed)
{
    bool usage = false;
    struct packing *p = packing_make(value, s->b, s->q, s->k, seed, &usage);
    if (!p) return usage ? RESULT_USAGE : RESULT_ENVIRONMENT;
    struct packing *same = plan->packings;
    while (same && !packing_is_same(same, p)) same = same->next;
    if (same) {
        packing_free(p);
    } else {
        p->next = plan->packings;
        plan->packings = p;
    }
    s->packing = same ? same : p;
    s->b = s->packing->n;
    s->q = packing_mean_q(s->packing);
    s->k = packing_mean_k(s->packing);
    return RESULT_OK;
}

/* The shape at the counter's position; *skip: it has been there already. */
static int shape_at(struct plan *plan, struct shape *s, const struct options *o,
                    const struct shape *model, const size_t at[AXES], bool *skip)
{
    *s = sizes_at(o, model, at);
    *skip = false;
    if (s->h % s->g != 0) {
        complain("%" PRId64 " query heads are no multiple of %" PRId64
                 " key/value heads; try --help",
                 s->h, s->g);
        return RESULT_USAGE;
    }
    const char *varlen = o->varlen.n ? o->varlen.v[at[AXIS_VARLEN]] : "none";
    if (packing_is_none(varlen)) return RESULT_OK;
    /* a list's sizes are its own: their axes are not multiplied out */
    *skip = packing_is_list(varlen) && (at[AXIS_B] || at[AXIS_Q] || at[AXIS_K]);
    return *skip ? RESULT_OK : pack(plan, s, varlen, (uint64_t)o->seed);
}

static int add_model(struct plan *plan, const struct options *o, const struct shape *model,
                     struct omitted *omitted)
{
    size_t at[AXES] = {0};
    for (;;) {
        struct shape s;
        bool skip;
        int result = shape_at(plan, &s, o, model, at, &skip);
        if (result != RESULT_OK) return result;
        if (!skip && !add_group(plan, o, &s, omitted)) return RESULT_USAGE;
        int axis = AXES - 1;
        for (; axis >= 0; axis--) {
            if (++at[axis] < axis_values(o, axis)) break;
            at[axis] = 0;
        }
        if (axis < 0) return RESULT_OK;
    }
}

int plan_make(struct plan *plan, const struct options *o)
{
    static const struct shape plain = {
        .b = 1, .q = 512, .k = 512, .h = 12, .g = 12, .d = 64, .dv = 64};
    struct omitted omitted = {.any_unavailable = false};
    *plan = (struct plan){.threads_max = 1};
    plan->configs = calloc(CONFIGS_MAX, sizeof *plan->configs);
    plan->groups = calloc(CONFIGS_MAX + 1, sizeof *plan->groups);
    if (!plan->configs || !plan->groups) {
        complain("no memory");
        return RESULT_ENVIRONMENT;
    }
    int result = o->model.n ? RESULT_OK : add_model(plan, o, &plain, &omitted);
    for (size_t i = 0; i < o->model.n && result == RESULT_OK; i++) {
        struct shape s = models[o->model.v[i]].shape;
        s.model = models[o->model.v[i]].name;
        result = add_model(plan, o, &s, &omitted);
    }
    if (result != RESULT_OK) return result;
    if (plan->n_configs) return RESULT_OK;
    complain("nothing is left to measure; try --help");
    return omitted.any_unavailable ? RESULT_ENVIRONMENT : RESULT_USAGE;
}

void plan_free(struct plan *plan)
{
    free(plan->configs);
    free(plan->groups);
    for (struct packing *p = plan->packings, *next; p; p = next) {
        next = p->next;
        packing_free(p);
    }
    *plan = (struct plan){0};
}

/* ----------------------------------------------------------------- memory */

/* Everything of a group is open at once. SIZE_MAX: more than can be said. */
static size_t group_bytes(const struct plan *plan, const struct group *group)
{
    size_t total;
    const struct config *c = &plan->configs[group->first];
    if (!tensors_bytes(&c->shape, group->n_sets, &total)) return SIZE_MAX;
    for (size_t i = 0; i < group->n; i++)
        if (c[i].impl->bytes && !c[i].impl->bytes(&c[i], &total)) return SIZE_MAX;
    return __builtin_add_overflow(total, MEMORY_ASIDE, &total) ? SIZE_MAX : total;
}

/* Rules do not change the tensors: rows that differ only there are measured together, so that
   they can be compared, where that fits into half of the memory. */
static void merge_groups(struct plan *plan, size_t memory)
{
    size_t n = 0;
    for (size_t i = 0; i < plan->n_groups; i++) {
        const struct group *next = &plan->groups[i];
        struct group *last = &plan->groups[n > 0 ? n - 1 : 0], both = *last;
        both.n += next->n;
        if (n > 0 && both.n <= MERGED_MAX && group_bytes(plan, &both) <= memory / 2 &&
            shape_same_tensors(&plan->configs[last->first].shape,
                               &plan->configs[next->first].shape))
            *last = both;
        else
            plan->groups[n++] = *next;
    }
    plan->n_groups = n;
}

int plan_fit(struct plan *plan, bool cold, size_t last_cache, size_t memory, bool report)
{
    size_t most = 0;
    for (size_t i = 0; i < plan->n_groups; i++)
        plan->groups[i].n_sets =
            tensors_sets(&plan->configs[plan->groups[i].first].shape, cold, last_cache);
    merge_groups(plan, memory);
    for (size_t i = 0; i < plan->n_groups; i++) {
        const struct group *group = &plan->groups[i];
        const struct shape *s = &plan->configs[group->first].shape;
        size_t bytes = group_bytes(plan, group);
        most = bytes > most ? bytes : most;
        if (bytes <= memory) continue;
        char text[SHAPE_TEXT];
        complain("%s needs %.4g GiB of memory and %.4g are free (inputs, output, and what each "
                 "--impl holds: unfused and gemm hold a q x k matrix a thread)",
                 shape_text(s, text), (double)bytes / 0x1p30, (double)memory / 0x1p30);
        return RESULT_ENVIRONMENT;
    }
    if (report)
        complain("%zu row%s in %zu group%s, at most %.4g GiB of memory, %.4g free",
                 plan->n_configs, plan->n_configs == 1 ? "" : "s", plan->n_groups,
                 plan->n_groups == 1 ? "" : "s", (double)most / 0x1p30, (double)memory / 0x1p30);
    return RESULT_OK;
}
