/* SPDX-License-Identifier: MIT */
/*
 * A case of ONNX's Attention node tests, read from a folder: case.txt with
 * lines "attr NAME VALUE" and "in|out NAME DTYPE RANK DIM...", and a NAME.bin
 * for each tensor, little-endian and row-major.
 */
#ifndef ATTN_TEST_ONNX_CASE_H
#define ATTN_TEST_ONNX_CASE_H

#include <stdbool.h>
#include <stdint.h>

enum { ONNX_F32, ONNX_F16, ONNX_I64, ONNX_BOOL };
#define ONNX_RANK_MAX 8
#define ONNX_ITEMS_MAX 32

struct onnx_tensor {
    char name[64];
    bool output;
    int dtype;
    int rank;
    int64_t dims[ONNX_RANK_MAX], count;
    float *f; /* f32, and f16 converted */
    int64_t *i64;
    uint8_t *b;
};

struct onnx_attr {
    char name[64], value[64];
};

struct onnx_case {
    char folder[1024];
    int n_tensors, n_attrs;
    struct onnx_tensor tensors[ONNX_ITEMS_MAX];
    struct onnx_attr attrs[ONNX_ITEMS_MAX];
    char error[1400]; /* what could not be read */
};

/* False, with words in c->error, when the case cannot be read. */
bool onnx_read(struct onnx_case *c, const char *folder);
void onnx_free(struct onnx_case *c);
const struct onnx_tensor *onnx_find(const struct onnx_case *c, const char *name, bool output);
/* The number of an attribute, or what it is when absent. */
double onnx_number(struct onnx_case *c, const char *name, double otherwise);
bool onnx_has(const struct onnx_case *c, const char *name);

#endif
