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
 * A run posts a team: numbered tasks, in a slice for each thread. Workers join
 * teams that still have room, and go on to others' slices when theirs is done;
 * the caller works too, then takes the team off the list and waits for those who
 * joined. So a worker meets the same tasks again in the next run, and in its
 * caches what it read and wrote.
 */
#define _GNU_SOURCE
#include "blas.h"

#include <fenv.h>
#include <pthread.h>
#include <signal.h>

/* Slice s has the tasks s, s + n_slices, s + 2 n_slices ... */
struct slice {
    _Alignas(64) _Atomic int64_t next;
};
#define SLICES_MAX 64 /* more threads share them */

struct team {
    struct team *next;
    attn_i_work work;
    void *context;
    int64_t n_tasks;
    fenv_t env;           /* the caller's */
    int32_t room, joined; /* workers that may still join, and that did; the lock guards them */
    int32_t n_slices;
    _Atomic bool drained;    /* no task is left to take */
    _Atomic int32_t working; /* workers inside */
    struct slice slices[SLICES_MAX];
};

/* What one thread takes from a team. */
struct tasks {
    struct team *team;
    int32_t slice, tried;
};

/* After so many small teams for which nobody was awake a wake-up is worth it all the same: more may
   follow as fast, and find somebody awake. Where they do not it was in vain, cost that run 35 us,
   and twice as many go by before the next. */
#define MISSES 16
#define MISSES_MAX 128

static struct {
    pthread_mutex_t lock;
    pthread_cond_t posted, left;
    struct team *teams;
    int32_t n_workers, n_busy, n_asleep; /* busy: in a team */
    _Atomic int32_t missed;              /* small teams in a row that nobody was awake for */
    int32_t patience;                    /* after so many the pool is woken: MISSES at first */
    bool refused;                        /* the last thread asked for could not be made */
    _Atomic int32_t callers;             /* inside, with more than one task */
    _Atomic uint32_t posts;              /* counts teams: what a spinning worker looks at */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .posted = PTHREAD_COND_INITIALIZER,
          .left = PTHREAD_COND_INITIALIZER,
          .patience = MISSES};

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

/* The lock is held for less than a microsecond, but where threads are made or woken. A thread that
   sleeps for it costs 20 to 100 times that to wake. */
static void lock_pool(void)
{
    for (int i = 0; i < SPINS; i++) {
        if (pthread_mutex_trylock(&pool.lock) == 0) return;
        relax();
    }
    pthread_mutex_lock(&pool.lock);
}

bool attn_i_next_task(struct tasks *t, int64_t *task)
{
    struct team *team = t->team;
    for (; t->tried < team->n_slices; t->tried++) {
        _Atomic int64_t *next = &team->slices[t->slice].next;
        /* those that look for more find most slices empty: they need not write to them */
        int64_t n = atomic_load_explicit(next, memory_order_relaxed);
        if (t->slice + n * team->n_slices < team->n_tasks) {
            n = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
            *task = t->slice + n * team->n_slices;
            if (*task < team->n_tasks) return true;
        }
        t->slice = t->slice + 1 < team->n_slices ? t->slice + 1 : 0;
    }
    atomic_store_explicit(&team->drained, true, memory_order_relaxed);
    return false;
}

static void do_tasks(struct team *team, int32_t worker)
{
    struct tasks tasks = {.team = team, .slice = worker % team->n_slices};
    team->work(team->context, worker, &tasks);
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
    while (t && (t->room == 0 || atomic_load_explicit(&t->drained, memory_order_relaxed)))
        t = t->next;
    return t;
}

static void *worker_main(void *unused)
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
            pool.n_asleep++;
            if (!find_team()) pthread_cond_wait(&pool.posted, &pool.lock);
            pool.n_asleep--;
            continue;
        }
        pool.n_busy++;
        team->room--;
        int32_t worker = ++team->joined;
        atomic_fetch_add_explicit(&team->working, 1, memory_order_relaxed);
        pthread_mutex_unlock(&pool.lock);
        compute_like(&team->env);
        do_tasks(team, worker);
        lock_pool();
        pool.n_busy--; /* before the caller knows, whose next team may come at once */
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
        if (pthread_create(&thread, &attr, worker_main, NULL) != 0) break;
        pool.n_workers++;
    }
    pool.refused = pool.n_workers < n;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
}

/* 1 to most, as x goes. */
static int32_t threads_for(double x, int32_t most)
{
    return x < 1.0 ? 1 : x < most ? (int32_t)x : most;
}

struct crew attn_i_crew(double ns, int32_t threads, int64_t n_tasks)
{
    int32_t most = (int32_t)max64(1, min64(threads, n_tasks));
    struct crew crew = {threads_for(ns / JOIN_WORTH_NS, most),
                        threads_for(ns / WAKE_WORTH_NS, most)};
    return crew;
}

/* Workers that look for work and are not expected by another team; the lock is held. */
static int32_t count_awake(void)
{
    int32_t awake = pool.n_workers - pool.n_busy - pool.n_asleep;
    for (struct team *t = pool.teams; t && awake > 0; t = t->next)
        if (!atomic_load_explicit(&t->drained, memory_order_relaxed)) awake -= t->room;
    return awake > 0 ? awake : 0;
}

/* For how many workers is there room? For all that look for work, and more that are woken where it
   is worth it; the lock is held. */
static int32_t find_room(struct crew crew)
{
    int32_t awake = count_awake(), woken = crew.woken - 1;
    if (awake > 0) pool.patience = MISSES;
    bool missed = awake == 0 && woken == 0;
    int32_t n = missed ? atomic_load_explicit(&pool.missed, memory_order_relaxed) + 1 : 0;
    if (n >= pool.patience) {
        n = 0;
        if (pool.patience < MISSES_MAX) pool.patience *= 2;
        woken = crew.most - 1;
    }
    atomic_store_explicit(&pool.missed, n, memory_order_relaxed);
    int32_t room = awake > woken ? awake : woken;
    room = room < crew.most - 1 ? room : crew.most - 1;
    for (int32_t i = awake; i < room; i++) pthread_cond_signal(&pool.posted);
    return room;
}

/* Returns false where nobody is to be expected. */
static bool post(struct team *team, struct crew crew)
{
    lock_pool();
    if (crew.woken > 1 || !pool.refused) grow(crew.most - 1); /* to be refused takes 5 us */
    team->room = find_room(crew);
    bool posted = team->room > 0;
    if (posted) {
        team->next = pool.teams;
        pool.teams = team;
    }
    pthread_mutex_unlock(&pool.lock);
    if (posted) /* now the lock is free */
        atomic_fetch_add_explicit(&pool.posts, 1, memory_order_relaxed);
    return posted;
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
        if (atomic_load_explicit(&team->working, memory_order_acquire) == 0) return;
        relax();
    }
    lock_pool();
    while (atomic_load_explicit(&team->working, memory_order_acquire) > 0)
        pthread_cond_wait(&pool.left, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

/* What is small stays alone beside other callers, who have the cores: two hosts' runs of 15 us took
   26 % longer when they woke the pool, and one in a thousand 4 ms. Counts the caller. */
static bool stays_alone(struct crew crew)
{
    bool others = atomic_fetch_add_explicit(&pool.callers, 1, memory_order_relaxed) > 0;
    if (others && atomic_load_explicit(&pool.missed, memory_order_relaxed) > 0)
        atomic_store_explicit(&pool.missed, 0, memory_order_relaxed);
    return others && crew.woken <= 1;
}

void attn_i_parallel(struct crew crew, int64_t n_tasks, attn_i_work work, void *context)
{
    bool shared = crew.most > 1 && n_tasks > 1;
    bool alone = !shared || stays_alone(crew);
    struct team team; /* not all of it: only the slices that there are */
    team.work = work;
    team.context = context;
    team.n_tasks = n_tasks;
    team.joined = 0;
    team.n_slices = alone ? 1 : crew.most < SLICES_MAX ? crew.most : SLICES_MAX;
    atomic_init(&team.drained, false);
    atomic_init(&team.working, 0);
    for (int32_t i = 0; i < team.n_slices; i++) atomic_init(&team.slices[i].next, 0);
    if (!alone) fegetenv(&team.env);
    bool posted = !alone && post(&team, crew);
    do_tasks(&team, 0);
    if (posted) withdraw(&team);
    if (shared) atomic_fetch_sub_explicit(&pool.callers, 1, memory_order_relaxed);
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
    pool.n_workers = pool.n_busy = pool.n_asleep = 0;
    atomic_store_explicit(&pool.missed, 0, memory_order_relaxed);
    pool.patience = MISSES;
    pool.refused = false;
    atomic_store_explicit(&pool.callers, 0, memory_order_relaxed);
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
