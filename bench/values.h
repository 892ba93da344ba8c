/* SPDX-License-Identifier: MIT */
/* Values of options, from text. Every reader complains and returns false where it cannot. */
#ifndef BENCH_VALUES_H
#define BENCH_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Lists: NUMBERS to LENGTHS; one value: NUMBER to FILE_SVG; none: SWITCH_ON and after, of which
   SWITCH_TO stores the option's `low`. */
enum kind {
    NUMBERS,
    NAMES,
    WINDOWS,
    CAPS,
    LENGTHS,
    NUMBER,
    NAME,
    SECONDS,
    FILE_SVG,
    SWITCH_ON,
    SWITCH_OFF,
    SWITCH_TO
};

typedef const char *name_function(size_t i);

struct option {
    const char *brief, *name; /* either may be NULL */
    enum kind kind;
    size_t at;         /* in struct options */
    int64_t low, high; /* numbers */
    name_function *names;
    const char *argument, *help;
};

/* Decimal digits at *at, no sign, no space; moves *at behind them. */
bool read_number(const char **at, int64_t *x);
/* What the program calls the option. */
const char *option_name(const struct option *o);
/* Read text into the member at `to`: a list's values are added to those before. */
bool set_value(const struct option *o, void *to, const char *text);

#endif
