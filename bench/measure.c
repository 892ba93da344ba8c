/* SPDX-License-Identifier: MIT */
/* See measure.h. */
#include "measure.h"

#include "stats.h"
#include "timing.h"
#include "verify.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* OpenBLAS's threads spin some 25 ms for more work before they sleep. The next sample, of another
   implementation, is to find the CPUs free. */
#define PAUSE_BLAS 0.05

struct running {
    const struct group *group;
    const struct options *options;
    const struct config *configs;
    struct tensors tensors;
    struct verify *references; /* a row each; n = 0 where it has another one's */
    const struct verify **reference;
    struct trial *trials;
    struct timing_task *tasks;
    struct record *records;
    size_t n_open;
    bool wrong;
};

static bool prepare_trial(void *context)
{
    struct trial *t = context;
    return !t->config.impl->prepare || t->config.impl->prepare(t);
}

static bool run_trial(void *context)
{
    struct trial *t = context;
    int64_t set = t->next_set;
    t->next_set = set + 1 < t->tensors->n_sets ? set + 1 : 0;
    return t->config.impl->run(t, set);
}

/* Do two rows compute the same? Without a softmax there are no rules. */
static bool same_result(const struct config *a, const struct config *b)
{
    bool plain = a->impl->skips_softmax;
    return plain == b->impl->skips_softmax && (plain || shape_same_rules(&a->shape, &b->shape));
}

static bool open_references(struct running *g)
{
    uint64_t seed = (uint64_t)g->options->seed;
    for (size_t i = 0; g->options->verify && i < g->group->n; i++) {
        const struct config *c = &g->configs[i];
        size_t same = 0;
        while (!same_result(c, &g->configs[same])) same++;
        g->reference[i] = &g->references[same];
        if (same == i &&
            !verify_open(&g->references[i], &c->shape, &g->tensors, c->impl->skips_softmax, seed))
            return false;
    }
    return true;
}

/* fmax() would drop a NaN, which says more than any number. */
static double worse(double a, double b) { return isnan(a) || isnan(b) ? NAN : fmax(a, b); }

static bool check(struct running *g, size_t i, const char *when)
{
    struct verdict verdict;
    struct record *r = &g->records[i];
    const struct shape *s = &g->configs[i].shape;
    if (!g->options->verify) return true;
    if (!verify_trial(g->reference[i], &g->trials[i], &verdict)) return false;
    bool first = r->verified < 0;
    r->max_err = first ? verdict.max_error : worse(r->max_err, verdict.max_error);
    r->err_of_tolerance =
        first ? verdict.of_tolerance : worse(r->err_of_tolerance, verdict.of_tolerance);
    r->verified = (first || r->verified) && verdict.right;
    if (!verdict.right) {
        g->wrong = true;
        char text[SHAPE_TEXT];
        complain("WRONG: %s, %s: %s stage %s T=%" PRId64 ": error %.3g, %.3g times the tolerance",
                 r->impl, when, shape_text(s, text), r->stage, r->threads, verdict.max_error,
                 verdict.of_tolerance);
    }
    return true;
}

static bool open_trials(struct running *g, double *samples)
{
    for (size_t i = 0; i < g->group->n; i++, g->n_open++) {
        struct trial *t = &g->trials[i];
        *t = (struct trial){.config = g->configs[i], .tensors = &g->tensors};
        if (!t->config.impl->open(t)) return false;
        g->records[i].threading = t->threading;
        g->tasks[i] =
            (struct timing_task){.prepare = prepare_trial,
                                 .run = run_trial,
                                 .context = t,
                                 .samples = samples + i * (size_t)g->options->repetitions};
    }
    return true;
}

static bool time_all(struct running *g)
{
    bool blas_threads = false;
    for (size_t i = 0; i < g->group->n; i++)
        blas_threads = blas_threads || g->trials[i].blas_threads;
    struct timing_options o = {.repetitions = g->options->repetitions,
                               .min_time = g->options->min_time,
                               .pause = blas_threads ? PAUSE_BLAS : 0,
                               .cold = g->options->cold,
                               .seed = (uint64_t)g->options->seed};
    int status = timing_measure(g->tasks, g->group->n, &o);
    if (status == TIMING_NO_CLOCK) complain("the clock does not work");
    return status == TIMING_OK;
}

static void note_times(struct running *g)
{
    for (size_t i = 0; i < g->group->n; i++) {
        struct record *r = &g->records[i];
        size_t n = (size_t)g->options->repetitions;
        struct stats s = stats_of(g->tasks[i].samples, n);
        r->samples = g->tasks[i].samples;
        r->n_samples = n;
        r->iterations = g->tasks[i].iterations;
        r->min_ns = s.min;
        r->median_ns = s.median;
        r->mean_ns = s.mean;
        r->stddev_ns = s.deviation;
        r->spread = s.spread;
    }
}

static bool run_group(struct running *g, int64_t n_sets, double *samples)
{
    const struct shape *s = &g->configs[0].shape;
    if (!tensors_make(&g->tensors, s, n_sets, (uint64_t)g->options->seed)) return false;
    if (!open_references(g) || !open_trials(g, samples)) return false;
    for (size_t i = 0; i < g->group->n; i++)
        if (!check(g, i, "first run")) return false;
    if (!time_all(g)) return false;
    for (size_t i = 0; i < g->group->n; i++)
        if (!check(g, i, "last run")) return false;
    note_times(g);
    return true;
}

int measure_group(const struct plan *plan, const struct group *group, const struct options *o,
                  struct record *records, double *samples)
{
    struct running g = {.group = group,
                        .options = o,
                        .records = records,
                        .configs = plan->configs + group->first};
    g.trials = calloc(group->n, sizeof *g.trials);
    g.tasks = calloc(group->n, sizeof *g.tasks);
    g.references = calloc(group->n, sizeof *g.references);
    g.reference = calloc(group->n, sizeof *g.reference);
    bool ok = g.trials && g.tasks && g.references && g.reference &&
              run_group(&g, group->n_sets, samples);
    for (size_t i = 0; i < g.n_open; i++) g.trials[i].config.impl->close(&g.trials[i]);
    for (size_t i = 0; g.references && i < group->n; i++) verify_close(&g.references[i]);
    tensors_free(&g.tensors);
    free(g.references);
    free(g.reference);
    free(g.trials);
    free(g.tasks);
    return !ok ? RESULT_ENVIRONMENT : g.wrong ? RESULT_WRONG : RESULT_OK;
}
