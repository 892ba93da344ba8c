/* SPDX-License-Identifier: MIT */
/* See plan.h. */
#include "plan.h"

#include "models.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define CONFIGS_MAX 20000
/* BLAS's buffers, the reference rows of the verification, the program. */
#define MEMORY_ASIDE ((size_t)192 << 20)

static const struct impl *const impls[] = {&impl_fused, &impl_unfused, &impl_naive, &impl_gemm};
#define N_IMPLS (sizeof impls / sizeof *impls)

const struct impl *impl_at(size_t i) { return i < N_IMPLS ? impls[i] : NULL; }
const char *impl_name(size_t i) { return i < N_IMPLS ? impls[i]->name : NULL; }

/* ---------------------------------------------------------------- members */

/* Why something was left out: said once, and it decides the result when nothing is left. */
struct omitted {
    bool stage[N_IMPLS][STAGE_COUNT], unavailable[8];
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

static bool add_group(struct plan *plan, const struct options *o, const struct shape *s,
                      struct omitted *omitted)
{
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

/* The axes of a shape, and how large each is: a counter with a digit an axis. */
enum { AXIS_B, AXIS_Q, AXIS_K, AXIS_H, AXIS_G, AXIS_D, AXIS_DV, AXIS_CAUSAL, AXIS_STAGE, AXES };

static const struct list *axis_list(const struct options *o, int axis)
{
    const struct list *const lists[AXES] = {&o->b, &o->q,  &o->k,      &o->h,    &o->g,
                                            &o->d, &o->dv, &o->causal, &o->stage};
    return lists[axis];
}

/* The shape at the counter's position: what is not given is the model's, and what the model ties
   together (k to q in self-attention, g to h, dv to d) stays tied. */
static bool shape_at(struct shape *s, const struct options *o, const struct shape *model,
                     const size_t at[AXES])
{
    int64_t v[AXES] = {model->b, model->q,  model->k,      model->h,    model->g,
                       model->d, model->dv, model->causal, model->stage};
    const int follows[AXES] = {[AXIS_K] = AXIS_Q, [AXIS_G] = AXIS_H, [AXIS_DV] = AXIS_D};
    const bool tied[AXES] = {[AXIS_K] = v[AXIS_K] == v[AXIS_Q],
                             [AXIS_G] = v[AXIS_G] == v[AXIS_H],
                             [AXIS_DV] = v[AXIS_DV] == v[AXIS_D]};
    for (int axis = 0; axis < AXES; axis++) {
        const struct list *list = axis_list(o, axis);
        if (list->n)
            v[axis] = list->v[at[axis]];
        else if (tied[axis])
            v[axis] = v[follows[axis]];
    }
    if (v[AXIS_H] % v[AXIS_G] != 0) {
        complain("%" PRId64 " query heads are no multiple of %" PRId64
                 " key/value heads; try --help",
                 v[AXIS_H], v[AXIS_G]);
        return false;
    }
    *s = (struct shape){model->model,        v[AXIS_B],         v[AXIS_Q], v[AXIS_K],
                        v[AXIS_H],           v[AXIS_G],         v[AXIS_D], v[AXIS_DV],
                        (int)v[AXIS_CAUSAL], (int)v[AXIS_STAGE]};
    return true;
}

static bool add_model(struct plan *plan, const struct options *o, const struct shape *model,
                      struct omitted *omitted)
{
    size_t at[AXES] = {0};
    for (;;) {
        struct shape s;
        if (!shape_at(&s, o, model, at) || !add_group(plan, o, &s, omitted)) return false;
        int axis = AXES - 1;
        for (; axis >= 0; axis--) {
            if (++at[axis] < axis_list(o, axis)->n) break;
            at[axis] = 0;
        }
        if (axis < 0) return true;
    }
}

int plan_make(struct plan *plan, const struct options *o)
{
    static const struct shape plain = {NULL, 1, 512, 512, 12, 12, 64, 64, CAUSAL_NONE, STAGE_RUN};
    struct omitted omitted = {.any_unavailable = false};
    *plan = (struct plan){.threads_max = 1};
    plan->configs = calloc(CONFIGS_MAX, sizeof *plan->configs);
    plan->groups = calloc(CONFIGS_MAX + 1, sizeof *plan->groups);
    if (!plan->configs || !plan->groups) {
        complain("no memory");
        return RESULT_ENVIRONMENT;
    }
    if (o->model.n == 0 && !add_model(plan, o, &plain, &omitted)) return RESULT_USAGE;
    for (size_t i = 0; i < o->model.n; i++) {
        struct shape s = models[o->model.v[i]].shape;
        s.model = models[o->model.v[i]].name;
        if (!add_model(plan, o, &s, &omitted)) return RESULT_USAGE;
    }
    if (plan->n_configs) return RESULT_OK;
    complain("nothing is left to measure; try --help");
    return omitted.any_unavailable ? RESULT_ENVIRONMENT : RESULT_USAGE;
}

void plan_free(struct plan *plan)
{
    free(plan->configs);
    free(plan->groups);
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

int plan_fit(struct plan *plan, bool cold, size_t last_cache, size_t memory, bool report)
{
    size_t most = 0;
    for (size_t i = 0; i < plan->n_groups; i++) {
        struct group *group = &plan->groups[i];
        const struct shape *s = &plan->configs[group->first].shape;
        group->n_sets = tensors_sets(s, cold, last_cache);
        size_t bytes = group_bytes(plan, group);
        most = bytes > most ? bytes : most;
        if (bytes <= memory) continue;
        complain(
            "b=%" PRId64 " q=%" PRId64 " k=%" PRId64 " h=%" PRId64 " g=%" PRId64 " d=%" PRId64
            " needs %.4g GiB of memory and %.4g are free (inputs, output, and what each "
            "--impl holds: unfused and gemm hold a q x k matrix a thread)",
            s->b, s->q, s->k, s->h, s->g, s->d, (double)bytes / 0x1p30, (double)memory / 0x1p30);
        return RESULT_ENVIRONMENT;
    }
    if (report)
        complain("%zu rows in %zu shapes, at most %.4g GiB of memory, %.4g free", plan->n_configs,
                 plan->n_groups, (double)most / 0x1p30, (double)memory / 0x1p30);
    return RESULT_OK;
}
