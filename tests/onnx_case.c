/* SPDX-License-Identifier: MIT */
/* Reading a case folder. Knows the format, nothing of attention. */
#include "onnx_case.h"

#include "mem.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool cannot(struct onnx_case *c, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(c->error, sizeof c->error, format, list);
    va_end(list);
    return false;
}

static float float_of_half(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    float x = exponent == 0    ? ldexpf((float)mantissa, -24)
              : exponent == 31 ? (mantissa ? NAN : INFINITY)
                               : ldexpf((float)(mantissa | 1024), exponent - 25);
    return h >> 15 ? -x : x;
}

static void halves_to_floats(struct onnx_tensor *t, const unsigned char *bytes)
{
    for (int64_t n = 0; n < t->count; n++)
        t->f[n] = float_of_half((uint16_t)(bytes[2 * n] | bytes[2 * n + 1] << 8));
}

/* Little-endian numbers, on any machine. */
static uint64_t number_at(const unsigned char *bytes, int size)
{
    uint64_t x = 0;
    for (int n = size - 1; n >= 0; n--) x = x << 8 | bytes[n];
    return x;
}

static void convert(struct onnx_tensor *t, const unsigned char *bytes)
{
    size_t n = (size_t)t->count;
    if (t->dtype == ONNX_BOOL) {
        t->b = must_alloc(n, 1);
        for (size_t i = 0; i < n; i++) t->b[i] = bytes[i];
    } else if (t->dtype == ONNX_I64) {
        t->i64 = must_alloc(n, sizeof *t->i64);
        for (size_t i = 0; i < n; i++) t->i64[i] = (int64_t)number_at(bytes + 8 * i, 8);
    } else {
        t->f = must_alloc(n, sizeof *t->f);
        if (t->dtype == ONNX_F16)
            halves_to_floats(t, bytes);
        else
            for (size_t i = 0; i < n; i++)
                t->f[i] = float_of_bits((uint32_t)number_at(bytes + 4 * i, 4));
    }
}

static bool read_data(struct onnx_case *c, struct onnx_tensor *t)
{
    static const size_t sizes[] = {4, 2, 8, 1};
    size_t bytes = (size_t)t->count * sizes[t->dtype];
    char path[1200];
    snprintf(path, sizeof path, "%s/%s.bin", c->folder, t->name);
    FILE *f = fopen(path, "rb");
    if (f == NULL) return cannot(c, "cannot open %s", path);
    unsigned char *data = must_alloc(bytes + 1, 1);
    size_t got = fread(data, 1, bytes + 1, f);
    fclose(f);
    if (got == bytes) convert(t, data);
    free(data);
    return got == bytes ? true : cannot(c, "%s does not hold %zu bytes", path, bytes);
}

static int dtype_of(const char *name)
{
    static const char *const names[] = {"f32", "f16", "i64", "bool"};
    for (int n = 0; n < 4; n++)
        if (strcmp(name, names[n]) == 0) return n;
    return -1;
}

static bool read_tensor(struct onnx_case *c, const char *line, bool output)
{
    char dtype[16];
    int used = 0;
    if (c->n_tensors == ONNX_ITEMS_MAX) return cannot(c, "too many tensors");
    struct onnx_tensor *t = &c->tensors[c->n_tensors];
    memset(t, 0, sizeof *t);
    if (sscanf(line, "%*s %63s %15s %d%n", t->name, dtype, &t->rank, &used) != 3)
        return cannot(c, "cannot read the line: %s", line);
    t->output = output;
    t->dtype = dtype_of(dtype);
    if (t->dtype < 0) return cannot(c, "unknown dtype %s of %s", dtype, t->name);
    if (t->rank < 0 || t->rank > ONNX_RANK_MAX) return cannot(c, "rank of %s", t->name);
    t->count = 1;
    for (int a = 0; a < t->rank; a++) {
        int more = 0;
        if (sscanf(line + used, "%" SCNd64 "%n", &t->dims[a], &more) != 1 || t->dims[a] < 0)
            return cannot(c, "dims of %s", t->name);
        t->count *= t->dims[a];
        used += more;
    }
    c->n_tensors++;
    return read_data(c, t);
}

static bool read_attr(struct onnx_case *c, const char *line)
{
    if (c->n_attrs == ONNX_ITEMS_MAX) return cannot(c, "too many attributes");
    struct onnx_attr *a = &c->attrs[c->n_attrs++];
    memset(a, 0, sizeof *a);
    if (sscanf(line, "%*s %63s %63s", a->name, a->value) != 2)
        return cannot(c, "cannot read the line: %s", line);
    return true;
}

static bool read_line(struct onnx_case *c, const char *line)
{
    char kind[8] = "";
    if (sscanf(line, "%7s", kind) != 1 || kind[0] == '#') return true;
    if (strcmp(kind, "attr") == 0) return read_attr(c, line);
    if (strcmp(kind, "in") == 0) return read_tensor(c, line, false);
    if (strcmp(kind, "out") == 0) return read_tensor(c, line, true);
    return cannot(c, "cannot read the line: %s", line);
}

bool onnx_read(struct onnx_case *c, const char *folder)
{
    char path[1100], line[512];
    bool fine = true;
    memset(c, 0, sizeof *c);
    snprintf(c->folder, sizeof c->folder, "%s", folder);
    snprintf(path, sizeof path, "%s/case.txt", c->folder);
    FILE *f = fopen(path, "r");
    if (f == NULL) return cannot(c, "cannot open %s", path);
    while (fine && fgets(line, sizeof line, f) != NULL) fine = read_line(c, line);
    fclose(f);
    return fine;
}

void onnx_free(struct onnx_case *c)
{
    for (int n = 0; n < c->n_tensors; n++) {
        free(c->tensors[n].f);
        free(c->tensors[n].i64);
        free(c->tensors[n].b);
    }
    c->n_tensors = 0;
}

const struct onnx_tensor *onnx_find(const struct onnx_case *c, const char *name, bool output)
{
    for (int n = 0; n < c->n_tensors; n++)
        if (c->tensors[n].output == output && strcmp(c->tensors[n].name, name) == 0)
            return &c->tensors[n];
    return NULL;
}

static struct onnx_attr *find_attr(struct onnx_case *c, const char *name)
{
    for (int n = 0; n < c->n_attrs; n++)
        if (strcmp(c->attrs[n].name, name) == 0) return &c->attrs[n];
    return NULL;
}

double onnx_number(struct onnx_case *c, const char *name, double otherwise)
{
    struct onnx_attr *a = find_attr(c, name);
    if (a == NULL) return otherwise;
    char *end;
    double x = strtod(a->value, &end);
    if (*end != '\0') cannot(c, "attribute %s is %s", name, a->value);
    return x;
}

bool onnx_has(const struct onnx_case *c, const char *name)
{
    for (int n = 0; n < c->n_attrs; n++)
        if (strcmp(c->attrs[n].name, name) == 0) return true;
    return false;
}
