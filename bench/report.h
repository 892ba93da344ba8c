/* SPDX-License-Identifier: MIT */
/* Records and how they are printed. Knows nothing of libattn. */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Unknown is NULL for text, NAN for numbers, INTEGER_UNKNOWN, and a negative flag. */
#define INTEGER_UNKNOWN INT64_MIN

/* One row. What each member means stands in the table in report.c. */
struct record {
    const char *model, *impl, *stage, *engine, *isa, *threading, *causal;
    int64_t b, q, k, h, g, d, dv, threads;
    int64_t repetitions, iterations;
    double min_ns, median_ns, spread;
    double flops, gflops, gflops_median, ns_per_score;
    double pct_sgemm, pct_fma, kv_bytes, gbps, pct_bw;
    double peak_added_mib, max_err, err_of_tolerance;
    int verified, cold;
    const double *samples;
    size_t n_samples;
    double mean_ns, stddev_ns, vs_unfused, sgemm_gflops, fma_gflops, read_gbps;
    const char *cpu, *governor, *blas, *version, *time, *command;
    double load;
    int64_t cpus, seed, schema;
    const char *window, *alibi, *varlen;
    double softcap, pairs;
};

/* Nothing known. */
struct record record_empty(void);

enum format { FORMAT_MD, FORMAT_CSV, FORMAT_JSON, FORMAT_JSONL, FORMAT_SQL, FORMAT_COUNT };
const char *format_name(size_t i); /* NULL past the last */

struct report;
/* planned: the records to come, with what is known of them before they are measured: Markdown
   shows the axes in which they differ, and the columns that mean something for any of them. */
struct report *report_open(FILE *file, int format, const struct record *planned, size_t n);
void report_record(struct report *r, const struct record *record);
/* False when something could not be written. */
bool report_close(struct report *r);
/* The table of fields, for --help. */
void report_explain(FILE *file);

/* ------------------------------------------------- report.c to printers.c, plot*.c */

enum field_type { TEXT, INTEGER, REAL, FLAG, SAMPLES };

/* When Markdown has the column. */
enum field_shown { NEVER, ALWAYS, IF_VARIES, IF_PRODUCTS, IF_DECODE, IF_SOFTMAX, IF_COMPARED };

struct field {
    const char *name;
    enum field_type type;
    size_t at; /* in struct record */
    const char *what;
    enum field_shown shown;
    const char *title; /* in Markdown */
    double factor;     /* of the number in Markdown */
    int width;
};
extern const struct field report_fields[];
extern const size_t report_n_fields;

struct report {
    FILE *file;
    const struct record *planned;
    size_t n_planned, n_printed;
    bool *shown; /* Markdown: which fields */
    const struct printer *printer;
};

struct printer {
    const char *name;
    void (*begin)(struct report *r);
    void (*record)(struct report *r, const struct record *record);
    void (*end)(struct report *r);
};
extern const struct printer printers[FORMAT_COUNT];

const char *field_text(const struct field *f, const struct record *r);
int64_t field_integer(const struct field *f, const struct record *r);
double field_real(const struct field *f, const struct record *r);
int field_flag(const struct field *f, const struct record *r);
/* Unknown text is the same as any. */
bool field_same(const struct field *f, const struct record *a, const struct record *b);
bool field_varies(const struct field *f, const struct record *records, size_t n);

#endif
