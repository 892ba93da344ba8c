/* SPDX-License-Identifier: MIT */
/* One table of options; getopt_long is not used, for it takes abbreviations and reads -oe as
   -o e. */
#include "options.h"

#include "bench.h"
#include "models.h"
#include "report.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { NUMBERS, NAMES, NUMBER, NAME, SECONDS, SWITCH_ON, SWITCH_OFF };

typedef const char *name_function(size_t i);

struct option {
    const char *brief, *name; /* either may be NULL */
    enum kind kind;
    size_t at;         /* in struct options */
    int64_t low, high; /* numbers */
    name_function *names;
    const char *argument, *help;
};

#define AT(member) offsetof(struct options, member)
/* Within these no product of a few sizes overflows 64 bits, and each fits BLAS's integers. */
#define SIZE_HIGH (1 << 30)
#define HEAD_HIGH (1 << 14)

static const struct option table[] = {
    {"-m", "--model", NAMES, AT(model), 0, 0, model_name, "NAMES",
     "shapes of known models (--list); options below replace parts of them"},
    {"-b", "--batch", NUMBERS, AT(b), 1, SIZE_HIGH, NULL, "LIST", "batch items [1]"},
    {"-q", "--queries", NUMBERS, AT(q), 1, SIZE_HIGH, NULL, "LIST", "queries of an item [512]"},
    {"-k", "--keys", NUMBERS, AT(k), 1, SIZE_HIGH, NULL, "LIST", "keys of an item [as -q]"},
    {"-H", "--heads", NUMBERS, AT(h), 1, HEAD_HIGH, NULL, "LIST", "query heads [12]"},
    {"-g", "--kv-heads", NUMBERS, AT(g), 1, HEAD_HIGH, NULL, "LIST", "key/value heads [as -H]"},
    {"-d", "--head-dim", NUMBERS, AT(d), 1, HEAD_HIGH, NULL, "LIST",
     "size of a query or key head [64]"},
    {"--dv", "--value-dim", NUMBERS, AT(dv), 1, HEAD_HIGH, NULL, "LIST",
     "size of a value head [as -d]"},
    {NULL, "--causal", NAMES, AT(causal), 0, 0, causal_name, "NAMES",
     "none, top-left, bottom-right [none]"},
    {NULL, "--stage", NAMES, AT(stage), 0, 0, stage_name, "NAMES",
     "run, layer, project, scores, softmax, values [run]"},
    {"-T", "--threads", NUMBERS, AT(threads), 1, 1024, NULL, "LIST", "threads [1]"},
    {NULL, "--impl", NAMES, AT(impl), 0, 0, impl_name, "NAMES",
     "fused, unfused, naive, gemm [fused,unfused]"},
    {NULL, "--engine", NAMES, AT(engine), 0, 0, engine_name, "NAMES",
     "blas, vector: engines of libattn [blas]"},
    {NULL, "--isa", NAMES, AT(isa), 0, 0, isa_name, "NAMES",
     "best, base, avx2, avx512: libattn's kernels [best]"},
    {"-r", "--repetitions", NUMBER, AT(repetitions), 1, 10000, NULL, "N",
     "samples of each row [5]"},
    {NULL, "--min-time", SECONDS, AT(min_time), 0, 3600, NULL, "SECONDS",
     "a sample lasts at least so long [0.1]"},
    {NULL, "--seed", NUMBER, AT(seed), 0, INT64_MAX, NULL, "N",
     "of the data, the rows compared, the order of samples [1]"},
    {NULL, "--cold", SWITCH_ON, AT(cold), 0, 0, NULL, NULL,
     "rotate buffers beyond the last cache: as an application finds them"},
    {NULL, "--verify", SWITCH_ON, AT(verify), 0, 0, NULL, NULL,
     "compare each row with float64 [on]"},
    {NULL, "--no-verify", SWITCH_OFF, AT(verify), 0, 0, NULL, NULL, "do not"},
    {NULL, "--no-memory", SWITCH_OFF, AT(memory), 0, 0, NULL, NULL,
     "do not measure peak memory (one more run of each row, in its own process)"},
    {NULL, "--no-peaks", SWITCH_OFF, AT(peaks), 0, 0, NULL, NULL,
     "do not measure the machine's ceilings"},
    {"-o", "--output", NAME, AT(format), 0, 0, format_name, "FORMAT",
     "md, csv, json, jsonl, sql: results on stdout [md]"},
    {"-oe", "--output-err", NAME, AT(second_format), 0, 0, format_name, "FORMAT",
     "results on stderr too, in this format"},
    {NULL, "--progress", SWITCH_ON, AT(progress), 0, 0, NULL, NULL, "say on stderr what runs"},
    {NULL, "--dry-run", SWITCH_ON, AT(dry_run), 0, 0, NULL, NULL,
     "print the rows without measuring them, and the memory needed on stderr"},
    {NULL, "--list", SWITCH_ON, AT(list), 0, 0, NULL, NULL, "print the known models"},
    {NULL, "--version", SWITCH_ON, AT(version), 0, 0, NULL, NULL, "print versions"},
    {"-h", "--help", SWITCH_ON, AT(help), 0, 0, NULL, NULL, "print this"},
};
#define N_OPTIONS (sizeof table / sizeof *table)

/* ----------------------------------------------------------------- values */

static const char *shown_name(const struct option *o) { return o->name ? o->name : o->brief; }

static bool wrong(const struct option *o, const char *text, const char *why)
{
    complain("%s: '%s' %s; try --help", shown_name(o), text, why);
    return false;
}

/* Decimal digits at *at, no sign, no space; moves *at behind them. */
static bool read_number(const char **at, int64_t *x)
{
    int64_t n = 0;
    const char *s = *at;
    for (; *s >= '0' && *s <= '9'; s++)
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *s - '0', &n))
            return false;
    bool any = s > *at;
    *at = s;
    *x = n;
    return any;
}

static bool append(const struct option *o, struct list *list, int64_t x)
{
    if (list->n == LIST_MAX) {
        complain("%s: more than %d values; try --help", shown_name(o), LIST_MAX);
        return false;
    }
    list->v[list->n++] = x;
    return true;
}

/* A number, first-last, first-last+step or first-last*factor. */
static bool add_range(const struct option *o, struct list *list, const char *item)
{
    const char *at = item;
    int64_t first, last, step = 1;
    bool ok = read_number(&at, &first), times = false;
    last = first;
    if (ok && *at == '-') {
        at++;
        ok = read_number(&at, &last);
        if (ok && (*at == '*' || *at == '+')) {
            times = *at++ == '*';
            ok = read_number(&at, &step);
        }
    }
    if (!ok || *at)
        return wrong(o, item,
                     "is not a number, first-last, first-last+step or first-last*factor");
    if (first < o->low || last > o->high) {
        char why[80];
        snprintf(why, sizeof why, "is not within %" PRId64 " to %" PRId64, o->low, o->high);
        return wrong(o, item, why);
    }
    if (first > last) return wrong(o, item, "begins above its end");
    if (step < (times ? 2 : 1)) return wrong(o, item, "would never end");
    for (int64_t x = first; x <= last;) {
        if (!append(o, list, x)) return false;
        if (times ? __builtin_mul_overflow(x, step, &x) : __builtin_add_overflow(x, step, &x))
            break;
    }
    return true;
}

static int64_t find_name(name_function *names, const char *text)
{
    for (size_t i = 0; names(i); i++)
        if (strcmp(names(i), text) == 0) return (int64_t)i;
    return -1;
}

static bool unknown_name(const struct option *o, const char *text)
{
    char known[1024] = "";
    size_t n = 0;
    for (size_t i = 0; o->names(i) && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", o->names(i));
    complain("%s: '%s' is none of %s; try --help", shown_name(o), text, known);
    return false;
}

static bool add_item(const struct option *o, struct list *list, const char *item)
{
    if (o->kind == NUMBERS) return add_range(o, list, item);
    int64_t i = find_name(o->names, item);
    return i < 0 ? unknown_name(o, item) : append(o, list, i);
}

static bool add_list(const struct option *o, struct list *list, const char *text)
{
    char item[64];
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, ",");
        if (n == 0 || n >= sizeof item)
            return wrong(o, text, n == 0 ? "has an empty item" : "has an item that is too long");
        memcpy(item, at, n);
        item[n] = '\0';
        if (!add_item(o, list, item)) return false;
        at += n;
        if (!*at) return true;
    }
}

static bool read_seconds(const struct option *o, const char *text, double *x)
{
    char *end;
    errno = 0;
    *x =
        strtod(text, &end); /* also takes blanks, signs, hexadecimal, "inf" and "nan": not here */
    if (strspn(text, "0123456789.eE+-") != strlen(text) || end == text || *end || errno == ERANGE)
        return wrong(o, text, "is not a number of seconds");
    if (!(*x > 0 && *x <= (double)o->high))
        return wrong(o, text, "is not above 0 and at most 3600");
    return true;
}

static bool set_value(const struct option *o, struct options *options, const char *text)
{
    char *at = (char *)options + o->at;
    const char *s = text;
    int64_t x;
    switch (o->kind) {
    case NUMBERS:
    case NAMES:
        return add_list(o, (struct list *)(void *)at, text);
    case SECONDS:
        return read_seconds(o, text, (double *)(void *)at);
    case NAME:
        x = find_name(o->names, text);
        if (x < 0) return unknown_name(o, text);
        break;
    default:
        if (!read_number(&s, &x) || *s || x < o->low || x > o->high)
            return wrong(o, text, "is not a whole number in its range");
    }
    memcpy(at, &x, sizeof x);
    return true;
}

/* -------------------------------------------------------- the command line */

/* The option that a word names; what follows its '=' in *value, NULL: nothing. */
static const struct option *find_option(const char *word, const char **value)
{
    size_t n = strncmp(word, "--", 2) == 0 ? strcspn(word, "=") : strlen(word);
    *value = word[n] == '=' ? word + n + 1 : NULL;
    for (size_t i = 0; i < N_OPTIONS; i++) {
        const char *brief = table[i].brief, *name = table[i].name;
        if ((brief && strlen(brief) == n && strncmp(word, brief, n) == 0) ||
            (name && strlen(name) == n && strncmp(word, name, n) == 0))
            return &table[i];
    }
    return NULL;
}

static void set_defaults(struct options *o)
{
    memset(o, 0, sizeof *o);
    o->repetitions = 5;
    o->min_time = 0.1;
    o->seed = 1;
    o->format = FORMAT_MD;
    o->second_format = -1;
    o->verify = o->memory = o->peaks = true;
}

bool options_parse(struct options *o, int argc, char **argv)
{
    set_defaults(o);
    for (int i = 1; i < argc; i++) {
        const char *value;
        const struct option *option = find_option(argv[i], &value);
        if (!option) {
            complain("unknown option '%s'; try --help", argv[i]);
            return false;
        }
        bool on = option->kind == SWITCH_ON;
        if (on || option->kind == SWITCH_OFF) {
            if (value) {
                complain("%s takes no value; try --help", shown_name(option));
                return false;
            }
            memcpy((char *)o + option->at, &on, sizeof on);
            continue;
        }
        if (!value) value = i + 1 < argc ? argv[++i] : "";
        if (!*value) {
            complain("%s needs a value (%s); try --help", shown_name(option), option->argument);
            return false;
        }
        if (!set_value(option, o, value)) return false;
    }
    return true;
}

static void print_options(void)
{
    for (size_t i = 0; i < N_OPTIONS; i++) {
        const struct option *o = &table[i];
        char names[64];
        snprintf(names, sizeof names, "%s%s%s%s%s", o->brief ? o->brief : "",
                 o->brief && o->name ? ", " : "", o->name ? o->name : "", o->argument ? " " : "",
                 o->argument ? o->argument : "");
        printf("  %-26s %s\n", names, o->help);
    }
}

void options_help(void)
{
    fputs(
        "usage: attn-bench [options]\n"
        "Times attention by libattn (fused) and by other ways, and checks what they compute.\n\n",
        stdout);
    print_options();
    fputs("\nLIST is a,b,...; an item is a number, first-last, first-last+step or "
          "first-last*factor.\nOptions with lists may be repeated. All combinations are run.\n"
          "\nImplementations:\n",
          stdout);
    for (size_t i = 0; impl_at(i); i++)
        printf("  %-17s %s\n", impl_at(i)->name, impl_at(i)->what);
    fputs("\nStages:\n"
          "  run               softmax(Q K^T) V\n"
          "  layer             the projections of Q, K, V, then run, then the output's\n"
          "  project           the four projections alone\n"
          "  scores            Q K^T alone (unfused)\n"
          "  softmax           the softmax alone (unfused)\n"
          "  values            the second product alone (unfused)\n"
          "\nFields of a row (md shows some, with times in ms):\n",
          stdout);
    report_explain(stdout);
    fputs(
        "\nExit status: 0 all right, 1 a wrong result, 2 bad usage, 3 the machine cannot (BLAS "
        "unusable,\nmemory, clock, instruction set). bench/README.md says how to measure well.\n",
        stdout);
}
