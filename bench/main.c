/* SPDX-License-Identifier: MIT */
/* attn-bench: times attention and checks it. The program in the order of its steps. */
#define _POSIX_C_SOURCE 200809L
#include "bench.h"
#include "machine.h"
#include "measure.h"
#include "memory.h"
#include "models.h"
#include "options.h"
#include "peaks.h"
#include "plan.h"
#include "plot.h"
#include "report.h"
#include "terminal.h"
#include "timing.h"
#include "vector_softmax.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SCHEMA 1
#define PEAKS_MAX 64 /* thread counts whose ceilings are measured; others have none */
#define PEAK_TRIES 5

struct session {
    struct options options;
    struct plan plan;
    struct machine machine;
    struct peaks peaks[PEAKS_MAX];
    size_t n_peaks;
    bool decodes; /* any row: the read bandwidth is of interest */
    struct record *records;
    double *samples;
    struct report *out, *err;
    FILE *plot;
    double began; /* timing the first group */
    char blas[512], command[4096], time[32];
};

void complain(const char *format, ...)
{
    va_list arguments;
    bool warning = strncmp(format, "warning:", 8) == 0, wrong = strncmp(format, "WRONG", 5) == 0;
    terminal_clear();
    fputs("attn-bench: ", stderr);
    if (warning || wrong) terminal_colour(stderr, wrong ? RED : YELLOW);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    if (warning || wrong) terminal_colour(stderr, PLAIN);
    fputc('\n', stderr);
}

/* As a shell reads it; cut where it would not fit. */
static void quote_command(char *to, size_t cap, int argc, char **argv)
{
    size_t n = 0;
    for (int i = 0; i < argc; i++) {
        bool plain = argv[i][0] != '\0';
        for (const char *s = argv[i]; *s; s++)
            plain = plain && (isalnum((unsigned char)*s) || strchr("_-+=./,:@", *s));
        if (n + 4 * strlen(argv[i]) + 4 > cap) return;
        n += (size_t)snprintf(to + n, cap - n, "%s%s", i ? " " : "", plain ? "" : "'");
        for (const char *s = argv[i]; *s; s++)
            n += (size_t)snprintf(to + n, cap - n, *s == '\'' ? "'\\''" : "%c", *s);
        n += (size_t)snprintf(to + n, cap - n, "%s", plain ? "" : "'");
    }
}

/* ---------------------------------------------------------------- records */

/* What is known before anything is measured. */
static struct record plan_record(const struct session *s, const struct config *c)
{
    const struct shape *x = &c->shape;
    struct record r = record_empty();
    bool isa = c->impl->uses_isa;
    r.model = x->model;
    r.impl = c->impl->name;
    r.stage = stage_name((size_t)x->stage);
    r.engine = c->impl->uses_engine ? engine_name((size_t)c->engine) : NULL;
    r.isa = isa ? isa_name((size_t)(c->isa == ISA_BEST ? softmax_best_isa() : c->isa)) : NULL;
    r.causal = causal_name((size_t)x->causal);
    r.window = window_name(x);
    r.softcap = x->softcap;
    r.alibi = alibi_name((size_t)x->alibi);
    r.varlen = packing_name(x);
    r.pairs = shape_pairs(x);
    r.b = x->b, r.q = x->q, r.k = x->k, r.h = x->h, r.g = x->g, r.d = x->d, r.dv = x->dv;
    r.threads = c->threads;
    r.repetitions = s->options.repetitions;
    r.flops = shape_flops(x);
    r.kv_bytes = shape_decode_bytes(x);
    r.cold = s->options.cold;
    r.cpu = s->machine.cpu[0] ? s->machine.cpu : NULL;
    r.cpus = s->machine.cpus;
    r.governor = s->machine.governor[0] ? s->machine.governor : NULL;
    r.load = s->machine.load;
    r.version = library_version();
    r.seed = s->options.seed;
    r.command = s->command;
    r.schema = SCHEMA;
    return r;
}

/* The ceilings of so many threads; NULL: not measured. */
static struct peaks *peaks_for(struct session *s, int64_t threads)
{
    for (size_t i = 0; i < s->n_peaks; i++)
        if (s->peaks[i].threads == threads) return &s->peaks[i];
    return NULL;
}

/* Bytes to read for the bandwidth: well beyond the last cache, or not at all. */
static size_t read_bytes(const struct session *s)
{
    size_t bytes = s->machine.last_cache * 4;
    return s->decodes && bytes < s->machine.memory / 4 ? bytes : 0;
}

static void measure_peaks(struct session *s)
{
    for (size_t i = 0; s->options.peaks && i < s->plan.n_configs; i++) {
        int64_t threads = s->plan.configs[i].threads;
        if (peaks_for(s, threads) || s->n_peaks == PEAKS_MAX) continue;
        struct peaks *p = &s->peaks[s->n_peaks++];
        *p = (struct peaks){threads, NAN, NAN, NAN};
        if (s->options.progress == PROGRESS_AUTO) terminal_status("the machine's ceilings");
        peaks_measure(p, PEAK_TRIES, read_bytes(s));
        terminal_clear();
        fprintf(stderr, "measured, %" PRId64 " thread%s: FMA %.1f GF/s, sgemm %.1f GF/s", threads,
                threads > 1 ? "s" : "", p->fma, p->sgemm);
        if (s->decodes) fprintf(stderr, ", reading memory %.1f GB/s", p->bandwidth);
        fputc('\n', stderr);
    }
}

/* Once more beside each group, in case the first time was a bad one. */
static void improve_peaks(struct session *s, const struct group *group)
{
    bool done[PEAKS_MAX] = {false};
    for (size_t i = 0; i < group->n; i++) {
        const struct config *c = &s->plan.configs[group->first + i];
        struct peaks *p = peaks_for(s, c->threads);
        if (p && !done[p - s->peaks])
            peaks_measure(p, 1, isnan(shape_decode_bytes(&c->shape)) ? 0 : read_bytes(s));
        if (p) done[p - s->peaks] = true;
    }
}

/* The rates that follow from times, flops and ceilings. */
static void derive(struct session *s, struct record *r)
{
    const struct peaks *p = peaks_for(s, r->threads);
    if (p) {
        r->sgemm_gflops = p->sgemm;
        r->fma_gflops = p->fma;
        r->read_gbps = p->bandwidth;
    }
    double flops = r->flops > 0 ? r->flops : NAN; /* the softmax has no rate in flops */
    r->gflops = flops / r->min_ns;
    r->gflops_median = flops / r->median_ns;
    r->pct_sgemm = 100 * r->gflops / r->sgemm_gflops;
    r->pct_fma = 100 * r->gflops / r->fma_gflops;
    r->gbps = r->kv_bytes / r->min_ns;
    r->pct_bw = 100 * r->gbps / r->read_gbps;
}

static void compare_unfused(struct session *s, const struct group *group)
{
    const struct config *configs = s->plan.configs + group->first;
    struct record *records = s->records + group->first;
    for (size_t i = 0; i < group->n; i++)
        for (size_t j = 0; j < group->n; j++) {
            const struct record *u = &records[j];
            bool isa = !u->isa || !records[i].isa || strcmp(u->isa, records[i].isa) == 0;
            if (strcmp(u->impl, "unfused") == 0 && u->threads == records[i].threads && isa &&
                shape_same_rules(&configs[i].shape, &configs[j].shape))
                records[i].vs_unfused = u->min_ns / records[i].min_ns;
        }
}

static void print_group(struct session *s, const struct group *group)
{
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(s->time, sizeof s->time, "%Y-%m-%dT%H:%M:%SZ", &utc);
    struct record *records = s->records + group->first;
    for (size_t i = 0; i < group->n; i++) {
        const struct shape *x = &s->plan.configs[group->first + i].shape;
        records[i].time = s->time[0] ? s->time : NULL;
        if (x->stage == STAGE_SOFTMAX)
            records[i].ns_per_score = records[i].min_ns / ((double)x->h * records[i].pairs);
        derive(s, &records[i]);
    }
    compare_unfused(s, group);
    terminal_clear();
    for (size_t i = 0; i < group->n; i++) {
        report_record(s->out, &records[i]);
        if (s->err) report_record(s->err, &records[i]);
        records[i].samples = NULL; /* the next group's take their place */
    }
}

/* ------------------------------------------------------------------ steps */

/* How long the groups from i on will take if a row takes as long as those before; 0: unknown. */
static double seconds_left(const struct session *s, size_t i)
{
    double done = (double)s->plan.groups[i].first, rows = (double)s->plan.n_configs;
    return done > 0 ? (timing_now() - s->began) * 1e-9 * (rows - done) / done : 0;
}

static void progress(const struct session *s, size_t i, const char *what, double left)
{
    const struct group *group = &s->plan.groups[i];
    const struct shape *x = &s->plan.configs[group->first].shape;
    if (s->options.progress == PROGRESS_NONE) return;
    char shape[SHAPE_TEXT], text[SHAPE_TEXT + 128], time_left[32] = "";
    if (left > 0) snprintf(time_left, sizeof time_left, ", about %.0f s left", left);
    snprintf(text, sizeof text, "[%zu/%zu] %s%s: %s %s, %zu row%s", i + 1, s->plan.n_groups, what,
             time_left, stage_name((size_t)x->stage), shape_text(x, shape), group->n,
             group->n == 1 ? "" : "s");
    if (s->options.progress == PROGRESS_LINES)
        fprintf(stderr, "%s\n", text);
    else
        terminal_status(text);
}

static bool make_records(struct session *s)
{
    size_t largest = 0;
    for (size_t i = 0; i < s->plan.n_groups; i++)
        largest = s->plan.groups[i].n > largest ? s->plan.groups[i].n : largest;
    s->records = calloc(s->plan.n_configs, sizeof *s->records);
    s->samples = calloc(largest * (size_t)s->options.repetitions, sizeof *s->samples);
    if (!s->records || !s->samples) {
        complain("no memory");
        return false;
    }
    for (size_t i = 0; i < s->plan.n_configs; i++) {
        s->records[i] = plan_record(s, &s->plan.configs[i]);
        s->decodes = s->decodes || !isnan(s->records[i].kv_bytes);
    }
    return true;
}

static void probe_memory(struct session *s)
{
    if (!s->options.memory || machine_sanitized()) return;
    for (size_t g = 0; g < s->plan.n_groups; g++) {
        const struct group *group = &s->plan.groups[g];
        progress(s, g, "memory", 0);
        for (size_t i = group->first; i < group->first + group->n; i++)
            s->records[i].peak_added_mib =
                memory_probe(&s->plan.configs[i], group->n_sets, (uint64_t)s->options.seed);
    }
    terminal_clear();
}

/* The plot's file, too: that it cannot be written is to be known before an hour of measuring. A
   plot that is there stays until there is another. */
static bool open_reports(struct session *s)
{
    const struct options *o = &s->options;
    if (o->plot && !(s->plot = fopen(o->plot, "a"))) {
        complain("--plot: %s: %s", o->plot, strerror(errno));
        return false;
    }
    s->out = report_open(stdout, (int)o->format, s->records, s->plan.n_configs);
    if (s->out && o->second_format >= 0)
        s->err = report_open(stderr, (int)o->second_format, s->records, s->plan.n_configs);
    if (s->out && (s->err || o->second_format < 0)) return true;
    complain("no memory");
    return false;
}

static int close_reports(struct session *s, int result)
{
    bool written = !s->out || report_close(s->out);
    if (s->err) report_close(s->err);
    if (s->plot) {
        bool drawn =
            result == RESULT_ENVIRONMENT || plot_write(s->plot, s->records, s->plan.n_configs);
        written = fclose(s->plot) == 0 && drawn && written;
    }
    if (written) return result;
    complain("the results could not be written");
    return RESULT_ENVIRONMENT;
}

static int run_groups(struct session *s)
{
    int result = RESULT_OK;
    s->began = timing_now();
    for (size_t i = 0; i < s->plan.n_groups; i++) {
        const struct group *group = &s->plan.groups[i];
        progress(s, i, "timing", seconds_left(s, i));
        int r =
            measure_group(&s->plan, group, &s->options, s->records + group->first, s->samples);
        if (r == RESULT_ENVIRONMENT) return r;
        if (r == RESULT_WRONG) result = r;
        improve_peaks(s, group);
        print_group(s, group);
    }
    return result;
}

static void print_context(const struct session *s)
{
    fprintf(stderr, "attn-bench, libattn %s; %s; %" PRId64 " CPUs%s; BLAS: %s\n",
            library_version(), s->machine.cpu[0] ? s->machine.cpu : "unknown CPU",
            s->machine.cpus, s->machine.is_virtual ? ", a virtual machine" : "", s->blas);
}

static int dry_run(struct session *s)
{
    if (!open_reports(s)) return RESULT_ENVIRONMENT;
    for (size_t i = 0; i < s->plan.n_configs; i++) {
        report_record(s->out, &s->records[i]);
        if (s->err) report_record(s->err, &s->records[i]);
    }
    return close_reports(s, RESULT_OK);
}

/* The memory probes come first, in children of a process that has not used the BLAS yet: its
   buffers, once taken, stay, and a child would inherit them unnoticed. */
static int run(struct session *s)
{
    const struct options *o = &s->options;
    int result = plan_make(&s->plan, o);
    if (result != RESULT_OK) return result;
    machine_read(&s->machine);
    result = plan_fit(&s->plan, o->cold, s->machine.last_cache, s->machine.memory, o->dry_run);
    if (result != RESULT_OK) return result;
    if (!make_records(s)) return RESULT_ENVIRONMENT;
    if (o->dry_run) return dry_run(s);
    machine_warn(&s->machine, s->plan.threads_max);
    probe_memory(s);
    if (!library_blas(s->blas, sizeof s->blas)) {
        complain("the BLAS cannot be used: %s", s->blas);
        return RESULT_ENVIRONMENT;
    }
    for (size_t i = 0; i < s->plan.n_configs; i++) s->records[i].blas = s->blas;
    print_context(s);
    measure_peaks(s);
    if (!open_reports(s)) return RESULT_ENVIRONMENT;
    return close_reports(s, run_groups(s));
}

static int print_version(struct session *s)
{
    bool works = library_blas(s->blas, sizeof s->blas);
    printf("attn-bench %s\nBLAS: %s\n", library_version(), s->blas);
    return works ? RESULT_OK : RESULT_ENVIRONMENT;
}

int main(int argc, char **argv)
{
    static struct session s; /* lists of axes are too large for the stack */
    if (!options_parse(&s.options, argc, argv)) return RESULT_USAGE;
    int result = RESULT_OK;
    if (s.options.help) {
        options_help();
    } else if (s.options.version) {
        result = print_version(&s);
    } else if (s.options.list) {
        models_print();
    } else {
        quote_command(s.command, sizeof s.command, argc, argv);
        result = run(&s);
        plan_free(&s.plan);
        free(s.records);
        free(s.samples);
    }
    if (fflush(stdout) != 0 || ferror(stdout)) result = RESULT_ENVIRONMENT;
    return result;
}
