/* SPDX-License-Identifier: MIT */
/*
 * Memory: a run allocates nothing once its op has served that size, or ever
 * when it is given a workspace; an allocation or a thread that cannot be had
 * is a status or a slower run, never a crash.
 *
 * The functions of the C library are interposed by this executable. Where a
 * sanitizer or valgrind has them, the tests are skipped. OpenBLAS's AVX-512
 * small-matrix kernel of NN products allocates when n % 16 is 1 to 8 and k is
 * 32 or more, and does not look whether it got the memory (seen in 0.3.21): its
 * calls are told apart by their return address, counted, and never denied.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "layer_rig.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic bool watching;       /* count, and fail */
static _Atomic int64_t allocations; /* while watching, not by BLAS */
static _Atomic int64_t by_blas;     /* while watching */
static _Atomic int64_t fail_at;     /* the allocation that fails; 0: none */
static _Atomic bool fail_from;      /* and all after it */
static _Atomic bool no_threads;     /* pthread_create fails */

#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INTERPOSED 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define INTERPOSED 0
#else
#define INTERPOSED 1
#endif
#else
#define INTERPOSED 1
#endif

#if INTERPOSED
#define VISIBLE __attribute__((visibility("default")))
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *p, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

static bool is_blas(const void *caller)
{
    Dl_info info;
    return dladdr(caller, &info) != 0 && info.dli_fname != NULL &&
           strstr(info.dli_fname, "blas") != NULL;
}

static bool denied(const void *caller)
{
    if (!atomic_load(&watching)) return false;
    if (is_blas(caller)) {
        atomic_fetch_add(&by_blas, 1);
        return false;
    }
    int64_t n = atomic_fetch_add(&allocations, 1) + 1, at = atomic_load(&fail_at);
    return at > 0 && (n == at || (n > at && atomic_load(&fail_from)));
}

VISIBLE void *malloc(size_t bytes)
{
    return denied(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

VISIBLE void *calloc(size_t count, size_t bytes)
{
    return denied(__builtin_return_address(0)) ? NULL : __libc_calloc(count, bytes);
}

VISIBLE void *realloc(void *p, size_t bytes)
{
    return denied(__builtin_return_address(0)) ? NULL : __libc_realloc(p, bytes);
}

VISIBLE void *aligned_alloc(size_t alignment, size_t bytes)
{
    return denied(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, bytes);
}

VISIBLE int posix_memalign(void **p, size_t alignment, size_t bytes)
{
    *p = denied(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, bytes);
    return *p == NULL ? ENOMEM : 0;
}

VISIBLE int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                           void *arg)
{
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    void *at = dlsym(RTLD_NEXT, "pthread_create");
    memcpy(&real, &at, sizeof real);
    return atomic_load(&no_threads) ? EAGAIN : real(thread, attr, start, arg);
}
#endif

static void watch(int64_t fail, bool from)
{
    atomic_store(&allocations, 0);
    atomic_store(&by_blas, 0);
    atomic_store(&fail_at, fail);
    atomic_store(&fail_from, from);
    atomic_store(&watching, true);
}

/* How many allocations there were. */
static int64_t unwatch(void)
{
    atomic_store(&watching, false);
    return atomic_load(&allocations);
}

static void ok(attn_status status) { assert_int_equal(status, ATTN_OK); }

/* Is it our malloc that this executable calls? Then the library must call it too; under valgrind
   it does not. */
static void skip_unless_interposed(void)
{
    const char *preload = getenv("LD_PRELOAD");
    attn_args *args;
    if (preload != NULL && strstr(preload, "vgpreload") != NULL) skip();
    watch(0, false);
    void *volatile p = malloc(64);
    int64_t count = unwatch();
    free(p);
    if (count == 0) skip();
    watch(0, false);
    ok(attn_args_create(&args));
    assert_true(unwatch() > 0);
    attn_args_destroy(args);
}

/* Tiles, decode in parts, weights, means, every rule; one thread and several. */
static const struct spec kinds[] = {
    {.seed = 1, .Hq = 4, .Lq = 200, .Lk = 300, .Dk = 64, .threads = 1},
    {.seed = 2, .Hq = 4, .Lq = 200, .Lk = 200, .Dk = 64, .threads = 3, .causal = 1},
    {.seed = 3, .Hq = 8, .Hk = 2, .Lq = 1, .Lk = 6000, .Dk = 64, .threads = 3},
    {.seed = 4,
     .Hq = 4,
     .Hk = 1,
     .Lq = 100,
     .Lk = 400,
     .Dk = 33,
     .threads = 2,
     .outs = OUT_ALL_MEAN},
    {.seed = 5,
     .B = 2,
     .Hq = 4,
     .Lq = 90,
     .Lk = 70,
     .Dk = 20,
     .outs = OUT_ALL,
     .range = 3,
     .softcap = 2,
     .mask_bool = {.on = 1},
     .mask_add = {.on = 1, .full = 7}},
    {.seed = 6, .Hq = 3, .Lq = 2, .Lk = 30, .Dk = 5},
};
#define N_KINDS 6

static attn_status run(struct rig *g)
{
    return attn_run_args(g->op, g->s.B, g->s.Lq, g->s.Lk, g->q.at, g->k.at, g->v.at, g->out.at,
                         g->args);
}

static void test_steady_runs_allocate_nothing(void **state)
{
    (void)state;
    skip_unless_interposed();
    for (int n = 0; n < N_KINDS; n++) {
        struct rig g;
        rig_make(&g, &kinds[n]);
        rig_expect(&g);
        usleep(20000); /* threads that were made late: OpenMP keeps something for each */
        for (int again = rig_times(20); again > 0; again--) {
            watch(0, false);
            attn_status status = run(&g);
            int64_t count = unwatch();
            ok(status);
            if (count != 0) rig_print(&g, "a steady run allocates");
            assert_int_equal(count, 0);
            if (atomic_load(&by_blas) == 0) continue;
            rig_print(&g, "BLAS allocates in a steady run");
            fail();
        }
        rig_free(&g);
    }
}

/* A fresh op with a workspace; the pool is warm from the test above. */
static void test_workspace_means_no_allocation(void **state)
{
    (void)state;
    skip_unless_interposed();
    for (int n = 0; n < N_KINDS; n++) {
        struct rig g;
        size_t bytes;
        rig_make(&g, &kinds[n]);
        rig_prepare(&g);
        ok(attn_workspace_bytes(g.op, g.s.B, g.s.Lq, g.s.Lk, g.args, &bytes));
        void *memory = malloc(bytes);
        ok(attn_args_set_workspace(g.args, memory, bytes));
        watch(1, true); /* every allocation fails */
        attn_status status = run(&g);
        int64_t count = unwatch();
        ok(status);
        assert_int_equal(count, 0);
        assert_true(g.s.outs != 0 || rig_check(&g));
        free(memory);
        rig_free(&g);
    }
}

/* The layer too: in the steady state, and with a workspace. */
static void test_layer_allocates_nothing(void **state)
{
    (void)state;
    skip_unless_interposed();
    for (int with = 0; with < 2; with++) {
        struct layer_spec s = {.seed = 1,
                               .Hq = 4,
                               .Hk = 2,
                               .Dk = 16,
                               .Dv = 16,
                               .E_q = 64,
                               .E_kv = 64,
                               .E_out = 64,
                               .Lq = 150,
                               .Lk = 150,
                               .threads = 2,
                               .self = true,
                               .bias = 15};
        struct layer_rig g;
        layer_make(&g, &s);
        layer_prepare(&g);
        if (with)
            layer_workspace(&g, true);
        else
            layer_expect(&g);
        watch(with ? 1 : 0, true);
        attn_status status = layer_run(&g);
        int64_t count = unwatch();
        ok(status);
        assert_int_equal(count, 0);
        layer_expect(&g);
        layer_free(&g);
    }
}

/* ------------------------------------------------------------- no memory */

/* The nth allocation of a run fails (and all after it): ENOMEM or success, and the op still
   works afterwards. */
static void test_runs_without_memory(void **state)
{
    (void)state;
    skip_unless_interposed();
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int from = 0; from < 2; from++)
            for (int64_t n = 1; n < 50; n++) {
                struct rig g;
                rig_make(&g, &kinds[kind]);
                rig_prepare(&g);
                watch(n, from == 1);
                attn_status status = run(&g);
                int64_t count = unwatch();
                assert_true(status == ATTN_OK || status == ATTN_ENOMEM);
                assert_true(gbuf_intact(&g.out.buf));
                if (n == 1 && from == 1) assert_int_equal(status, ATTN_ENOMEM);
                rig_expect(&g);
                rig_free(&g);
                if (count < n) break;
            }
}

/* The same for what makes handles and copies small arrays; the handle is NULL then. */
static attn_status make_everything(attn_op **op, attn_op **copy, attn_args **args,
                                   attn_layer **layer)
{
    const int64_t three[3] = {1, 1, 1};
    const float w[16] = {0}, bias[4] = {0};
    attn_status status = attn_op_create(op, 2, 2, 2, 2);
    if (status == ATTN_OK) status = attn_op_copy(copy, *op);
    if (status == ATTN_OK) status = attn_args_create(args);
    if (status == ATTN_OK) status = attn_args_set_key_range(*args, 3, three, three);
    if (status == ATTN_OK) status = attn_args_set_positions(*args, 3, three);
    if (status == ATTN_OK) status = attn_layer_create(layer, *op, 4, 4, 4);
    for (int32_t which = ATTN_W_Q; which <= ATTN_W_O && status == ATTN_OK; which++)
        status = attn_layer_set_weights(*layer, which, ATTN_IN_OUT, w, 0, bias);
    return status;
}

static void test_handles_without_memory(void **state)
{
    (void)state;
    skip_unless_interposed();
    bool done = false;
    for (int64_t n = 1; !done; n++) {
        attn_op *const junk = (attn_op *)(uintptr_t)64;
        attn_op *op = junk, *copy = NULL;
        attn_args *args = NULL;
        attn_layer *layer = NULL;
        watch(n, false);
        attn_status status = make_everything(&op, &copy, &args, &layer);
        done = unwatch() < n;
        assert_int_equal(status, done ? ATTN_OK : ATTN_ENOMEM);
        assert_ptr_not_equal(op, junk);
        attn_layer_destroy(layer);
        attn_args_destroy(args);
        attn_op_destroy(copy);
        attn_op_destroy(op);
        assert_in_range(n, 1, 100);
    }
}

/* A setter without memory leaves what was set before. */
static void test_setters_without_memory(void **state)
{
    const int64_t ends[2] = {5, 3}, other[2] = {1, 1}, pos[2] = {2, 4};
    struct spec s = {.seed = 3,
                     .B = 2,
                     .Lq = 4,
                     .Lk = 9,
                     .Dk = 4,
                     .ends = ends,
                     .positions = pos,
                     .range = RANGE_END,
                     .pos = POS_SMALL,
                     .causal = ATTN_CAUSAL_TOP_LEFT};
    struct rig g;
    (void)state;
    skip_unless_interposed();
    rig_make(&g, &s);
    rig_prepare(&g);
    watch(1, true);
    attn_status range = attn_args_set_key_range(g.args, 2, NULL, other);
    attn_status range_both = attn_args_set_key_range(g.args, 2, other, other);
    attn_status positions = attn_args_set_positions(g.args, 2, other);
    unwatch();
    assert_int_equal(range, ATTN_ENOMEM);
    assert_int_equal(range_both, ATTN_ENOMEM);
    assert_int_equal(positions, ATTN_ENOMEM);
    rig_expect(&g);
    rig_free(&g);
}

/* A weight without memory leaves the one before. */
static void test_weights_without_memory(void **state)
{
    struct layer_spec s = {.seed = 1,
                           .Hq = 2,
                           .Hk = 2,
                           .Dk = 4,
                           .Dv = 4,
                           .E_q = 8,
                           .E_kv = 8,
                           .E_out = 8,
                           .Lq = 5,
                           .Lk = 5,
                           .self = true,
                           .bias = 15};
    const float other[64] = {0};
    struct layer_rig g;
    (void)state;
    skip_unless_interposed();
    layer_make(&g, &s);
    layer_prepare(&g);
    for (int64_t n = 1; n <= 2; n++)
        for (int32_t which = ATTN_W_Q; which <= ATTN_W_O; which++) {
            watch(n, false);
            attn_status status =
                attn_layer_set_weights(g.layer, which, ATTN_IN_OUT, other, 0, other);
            int64_t count = unwatch();
            if (count >= n)
                assert_int_equal(status, ATTN_ENOMEM);
            else
                fail_msg("%d allocations for a weight and a bias", (int)count);
        }
    layer_expect(&g);
    layer_free(&g);
}

/* -------------------------------------------------------------- no threads */

/* OpenBLAS#1668, ragflow#654: threads cannot be made; the run goes on with fewer. Must run before
   the pool exists. */
static void test_runs_without_threads(void **state)
{
    (void)state;
    skip_unless_interposed();
    atomic_store(&no_threads, true);
    for (int n = 0; n < N_KINDS; n++) {
        struct spec s = kinds[n];
        s.threads = 8;
        rig_once(&s);
    }
    atomic_store(&no_threads, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_without_threads),
        cmocka_unit_test(test_steady_runs_allocate_nothing),
        cmocka_unit_test(test_workspace_means_no_allocation),
        cmocka_unit_test(test_layer_allocates_nothing),
        cmocka_unit_test(test_runs_without_memory),
        cmocka_unit_test(test_handles_without_memory),
        cmocka_unit_test(test_setters_without_memory),
        cmocka_unit_test(test_weights_without_memory),
    };
    return cmocka_run_group_tests_name("alloc", tests, NULL, NULL);
}
