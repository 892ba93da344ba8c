/* SPDX-License-Identifier: MIT */
/*
 * The five printers, all loops over the one table of report.c. The program never calls
 * setlocale(), so printf writes numbers in the C locale whatever the environment says.
 */
#include "report.h"
#include "terminal.h"
#include "utf8.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ------------------------------------------------------------ one number */

/* Enough digits for a measurement; whole numbers, up to what a double holds, in full. */
static void print_real(FILE *f, double x)
{
    if (x == floor(x) && fabs(x) < 0x1p53)
        fprintf(f, "%.0f", x);
    else
        fprintf(f, "%.10g", x);
}

static bool is_known(const struct field *f, const struct record *r)
{
    switch (f->type) {
    case TEXT:
        return field_text(f, r) != NULL;
    case INTEGER:
        return field_integer(f, r) != INTEGER_UNKNOWN;
    case REAL:
        return isfinite(field_real(f, r));
    case FLAG:
        return field_flag(f, r) >= 0;
    case SAMPLES:
        return r->samples != NULL;
    }
    return false;
}

static void print_samples(FILE *f, const struct record *r, const char *separator)
{
    for (size_t i = 0; i < r->n_samples; i++) {
        if (i > 0) fputs(separator, f);
        print_real(f, r->samples[i]);
    }
}

/* ------------------------------------------------------------------ JSON */

static void print_json_text(FILE *f, const char *text)
{
    fputc('"', f);
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        size_t n = utf8_length(s);
        if (n == 0)
            fputs("\\ufffd", f);
        else if (*s == '"' || *s == '\\')
            fprintf(f, "\\%c", *s);
        else if (*s < 0x20 || *s == 0x7f)
            fprintf(f, "\\u%04x", *s);
        else
            fwrite(s, 1, n, f);
        s += n == 0 ? 1 : n;
    }
    fputc('"', f);
}

static void print_json_value(FILE *f, const struct field *field, const struct record *r)
{
    if (!is_known(field, r)) {
        fputs("null", f);
        return;
    }
    switch (field->type) {
    case TEXT:
        print_json_text(f, field_text(field, r));
        break;
    case INTEGER:
        fprintf(f, "%" PRId64, field_integer(field, r));
        break;
    case REAL:
        print_real(f, field_real(field, r));
        break;
    case FLAG:
        fputs(field_flag(field, r) ? "true" : "false", f);
        break;
    case SAMPLES:
        fputc('[', f);
        print_samples(f, r, ", ");
        fputc(']', f);
        break;
    }
}

static void print_json_object(FILE *f, const struct record *r)
{
    fputc('{', f);
    for (size_t i = 0; i < report_n_fields; i++) {
        fprintf(f, "%s\"%s\": ", i ? ", " : "", report_fields[i].name);
        print_json_value(f, &report_fields[i], r);
    }
    fputc('}', f);
}

static void json_begin(struct report *r) { fputs("[", r->file); }

static void json_record(struct report *r, const struct record *record)
{
    fputs(r->n_printed ? ",\n " : "\n ", r->file);
    print_json_object(r->file, record);
}

static void json_end(struct report *r) { fputs("\n]\n", r->file); }

static void jsonl_record(struct report *r, const struct record *record)
{
    print_json_object(r->file, record);
    fputc('\n', r->file);
}

/* ------------------------------------------------------------- CSV, SQL */

static void print_quoted(FILE *f, const char *text, char quote)
{
    fputc(quote, f);
    for (; *text; text++) {
        if (*text == quote) fputc(quote, f);
        fputc(*text, f);
    }
    fputc(quote, f);
}

/* Text in quotes, everything else bare; what is unknown is the word given. */
static void print_plain(FILE *f, const struct field *field, const struct record *r, char quote,
                        const char *unknown)
{
    if (!is_known(field, r)) {
        fputs(unknown, f);
        return;
    }
    switch (field->type) {
    case TEXT:
        print_quoted(f, field_text(field, r), quote);
        break;
    case INTEGER:
        fprintf(f, "%" PRId64, field_integer(field, r));
        break;
    case REAL:
        print_real(f, field_real(field, r));
        break;
    case FLAG:
        fputs(field_flag(field, r) ? "1" : "0", f);
        break;
    case SAMPLES:
        fputc(quote, f);
        print_samples(f, r, " ");
        fputc(quote, f);
        break;
    }
}

static void csv_begin(struct report *r)
{
    for (size_t i = 0; i < report_n_fields; i++)
        fprintf(r->file, "%s%s", i ? "," : "", report_fields[i].name);
    fputc('\n', r->file);
}

static void csv_record(struct report *r, const struct record *record)
{
    for (size_t i = 0; i < report_n_fields; i++) {
        if (i > 0) fputc(',', r->file);
        print_plain(r->file, &report_fields[i], record, '"', "");
    }
    fputc('\n', r->file);
}

static void sql_begin(struct report *r)
{
    static const char *const types[] = {[TEXT] = "TEXT",
                                        [INTEGER] = "INTEGER",
                                        [REAL] = "REAL",
                                        [FLAG] = "INTEGER",
                                        [SAMPLES] = "TEXT"};
    fputs("CREATE TABLE IF NOT EXISTS attn_bench (\n", r->file);
    for (size_t i = 0; i < report_n_fields; i++)
        fprintf(r->file, "  \"%s\" %s%s\n", report_fields[i].name, types[report_fields[i].type],
                i + 1 < report_n_fields ? "," : "");
    fputs(");\n", r->file);
}

static void sql_record(struct report *r, const struct record *record)
{
    fputs("INSERT INTO attn_bench VALUES (", r->file);
    for (size_t i = 0; i < report_n_fields; i++) {
        if (i > 0) fputs(", ", r->file);
        print_plain(r->file, &report_fields[i], record, '\'', "NULL");
    }
    fputs(");\n", r->file);
}

/* -------------------------------------------------------------- Markdown */

/* Three figures and more; errors by their power of ten. */
static void print_md_real(FILE *f, int width, double x)
{
    if (x == 0)
        fprintf(f, "%*d", width, 0);
    else if (fabs(x) < 1e-3)
        fprintf(f, "%*.1e", width, x);
    else
        fprintf(f, "%*.*f", width, fabs(x) < 1 ? 3 : fabs(x) < 10 ? 2 : 1, x);
}

static void print_md_value(FILE *f, const struct field *field, const struct record *r)
{
    if (!is_known(field, r)) {
        fprintf(f, "%*s", field->width, "-");
        return;
    }
    switch (field->type) {
    case TEXT:
        fprintf(f, "%-*s", field->width, field_text(field, r));
        break;
    case INTEGER:
        fprintf(f, "%*" PRId64, field->width, field_integer(field, r));
        break;
    case FLAG:
        if (!field_flag(field, r)) terminal_colour(f, RED);
        fprintf(f, "%*s", field->width, field_flag(field, r) ? "yes" : "NO");
        if (!field_flag(field, r)) terminal_colour(f, PLAIN);
        break;
    case REAL:
        print_md_real(f, field->width, field_real(field, r) * field->factor);
        break;
    case SAMPLES:
        break;
    }
}

static bool is_left(const struct field *f) { return f->type == TEXT; }

static int title_width(const struct field *f)
{
    int n = (int)strlen(f->title);
    return n > f->width ? n : f->width;
}

static void md_begin(struct report *r)
{
    terminal_colour(r->file, BOLD);
    for (size_t i = 0; i < report_n_fields; i++) {
        const struct field *f = &report_fields[i];
        if (r->shown[i])
            fprintf(r->file, is_left(f) ? "| %-*s " : "| %*s ", title_width(f), f->title);
    }
    fputs("|", r->file);
    terminal_colour(r->file, PLAIN);
    fputs("\n", r->file);
    for (size_t i = 0; i < report_n_fields; i++) {
        const struct field *f = &report_fields[i];
        if (!r->shown[i]) continue;
        fputs(is_left(f) ? "|:" : "|-", r->file);
        for (int n = 0; n < title_width(f); n++) fputc('-', r->file);
        fputs(is_left(f) ? "-" : ":", r->file);
    }
    fputs("|\n", r->file);
}

static void md_record(struct report *r, const struct record *record)
{
    for (size_t i = 0; i < report_n_fields; i++) {
        struct field f = report_fields[i];
        if (!r->shown[i]) continue;
        f.width = title_width(&f);
        fputs("| ", r->file);
        print_md_value(r->file, &f, record);
        fputc(' ', r->file);
    }
    fputs("|\n", r->file);
}

const struct printer printers[FORMAT_COUNT] = {
    [FORMAT_MD] = {"md", md_begin, md_record, NULL},
    [FORMAT_CSV] = {"csv", csv_begin, csv_record, NULL},
    [FORMAT_JSON] = {"json", json_begin, json_record, json_end},
    [FORMAT_JSONL] = {"jsonl", NULL, jsonl_record, NULL},
    [FORMAT_SQL] = {"sql", sql_begin, sql_record, NULL},
};
