/* SPDX-License-Identifier: MIT */
/*
 * The one module that knows BLAS. OpenBLAS is a global of the process, with a
 * policy per variant (measured with 0.3.21):
 *
 *   serial    two callers at once give wrong numbers: one lock around each call
 *   pthreads  right, but six times slower with a count above 1 when two threads
 *             call: the count is 1 while a run of ours is active, and the
 *             host's value comes back afterwards
 *   OpenMP    each call takes all cores unless the calling thread's own OpenMP
 *             count is 1: set and put back per thread
 *
 * Products on the small-matrix path use no buffer and no thread of OpenBLAS's;
 * all others take one of a fixed number of buffers (64; a warning at 200
 * callers, a corrupt heap at 400), so callers are counted.
 */
#define _GNU_SOURCE
#include "blas.h"

#include <cblas.h>
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CALLERS_MAX 32

/* A build may put something before all its names: scipy-openblas does. */
#ifdef BLAS_SYMBOL_PREFIX
#define BLAS_JOIN_(prefix, name) prefix##name
#define BLAS_JOIN(prefix, name) BLAS_JOIN_(prefix, name)
#define BLAS(name) BLAS_JOIN(BLAS_SYMBOL_PREFIX, name)
#else
#define BLAS(name) name
#endif

enum variant { SERIAL = 0, PTHREADS = 1, OPENMP = 2, FOREIGN = 3 };

static struct {
    pthread_mutex_t lock; /* guards the fields below and the count of BLAS threads */
    bool known;           /* set once, status with it */
    attn_status status;
    const char *problem; /* why status is not ATTN_OK */
    enum variant variant;
    bool small_path;
    const char *config, *core;
    int32_t active, host_threads;
    int (*omp_get_max_threads)(void);
    void (*omp_set_num_threads)(int);
    pthread_mutex_t serial;
    sem_t callers;
} blas = {.lock = PTHREAD_MUTEX_INITIALIZER, .serial = PTHREAD_MUTEX_INITIALIZER};

/* ------------------------------------------------------------ products */

static void call(const struct product *p)
{
    BLAS(cblas_sgemm)
    (CblasRowMajor, CblasNoTrans, p->b_transposed ? CblasTrans : CblasNoTrans, (blasint)p->m,
     (blasint)p->n, (blasint)p->k, p->alpha, p->a, (blasint)p->lda, p->b, (blasint)p->ldb,
     p->beta, p->c, (blasint)p->ldc);
}

static bool takes_small_path(const struct product *p)
{
    return blas.small_path && !p->b_transposed && p->m * p->n * p->k <= SMALL_PRODUCT;
}

void attn_i_sgemm(const struct product *p)
{
    if (blas.variant == SERIAL) {
        pthread_mutex_lock(&blas.serial);
        call(p);
        pthread_mutex_unlock(&blas.serial);
    } else if (takes_small_path(p) || blas.variant == FOREIGN) {
        call(p);
    } else {
        while (sem_wait(&blas.callers) != 0 && errno == EINTR)
            ;
        call(p);
        sem_post(&blas.callers);
    }
}

/* ------------------------------------------------------ thread counts */

#ifdef ATTN_HAVE_OPENBLAS
static int get_threads(void) { return BLAS(openblas_get_num_threads)(); }
static void set_threads(int n) { BLAS(openblas_set_num_threads)(n); }
#else
static int get_threads(void) { return 1; }
static void set_threads(int n) { (void)n; }
#endif

static void restore_threads(void)
{
    if (blas.host_threads != 1 && get_threads() == 1) /* else the host set it meanwhile */
        set_threads(blas.host_threads);
}

void attn_i_blas_enter(bool small_products)
{
    if (small_products || blas.variant != PTHREADS) return;
    pthread_mutex_lock(&blas.lock);
    if (blas.active++ == 0) {
        blas.host_threads = get_threads();
        if (blas.host_threads != 1) set_threads(1);
    }
    pthread_mutex_unlock(&blas.lock);
}

void attn_i_blas_leave(bool small_products)
{
    if (small_products || blas.variant != PTHREADS) return;
    pthread_mutex_lock(&blas.lock);
    if (--blas.active == 0) restore_threads();
    pthread_mutex_unlock(&blas.lock);
}

void attn_i_blas_thread_start(void)
{
    if (blas.variant == OPENMP && blas.omp_set_num_threads) blas.omp_set_num_threads(1);
}

int32_t attn_i_blas_thread_enter(void)
{
    if (blas.variant != OPENMP || !blas.omp_get_max_threads) return 0;
    int n = blas.omp_get_max_threads();
    if (n != 1) blas.omp_set_num_threads(1);
    return n;
}

void attn_i_blas_thread_leave(int32_t saved)
{
    if (saved > 1) blas.omp_set_num_threads(saved);
}

/* -------------------------------------------------------------- finding */

#ifdef ATTN_HAVE_OPENBLAS
/* AVX-512 cores of OpenBLAS built with its small-matrix path (x86-64, since 0.3.17). */
static bool core_has_small_path(const char *core)
{
    static const char *const cores[] = {"skylakex", "cooperlake", "sapphirerapids"};
    for (size_t i = 0; i < sizeof cores / sizeof *cores; i++)
        if (strcasecmp(core, cores[i]) == 0) return true;
    return false;
}

/* The OpenMP runtime that this OpenBLAS itself loaded: a process may hold several. */
static void find_openmp(void)
{
    Dl_info info;
    if (!dladdr((const void *)(uintptr_t)BLAS(openblas_get_parallel), &info) || !info.dli_fname)
        return;
    void *handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) /* linked statically: the runtime is the program's own */
        handle = dlopen(NULL, RTLD_LAZY);
    if (!handle) return;
    void *get = dlsym(handle, "omp_get_max_threads"), *set = dlsym(handle, "omp_set_num_threads");
    if (get && set) {
        memcpy(&blas.omp_get_max_threads, &get, sizeof get);
        memcpy(&blas.omp_set_num_threads, &set, sizeof set);
    }
    dlclose(handle); /* only the count of references that dlopen raised */
}

static const char *find_blas(void)
{
    blas.config = BLAS(openblas_get_config)();
    blas.core = BLAS(openblas_get_corename)();
    blas.variant = (enum variant)BLAS(openblas_get_parallel)();
    if (strstr(blas.config, "USE64BITINT")) return "it uses 64-bit integers";
    blas.small_path = core_has_small_path(blas.core);
    if (blas.variant == OPENMP) find_openmp();
    return NULL;
}
#else
static const char *find_blas(void)
{
    blas.config = "a BLAS that is not known to be OpenBLAS";
    blas.core = "unknown";
    blas.variant = FOREIGN;
    return NULL;
}
#endif

/* ------------------------------------------------------------- checking */

/* a[i][k] and b[k][j]: small integers, so that every product is exact, with a period, so that few
   need be known (a plain loop over all took 10 ms of a program's start). */
#define PERIOD 7
static float known(int64_t i, int64_t k) { return (float)((i * 5 + k * 3) % PERIOD - 3); }

static bool is_known(int64_t m, int64_t n, int64_t k, const float *c)
{
    float want[PERIOD][PERIOD] = {{0}};
    for (int64_t i = 0; i < PERIOD; i++)
        for (int64_t j = 0; j < PERIOD; j++)
            for (int64_t d = 0; d < k; d++) want[i][j] += known(i, d) * known(d + 1, j);
    for (int64_t i = 0; i < m; i++, c += n)
        for (int64_t j = 0; j < n; j += PERIOD)
            for (int64_t x = 0; x < PERIOD && j + x < n; x++)
                if (!(c[j + x] == want[i % PERIOD][x])) return false;
    return true;
}

/* One product with integers, into NaN: beta 0 must not read it. */
static bool product_is_right(int64_t m, int64_t n, int64_t k, bool b_transposed, float *memory)
{
    float *a = memory, *b = a + m * k, *c = b + k * n;
    for (int64_t x = 0; x < m * k; x++) a[x] = known(x / k, x % k);
    for (int64_t x = 0; x < k * n; x++)
        b[x] = b_transposed ? known(x % k + 1, x / k) : known(x / n + 1, x % n);
    for (int64_t x = 0; x < m * n; x++) c[x] = NAN;
    struct product p = {m, n, k, 1.0f, 0.0f, a, b, c, k, b_transposed ? k : n, n, b_transposed};
    attn_i_sgemm(&p);
    return is_known(m, n, k, c);
}

/* 0.3.20 and older are silently wrong on some CPUs; 625 x 5 x 625 is a shape that showed it. */
static attn_status check_products(void)
{
    static const int64_t shapes[][3] = {{625, 625, 5}, {60, 61, 64}, {7, 5, 9}, {1, 33, 8}};
    float *memory = malloc((625 * 5 * 2 + 625 * 625) * sizeof *memory);
    REQUIRE(memory, ATTN_ENOMEM);
    bool right = true;
    int saved_threads = blas.variant == PTHREADS ? get_threads() : 1;
    if (saved_threads != 1) set_threads(1);
    int32_t saved = attn_i_blas_thread_enter();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && right; i++)
        for (int t = 0; t < 2 && right; t++)
            right = product_is_right(shapes[i][0], shapes[i][1], shapes[i][2], t == 1, memory);
    attn_i_blas_thread_leave(saved);
    if (saved_threads != 1 && get_threads() == 1) set_threads(saved_threads); /* or a host did */
    free(memory);
    if (!right) blas.problem = "it got a small known product wrong";
    return right ? ATTN_OK : ATTN_EBLAS;
}

attn_status attn_i_blas_init(void)
{
    attn_i_fork_init();
    pthread_mutex_lock(&blas.lock);
    attn_status status = blas.status;
    if (!blas.known) {
        int32_t cpus = attn_i_cpu_count();
        sem_init(&blas.callers, 0, (unsigned)(cpus < CALLERS_MAX ? cpus : CALLERS_MAX));
        blas.problem = find_blas();
        status = blas.problem ? ATTN_EBLAS : check_products();
        blas.known = status != ATTN_ENOMEM; /* else try again */
        blas.status = status;
    }
    pthread_mutex_unlock(&blas.lock);
    return status;
}

bool attn_i_blas_small_path(void) { return blas.small_path; }

/* OpenBLAS takes a CPU that is younger than itself for a Prescott, and multiplies at a sixth of
   the speed: 0.3.21 an Emerald Rapids, 25 instead of 158 GF/s. */
static bool is_unknown_cpu(void)
{
    return strcmp(blas.core, "Prescott") == 0 &&
           attn_i_kernels(ATTN_ISA_ALL)->isa != ATTN_ISA_BASE;
}

void attn_i_blas_describe(struct text *text)
{
    static const char *const kinds[] = {"serial", "pthreads", "OpenMP", "unknown threading"};
    attn_status status = attn_i_blas_init();
    attn_i_say(text, "BLAS: %s; core %s; %s, %d thread%s; %s", blas.config, blas.core,
               kinds[blas.variant], get_threads(), get_threads() == 1 ? "" : "s",
               blas.small_path ? "with a small-matrix path" : "no small-matrix path known");
    if (is_unknown_cpu())
        attn_i_say(text, "; it does not know this CPU and is slow: see OPENBLAS_CORETYPE");
    if (status != ATTN_OK)
        attn_i_say(text, "; unusable: %s", blas.problem ? blas.problem : "no memory to check it");
}

/* ----------------------------------------------------------------- fork */

void attn_i_blas_before_fork(void)
{
    pthread_mutex_lock(&blas.lock);
    pthread_mutex_lock(&blas.serial);
}

/* In the child, runs of other threads are gone, and what they held with them. */
void attn_i_blas_after_fork(bool child)
{
    if (child && blas.active > 0) {
        blas.active = 0;
        restore_threads();
    }
    if (child && blas.known) {
        int32_t cpus = attn_i_cpu_count();
        sem_init(&blas.callers, 0, (unsigned)(cpus < CALLERS_MAX ? cpus : CALLERS_MAX));
    }
    pthread_mutex_unlock(&blas.serial);
    pthread_mutex_unlock(&blas.lock);
}
