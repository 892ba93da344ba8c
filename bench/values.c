/* SPDX-License-Identifier: MIT */
/* See values.h. */
#include "values.h"

#include "options.h"
#include "packing.h"
#include "suggest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CAP_LOW 1e-3
#define CAP_HIGH 1e6

const char *option_name(const struct option *o) { return o->name ? o->name : o->brief; }

static bool wrong(const struct option *o, const char *text, const char *why)
{
    complain("%s: '%.*s' %s; try --help", option_name(o), 200, text, why);
    return false;
}

static bool outside(const struct option *o, const char *text)
{
    char why[80];
    snprintf(why, sizeof why, "is not a whole number within %" PRId64 " to %" PRId64, o->low,
             o->high);
    return wrong(o, text, why);
}

bool read_number(const char **at, int64_t *x)
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

/* A number without blanks, signs before it, hexadecimal, "inf" and "nan", which strtod takes. */
static bool read_real(const char *text, double *x)
{
    char *end;
    errno = 0;
    *x = strtod(text, &end);
    return strspn(text, "0123456789.eE+-") == strlen(text) && end != text && !*end &&
           errno != ERANGE;
}

/* ----------------------------------------------------------- items of lists */

/* Is there room for one more? */
static bool has_room(const struct option *o, size_t n)
{
    if (n < LIST_MAX) return true;
    complain("%s: more than %d values; try --help", option_name(o), LIST_MAX);
    return false;
}

static bool append(const struct option *o, struct list *list, int64_t x)
{
    if (!has_room(o, list->n)) return false;
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
        return outside(o, item);
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
    char known[1024] = "", meant[128] = "";
    struct suggestion near = {0};
    size_t n = 0;
    for (size_t i = 0; o->names(i); i++) {
        suggest(&near, text, o->names(i));
        if (n < sizeof known)
            n +=
                (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", o->names(i));
    }
    if (near.nearest) snprintf(meant, sizeof meant, "; did you mean %s?", near.nearest);
    complain("%s: '%.*s' is not one of %s%s; try --help", option_name(o), 200, text, known,
             meant);
    return false;
}

static bool add_name(const struct option *o, struct list *list, const char *item)
{
    int64_t i = find_name(o->names, item);
    return i < 0 ? unknown_name(o, item) : append(o, list, i);
}

/* -1 or a number. */
static bool read_side(const struct option *o, const char **at, int64_t *x)
{
    bool minus = **at == '-';
    *at += minus;
    if (!read_number(at, x)) return false;
    if (minus) *x = -*x;
    return *x >= -1 && *x <= o->high;
}

static bool add_window(const struct option *o, struct windows *list, const char *item)
{
    struct window w = {-1, -1, "none"};
    const char *at = item;
    if (strcmp(item, "none") != 0) {
        if (!read_side(o, &at, &w.left) || *at++ != ':' || !read_side(o, &at, &w.right) || *at)
            return wrong(o, item, "is not none or LEFT:RIGHT, as 255:0, -1 being without end");
        if (w.left >= 0 || w.right >= 0)
            snprintf(w.name, sizeof w.name, "%" PRId64 ":%" PRId64, w.left, w.right);
    }
    if (!has_room(o, list->n)) return false;
    list->v[list->n++] = w;
    return true;
}

static bool add_cap(const struct option *o, struct reals *list, const char *item)
{
    double x = 0;
    if (strcmp(item, "none") != 0 &&
        (!read_real(item, &x) || (x != 0 && !(x >= CAP_LOW && x <= CAP_HIGH))))
        return wrong(o, item, "is not none or a cap within 0.001 to 1000000");
    if (!has_room(o, list->n)) return false;
    list->v[list->n++] = x;
    return true;
}

/* Lengths stay where they are in the command line: packing.c reads them, and there may be many. */
static bool add_lengths(const struct option *o, struct texts *list, const char *item)
{
    const char *why;
    if (!packing_check(item, &why)) return wrong(o, item, why);
    if (!has_room(o, list->n)) return false;
    list->v[list->n++] = item;
    return true;
}

static bool add_item(const struct option *o, void *to, const char *at, size_t n)
{
    char item[64];
    if (n == 0) return wrong(o, at, "has an empty item");
    if (o->kind == LENGTHS) return add_lengths(o, to, at);
    if (n >= sizeof item) return wrong(o, at, "has an item that is too long");
    memcpy(item, at, n);
    item[n] = '\0';
    switch (o->kind) {
    case WINDOWS:
        return add_window(o, to, item);
    case CAPS:
        return add_cap(o, to, item);
    case NAMES:
        return add_name(o, to, item);
    default:
        return add_range(o, to, item);
    }
}

static bool add_list(const struct option *o, void *to, const char *text)
{
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, ",");
        if (!add_item(o, to, at, n)) return false;
        at += n;
        if (!*at) return true;
    }
}

/* ------------------------------------------------------------ single values */

static bool set_seconds(const struct option *o, double *to, const char *text)
{
    if (!read_real(text, to)) return wrong(o, text, "is not a number of seconds");
    if (!(*to > 0 && *to <= (double)o->high))
        return wrong(o, text, "is not above 0 and at most 3600");
    return true;
}

static bool set_name(const struct option *o, int64_t *to, const char *text)
{
    *to = find_name(o->names, text);
    return *to >= 0 || unknown_name(o, text);
}

static bool set_number(const struct option *o, int64_t *to, const char *text)
{
    const char *at = text;
    bool ok = read_number(&at, to) && !*at && *to >= o->low && *to <= o->high;
    return ok || outside(o, text);
}

/* The name of a file, which says its format. */
static bool set_file(const struct option *o, const char **to, const char *text)
{
    size_t n = strlen(text);
    *to = text;
    return (n > 4 && strcmp(text + n - 4, ".svg") == 0) || wrong(o, text, "does not end in .svg");
}

bool set_value(const struct option *o, void *to, const char *text)
{
    switch (o->kind) {
    case SECONDS:
        return set_seconds(o, to, text);
    case NAME:
        return set_name(o, to, text);
    case NUMBER:
        return set_number(o, to, text);
    case FILE_SVG:
        return set_file(o, to, text);
    default:
        return add_list(o, to, text);
    }
}
