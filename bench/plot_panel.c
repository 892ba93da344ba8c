/* SPDX-License-Identifier: MIT */
/* See plot_panel.h. */
#include "plot_panel.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* So many different values of a size make it an axis. */
#define SWEPT_LEAST 3
#define FIELDS_MAX 128

/* ------------------------------------------------------------------ units */

static const struct {
    const char *title, *ceilings[PLOT_CEILINGS];
} units[UNIT_COUNT] = {
    [UNIT_GFLOPS] = {"GF/s of useful work", {"multiply-adds in registers", "square sgemm"}},
    [UNIT_GBPS] = {"GB/s of keys and values (decoding)", {"reading memory", NULL}},
    [UNIT_NS] = {"ns a score (softmax alone)", {NULL, NULL}},
};

static enum unit unit_of(const struct record *r)
{
    if (!isnan(r->kv_bytes)) return UNIT_GBPS;
    return r->flops > 0 ? UNIT_GFLOPS : UNIT_NS;
}

const char *unit_title(enum unit unit) { return units[unit].title; }

double panel_value(const struct panel *p, const struct record *r)
{
    const double values[UNIT_COUNT] = {r->gflops, r->gbps, r->ns_per_score};
    return values[p->unit];
}

double panel_median(const struct panel *p, const struct record *r)
{
    double slower = r->median_ns / r->min_ns;
    return p->unit == UNIT_NS ? panel_value(p, r) * slower : panel_value(p, r) / slower;
}

double panel_ceiling(const struct panel *p, const struct record *r, int which)
{
    const double ceilings[UNIT_COUNT][PLOT_CEILINGS] = {
        {r->fma_gflops, r->sgemm_gflops}, {r->read_gbps, NAN}, {NAN, NAN}};
    return ceilings[p->unit][which];
}

const char *panel_ceiling_name(const struct panel *p, int which)
{
    return units[p->unit].ceilings[which];
}

double panel_x(const struct panel *p, const struct record *r)
{
    return (double)field_integer(p->x, r);
}

/* ----------------------------------------------------------------- labels */

/* What Markdown shows where it varies are the axes. */
static bool is_axis(const struct field *f)
{
    return f->shown == IF_VARIES || strcmp(f->name, "impl") == 0;
}

static bool is_one_of(const struct field *f, const char *const *names)
{
    while (*names && strcmp(f->name, *names) != 0) names++;
    return *names != NULL;
}

static bool is_who(const struct field *f)
{
    static const char *const names[] = {"impl", "engine", "isa", "threads", NULL};
    return is_one_of(f, names);
}

/* Values that say by themselves what they are. */
static bool is_plain(const struct field *f)
{
    static const char *const names[] = {"model", "impl", "stage", "engine", "isa", NULL};
    return is_one_of(f, names);
}

/* Rules that are not there need no word. */
static bool is_none(const struct field *f, const struct record *r)
{
    const char *text = f->type == TEXT ? field_text(f, r) : "";
    return (f->type == REAL && field_real(f, r) == 0) || (f->type == FLAG && !field_flag(f, r)) ||
           (text && (strcmp(text, "none") == 0 || strcmp(text, "off") == 0));
}

/* The value, with its name where that is needed, behind what is in the label already. */
static void append_value(char *label, size_t cap, const struct field *f, const struct record *r)
{
    size_t n = strlen(label);
    const char *space = n ? " " : "";
    if (f->type == TEXT && field_text(f, r))
        snprintf(label + n, cap - n, "%s%s%s%s", space, is_plain(f) ? "" : f->title,
                 is_plain(f) ? "" : " ", field_text(f, r));
    else if (f->type == INTEGER)
        snprintf(label + n, cap - n, "%s%s=%" PRId64, space, f->title, field_integer(f, r));
    else if (f->type == REAL)
        snprintf(label + n, cap - n, "%s%s %g", space, f->title, field_real(f, r));
    else if (f->type == FLAG)
        snprintf(label + n, cap - n, "%s%s", space, field_flag(f, r) > 0 ? f->title : "warm");
}

/* ------------------------------------------------------------ axis, series */

/* Different values of a size, each by the first row that has it; up to max. */
static size_t distinct(const struct panel *p, const struct field *f, size_t *first, size_t max)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n && n < max; i++) {
        size_t j = 0;
        while (j < n && !field_same(f, &p->rows[first[j]], &p->rows[i])) j++;
        if (j == n) first[n++] = i;
    }
    return n;
}

static const struct field *field_named(const char *name)
{
    const struct field *f = report_fields;
    while (strcmp(f->name, name) != 0) f++;
    return f;
}

/* The size with the most values; of models there is no axis. */
static void choose_x(struct panel *p, size_t *first)
{
    size_t most = SWEPT_LEAST - 1;
    for (size_t i = 0; i < report_n_fields; i++) {
        const struct field *f = &report_fields[i];
        if (strcmp(f->name, "model") == 0 && field_varies(f, p->rows, p->n)) return;
        if (!is_axis(f) || f->type != INTEGER) continue;
        size_t n = distinct(p, f, first, p->n);
        if (n > most) most = n, p->x = f;
    }
}

/* Does the field say nothing that another does not say? (sizes of the model) `first` are the
   other's n_first values. */
static bool follows(const struct panel *p, const struct field *f, const struct field *other,
                    const size_t *first, size_t n_first)
{
    for (size_t i = 0; i < p->n; i++)
        for (size_t j = 0; j < n_first; j++)
            if (field_same(other, &p->rows[first[j]], &p->rows[i]) &&
                !field_same(f, &p->rows[first[j]], &p->rows[i]))
                return false;
    return true;
}

static size_t find_series(struct panel *p, const char *name)
{
    size_t i = 0;
    while (i < p->n_series && strcmp(p->series[i], name) != 0) i++;
    if (i == p->n_series) strcpy(p->series[p->n_series++], name);
    return i;
}

/* Is it, in every row, the number of the field that it goes with? */
static bool is_twin(const struct panel *p, const struct field *f)
{
    static const char *const twins[][2] = {{"k", "q"}, {"g", "h"}, {"dv", "d"}};
    for (size_t t = 0; t < sizeof twins / sizeof *twins; t++) {
        const struct field *other = field_named(twins[t][1]);
        size_t i = 0;
        if (strcmp(f->name, twins[t][0]) != 0) continue;
        while (i < p->n && field_integer(f, &p->rows[i]) == field_integer(other, &p->rows[i]))
            i++;
        return i == p->n;
    }
    return false;
}

/* Where a field is said: once for all, in the names of the series, of the cases, or nowhere. */
enum place { CONSTANT, SERIES, CASE, NOWHERE };

static enum place place_of(const struct panel *p, const struct field *f, const size_t *first,
                           const struct field *key, size_t n_first)
{
    if (!is_axis(f) || f == p->x) return NOWHERE;
    if (!field_varies(f, p->rows, p->n)) return CONSTANT;
    if (is_who(f)) return SERIES;
    /* a key with one value says nothing */
    bool implied = f != key && n_first > 1 && follows(p, f, key, first, n_first);
    return implied || is_twin(p, f) ? NOWHERE : p->x ? SERIES : CASE;
}

/* What all fields of a place say about a row, rules that are not there in a word together. */
static void say(char *label, size_t cap, const enum place *places, enum place place,
                const struct record *r)
{
    bool none = false;
    for (size_t i = 0; i < report_n_fields && i < FIELDS_MAX; i++) {
        if (places[i] != place) continue;
        if (is_none(&report_fields[i], r))
            none = true;
        else
            append_value(label, cap, &report_fields[i], r);
    }
    if (!*label) snprintf(label, cap, "%s", none ? "no rule" : "");
}

static void name_rows(struct panel *p, size_t *first)
{
    enum place places[FIELDS_MAX];
    const struct field *key = p->x ? p->x : field_named("model");
    size_t n_first = distinct(p, key, first, p->n);
    for (size_t i = 0; i < report_n_fields && i < FIELDS_MAX; i++)
        places[i] = place_of(p, &report_fields[i], first, key, n_first);
    say(p->constant, sizeof p->constant, places, CONSTANT, &p->rows[0]);
    for (size_t r = 0; r < p->n; r++) {
        char name[PLOT_LABEL] = "";
        say(name, sizeof name, places, SERIES, &p->rows[r]);
        say(p->cases[r], sizeof p->cases[r], places, CASE, &p->rows[r]);
        p->series_of[r] = find_series(p, *name ? name : "measured");
    }
}

/* ------------------------------------------------------------------ panels */

static void raise_to(double *to, double value)
{
    if (!(*to >= value)) *to = value;
}

/* Ceilings are measured again and again: of so many threads the best counts for all. */
static void raise_ceilings(struct panel *p)
{
    for (size_t t = 0; t < p->n_threads; t++) {
        struct record *best = &p->rows[p->threads[t]];
        for (int pass = 0; pass < 2; pass++)
            for (size_t i = 0; i < p->n; i++) {
                struct record *r = &p->rows[i];
                if (r->threads != best->threads) continue;
                struct record *to = pass ? r : best, *from = pass ? best : r;
                raise_to(&to->fma_gflops, from->fma_gflops);
                raise_to(&to->sgemm_gflops, from->sgemm_gflops);
                raise_to(&to->read_gbps, from->read_gbps);
            }
    }
}

bool panel_make(struct panel *p, enum unit unit, const struct record *records, size_t n)
{
    *p = (struct panel){.unit = unit};
    p->rows = calloc(n, sizeof *p->rows);
    p->series = calloc(n, sizeof *p->series);
    p->cases = calloc(n, sizeof *p->cases);
    p->series_of = calloc(n, sizeof *p->series_of);
    p->threads = calloc(n, sizeof *p->threads);
    size_t *first = calloc(n, sizeof *first);
    bool ok = p->rows && p->series && p->cases && p->series_of && p->threads && first;
    for (size_t i = 0; ok && i < n; i++)
        if (unit_of(&records[i]) == unit && isfinite(panel_value(p, &records[i])))
            p->rows[p->n++] = records[i];
    if (ok && p->n) {
        p->n_threads = distinct(p, field_named("threads"), p->threads, n);
        raise_ceilings(p);
        choose_x(p, first);
        name_rows(p, first);
    }
    free(first);
    if (!ok) panel_free(p);
    return ok;
}

void panel_free(struct panel *p)
{
    free(p->rows);
    free(p->series);
    free(p->cases);
    free(p->series_of);
    free(p->threads);
    *p = (struct panel){.unit = p->unit};
}
