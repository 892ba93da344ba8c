/* SPDX-License-Identifier: MIT */
/*
 * libattn in somebody else's process: loaded and closed again and again, in two
 * copies, called from hundreds of threads with small stacks, from OpenMP loops,
 * beside the host's own use of BLAS, and from atexit(). It is loaded at run
 * time, as a plug-in would load it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

struct api {
    void *handle;
    attn_status (*create)(attn_op **, int64_t, int64_t, int64_t, int64_t);
    void (*destroy)(attn_op *);
    attn_status (*set_threads)(attn_op *, int32_t);
    attn_status (*set_engine)(attn_op *, int32_t);
    attn_status (*run)(const attn_op *, int64_t, int64_t, int64_t, const float *, const float *,
                       const float *, float *);
};

/* ISO C has no cast from an object pointer to a function's; POSIX's dlsym lives with that. */
static void look_up(void *handle, const char *name, void *function)
{
    void *found = dlsym(handle, name);
    assert_non_null(found);
    memcpy(function, &found, sizeof found);
}

static struct api api_of(void *handle)
{
    struct api api = {.handle = handle};
    look_up(handle, "attn_op_create", &api.create);
    look_up(handle, "attn_op_destroy", &api.destroy);
    look_up(handle, "attn_op_set_threads", &api.set_threads);
    look_up(handle, "attn_op_set_engine", &api.set_engine);
    look_up(handle, "attn_run", &api.run);
    return api;
}

static struct api load(void)
{
    void *handle = dlopen(ATTN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) fail_msg("%s", dlerror());
    return api_of(handle);
}

/* A problem; one with large heads takes BLAS's buffers. */
struct problem {
    int64_t heads, L, D;
    float *x, *want;
};

static int64_t count(const struct problem *p) { return p->heads * p->L * p->D; }

/* -1: a status; else how many elements are not what they should be. */
static int solve(const struct api *api, const struct problem *p, int32_t threads, float *out)
{
    attn_op *op;
    const char *engine = getenv("ATTN_TEST_ENGINE");
    if (api->create(&op, p->heads, p->heads, p->D, p->D) != ATTN_OK) return -1;
    attn_status status = api->set_threads(op, threads);
    if (status == ATTN_OK && engine != NULL && strcmp(engine, "vector") == 0)
        status = api->set_engine(op, ATTN_ENGINE_VECTOR);
    if (status == ATTN_OK) status = api->run(op, 1, p->L, p->L, p->x, p->x, p->x, out);
    api->destroy(op);
    return status == ATTN_OK ? 0 : -1;
}

static struct problem problem_make(const struct api *api, int64_t heads, int64_t L, int64_t D)
{
    struct problem p = {.heads = heads, .L = L, .D = D};
    p.x = malloc((size_t)count(&p) * sizeof(float));
    p.want = malloc((size_t)count(&p) * sizeof(float));
    assert_true(p.x != NULL && p.want != NULL);
    for (int64_t i = 0; i < count(&p); i++) p.x[i] = (float)((i * 7919 + 13) % 101) / 101 - 0.5f;
    assert_int_equal(solve(api, &p, 1, p.want), 0);
    return p;
}

static void problem_free(struct problem *p)
{
    free(p->x);
    free(p->want);
}

/* Runs some times on so many threads of the library's; counts what differs from want: in any bit,
   or by more than near. */
struct worker {
    const struct api *api;
    const struct problem *p;
    int32_t threads;
    int times;
    pthread_barrier_t *start;
    int wrong;
    pthread_t thread;
    float near;
};

static bool differs(const struct worker *w, const float *out)
{
    if (w->near == 0) return memcmp(out, w->p->want, (size_t)count(w->p) * sizeof *out) != 0;
    for (int64_t i = 0; i < count(w->p); i++)
        if (!(fabsf(out[i] - w->p->want[i]) <= w->near)) return true;
    return false;
}

static void *work(void *context)
{
    struct worker *w = context;
    size_t bytes = (size_t)count(w->p) * sizeof(float);
    float *out = malloc(bytes);
    if (w->start != NULL) pthread_barrier_wait(w->start);
    for (int n = 0; n < w->times; n++)
        if (out == NULL || solve(w->api, w->p, w->threads, out) != 0 || differs(w, out))
            w->wrong++;
    free(out);
    return NULL;
}

static void start(struct worker *w, size_t stack)
{
    pthread_attr_t attr;
    assert_int_equal(pthread_attr_init(&attr), 0);
    if (stack > 0) assert_int_equal(pthread_attr_setstacksize(&attr, stack), 0);
    assert_int_equal(pthread_create(&w->thread, &attr, work, w), 0);
    pthread_attr_destroy(&attr);
}

/* All of stderr goes to a file while this runs; returns how much came. */
static long noise_of(void (*run)(void *), void *context)
{
    FILE *sink = tmpfile();
    assert_non_null(sink);
    int kept = dup(2);
    assert_true(dup2(fileno(sink), 2) >= 0);
    run(context);
    dup2(kept, 2);
    close(kept);
    fseek(sink, 0, SEEK_END);
    long size = ftell(sink);
    if (size > 0) {
        char text[400] = {0};
        rewind(sink);
        size_t got = fread(text, 1, sizeof text - 1, sink);
        print_error("stderr: %.*s\n", (int)got, text);
    }
    fclose(sink);
    return size;
}

/* ------------------------------------------------------------- many threads */

#define CALLERS 400

struct crowd {
    struct worker *workers;
    int n;
    size_t stack;
};

static void run_crowd(void *context)
{
    struct crowd *crowd = context;
    for (int n = 0; n < crowd->n; n++) start(&crowd->workers[n], crowd->stack);
    for (int n = 0; n < crowd->n; n++) pthread_join(crowd->workers[n].thread, NULL);
}

/* More callers at once than OpenBLAS has buffers for, each with a stack of 256 KiB. Heads of 1100
   take products that need one. */
static void test_400_threads(void **state)
{
    (void)state;
    struct api api = load();
    struct problem p = problem_make(&api, 1, 40, 1100);
    struct worker *workers = calloc(CALLERS, sizeof *workers);
    pthread_barrier_t barrier;
    assert_non_null(workers);
    assert_int_equal(pthread_barrier_init(&barrier, NULL, CALLERS), 0);
    for (int n = 0; n < CALLERS; n++)
        workers[n] =
            (struct worker){.api = &api, .p = &p, .threads = 1, .times = 3, .start = &barrier};
    struct crowd crowd = {workers, CALLERS, (size_t)(SANITIZED ? 0 : 256 * 1024)};
    assert_int_equal(noise_of(run_crowd, &crowd), 0);
    for (int n = 0; n < CALLERS; n++) assert_int_equal(workers[n].wrong, 0);
    pthread_barrier_destroy(&barrier);
    free(workers);
    problem_free(&p);
    dlclose(api.handle);
}

#ifdef _OPENMP
/* The host's own OpenMP loop, each turn a run that wants threads. */
static void run_openmp(void *context)
{
    struct worker *workers = context;
#pragma omp parallel for num_threads(8) schedule(static, 1)
    for (int n = 0; n < 8; n++) work(&workers[n]);
}

static void test_openmp_loop(void **state)
{
    (void)state;
    struct api api = load();
    struct problem p = problem_make(&api, 4, 150, 64);
    struct worker workers[8];
    for (int n = 0; n < 8; n++)
        workers[n] = (struct worker){.api = &api, .p = &p, .threads = 2, .times = 5};
    assert_int_equal(noise_of(run_openmp, workers), 0);
    for (int n = 0; n < 8; n++) assert_int_equal(workers[n].wrong, 0);
    problem_free(&p);
    dlclose(api.handle);
}
#endif

/* ------------------------------------------------------------ the host's BLAS */

typedef void (*sgemm_fn)(int, int, int, int, int, int, float, const float *, int, const float *,
                         int, float, float *, int);

struct host {
    sgemm_fn sgemm;
    void (*set_threads)(int);
    _Atomic bool stop;
    int wrong;
    pthread_t thread;
};

#define N 96

/* Products of the host's, with integers, so that they are exact. */
static void *multiply(void *context)
{
    struct host *host = context;
    static const int row_major = 101, no_trans = 111;
    float *a = malloc(3 * N * N * sizeof *a), *b = a + N * N, *c = b + N * N;
    for (int i = 0; a != NULL && i < N * N; i++) {
        a[i] = (float)(i % 7 - 3);
        b[i] = (float)(i % 5 - 2);
    }
    while (!atomic_load(&host->stop)) {
        host->sgemm(row_major, no_trans, no_trans, N, N, N, 1, a, N, b, N, 0, c, N);
        for (int i = 0; i < N * N; i += 101) {
            float sum = 0;
            for (int k = 0; k < N; k++) sum += a[i / N * N + k] * b[k * N + i % N];
            if (c[i] != sum) host->wrong++;
        }
    }
    free(a);
    return NULL;
}

static void *change_counts(void *context)
{
    struct host *host = context;
    for (int n = 0; !atomic_load(&host->stop); n++) {
        host->set_threads(1 + n % 3);
        usleep(200);
    }
    return NULL;
}

/* What this OpenBLAS is called, with scipy_ before it or without; NULL: not OpenBLAS. */
static void *blas_symbol(const struct api *api, const char *name)
{
    char prefixed[64];
    void *found = dlsym(api->handle, name);
    snprintf(prefixed, sizeof prefixed, "scipy_%s", name);
    return found != NULL ? found : dlsym(api->handle, prefixed);
}

/* 0 serial, 1 pthreads, 2 OpenMP, -1 not OpenBLAS. */
static int variant(const struct api *api)
{
    int (*get)(void);
    void *found = blas_symbol(api, "openblas_get_parallel");
    memcpy(&get, &found, sizeof get);
    return found == NULL ? -1 : get();
}

static void run_beside(void *(*host_work)(void *), struct host *host, struct worker *workers)
{
    assert_int_equal(pthread_create(&host->thread, NULL, host_work, host), 0);
    for (int n = 0; n < 4; n++) start(&workers[n], 0);
    for (int n = 0; n < 4; n++) pthread_join(workers[n].thread, NULL);
    atomic_store(&host->stop, true);
    pthread_join(host->thread, NULL);
    for (int n = 0; n < 4; n++) assert_int_equal(workers[n].wrong, 0);
    assert_int_equal(host->wrong, 0);
}

/* Host threads that call sgemm themselves meanwhile. Not on a serial build, where nobody could
   protect them from each other. */
static void test_beside_the_hosts_products(void **state)
{
    (void)state;
    struct api api = load();
    struct problem p[] = {problem_make(&api, 3, 120, 64), problem_make(&api, 1, 40, 1100)};
    struct host host = {0};
    void *sgemm = blas_symbol(&api, "cblas_sgemm");
    memcpy(&host.sgemm, &sgemm, sizeof sgemm);
    bool possible = variant(&api) > 0 && sgemm != NULL;
    if (possible) {
        struct worker workers[4];
        for (int n = 0; n < 4; n++)
            workers[n] =
                (struct worker){.api = &api, .p = &p[n % 2], .threads = 1 + n % 2, .times = 20};
        run_beside(multiply, &host, workers);
    }
    problem_free(&p[0]);
    problem_free(&p[1]);
    dlclose(api.handle);
    if (!possible) {
        print_message("this BLAS cannot be called by several at once\n");
        skip();
    }
}

/* A host that sets the count of BLAS threads during runs: then products may be shared by threads
   of BLAS's, and their sums be made in another order. Inputs are at most 1/2 and weights sum to 1;
   scores, sums of 1100 products, are off by 2e-5 at most. */
static void test_host_sets_blas_threads(void **state)
{
    (void)state;
    struct api api = load();
    struct problem p[] = {problem_make(&api, 3, 120, 64), problem_make(&api, 1, 40, 1100)};
    struct host host = {0};
    void *set = blas_symbol(&api, "openblas_set_num_threads");
    memcpy(&host.set_threads, &set, sizeof set);
    bool possible = variant(&api) == 1 && set != NULL;
    if (possible) {
        struct worker workers[4];
        for (int n = 0; n < 4; n++)
            workers[n] = (struct worker){
                .api = &api, .p = &p[n % 2], .threads = 2, .times = 20, .near = 2e-5f};
        run_beside(change_counts, &host, workers);
    }
    problem_free(&p[0]);
    problem_free(&p[1]);
    dlclose(api.handle);
    if (!possible) {
        print_message("this BLAS has no count of threads for the whole process\n");
        skip();
    }
}

/* ------------------------------------------------------------------- loading */

static void test_load_and_close(void **state)
{
    (void)state;
    for (int n = 0; n < 20; n++) {
        struct api api = load();
        struct problem p = problem_make(&api, 4, 150, 64);
        struct worker w = {.api = &api, .p = &p, .threads = 2, .times = 1};
        work(&w);
        assert_int_equal(w.wrong, 0);
        problem_free(&p);
        assert_int_equal(dlclose(api.handle), 0);
        usleep(10000); /* the pool's threads go on sleeping in code that must still be there */
    }
}

/* Two copies, each with a BLAS of its own, at the same time. */
static void test_two_copies(void **state)
{
    (void)state;
    void *other = SANITIZED ? NULL : dlmopen(LM_ID_NEWLM, ATTN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (other == NULL) {
        print_message("no second copy here: %s\n", SANITIZED ? "sanitizer" : dlerror());
        skip();
    }
    struct api first = load(), second = api_of(other);
    assert_true(first.run != second.run);
    struct problem p = problem_make(&first, 4, 150, 64);
    struct worker workers[4];
    for (int n = 0; n < 4; n++) {
        workers[n] =
            (struct worker){.api = n % 2 ? &second : &first, .p = &p, .threads = 2, .times = 10};
        start(&workers[n], 0);
    }
    for (int n = 0; n < 4; n++) {
        pthread_join(workers[n].thread, NULL);
        assert_int_equal(workers[n].wrong, 0);
    }
    problem_free(&p);
    dlclose(first.handle);
}

/* ---------------------------------------------------------------------- exit */

static struct api late_api;
static struct problem late_problem;

static void run_late(void)
{
    struct worker w = {.api = &late_api, .p = &late_problem, .threads = 2, .times = 1};
    work(&w);
    if (w.wrong) _exit(3);
}

static void test_run_at_exit(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        late_api = load();
        late_problem = problem_make(&late_api, 4, 150, 64);
        if (atexit(run_late) != 0) _exit(2);
        exit(0);
    }
    int status = 0;
    assert_true(waitpid(pid, &status, 0) == pid);
    assert_true(WIFEXITED(status));
    int code = WEXITSTATUS(status);
    assert_true(code == 0 || code == 23); /* 23: LeakSanitizer's, for the problem */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_at_exit), /* first: its child has no threads before it */
        cmocka_unit_test(test_load_and_close),
        cmocka_unit_test(test_two_copies),
        cmocka_unit_test(test_400_threads),
#ifdef _OPENMP
        cmocka_unit_test(test_openmp_loop),
#endif
        cmocka_unit_test(test_beside_the_hosts_products),
        cmocka_unit_test(test_host_sets_blas_threads),
    };
    return cmocka_run_group_tests_name("process", tests, NULL, NULL);
}
