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
    _Atomic int times[N_TASKS + 1], wrong_worker; /* no task has the last number */
};

static void count(void *context, int32_t worker, struct tasks *tasks)
{
    struct work *w = context;
    for (int64_t task; attn_i_next_task(tasks, &task);) w->times[task]++;
    if (worker < 0 || worker >= w->n_threads) w->wrong_worker++;
}

static void test_each_task_once(void **state)
{
    static const int64_t tasks[] = {0, 1, 2, 3, 17, N_TASKS};
    (void)state;
    for (int i = 0; i < 3600; i++) { /* two that meet at a slice's last task are rare */
        int32_t threads = i % 6;
        int64_t n = tasks[i / 6 % 6];
        struct work w = {.n_threads = threads > 0 ? threads : 1};
        attn_i_parallel((struct crew){threads, threads}, n, count, &w);
        for (int64_t t = 0; t <= N_TASKS; t++) assert_int_equal(w.times[t], t < n);
        assert_int_equal(w.wrong_worker, 0);
    }
}

/* Tasks that wait for each other, as long as a machine may be busy with something else. */
struct meeting {
    _Atomic int present, alone;
    int expected;
    _Atomic bool signals_open;
};

static void meet(void *context, int32_t worker, struct tasks *tasks)
{
    struct meeting *m = context;
    const struct timespec pause = {0, 1000000};
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    if (worker > 0 && (!sigismember(&blocked, SIGINT) || !sigismember(&blocked, SIGALRM)))
        m->signals_open = true;
    for (int64_t task; attn_i_next_task(tasks, &task);) {
        m->present++;
        for (int n = 0; m->present < m->expected && n < 60000; n++) nanosleep(&pause, NULL);
        if (m->present < m->expected) m->alone++;
    }
}

static void test_threads_take_part(void **state)
{
    sigset_t before, after;
    (void)state;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    for (int n = 2; n <= 5; n++) { /* the pool grows, and those that are there come again */
        struct meeting m = {.expected = n};
        attn_i_parallel((struct crew){n, n}, n, meet, &m);
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
    attn_i_parallel((struct crew){3, 3}, 3, meet, context);
    return NULL;
}

static void test_two_runs_share(void **state)
{
    (void)state;
    struct meeting grow = {.expected = 7};
    attn_i_parallel((struct crew){7, 7}, 7, meet, &grow);
    for (int n = 0; n < 200; n++) { /* a worker that both teams count on is rare */
        struct meeting m = {.expected = 6};
        pthread_t other;
        assert_int_equal(pthread_create(&other, NULL, one_of_two, &m), 0);
        one_of_two(&m);
        pthread_join(other, NULL);
        assert_int_equal(m.alone, 0);
    }
}

/* Small teams wake nobody, but many of them do: then somebody is there for the next. */
static void help(void *context, int32_t worker, struct tasks *tasks)
{
    _Atomic int *helpers = context;
    const struct timespec pause = {0, 1000000};
    for (int64_t task; attn_i_next_task(tasks, &task);) nanosleep(&pause, NULL);
    if (worker > 0) ++*helpers;
}

static void test_many_small_teams_wake_the_pool(void **state)
{
    const struct timespec sleep = {0, 200000000};
    _Atomic int helpers = 0;
    (void)state;
    nanosleep(&sleep, NULL); /* all of the pool sleeps by then */
    for (int n = 0; n < 2000 && helpers == 0; n++)
        attn_i_parallel((struct crew){2, 1}, 4, help, &helpers);
    assert_true(helpers > 0);
}

/* Beside others a small team has no help, though workers are awake from a large one. */
static void small_teams(void *context, int32_t worker, struct tasks *tasks)
{
    _Atomic int others = 0;
    (void)worker;
    for (int64_t task; attn_i_next_task(tasks, &task);)
        for (int n = 0; n < 100; n++) {
            attn_i_parallel((struct crew){3, 3}, 3, help, &others);
            attn_i_parallel((struct crew){2, 1}, 4, help, context);
        }
}

static void test_small_teams_beside_others(void **state)
{
    _Atomic int helpers = 0;
    (void)state;
    attn_i_parallel((struct crew){2, 2}, 2, small_teams, &helpers);
    assert_int_equal(helpers, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_take_part), /* first: it sees the pool made */
        cmocka_unit_test(test_each_task_once),
        cmocka_unit_test(test_two_runs_share),
        cmocka_unit_test(test_many_small_teams_wake_the_pool),
        cmocka_unit_test(test_small_teams_beside_others),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
