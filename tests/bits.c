/* SPDX-License-Identifier: MIT */
/* For tests/conditions: prints a hash of the bits of each of some runs, on all CPUs it may use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "layer_rig.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

/* Tiles, decode in parts, groups, rules, all outputs, products that take BLAS's buffers. */
static const struct spec kinds[] = {
    {.seed = 1, .B = 2, .Hq = 4, .Lq = 200, .Lk = 500, .Dk = 64},
    {.seed = 2, .Hq = 4, .Lq = 333, .Lk = 333, .Dk = 64, .causal = 1},
    {.seed = 3, .Hq = 8, .Hk = 2, .Lq = 1, .Lk = 6000, .Dk = 64},
    {.seed = 4, .Hq = 4, .Hk = 1, .Lq = 120, .Lk = 500, .Dk = 33, .outs = OUT_ALL_MEAN},
    {.seed = 5, .Hq = 2, .Lq = 257, .Lk = 511, .Dk = 17, .softcap = 4, .mask_bool = {.on = 1}},
    {.seed = 6, .Hq = 1, .Lq = 150, .Lk = 700, .Dk = 1100},
};

/* That this process may use. */
static int32_t cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* FNV-1a. */
static uint64_t hash(const float *x, int64_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < n; i++)
        for (int shift = 0; shift < 32; shift += 8)
            h = (h ^ (bits_of_float(x[i]) >> shift & 0xff)) * 0x100000001b3u;
    return h;
}

static void print_runs(void)
{
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        for (const int32_t *isa = rig_isas(); *isa >= 0; isa++) {
            struct rig g;
            rig_make(&g, &kinds[kind]);
            g.isa = *isa;
            g.threads = cpus();
            float *out = rig_output(&g);
            printf("run %d isa %x: %016" PRIx64 "\n", (int)kind, (unsigned)*isa,
                   hash(out, test_count(&g.out)));
            free(out);
            rig_free(&g);
        }
}

static void print_layer(void)
{
    struct layer_rig g;
    layer_make(&g, &(struct layer_spec){.seed = 7,
                                        .Hq = 6,
                                        .Hk = 2,
                                        .Dk = 64,
                                        .Dv = 64,
                                        .E_q = 384,
                                        .E_kv = 384,
                                        .E_out = 384,
                                        .Lq = 300,
                                        .Lk = 300,
                                        .bias = 15,
                                        .threads = cpus(),
                                        .isa = ATTN_ISA_ALL});
    if (layer_run(&g) != ATTN_OK) exit(1);
    printf("layer: %016" PRIx64 "\n", hash(g.out.p, g.out.n));
    layer_free(&g);
}

int main(void)
{
    print_runs();
    print_layer();
    return 0;
}
