/* SPDX-License-Identifier: MIT */
/*
 * The number of threads never changes a bit; several threads may run at once,
 * on ops of their own or on one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "layer_rig.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Large enough that a plan wakes threads: prefill, decode, groups, one kv head with averaged
   weights, every rule and every output. */
static const struct spec kinds[] = {
    {.seed = 1, .B = 2, .Hq = 4, .Lq = 200, .Lk = 200, .Dk = 64},
    {.seed = 2, .B = 1, .Hq = 4, .Lq = 333, .Lk = 333, .Dk = 64, .causal = 1},
    {.seed = 3, .B = 1, .Hq = 8, .Hk = 2, .Lq = 150, .Lk = 400, .Dk = 48, .Dv = 80, .causal = 2},
    {.seed = 4, .B = 1, .Hq = 8, .Hk = 2, .Lq = 1, .Lk = 6000, .Dk = 64},
    {.seed = 5, .B = 1, .Hq = 8, .Hk = 1, .Lq = 1, .Lk = 9000, .Dk = 64, .outs = OUT_ALL_MEAN},
    {.seed = 6, .B = 3, .Hq = 4, .Hk = 4, .Lq = 3, .Lk = 3000, .Dk = 33, .range = 3},
    {.seed = 7, .B = 1, .Hq = 4, .Hk = 1, .Lq = 120, .Lk = 500, .Dk = 64, .outs = OUT_ALL_MEAN},
    {.seed = 8,
     .B = 2,
     .Hq = 4,
     .Hk = 2,
     .Lq = 100,
     .Lk = 300,
     .Dk = 64,
     .outs = OUT_ALL,
     .layout = 1,
     .strides = 1},
    {.seed = 9,
     .B = 2,
     .Hq = 4,
     .Hk = 2,
     .Lq = 257,
     .Lk = 511,
     .Dk = 17,
     .softcap = 4,
     .mask_bool = {.on = 1, .full = 7},
     .mask_add = {.on = 1, .full = 4},
     .outs = OUT_LSE},
    {.seed = 10, .B = 1, .Hq = 1, .Lq = 1000, .Lk = 1000, .Dk = 64, .window = true, .left = 255},
    {.seed = 11, .B = 1, .Hq = 1, .Lq = 2, .Lk = 20000, .Dk = 100, .outs = OUT_LSE, .causal = 2},
    {.seed = 12,
     .B = 4,
     .Hq = 3,
     .Lq = 61,
     .Lk = 300,
     .Dk = 96,
     .strides = 3,
     .pos = 1,
     .causal = 1},
    {.seed = 13, .Hq = 4, .Hk = 2, .Lq = 300, .Lk = 300, .Dk = 40, .alibi = true, .sinks = true},
    {.seed = 14,
     .B = 2,
     .Hq = 2,
     .Lq = 200,
     .Lk = 333,
     .Dk = 64,
     .segments = -5,
     .outs = OUT_ALL},
    {.seed = 15, .Hq = 4, .Lq = 400, .Lk = 400, .Dk = 32, .chunk = 90, .causal = 2, .softcap = 9},
    {.seed = 16, .Hq = 8, .Hk = 1, .Lq = 1, .Lk = 7000, .Dk = 72, .sinks = true, .outs = OUT_LSE},
};
#define N_KINDS ((int)(sizeof kinds / sizeof *kinds))

static void ok(attn_status status) { assert_int_equal(status, ATTN_OK); }

/* Everything that a run wrote, one after the other. */
static float *all_outputs(struct rig *g, int64_t *n)
{
    float *out = rig_output(g), *all;
    int64_t n_out = test_count(&g->out);
    *n = n_out + g->lse.n;
    for (int stage = 0; stage < REF_STAGES; stage++) *n += g->stage[stage].n;
    all = must_alloc((size_t)*n, sizeof *all);
    memcpy(all, out, (size_t)n_out * sizeof *all);
    float *at = all + n_out;
    if (g->lse.n > 0) memcpy(at, g->lse.p, (size_t)g->lse.n * sizeof *at);
    at += g->lse.n;
    for (int stage = 0; stage < REF_STAGES; at += g->stage[stage++].n)
        if (g->stage[stage].n > 0)
            memcpy(at, g->stage[stage].p, (size_t)g->stage[stage].n * sizeof *at);
    free(out);
    return all;
}

static int count_tasks(void)
{
    DIR *dir = opendir("/proc/self/task");
    int n = 0;
    if (dir == NULL) return 0;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static void test_bits_do_not_depend_on_threads(void **state)
{
    static const int32_t counts[] = {1, 2, 3, 8, 64};
    (void)state;
    for (int kind = 0; kind < N_KINDS; kind++)
        for (const int32_t *isa = rig_isas(); *isa >= 0; isa++) {
            struct rig g;
            int64_t n;
            if (rig_skip(kind)) continue;
            rig_make(&g, &kinds[kind]);
            g.isa = *isa;
            float *first = all_outputs(&g, &n);
            if (isa[1] < 0) assert_true(rig_check(&g));
            for (int t = 1; t < 5; t++) {
                rig_reset(&g);
                g.threads = counts[t];
                float *other = all_outputs(&g, &n);
                if (!same_bits("outputs", first, other, n)) {
                    rig_print(&g, "bits depend on the thread count");
                    fail();
                }
                free(other);
            }
            free(first);
            rig_free(&g);
        }
    print_message("%d threads at the end\n", count_tasks());
}

static void test_bits_of_a_layer(void **state)
{
    static const int32_t counts[] = {1, 2, 3, 8};
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        float *first = NULL;
        for (int t = 0; t < 4; t++) {
            struct layer_spec s = {.seed = 5,
                                   .row = kind,
                                   .B = 2,
                                   .Hq = 6,
                                   .Hk = 2,
                                   .Dk = 32,
                                   .Dv = 32,
                                   .E_q = 192,
                                   .E_kv = 192,
                                   .E_out = 192,
                                   .Lq = 130,
                                   .Lk = 130,
                                   .causal = 1,
                                   .bias = 15,
                                   .isa = ATTN_ISA_ALL};
            struct layer_rig g;
            s.self = kind % 2 == 0;
            s.weights = kind == 3;
            if (kind == 2) s.B = 1, s.Lq = s.Lk = 700;
            s.threads = counts[t];
            layer_make(&g, &s);
            ok(layer_run(&g));
            if (t == 0) first = copy_floats(g.out.p, g.out.n);
            assert_true(same_bits("layer", first, g.out.p, g.out.n));
            layer_free(&g);
        }
        free(first);
    }
}

/* More than one thread does take part, and the pool is shared: it does not grow with ops. */
static void test_a_pool_is_there(void **state)
{
    struct rig g;
    (void)state;
    rig_make(&g, &kinds[0]);
    g.threads = 3;
    for (int n = rig_times(20); n > 0; n--) {
        rig_reset(&g);
        free(rig_output(&g));
    }
    int tasks = count_tasks();
    assert_in_range(tasks, 2, 64); /* 63 workers when the test above ran before */
    for (int n = rig_times(50); n > 0; n--) {
        rig_reset(&g);
        free(rig_output(&g));
    }
    assert_int_equal(count_tasks(), tasks);
    rig_free(&g);
}

/* ---------------------------------------------------------- at the same time */

#define CALLERS 4

struct caller {
    struct rig g;
    const attn_op *op; /* shared, or NULL: the rig's own */
    float *want;
    int64_t n;
    int runs, wrong;
    pthread_t thread;
};

static void *call_often(void *context)
{
    struct caller *c = context;
    struct rig *g = &c->g;
    const attn_op *op = c->op != NULL ? c->op : g->op;
    for (int n = 0; n < c->runs; n++) {
        gbuf_reset(&g->out.buf);
        attn_status status = attn_run_args(op, g->s.B, g->s.Lq, g->s.Lk, g->q.at, g->k.at,
                                           g->v.at, g->out.at, g->args);
        float *got = test_packed(&g->out);
        if (status != ATTN_OK || memcmp(got, c->want, (size_t)c->n * sizeof *got) != 0)
            c->wrong++;
        free(got);
    }
    return NULL;
}

/* What each caller should get, from a run while nobody else runs. */
static void caller_make(struct caller *c, const struct spec *s, int32_t threads)
{
    memset(c, 0, sizeof *c);
    rig_make(&c->g, s);
    c->g.threads = threads;
    c->n = test_count(&c->g.out);
    c->want = rig_output(&c->g);
    c->runs = rig_times(12);
}

static void call_at_once(struct caller callers[CALLERS])
{
    for (int n = 0; n < CALLERS; n++)
        assert_int_equal(pthread_create(&callers[n].thread, NULL, call_often, &callers[n]), 0);
    for (int n = 0; n < CALLERS; n++) pthread_join(callers[n].thread, NULL);
    for (int n = 0; n < CALLERS; n++) {
        if (callers[n].wrong) rig_print(&callers[n].g, "wrong beside other threads");
        assert_int_equal(callers[n].wrong, 0);
        free(callers[n].want);
        rig_free(&callers[n].g);
    }
}

/* mistral.rs#1669: scratch shared by concurrent calls. One op each, all kinds of runs. */
static void test_threads_with_own_ops(void **state)
{
    (void)state;
    for (int round = 0; round < N_KINDS; round += CALLERS) {
        struct caller callers[CALLERS];
        for (int n = 0; n < CALLERS; n++)
            caller_make(&callers[n], &kinds[(round + n) % N_KINDS], 1 + n % 3);
        call_at_once(callers);
    }
}

/* One op for all, other lengths in each. */
static void test_threads_with_one_op(void **state)
{
    static const int64_t lengths[2][CALLERS][2] = {
        {{1, 5000}, {70, 300}, {200, 200}, {3, 40}},
        {{1, 3000}, {1, 800}, {16, 16}, {333, 77}},
    };
    (void)state;
    for (int round = 0; round < 4; round++) {
        struct caller callers[CALLERS];
        for (int n = 0; n < CALLERS; n++) {
            struct spec s = {.seed = (uint64_t)n, .Hq = 4, .Hk = 2, .Dk = 64, .causal = 2};
            s.Lq = lengths[round % 2][n][0];
            s.Lk = lengths[round % 2][n][1];
            s.outs = round / 2 == 1 && n % 2 ? OUT_STAGE(REF_WEIGHTS) | OUT_LSE : 0;
            caller_make(&callers[n], &s, 2);
        }
        for (int n = 1; n < CALLERS; n++) callers[n].op = callers[0].g.op;
        call_at_once(callers);
    }
}

/* Trimming while others run is safe. */
static _Atomic bool stop_trimming;

static void *trim_often(void *context)
{
    struct caller *c = context;
    while (!atomic_load(&stop_trimming)) {
        if (attn_op_trim(c->g.op) != ATTN_OK) c->wrong++;
        sched_yield();
    }
    return NULL;
}

static void test_trim_while_running(void **state)
{
    struct caller c[2];
    pthread_t trimmer;
    (void)state;
    caller_make(&c[0], &kinds[0], 2);
    caller_make(&c[1], &kinds[0], 2);
    c[1].op = c[0].g.op;
    c[0].runs = c[1].runs = rig_times(60);
    atomic_store(&stop_trimming, false);
    assert_int_equal(pthread_create(&trimmer, NULL, trim_often, &c[0]), 0);
    for (int n = 0; n < 2; n++)
        assert_int_equal(pthread_create(&c[n].thread, NULL, call_often, &c[n]), 0);
    for (int n = 0; n < 2; n++) pthread_join(c[n].thread, NULL);
    atomic_store(&stop_trimming, true);
    pthread_join(trimmer, NULL);
    for (int n = 0; n < 2; n++) {
        assert_int_equal(c[n].wrong, 0);
        free(c[n].want);
        rig_free(&c[n].g);
    }
}

/* One layer for several threads. */
static void *run_layer(void *context)
{
    struct layer_rig *g = context;
    float *out = must_alloc((size_t)g->out.n, sizeof *out);
    intptr_t wrong = 0;
    for (int n = rig_times(8); n > 0; n--) {
        if (attn_layer_run(g->layer, g->s.B, g->s.Lq, g->s.Lk, g->x_q.p, g->x_kv.p, out, NULL) !=
                ATTN_OK ||
            memcmp(out, g->out.p, (size_t)g->out.n * sizeof *out) != 0)
            wrong++;
        memset(out, 0xff, (size_t)g->out.n * sizeof *out);
    }
    free(out);
    return (void *)wrong;
}

static void test_threads_with_one_layer(void **state)
{
    struct layer_spec s = {.seed = 5,
                           .Hq = 4,
                           .Hk = 2,
                           .Dk = 32,
                           .Dv = 32,
                           .E_q = 100,
                           .E_kv = 70,
                           .E_out = 90,
                           .Lq = 150,
                           .Lk = 140,
                           .bias = 15,
                           .threads = 2};
    struct layer_rig g;
    pthread_t threads[CALLERS];
    (void)state;
    layer_make(&g, &s);
    layer_expect(&g);
    for (int n = 0; n < CALLERS; n++)
        assert_int_equal(pthread_create(&threads[n], NULL, run_layer, &g), 0);
    for (int n = 0; n < CALLERS; n++) {
        void *wrong;
        pthread_join(threads[n], &wrong);
        assert_int_equal((intptr_t)wrong, 0);
    }
    layer_free(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_do_not_depend_on_threads),
        cmocka_unit_test(test_bits_of_a_layer),
        cmocka_unit_test(test_a_pool_is_there),
        cmocka_unit_test(test_threads_with_own_ops),
        cmocka_unit_test(test_threads_with_one_op),
        cmocka_unit_test(test_trim_while_running),
        cmocka_unit_test(test_threads_with_one_layer),
    };
    return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
