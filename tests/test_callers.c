/* SPDX-License-Identifier: MIT */
/*
 * OpenBLAS is built for so many callers at once: the library admits no more than
 * there are cores, and 32, and a fork does not lose count. The semaphore's
 * functions are interposed by this executable.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "whitebox.h"

#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define HOSTS 12

static _Atomic int inits, waits, inside, most;
static _Atomic unsigned admitted; /* by the last sem_init */

static void *next_symbol(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) abort();
    return found;
}

int sem_init(sem_t *sem, int shared, unsigned value)
{
    int (*real)(sem_t *, int, unsigned);
    void *found = next_symbol("sem_init");
    memcpy(&real, &found, sizeof found);
    inits++;
    admitted = value;
    return real(sem, shared, value);
}

int sem_wait(sem_t *sem)
{
    int (*real)(sem_t *);
    void *found = next_symbol("sem_wait");
    memcpy(&real, &found, sizeof found);
    int status = real(sem);
    int now = ++inside, seen = most;
    waits++;
    while (now > seen && !atomic_compare_exchange_weak(&most, &seen, now))
        ;
    return status;
}

int sem_post(sem_t *sem)
{
    int (*real)(sem_t *);
    void *found = next_symbol("sem_post");
    memcpy(&real, &found, sizeof found);
    inside--;
    return real(sem);
}

/* Products that take buffers of OpenBLAS's: K is read in place. */
static struct rig make(void)
{
    static const struct tiles tiles = TILES_OF(16, PATH_TILES_NT);
    struct rig g;
    rig_make(&g, &(struct spec){.seed = 3, .B = 2, .Hq = 4, .Lq = 40, .Lk = 60, .Dk = 16});
    rig_tiles(&g, &tiles);
    return g;
}

static void *host(void *unused)
{
    struct rig g = make();
    for (int n = 0; n < 20; n++) assert_int_equal(rig_run(&g), ATTN_OK);
    if (!rig_check(&g)) abort();
    rig_free(&g);
    return unused;
}

/* Other builds are called one at a time, or are not OpenBLAS. */
static bool has_threads(void)
{
    void *found = dlsym(RTLD_DEFAULT, "openblas_get_parallel");
    int (*get)(void);
    if (found == NULL) return false;
    memcpy(&get, &found, sizeof get);
    return get() != 0;
}

static void test_no_more_than_admitted(void **state)
{
    pthread_t threads[HOSTS];
    int32_t cpus = attn_i_cpu_count();
    (void)state;
    if (!has_threads()) skip();
    for (int t = 0; t < HOSTS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, host, NULL), 0);
    for (int t = 0; t < HOSTS; t++) pthread_join(threads[t], NULL);
    assert_int_equal(inits, 1);
    assert_int_equal(admitted, cpus < 32 ? cpus : 32);
    assert_in_range(most, 1, admitted);
    assert_true(waits >= HOSTS * 20);
    assert_int_equal(inside, 0);
}

/* The parent's count goes on, the child has one of its own. */
static void test_fork(void **state)
{
    (void)state;
    if (!has_threads()) skip();
    host(NULL);
    int before = inits, status;
    unsigned value = admitted;
    pid_t child = fork();
    if (child == 0) {
        host(NULL);
        _exit(inits == before + 1 && admitted == value && inside == 0 ? 0 : 1);
    }
    assert_int_equal(inits, before);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    host(NULL);
    assert_int_equal(inits, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_more_than_admitted),
        cmocka_unit_test(test_fork),
    };
    return cmocka_run_group_tests_name("callers", tests, NULL, NULL);
}
