/* SPDX-License-Identifier: MIT */
/* A pool that starts quickly: waiting threads spin for a moment before they sleep. */
#define _POSIX_C_SOURCE 200809L
#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* About 20 us. Runs of one sample follow each other at once, and there a wake-up through the
   kernel (50 us on a virtual machine) would be charged to the baseline; between samples, where
   other implementations run, the threads must be asleep. */
#define SPINS 2000

struct worker {
    struct pool *pool;
    pthread_t thread;
    int64_t index;
};

struct pool {
    int64_t n, started;
    struct worker *workers; /* n; the caller's is unused */
    pool_function *function;
    void *context;
    atomic_uint_fast64_t round; /* grows when there is work */
    atomic_int_fast64_t left;   /* workers not done with this round */
    bool stop;
    pthread_mutex_t mutex;
    pthread_cond_t work, done;
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void await_round(struct pool *p, uint_fast64_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(&p->round) != seen) return;
        relax();
    }
    pthread_mutex_lock(&p->mutex);
    while (atomic_load(&p->round) == seen) pthread_cond_wait(&p->work, &p->mutex);
    pthread_mutex_unlock(&p->mutex);
}

static void *work(void *argument)
{
    struct worker *w = argument;
    struct pool *p = w->pool;
    for (uint_fast64_t round = 0;; round++) {
        await_round(p, round);
        if (p->stop) return NULL;
        p->function(p->context, w->index);
        if (atomic_fetch_sub(&p->left, 1) == 1) {
            pthread_mutex_lock(&p->mutex);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->mutex);
        }
    }
}

/* Under the mutex, or a worker could miss it between its look and its sleep. */
static void start_round(struct pool *p)
{
    pthread_mutex_lock(&p->mutex);
    atomic_fetch_add(&p->round, 1);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->mutex);
}

struct pool *pool_create(int64_t n)
{
    struct pool *p = calloc(1, sizeof *p);
    struct worker *workers = calloc((size_t)n, sizeof *workers);
    if (!p || !workers) {
        free(p);
        free(workers);
        return NULL;
    }
    p->n = n;
    p->started = 1;
    p->workers = workers;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    for (; p->started < n; p->started++) {
        struct worker *w = &workers[p->started];
        *w = (struct worker){.pool = p, .index = p->started};
        if (pthread_create(&w->thread, NULL, work, w) != 0) {
            pool_destroy(p);
            return NULL;
        }
    }
    return p;
}

void pool_run(struct pool *p, pool_function *function, void *context)
{
    if (p->n > 1) {
        p->function = function;
        p->context = context;
        atomic_store(&p->left, p->n - 1);
        start_round(p);
    }
    function(context, 0);
    if (p->n == 1) return;
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(&p->left) == 0) return;
        relax();
    }
    pthread_mutex_lock(&p->mutex);
    while (atomic_load(&p->left) != 0) pthread_cond_wait(&p->done, &p->mutex);
    pthread_mutex_unlock(&p->mutex);
}

void pool_destroy(struct pool *p)
{
    if (!p) return;
    p->stop = true;
    if (p->started > 1) start_round(p);
    for (int64_t i = 1; i < p->started; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->mutex);
    free(p->workers);
    free(p);
}
