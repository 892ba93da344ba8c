/* SPDX-License-Identifier: MIT */
/* Random numbers and guarded memory of the tests. */
#include "mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CANARY 0xa5
#define CANARY_BYTES 128

struct rng rng_make(uint64_t seed)
{
    struct rng rng = {seed * 0x9e3779b97f4a7c15u + 1};
    return rng;
}

uint64_t rng_next(struct rng *rng)
{
    uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double rng_unit(struct rng *rng) { return (double)(rng_next(rng) >> 11) * 0x1p-53; }

int64_t rng_int(struct rng *rng, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(rng_next(rng) % (uint64_t)(hi - lo + 1));
}

bool rng_chance(struct rng *rng, double p) { return rng_unit(rng) < p; }

/* The sum of four uniforms: normal enough, bounded, and quick. */
float rng_normal(struct rng *rng, double std)
{
    uint64_t z = rng_next(rng);
    double sum = 0;
    for (int i = 0; i < 4; i++) sum += (double)((z >> (16 * i)) & 0xffff);
    return (float)((sum / 65535.0 - 2.0) * 1.7320508 * std);
}

void rng_normals(struct rng *rng, int64_t n, float *x, double std)
{
    for (int64_t i = 0; i < n; i++) x[i] = rng_normal(rng, std);
}

float float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

uint32_t bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

bool is_prefill(float x) { return bits_of_float(x) == PREFILL_BITS; }

float prefill(void) { return float_of_bits(PREFILL_BITS); }

void *must_alloc(size_t count, size_t element)
{
    void *p = calloc(count > 0 ? count : 1, element);
    if (p == NULL) {
        fprintf(stderr, "test: no memory for %zu x %zu bytes\n", count, element);
        exit(99);
    }
    return p;
}

float *copy_floats(const float *x, int64_t n)
{
    float *y = must_alloc((size_t)n, sizeof *y);
    if (n > 0) memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

void gbuf_make(struct gbuf *buf, int64_t n, int64_t misalign)
{
    size_t shift = (size_t)misalign * sizeof(float);
    buf->n = n;
    buf->bytes = 2 * CANARY_BYTES + 64 + shift + (size_t)n * sizeof(float);
    buf->base = must_alloc(buf->bytes, 1);
    size_t to_64 = (64 - (uintptr_t)buf->base % 64) % 64;
    buf->p = (float *)(void *)(buf->base + CANARY_BYTES + to_64 + shift);
    gbuf_reset(buf);
}

void gbuf_reset(struct gbuf *buf)
{
    float fill = prefill();
    memset(buf->base, CANARY, buf->bytes);
    for (int64_t i = 0; i < buf->n; i++) memcpy(&buf->p[i], &fill, sizeof fill);
}

bool gbuf_intact(const struct gbuf *buf)
{
    const unsigned char *begin = (const unsigned char *)buf->p;
    const unsigned char *end = (const unsigned char *)(buf->p + buf->n);
    for (const unsigned char *c = buf->base; c < begin; c++)
        if (*c != CANARY) return false;
    for (const unsigned char *c = end; c < buf->base + buf->bytes; c++)
        if (*c != CANARY) return false;
    return true;
}

bool gbuf_untouched(const struct gbuf *buf)
{
    for (int64_t i = 0; i < buf->n; i++)
        if (!is_prefill(buf->p[i])) return false;
    return gbuf_intact(buf);
}

void gbuf_free(struct gbuf *buf)
{
    free(buf->base);
    memset(buf, 0, sizeof *buf);
}

/* The usable pages lie between two unreadable ones. */
static unsigned char *map_between(struct pages *pages, size_t bytes, size_t *usable)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *usable = (bytes + page - 1) / page * page;
    if (*usable == 0) *usable = page;
    pages->map_bytes = *usable + 2 * page;
    pages->map = mmap(NULL, pages->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages->map == MAP_FAILED) abort();
    unsigned char *first = (unsigned char *)pages->map + page;
    if (mprotect(first, *usable, PROT_READ | PROT_WRITE) != 0) abort();
    return first;
}

void pages_end(struct pages *pages, size_t bytes)
{
    size_t usable;
    unsigned char *first = map_between(pages, bytes, &usable);
    pages->p = first + usable - bytes;
}

void pages_begin(struct pages *pages, size_t bytes)
{
    size_t usable;
    pages->p = map_between(pages, bytes, &usable);
}

void pages_free(struct pages *pages)
{
    munmap(pages->map, pages->map_bytes);
    memset(pages, 0, sizeof *pages);
}
