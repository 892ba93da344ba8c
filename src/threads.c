/* SPDX-License-Identifier: MIT */
/*
 * A small pool of threads, shared by all runs of the process.
 *
 * Made at first need, never at load; grown to what the largest run asks for;
 * when a thread cannot be made, runs go on with fewer. A forked child starts
 * without a pool and makes its own. OpenMP's runtime could not keep these
 * promises: libgomp ends the process when a thread cannot be made and hangs
 * after fork.
 *
 * A run posts a team: numbered tasks behind an atomic counter. Workers join
 * teams that still have room; the caller works too, then takes the team off
 * the list and waits for those who joined.
 */
#define _GNU_SOURCE
#include "blas.h"

#include <fenv.h>
#include <pthread.h>
#include <signal.h>

struct team {
    struct team *next;
    attn_i_task fn;
    void *context;
    int64_t n_tasks;
    _Atomic int64_t next_task;
    fenv_t env;   /* the caller's */
    int32_t room; /* workers that may still join; guarded by the pool's lock */
    int32_t joined;
    _Atomic int32_t working; /* workers inside; the last leaves under the lock */
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t posted, left;
    struct team *teams;
    int32_t n_workers;
    _Atomic uint32_t posts; /* counts teams: what a spinning worker looks at */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .posted = PTHREAD_COND_INITIALIZER,
          .left = PTHREAD_COND_INITIALIZER};

/* Looks before sleeping: about 20 us on the machines measured, of the order of what a sleeping
   thread costs to wake. A decoder posts a team every few of these. */
#define SPINS 1000

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* The lock is held for less than a microsecond. A thread that sleeps for it costs 20 to 100 times
   that to wake. */
static void lock_pool(void)
{
    for (int i = 0; i < SPINS; i++) {
        if (pthread_mutex_trylock(&pool.lock) == 0) return;
        relax();
    }
    pthread_mutex_lock(&pool.lock);
}

static void do_tasks(struct team *team, int32_t worker)
{
    for (;;) {
        int64_t task = atomic_fetch_add_explicit(&team->next_task, 1, memory_order_relaxed);
        if (task >= team->n_tasks) return;
        team->fn(team->context, worker, task);
    }
}

/* Rounding and the treatment of denormals are the caller's, whichever thread computes: the bits
   would depend on it. Exceptions stay masked, since workers take no signals. */
static void compute_like(const fenv_t *env)
{
    fenv_t before;
    fesetenv(env);
    feholdexcept(&before);
}

/* A team with room and work left; the lock is held. */
static struct team *find_team(void)
{
    struct team *t = pool.teams;
    while (t && (t->room == 0 ||
                 atomic_load_explicit(&t->next_task, memory_order_relaxed) >= t->n_tasks))
        t = t->next;
    return t;
}

static void *work(void *unused)
{
    (void)unused;
    attn_i_blas_thread_start();
    lock_pool();
    for (;;) {
        struct team *team = find_team();
        if (!team) {
            uint32_t seen = atomic_load_explicit(&pool.posts, memory_order_relaxed);
            pthread_mutex_unlock(&pool.lock);
            for (int i = 0; i < SPINS; i++) {
                if (atomic_load_explicit(&pool.posts, memory_order_relaxed) != seen) break;
                relax();
            }
            lock_pool();
            if (!find_team()) pthread_cond_wait(&pool.posted, &pool.lock);
            continue;
        }
        team->room--;
        int32_t worker = ++team->joined;
        atomic_fetch_add_explicit(&team->working, 1, memory_order_relaxed);
        pthread_mutex_unlock(&pool.lock);
        compute_like(&team->env);
        do_tasks(team, worker);
        lock_pool();
        if (atomic_fetch_sub_explicit(&team->working, 1, memory_order_release) == 1)
            pthread_cond_broadcast(&pool.left);
    }
    return NULL;
}

/* Grow the pool to n workers, or as far as it goes; the lock is held. Signals are for the
   host's threads. */
static void grow(int32_t n)
{
    sigset_t all, old;
    pthread_attr_t attr;
    if (pool.n_workers >= n || pthread_attr_init(&attr) != 0) return;
    sigfillset(&all);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (pool.n_workers < n) {
        pthread_t thread;
        if (pthread_create(&thread, &attr, work, NULL) != 0) break;
        pool.n_workers++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
}

static void post(struct team *team)
{
    lock_pool();
    grow(team->room);
    team->next = pool.teams;
    pool.teams = team;
    for (int32_t i = 0; i < team->room; i++) pthread_cond_signal(&pool.posted);
    pthread_mutex_unlock(&pool.lock);
    atomic_fetch_add_explicit(&pool.posts, 1, memory_order_relaxed); /* now the lock is free */
}

/* Nobody joins any more; wait for those inside. */
static void withdraw(struct team *team)
{
    lock_pool();
    struct team **at = &pool.teams;
    while (*at != team) at = &(*at)->next;
    *at = team->next;
    pthread_mutex_unlock(&pool.lock);
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&team->working, memory_order_acquire) == 0) break;
        relax();
    }
    /* also when the spin saw 0: the last worker may still be about to broadcast */
    lock_pool();
    while (atomic_load_explicit(&team->working, memory_order_acquire) > 0)
        pthread_cond_wait(&pool.left, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

void attn_i_parallel(int32_t n_threads, int64_t n_tasks, attn_i_task fn, void *context)
{
    if (n_threads <= 1 || n_tasks <= 1) {
        for (int64_t task = 0; task < n_tasks; task++) fn(context, 0, task);
        return;
    }
    struct team team = {.fn = fn, .context = context, .n_tasks = n_tasks, .room = n_threads - 1};
    fegetenv(&team.env);
    post(&team);
    do_tasks(&team, 0);
    withdraw(&team);
}

/* ------------------------------------------------------------------ fork */

static void before_fork(void)
{
    pthread_mutex_lock(&pool.lock);
    attn_i_blas_before_fork();
}

static void after_fork_in_parent(void)
{
    attn_i_blas_after_fork(false);
    pthread_mutex_unlock(&pool.lock);
}

/* The child has one thread: teams and workers of others are gone. Condition variables may
   count waiters that do not exist here; they are made anew. */
static void after_fork_in_child(void)
{
    pool.teams = NULL;
    pool.n_workers = 0;
    pthread_cond_init(&pool.posted, NULL);
    pthread_cond_init(&pool.left, NULL);
    attn_i_blas_after_fork(true);
    pthread_mutex_unlock(&pool.lock);
}

static void register_fork_handlers(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void attn_i_fork_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_fork_handlers);
}
