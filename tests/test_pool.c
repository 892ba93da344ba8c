/* SPDX-License-Identifier: MIT */
/*
 * The pool from inside: each task is done once by a worker that may do it, more
 * than one thread takes part, workers leave signals to the host's threads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "whitebox.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#define N_TASKS 1000

struct work {
    int32_t n_threads;
    _Atomic int times[N_TASKS], wrong_worker;
};

static void count(void *context, int32_t worker, int64_t task)
{
    struct work *w = context;
    w->times[task]++;
    if (worker < 0 || worker >= w->n_threads) w->wrong_worker++;
}

static void test_each_task_once(void **state)
{
    static const int64_t tasks[] = {0, 1, 2, 3, 17, N_TASKS};
    (void)state;
    for (int32_t threads = 0; threads < 6; threads++)
        for (int n = 0; n < 6; n++) {
            struct work w = {.n_threads = threads > 0 ? threads : 1};
            attn_i_parallel(threads, tasks[n], count, &w);
            for (int64_t t = 0; t < N_TASKS; t++) assert_int_equal(w.times[t], t < tasks[n]);
            assert_int_equal(w.wrong_worker, 0);
        }
}

/* Tasks that wait for each other, as long as a machine may be busy with something else. */
struct meeting {
    _Atomic int present, alone;
    int expected;
    _Atomic bool signals_open;
};

static void meet(void *context, int32_t worker, int64_t task)
{
    struct meeting *m = context;
    const struct timespec pause = {0, 1000000};
    sigset_t blocked;
    (void)task;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    if (worker > 0 && (!sigismember(&blocked, SIGINT) || !sigismember(&blocked, SIGALRM)))
        m->signals_open = true;
    m->present++;
    for (int n = 0; m->present < m->expected && n < 60000; n++) nanosleep(&pause, NULL);
    if (m->present < m->expected) m->alone++;
}

static void test_threads_take_part(void **state)
{
    sigset_t before, after;
    (void)state;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    for (int n = 2; n <= 5; n++) { /* the pool grows, and those that are there come again */
        struct meeting m = {.expected = n};
        attn_i_parallel(n, n, meet, &m);
        assert_int_equal(m.alone, 0);
        assert_false(m.signals_open);
    }
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int s = 1; s < 32; s++)
        assert_int_equal(sigismember(&before, s), sigismember(&after, s));
}

/* Two runs at once share the pool, each with as many as it asked for. */
static void *one_of_two(void *context)
{
    attn_i_parallel(3, 3, meet, context);
    return NULL;
}

static void test_two_runs_share(void **state)
{
    struct meeting m = {.expected = 6};
    pthread_t other;
    (void)state;
    struct meeting grow = {.expected = 7};
    attn_i_parallel(7, 7, meet, &grow);
    assert_int_equal(pthread_create(&other, NULL, one_of_two, &m), 0);
    one_of_two(&m);
    pthread_join(other, NULL);
    assert_int_equal(m.alone, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_take_part), /* first: it sees the pool made */
        cmocka_unit_test(test_each_task_once),
        cmocka_unit_test(test_two_runs_share),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
