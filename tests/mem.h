/* SPDX-License-Identifier: MIT */
/*
 * What the tests draw numbers from and put them into: a seeded generator,
 * buffers between canaries that start as NaN, and buffers that end (or begin)
 * at an unreadable page.
 */
#ifndef ATTN_TEST_MEM_H
#define ATTN_TEST_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* splitmix64: the same numbers on every machine. */
struct rng {
    uint64_t state;
};

struct rng rng_make(uint64_t seed);
uint64_t rng_next(struct rng *rng);
int64_t rng_int(struct rng *rng, int64_t lo, int64_t hi); /* lo <= x <= hi */
bool rng_chance(struct rng *rng, double p);
float rng_normal(struct rng *rng, double std);
void rng_normals(struct rng *rng, int64_t n, float *x, double std);

/* A NaN that no computation produces: what outputs hold before a run. */
#define PREFILL_BITS 0x7fc0abcdu
bool is_prefill(float x);
float prefill(void);

/* n floats between canaries, moved off any alignment by `misalign` floats. */
struct gbuf {
    float *p;
    int64_t n;
    unsigned char *base;
    size_t bytes;
};

void gbuf_make(struct gbuf *buf, int64_t n, int64_t misalign);
void gbuf_reset(struct gbuf *buf);        /* prefill again, canaries too */
bool gbuf_intact(const struct gbuf *buf); /* are the canaries alive? */
bool gbuf_untouched(const struct gbuf *buf);
void gbuf_free(struct gbuf *buf);

/* Bytes whose end (or begin) touches a page that cannot be read or written. */
struct pages {
    void *p;
    void *map;
    size_t map_bytes;
};

void pages_end(struct pages *pages, size_t bytes);
void pages_begin(struct pages *pages, size_t bytes);
void pages_free(struct pages *pages);

/* malloc that ends the test program when there is none. */
void *must_alloc(size_t count, size_t element);
/* A copy of n floats, from malloc. */
float *copy_floats(const float *x, int64_t n);

float float_of_bits(uint32_t bits);
uint32_t bits_of_float(float x);

#endif
