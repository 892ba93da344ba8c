/* SPDX-License-Identifier: MIT */
/*
 * What the fuzzer's kinds of cases share. A case is a text: two characters are
 * a number, and behind the end all numbers are the least that may come.
 */
#ifndef ATTN_TEST_FUZZ_H
#define ATTN_TEST_FUZZ_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "whitebox.h"

struct text_case {
    const uint8_t *at;
    size_t left;
};

/* A number in [lo, hi]; of wide ranges some are never drawn. */
int64_t draw(struct text_case *c, int64_t lo, int64_t hi);
bool chance(struct text_case *c, int64_t one_in);
struct tiles draw_tiles(struct text_case *c);
int32_t draw_isa(struct text_case *c);

/* Each makes one case, and ends the program where the library is wrong. */
void fuzz_run(struct text_case *c);
void fuzz_packed(struct text_case *c);
void fuzz_layer(struct text_case *c);
void fuzz_arguments(struct text_case *c);

#endif
