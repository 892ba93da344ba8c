/* SPDX-License-Identifier: MIT */
/* One table of options; getopt_long is not used, for it takes abbreviations and reads -oe as
   -o e. */
#include "options.h"

#include "models.h"
#include "report.h"
#include "suggest.h"
#include "values.h"

#include <stdio.h>
#include <string.h>

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
    {NULL, "--window", WINDOWS, AT(window), -1, SIZE_HIGH, NULL, "LIST",
     "LEFT:RIGHT keys around a query's own, -1 without end; none [none]"},
    {NULL, "--softcap", CAPS, AT(softcap), 0, 0, NULL, "LIST",
     "caps c of the scores, c tanh(s / c); none [none]"},
    {NULL, "--alibi", NAMES, AT(alibi), 0, 0, alibi_name, "NAMES",
     "off, on: ALiBi with the standard slopes [off]"},
    {NULL, "--varlen", LENGTHS, AT(varlen), 0, 0, NULL, "LIST",
     "packed sequences: split, lengths like 100+8:64, none [none]"},
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
     "of the data, lengths, the rows compared, the order of samples [1]"},
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
    {NULL, "--plot", FILE_SVG, AT(plot), 0, 0, NULL, "FILE.svg",
     "draw the rows and the ceilings: lines over a size that is swept, or bars"},
    {NULL, "--progress", SWITCH_TO, AT(progress), PROGRESS_LINES, 0, NULL, NULL,
     "say on stderr what runs, a line each (a terminal has a line that goes away)"},
    {NULL, "--no-progress", SWITCH_TO, AT(progress), PROGRESS_NONE, 0, NULL, NULL, "do not"},
    {NULL, "--dry-run", SWITCH_ON, AT(dry_run), 0, 0, NULL, NULL,
     "print the rows without measuring them, and the memory needed on stderr"},
    {NULL, "--list", SWITCH_ON, AT(list), 0, 0, NULL, NULL, "print the known models"},
    {NULL, "--version", SWITCH_ON, AT(version), 0, 0, NULL, NULL, "print versions"},
    {"-h", "--help", SWITCH_ON, AT(help), 0, 0, NULL, NULL, "print this"},
};
#define N_OPTIONS (sizeof table / sizeof *table)

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

/* The nearest option; or the option that has the word for a value. */
static void unknown_option(const char *word)
{
    char text[128], meant[160] = "";
    struct suggestion near = {0};
    snprintf(text, sizeof text, "%.*s", (int)strcspn(word, "="), word);
    for (size_t i = 0; i < N_OPTIONS; i++) {
        const struct option *o = &table[i];
        if (o->brief) suggest(&near, text, o->brief);
        if (o->name) suggest(&near, text, o->name);
        for (size_t j = 0; o->names && o->names(j); j++)
            if (!meant[0] && strcmp(o->names(j), word) == 0)
                snprintf(meant, sizeof meant, "; did you mean %s %s?", option_name(o), word);
    }
    if (near.nearest && (near.distance == 0 || !meant[0]))
        snprintf(meant, sizeof meant, "; did you mean %s?", near.nearest);
    complain("unknown option '%s'%s; try --help", word, meant);
}

/* Read a switch, which takes no value. */
static bool set_switch(struct options *o, const struct option *option, const char *value)
{
    char *to = (char *)o + option->at;
    bool on = option->kind == SWITCH_ON;
    if (value) {
        complain("%s takes no value; try --help", option_name(option));
        return false;
    }
    if (option->kind == SWITCH_TO)
        memcpy(to, &option->low, sizeof option->low);
    else
        memcpy(to, &on, sizeof on);
    return true;
}

bool options_parse(struct options *o, int argc, char **argv)
{
    set_defaults(o);
    for (int i = 1; i < argc; i++) {
        const char *value;
        const struct option *option = find_option(argv[i], &value);
        if (!option) {
            unknown_option(argv[i]);
            return false;
        }
        if (option->kind >= SWITCH_ON) {
            if (!set_switch(o, option, value)) return false;
            continue;
        }
        if (!value) value = i + 1 < argc ? argv[++i] : "";
        if (!*value) {
            complain("%s needs a value (%s); try --help", option_name(option), option->argument);
            return false;
        }
        if (!set_value(option, (char *)o + option->at, value)) return false;
    }
    if (!o->plot || !o->dry_run) return true;
    complain("--dry-run measures nothing to --plot; try --help");
    return false;
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
    fputs(
        "\nLIST is a,b,...; an item is a number, first-last, first-last+step or "
        "first-last*factor.\nOptions with lists may be repeated. All combinations are run.\n"
        "\nRules and sequences:\n"
        "  --window 255:0    a query at key p sees the keys p-255 to p; p is i, plus the keys\n"
        "                    minus the queries unless causal is top-left. A model's sliding\n"
        "                    window of W is W-1:0\n"
        "  --varlen split    b sequences with q queries and k keys on average, lengths drawn by\n"
        "                    --seed, in one buffer each; the same for both sides if q = k\n"
        "  --varlen 100+8    sequences of these lengths; 8:64 has 8 queries and 64 keys. They\n"
        "                    replace -b, -q and -k\n"
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
        "\nColours only on a terminal, and not if NO_COLOR is set.\n"
        "Exit status: 0 all right, 1 a wrong result, 2 bad usage, 3 the machine cannot (BLAS "
        "unusable,\nmemory, clock, instruction set). bench/README.md says how to measure well.\n",
        stdout);
}
