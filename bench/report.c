/* SPDX-License-Identifier: MIT */
/* The one table of fields. Columns are added at the end only: scripts count them. */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define AT(member) offsetof(struct record, member)

const struct field report_fields[] = {
    {"model", TEXT, AT(model), "preset that the shape came from", IF_VARIES, "model", 1, 20},
    {"impl", TEXT, AT(impl), "fused, unfused, naive or gemm", ALWAYS, "impl", 1, 7},
    {"stage", TEXT, AT(stage), "what of attention was run", IF_VARIES, "stage", 1, 7},
    {"engine", TEXT, AT(engine), "of libattn", IF_VARIES, "engine", 1, 6},
    {"isa", TEXT, AT(isa), "instruction set of libattn's kernels (BLAS chooses its own)",
     IF_VARIES, "isa", 1, 6},
    {"threading", TEXT, AT(threading),
     "one; pool: libattn's; heads, rows: ours over heads or parts of them, each with BLAS on "
     "one; "
     "blas: BLAS's own",
     NEVER, "threads of", 1, 10},
    {"b", INTEGER, AT(b), "batch items, or packed sequences", IF_VARIES, "b", 1, 3},
    {"q", INTEGER, AT(q), "queries of an item; of packed sequences the mean", IF_VARIES, "q", 1,
     6},
    {"k", INTEGER, AT(k), "keys of an item; likewise", IF_VARIES, "k", 1, 6},
    {"h", INTEGER, AT(h), "query heads", IF_VARIES, "h", 1, 3},
    {"g", INTEGER, AT(g), "key/value heads", IF_VARIES, "g", 1, 3},
    {"d", INTEGER, AT(d), "size of a query or key head", IF_VARIES, "d", 1, 4},
    {"dv", INTEGER, AT(dv), "size of a value head", IF_VARIES, "dv", 1, 4},
    {"causal", TEXT, AT(causal), "causal rule", IF_VARIES, "causal", 1, 12},
    {"threads", INTEGER, AT(threads), "threads allowed", IF_VARIES, "T", 1, 2},
    {"repetitions", INTEGER, AT(repetitions), "samples", NEVER, "reps", 1, 4},
    {"iterations", INTEGER, AT(iterations), "runs in a sample", NEVER, "iter", 1, 6},
    {"min_ns", REAL, AT(min_ns), "time of a run in the fastest sample", ALWAYS, "ms", 1e-6, 9},
    {"median_ns", REAL, AT(median_ns), "in the median sample", ALWAYS, "median", 1e-6, 9},
    {"spread", REAL, AT(spread), "(slowest - fastest) / median", ALWAYS, "spread %", 100, 8},
    {"flops", REAL, AT(flops),
     "what the mathematics needs: 2 h pairs (d + dv) with the visible (query, key) pairs, "
     "2 m n k for a projection, softmax not counted; the same for every impl",
     NEVER, "flops", 1, 9},
    {"gflops", REAL, AT(gflops), "flops / min_ns", IF_PRODUCTS, "GF/s", 1, 6},
    {"gflops_median", REAL, AT(gflops_median), "flops / median_ns", NEVER, "GF/s med", 1, 6},
    {"ns_per_score", REAL, AT(ns_per_score), "stage softmax: min_ns / (h pairs)", IF_SOFTMAX,
     "ns/score", 1, 8},
    {"pct_sgemm", REAL, AT(pct_sgemm), "gflops in percent of sgemm_gflops", IF_PRODUCTS,
     "% sgemm", 1, 7},
    {"pct_fma", REAL, AT(pct_fma), "gflops in percent of fma_gflops", IF_PRODUCTS, "% FMA", 1, 5},
    {"kv_bytes", REAL, AT(kv_bytes),
     "decoding (q <= 8): bytes of K and V that are visible, each once", NEVER, "KV bytes", 1, 9},
    {"gbps", REAL, AT(gbps), "kv_bytes / min_ns", IF_DECODE, "GB/s", 1, 6},
    {"pct_bw", REAL, AT(pct_bw), "gbps in percent of read_gbps; above 100: from the caches",
     IF_DECODE, "% read", 1, 6},
    {"peak_added_mib", REAL, AT(peak_added_mib),
     "what a run in a fresh process adds to inputs and output, at its peak", ALWAYS, "+MiB", 1,
     8},
    {"max_err", REAL, AT(max_err), "largest error against float64, over the rows compared",
     ALWAYS, "max err", 1, 8},
    {"err_of_tolerance", REAL, AT(err_of_tolerance),
     "largest error over its tolerance; above 1 is wrong", NEVER, "err/tol", 1, 7},
    {"verified", FLAG, AT(verified), "right? null: not compared", ALWAYS, "ok", 1, 3},
    {"cold", FLAG, AT(cold), "buffers rotated beyond the last cache?", IF_VARIES, "cold", 1, 4},
    {"samples_ns", SAMPLES, AT(samples), "time of a run in each sample, in the order taken",
     NEVER, "samples", 1, 9},
    {"mean_ns", REAL, AT(mean_ns), "mean of the samples", NEVER, "mean", 1e-6, 9},
    {"stddev_ns", REAL, AT(stddev_ns), "their standard deviation", NEVER, "stddev", 1e-6, 9},
    {"vs_unfused", REAL, AT(vs_unfused), "unfused's min_ns / min_ns, same shape, threads and ISA",
     IF_COMPARED, "x unfused", 1, 9},
    {"sgemm_gflops", REAL, AT(sgemm_gflops), "measured: square sgemm by so many BLAS threads",
     NEVER, "sgemm", 1, 6},
    {"fma_gflops", REAL, AT(fma_gflops), "measured: multiply-adds in registers, so many threads",
     NEVER, "FMA", 1, 6},
    {"read_gbps", REAL, AT(read_gbps), "measured: reading memory, so many threads; for decoding",
     NEVER, "read", 1, 6},
    {"cpu", TEXT, AT(cpu), "model", NEVER, "cpu", 1, 20},
    {"cpus", INTEGER, AT(cpus), "CPUs that the process may use", NEVER, "cpus", 1, 4},
    {"governor", TEXT, AT(governor), "of the CPU's frequency", NEVER, "governor", 1, 11},
    {"load", REAL, AT(load), "load average of the last minute at the start", NEVER, "load", 1, 5},
    {"blas", TEXT, AT(blas), "name, version, core, threading", NEVER, "blas", 1, 20},
    {"version", TEXT, AT(version), "of libattn", NEVER, "version", 1, 7},
    {"time", TEXT, AT(time), "when the row was done, UTC, RFC 3339", NEVER, "time", 1, 20},
    {"seed", INTEGER, AT(seed), "of data, lengths, rows compared and order of samples", NEVER,
     "seed", 1, 4},
    {"command", TEXT, AT(command), "the command line, as a shell reads it", NEVER, "command", 1,
     20},
    {"schema", INTEGER, AT(schema), "changes when a field changes its meaning", NEVER, "schema",
     1, 6},
    {"window", TEXT, AT(window),
     "keys left and right of a query's own that it sees, -1 without end, or none", IF_VARIES,
     "window", 1, 8},
    {"softcap", REAL, AT(softcap), "cap of the scores; 0: none", IF_VARIES, "softcap", 1, 7},
    {"alibi", TEXT, AT(alibi), "biases with the standard slopes: on or off", IF_VARIES, "alibi",
     1, 5},
    {"varlen", TEXT, AT(varlen),
     "packed sequences: split, or their lengths (queries:keys where these differ), or none",
     IF_VARIES, "varlen", 1, 6},
    {"pairs", REAL, AT(pairs), "visible (query, key) pairs of a head, all items together", NEVER,
     "pairs", 1, 9},
};
const size_t report_n_fields = sizeof report_fields / sizeof *report_fields;

struct record record_empty(void)
{
    struct record r;
    memset(&r, 0, sizeof r);
    for (size_t i = 0; i < report_n_fields; i++) {
        const struct field *f = &report_fields[i];
        char *at = (char *)&r + f->at;
        double real = NAN;
        int64_t integer = INTEGER_UNKNOWN;
        int flag = -1;
        if (f->type == REAL)
            memcpy(at, &real, sizeof real);
        else if (f->type == INTEGER)
            memcpy(at, &integer, sizeof integer);
        else if (f->type == FLAG)
            memcpy(at, &flag, sizeof flag);
    }
    return r;
}

/* Bytes of a member; the table's type says which. */
static void member(const struct field *f, const struct record *r, void *to, size_t n)
{
    memcpy(to, (const char *)r + f->at, n);
}

const char *field_text(const struct field *f, const struct record *r)
{
    const char *x;
    member(f, r, &x, sizeof x);
    return x;
}

int64_t field_integer(const struct field *f, const struct record *r)
{
    int64_t x;
    member(f, r, &x, sizeof x);
    return x;
}

double field_real(const struct field *f, const struct record *r)
{
    double x;
    member(f, r, &x, sizeof x);
    return x;
}

int field_flag(const struct field *f, const struct record *r)
{
    int x;
    member(f, r, &x, sizeof x);
    return x;
}

const char *format_name(size_t i) { return i < FORMAT_COUNT ? printers[i].name : NULL; }

bool field_same(const struct field *f, const struct record *a, const struct record *b)
{
    if (f->type == INTEGER) return field_integer(f, a) == field_integer(f, b);
    if (f->type == REAL) return field_real(f, a) == field_real(f, b);
    if (f->type == FLAG) return field_flag(f, a) == field_flag(f, b);
    const char *x = field_text(f, a), *y = field_text(f, b);
    return !x || !y || strcmp(x, y) == 0;
}

/* A choice that an impl does not have is no other choice: unknown text is passed over. */
bool field_varies(const struct field *f, const struct record *records, size_t n)
{
    const struct record *first = NULL;
    for (size_t i = 0; i < n; i++) {
        if (f->type == TEXT && !field_text(f, &records[i])) continue;
        if (first && !field_same(f, first, &records[i])) return true;
        if (!first) first = &records[i];
    }
    return false;
}

static bool is_shown(const struct field *f, const struct record *records, size_t n)
{
    bool products = false, decode = false, softmax = false, fused = false, unfused = false;
    for (size_t i = 0; i < n; i++) {
        const struct record *r = &records[i];
        products = products || r->flops > 0;
        decode = decode || !isnan(r->kv_bytes);
        softmax = softmax || r->flops == 0;
        unfused = unfused || strcmp(r->impl, "unfused") == 0;
        fused = fused || strcmp(r->impl, "unfused") != 0;
    }
    switch (f->shown) {
    case NEVER:
        return false;
    case ALWAYS:
        return true;
    case IF_VARIES:
        return field_varies(f, records, n);
    case IF_PRODUCTS:
        return products;
    case IF_DECODE:
        return decode;
    case IF_SOFTMAX:
        return softmax;
    case IF_COMPARED:
        return fused && unfused;
    }
    return false;
}

struct report *report_open(FILE *file, int format, const struct record *planned, size_t n)
{
    struct report *r = calloc(1, sizeof *r);
    bool *shown = calloc(report_n_fields, sizeof *shown);
    if (!r || !shown) {
        free(r);
        free(shown);
        return NULL;
    }
    *r = (struct report){.file = file,
                         .planned = planned,
                         .n_planned = n,
                         .shown = shown,
                         .printer = &printers[format]};
    for (size_t i = 0; i < report_n_fields; i++)
        shown[i] = is_shown(&report_fields[i], planned, n);
    if (r->printer->begin) r->printer->begin(r);
    return r;
}

/* Flushed, so that a long sweep can be watched and loses nothing. */
void report_record(struct report *r, const struct record *record)
{
    r->printer->record(r, record);
    r->n_printed++;
    fflush(r->file);
}

bool report_close(struct report *r)
{
    if (r->printer->end) r->printer->end(r);
    bool ok = fflush(r->file) == 0 && !ferror(r->file);
    free(r->shown);
    free(r);
    return ok;
}

/* Words wrapped into a column. */
static void print_wrapped(FILE *file, const char *text, int indent, int width)
{
    for (int at = 0; *text;) {
        int n = (int)strcspn(text, " ");
        if (at > 0 && at + n + 1 > width) {
            fprintf(file, "\n%*s", indent, "");
            at = 0;
        }
        at += fprintf(file, "%s%.*s", at > 0 ? " " : "", n, text);
        text += n + (text[n] == ' ');
    }
    fputc('\n', file);
}

void report_explain(FILE *file)
{
    for (size_t i = 0; i < report_n_fields; i++) {
        fprintf(file, "  %-17s ", report_fields[i].name);
        print_wrapped(file, report_fields[i].what, 20, 76);
    }
}
