/* SPDX-License-Identifier: MIT */
/*
 * What the process around the library must not notice: nothing printed, no
 * global setting changed, no thread at load, and a fork at any moment.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rig.h"

#include <dlfcn.h>
#include <errno.h>
#include <fenv.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

/* ThreadSanitizer and qemu-user cannot make threads in the child of a process that had some. */
static bool threads_after_fork(void)
{
    return !UNDER_TSAN && getenv("ATTN_TEST_EMULATOR") == NULL;
}

static const struct spec kinds[] = {
    {.seed = 1, .Hq = 4, .Lq = 200, .Lk = 200, .Dk = 64, .threads = 4, .causal = 1},
    {.seed = 2, .Hq = 8, .Hk = 2, .Lq = 1, .Lk = 6000, .Dk = 64, .threads = 4},
    {.seed = 3,
     .Hq = 4,
     .Hk = 1,
     .Lq = 100,
     .Lk = 400,
     .Dk = 33,
     .threads = 3,
     .outs = OUT_ALL_MEAN},
    {.seed = 4, .Hq = 2, .Lq = 7, .Lk = 9, .Dk = 5},
};
#define N_KINDS 4

static void ok(attn_status status) { assert_int_equal(status, ATTN_OK); }

static int count_tasks(void)
{
    char line[128];
    int n = 0;
    FILE *f = fopen("/proc/self/status", "r");
    if (f == NULL) return -1;
    while (fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "Threads: %d", &n) == 1) break;
    fclose(f);
    return n;
}

/* Runs first, before anything has run: the library made no thread at load, nor for one thread. */
static void test_no_thread_before_it_is_needed(void **state)
{
    attn_op *op;
    (void)state;
    int at_load = count_tasks();
    if (at_load < 0 || UNDER_TSAN) skip();
    ok(attn_op_create(&op, 4, 4, 64, 64));
    attn_op_destroy(op);
    rig_once(&(struct spec){.seed = 1, .Hq = 4, .Lq = 200, .Lk = 200, .Dk = 64, .threads = 1});
    assert_int_equal(count_tasks(), at_load);
}

/* ----------------------------------------------------------------- globals */

typedef int (*get_fn)(void);
typedef void (*set_fn)(int);

static void *symbol(const char *name) { return dlsym(RTLD_DEFAULT, name); }

static void run_everything(void)
{
    for (int n = 0; n < N_KINDS; n++) rig_once(&kinds[n]);
}

/* The host's number of BLAS threads is there again after each run. */
static void test_blas_threads_stay(void **state)
{
    void *get_at = symbol("openblas_get_num_threads"),
         *set_at = symbol("openblas_set_num_threads");
    get_fn get;
    set_fn set;
    (void)state;
    if (get_at == NULL || set_at == NULL) skip();
    memcpy(&get, &get_at, sizeof get);
    memcpy(&set, &set_at, sizeof set);
    int before = get();
    for (int n = 1; n <= 3; n++) {
        set(n);
        int really = get(); /* a serial build stays at 1 */
        for (int kind = 0; kind < N_KINDS; kind++) {
            rig_once(&kinds[kind]);
            assert_int_equal(get(), really);
        }
    }
    set(before);
}

/* Rounding, flags that trap, denormals, locale, signal handlers. */
static void test_environment_stays(void **state)
{
    struct sigaction before[32], after;
    (void)state;
    for (int s = 1; s < 32; s++) sigaction(s, NULL, &before[s]);
    char *locale = strdup(setlocale(LC_ALL, NULL));
    assert_int_equal(fesetround(FE_UPWARD), 0);
    attn_op *op;
    float q = 1, k = 1, v = 2, out = 0;
    ok(attn_op_create(&op, 1, 1, 1, 1));
    ok(attn_run(op, 1, 1, 1, &q, &k, &v, &out));
    attn_op_destroy(op);
    assert_int_equal(fegetround(), FE_UPWARD);
    assert_int_equal(fesetround(FE_TONEAREST), 0);
    run_everything();
    assert_int_equal(fegetround(), FE_TONEAREST);
    assert_int_equal(fegetexcept(), 0);
    volatile float tiny = 0x1p-126f;
    assert_true(tiny / 2 > 0); /* denormals are still numbers */
    assert_string_equal(setlocale(LC_ALL, NULL), locale);
    for (int s = 1; s < 32; s++) {
        if (sigaction(s, NULL, &after) != 0) continue;
        assert_true(after.sa_handler == before[s].sa_handler);
    }
    free(locale);
}

/* What lies in scratch memory never enters arithmetic: a host may let exceptions trap. */
static void test_scratch_raises_no_flags(void **state)
{
    static const int32_t isas[] = {ATTN_ISA_BASE, ATTN_ISA_AVX2, ATTN_ISA_ALL};
    static const uint32_t filling[] = {0x7f800001, 0x7f7fffff, 0xff800000}; /* sNaN, huge, -inf */
    enum { L = 61, D = 16 };
    float x[L * D], out[L * D];
    (void)state;
    for (int i = 0; i < L * D; i++) x[i] = 1;
    for (int n = 0; n < 3 * 3 * 4; n++) {
        attn_op *op;
        attn_args *args;
        size_t bytes;
        int64_t first = (int64_t[]){-L, -L / 2, 0, 7}[n / 9]; /* queries that see no key */
        ok(attn_op_create(&op, 1, 1, D, D));
        ok(attn_op_set_isa(op, isas[n % 3]));
        ok(attn_op_set_causal(op, ATTN_CAUSAL_TOP_LEFT));
        ok(attn_args_create(&args));
        ok(attn_args_set_positions(args, 1, &first));
        ok(attn_workspace_bytes(op, 1, L, L, args, &bytes));
        uint32_t *memory = must_alloc(bytes / sizeof *memory + 1, sizeof *memory);
        for (size_t i = 0; i < bytes / sizeof *memory; i++) memory[i] = filling[n / 3 % 3];
        ok(attn_args_set_workspace(args, memory, bytes));
        feclearexcept(FE_ALL_EXCEPT);
        ok(attn_run_args(op, 1, L, L, x, x, x, out, args));
        assert_false(fetestexcept(FE_INVALID | FE_OVERFLOW | FE_DIVBYZERO));
        free(memory);
        attn_args_destroy(args);
        attn_op_destroy(op);
    }
}

static void flush_denormals(bool on)
{
#if defined(__x86_64__)
    _mm_setcsr(on ? _mm_getcsr() | 0x8040 : _mm_getcsr() & ~0x8040u); /* FTZ, DAZ */
#else
    (void)on;
#endif
}

/* The threads of the pool were made by another environment, and compute like the caller all the
   same: bits do not depend on who took a task. */
static void test_environment_reaches_the_pool(void **state)
{
    struct spec s = {.seed = 3, .B = 2, .Hq = 6, .Lq = 100, .Lk = 90, .Dk = 40};
    (void)state;
    run_everything(); /* a pool is there */
    for (int kind = 0; kind < 2; kind++) {
        struct rig g;
        rig_make(&g, &s);
        for (int64_t n = 0; n < test_count(&g.v) && kind == 1; n++) *test_nth(&g.v, n) *= 1e-38f;
        if (kind == 0) assert_int_equal(fesetround(FE_DOWNWARD), 0);
        if (kind == 1) flush_denormals(true);
        float *alone = rig_output(&g);
        bool same = true;
        for (int n = 0; n < 20; n++) {
            rig_reset(&g);
            g.threads = 4;
            float *out = rig_output(&g);
            same = same && memcmp(alone, out, (size_t)test_count(&g.out) * sizeof *out) == 0;
            free(out);
        }
        flush_denormals(false);
        assert_int_equal(fesetround(FE_TONEAREST), 0);
        assert_true(same);
        free(alone);
        rig_free(&g);
    }
}

/* ------------------------------------------------------------------- fork */

static float *expected[N_KINDS];

static bool child_gets_the_same_bits(void)
{
    bool same = true;
    for (int n = 0; n < N_KINDS; n++) {
        struct rig g;
        rig_make(&g, &kinds[n]);
        float *out = rig_output(&g);
        same = same && memcmp(out, expected[n], (size_t)test_count(&g.out) * sizeof *out) == 0;
        free(out);
        rig_free(&g);
    }
    return same;
}

/* Wait for a child at most 10 seconds, under valgrind 100; its exit status. */
static int wait_for(pid_t pid)
{
    const char *preload = getenv("LD_PRELOAD");
    int status = 0,
        limit = preload != NULL && strstr(preload, "vgpreload") != NULL ? 10000 : 1000;
    for (int n = 0; n < limit; n++) {
        const struct timespec pause = {0, 10000000};
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        nanosleep(&pause, NULL);
    }
    print_error("a child has run for too long\n");
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -1;
}

static int fork_and_run(int depth)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (!child_gets_the_same_bits()) _exit(3);
        if (count_tasks() < 4) _exit(4); /* three workers of its own */
        if (depth > 0) _exit(fork_and_run(depth - 1));
        _exit(0);
    }
    return pid < 0 ? -1 : wait_for(pid);
}

static void expect_bits(void)
{
    for (int n = 0; n < N_KINDS; n++) {
        struct rig g;
        rig_make(&g, &kinds[n]);
        free(expected[n]);
        expected[n] = rig_output(&g);
        rig_free(&g);
    }
}

/* The pool exists; a child has its own, and its child too; the parent goes on. */
static void test_fork_between_runs(void **state)
{
    (void)state;
    if (!threads_after_fork()) skip();
    expect_bits();
    for (int n = rig_times(3); n > 0; n--) {
        assert_int_equal(fork_and_run(1), 0);
        assert_true(child_gets_the_same_bits());
    }
}

static _Atomic bool stop_running;

static void *run_until_told(void *unused)
{
    struct rig g;
    (void)unused;
    rig_make(&g, &kinds[0]);
    while (!atomic_load(&stop_running)) free(rig_output(&g));
    rig_free(&g);
    return NULL;
}

/* Another thread is in the middle of a run. */
static void test_fork_during_a_run(void **state)
{
    pthread_t thread;
    (void)state;
    if (!threads_after_fork()) skip();
    expect_bits();
    atomic_store(&stop_running, false);
    assert_int_equal(pthread_create(&thread, NULL, run_until_told, NULL), 0);
    int wrong = 0;
    for (int n = rig_times(25); n > 0; n--) wrong += fork_and_run(0) != 0;
    atomic_store(&stop_running, true);
    pthread_join(thread, NULL);
    assert_int_equal(wrong, 0);
}

/* exit() right after a run: the pool's threads do not hold the process up. */
static void test_exit_after_a_run(void **state)
{
    (void)state;
    if (!threads_after_fork()) skip();
    pid_t pid = fork();
    if (pid == 0) {
        attn_op *op;
        static float x[64 * 200], out[64 * 200];
        if (attn_op_create(&op, 1, 1, 64, 64) != ATTN_OK) _exit(2);
        if (attn_op_set_threads(op, 4) != ATTN_OK) _exit(2);
        for (int n = rig_times(50); n > 0; n--)
            if (attn_run(op, 1, 200, 200, x, x, x, out) != ATTN_OK) _exit(2);
        exit(0); /* with handlers, and the op never destroyed */
    }
    int status = wait_for(pid);
    assert_true(status == 0 || status == 23); /* 23: LeakSanitizer's, for the op */
}

/* --------------------------------------------------------------- silence */

/* Good and bad calls with stdout and stderr going to a file: not a byte in it. */
static void chatter(void)
{
    attn_op *op = NULL;
    attn_layer *layer = NULL;
    float x = 0;
    char text[2048];
    size_t bytes;
    attn_op_create(&op, 5, 2, 1, 1);
    attn_op_create(&op, 1, 1, 1, 1);
    attn_op_set_scale(op, 1e300);
    attn_op_set_engine(op, 77);
    attn_run(op, -1, 1, 1, &x, &x, &x, &x);
    attn_run(op, 1, 1, 1, &x, &x, &x, &x);
    attn_run(op, INT64_MAX, INT64_MAX, INT64_MAX, &x, &x, &x, &x);
    attn_run(NULL, 1, 1, 1, NULL, NULL, NULL, NULL);
    attn_workspace_bytes(op, INT64_MAX, 1, 1, NULL, &bytes);
    attn_explain(op, 1, 1, 1, &x, &x, &x, &x, NULL, text, sizeof text, NULL);
    attn_blas_info(text, sizeof text, NULL);
    attn_layer_create(&layer, op, 1, 1, 1);
    attn_layer_run(layer, 1, 1, 1, &x, NULL, &x, NULL);
    attn_layer_destroy(layer);
    attn_op_destroy(op);
}

static void test_silence(void **state)
{
    (void)state;
    FILE *sink = tmpfile();
    assert_non_null(sink);
    pid_t pid = fork();
    if (pid == 0) {
        if (dup2(fileno(sink), 1) < 0 || dup2(fileno(sink), 2) < 0) _exit(2);
        chatter();
        for (int n = 0; n < N_KINDS && threads_after_fork(); n++) {
            struct rig g;
            rig_make(&g, &kinds[n]);
            if (rig_run(&g) != ATTN_OK) _exit(3);
            rig_free(&g);
        }
        fflush(NULL);
        _exit(0);
    }
    assert_int_equal(wait_for(pid), 0);
    fseek(sink, 0, SEEK_END);
    assert_int_equal(ftell(sink), 0);
    fclose(sink);
}

static int free_expected(void **state)
{
    (void)state;
    for (int n = 0; n < N_KINDS; n++) free(expected[n]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_thread_before_it_is_needed),
        cmocka_unit_test(test_blas_threads_stay),
        cmocka_unit_test(test_environment_stays),
        cmocka_unit_test(test_scratch_raises_no_flags),
        cmocka_unit_test(test_environment_reaches_the_pool),
        cmocka_unit_test(test_fork_between_runs),
        cmocka_unit_test(test_fork_during_a_run),
        cmocka_unit_test(test_exit_after_a_run),
        cmocka_unit_test(test_silence),
    };
    return cmocka_run_group_tests_name("host", tests, NULL, free_expected);
}
