/* SPDX-License-Identifier: MIT */
/*
 * A structured fuzzer for libFuzzer: the text chooses what is run, on which
 * engine, and everything about it; what comes out is compared with the oracle,
 * and what must not be written is guarded. See fuzz/run.
 */
#include "fuzz.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Characters that can be seen, so that a corpus is a text; all others count as the first. */
#define FIRST '!'
#define LAST '~'
#define DIGITS (LAST - FIRST + 1)

static int64_t digit(uint8_t c) { return c >= FIRST && c <= LAST ? c - FIRST : 0; }

int64_t draw(struct text_case *c, int64_t lo, int64_t hi)
{
    if (c->left < 2) return lo;
    int64_t x = digit(c->at[0]) * DIGITS + digit(c->at[1]);
    c->at += 2;
    c->left -= 2;
    return lo + x % (hi - lo + 1);
}

bool chance(struct text_case *c, int64_t one_in) { return draw(c, 0, one_in - 1) == 1; }

struct tiles draw_tiles(struct text_case *c)
{
    static const int64_t sizes[] = {0, 0, 0, 1, 3, 16, 60};
    struct tiles t = {.strip_rows = sizes[draw(c, 0, 6)]};
    t.tile_keys = sizes[draw(c, 0, 6)];
    t.block_queries = sizes[draw(c, 0, 6)];
    t.part_keys = sizes[draw(c, 0, 6)];
    t.path = (int32_t)draw(c, PATH_AUTO, PATH_TILES_NT);
    return t;
}

int32_t draw_isa(struct text_case *c)
{
    static const int32_t isas[] = {ATTN_ISA_ALL, ATTN_ISA_AVX2, ATTN_ISA_BASE};
    return isas[draw(c, 0, 2)];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const kinds[])(struct text_case *) = {fuzz_run,    fuzz_run,   fuzz_run,
                                                        fuzz_packed, fuzz_layer, fuzz_arguments};
    struct text_case c = {data, size};
    setenv("ATTN_TEST_ENGINE", chance(&c, 2) ? "vector" : "blas", 1);
    kinds[draw(&c, 0, 5)](&c);
    return 0;
}
