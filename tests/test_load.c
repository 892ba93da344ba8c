/* SPDX-License-Identifier: MIT */
/*
 * What loading libattn does to a process: what loading its BLAS does, and
 * nothing else. Linked with neither; each is loaded in a process of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What rules arithmetic: rounding, traps, denormals as zeros; not the flags that it raises. */
static uint64_t control_words(void)
{
#if defined(__x86_64__)
    uint32_t sse;
    uint16_t x87;
    __asm__ volatile("stmxcsr %0" : "=m"(sse));
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    return (uint64_t)x87 << 32 | (sse & ~UINT32_C(0x3f));
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr;
#else
    return 0;
#endif
}

/* Loads a library as its first; then how many threads there are, and where its BLAS is. */
struct at_load {
    int threads;
    bool same_words, same_after_a_run;
    char blas[400];
};

static int count_threads(void)
{
    char line[128];
    int n = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "Threads: %d", &n) == 1) break;
    if (f != NULL) fclose(f);
    return n;
}

/* ISO C has no cast from an object pointer to a function's; POSIX's dlsym lives with that. */
static void look_up(void *handle, const char *name, void *function)
{
    void *found = dlsym(handle, name);
    if (found == NULL) _exit(2);
    memcpy(function, &found, sizeof found);
}

/* Two threads, tiles and products. */
static bool run_once(void *handle)
{
    enum { HEADS = 4, L = 150, D = 64 };
    static float x[HEADS * L * D], out[HEADS * L * D];
    attn_op *op;
    void (*destroy)(attn_op *);
    attn_status (*create)(attn_op **, int64_t, int64_t, int64_t, int64_t);
    attn_status (*set_threads)(attn_op *, int32_t);
    attn_status (*run)(const attn_op *, int64_t, int64_t, int64_t, const float *, const float *,
                       const float *, float *);
    look_up(handle, "attn_op_create", &create);
    look_up(handle, "attn_op_set_threads", &set_threads);
    look_up(handle, "attn_run", &run);
    look_up(handle, "attn_op_destroy", &destroy);
    for (int i = 0; i < HEADS * L * D; i++) x[i] = (float)(i % 101) / 101 - 0.5f;
    if (create(&op, HEADS, HEADS, D, D) != ATTN_OK) return false;
    bool ran = set_threads(op, 2) == ATTN_OK && run(op, 1, L, L, x, x, x, out) == ATTN_OK;
    destroy(op);
    return ran;
}

static struct at_load look_at_load(const char *library)
{
    struct at_load found = {0};
    uint64_t words = control_words();
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) return found;
    found.threads = count_threads();
    found.same_words = control_words() == words;
    if (strcmp(library, ATTN_LIBRARY) != 0) return found;
    Dl_info info;
    void *sgemm = dlsym(handle, "cblas_sgemm");
    if (sgemm == NULL) sgemm = dlsym(handle, "scipy_cblas_sgemm");
    if (sgemm != NULL && dladdr(sgemm, &info) != 0)
        snprintf(found.blas, sizeof found.blas, "%s", info.dli_fname);
    found.same_after_a_run = run_once(handle) && control_words() == words;
    return found;
}

/* In a process of its own, which has loaded neither. */
static struct at_load at_load_of(const char *library)
{
    struct at_load found = {0};
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        found = look_at_load(library);
        _exit(write(ends[1], &found, sizeof found) == (ssize_t)sizeof found ? 0 : 1);
    }
    assert_true(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(read(ends[0], &found, sizeof found), sizeof found);
    close(ends[0]);
    close(ends[1]);
    return found;
}

/* Loading libattn does what loading its BLAS does: no thread more, no control word touched. */
static void test_load_changes_nothing(void **state)
{
    (void)state;
    struct at_load ours = at_load_of(ATTN_LIBRARY);
    assert_true(ours.same_words);
    assert_true(ours.same_after_a_run);
    assert_true(ours.blas[0] != '\0');
    struct at_load blas = at_load_of(ours.blas);
    assert_true(blas.threads > 0);
    assert_int_equal(ours.threads, blas.threads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_changes_nothing),
    };
    return cmocka_run_group_tests_name("load", tests, NULL, NULL);
}
