/* SPDX-License-Identifier: MIT */
/*
 * The only includer of <cblas.h> here. OpenBLAS's own functions are looked up at run time, so
 * that the program also links with another BLAS.
 */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "blas.h"

#include <cblas.h>
#include <dlfcn.h>

/* A build may put something before all its names: scipy-openblas does. */
#ifdef BLAS_SYMBOL_PREFIX
#define BLAS_JOIN_(prefix, name) prefix##name
#define BLAS_JOIN(prefix, name) BLAS_JOIN_(prefix, name)
#define BLAS(name) BLAS_JOIN(BLAS_SYMBOL_PREFIX, name)
#define BLAS_TEXT_(text) #text
#define BLAS_TEXT(text) BLAS_TEXT_(text)
#define BLAS_NAME(name) BLAS_TEXT(BLAS_SYMBOL_PREFIX) name
#else
#define BLAS(name) name
#define BLAS_NAME(name) name
#endif

/* ISO C has no cast from an object pointer to a function's; POSIX's dlsym lives with that. */
#define LOOK_UP(type, name, symbol)                \
    type name = NULL;                              \
    do {                                           \
        void *found = dlsym(RTLD_DEFAULT, symbol); \
        *(void **)&name = found;                   \
    } while (0)

typedef int get_int(void);
typedef void set_int(int n);

void blas_product(const struct product *p)
{
    int m = (int)p->m, n = (int)p->n, k = (int)p->k;
    int lda = (int)p->lda, ldb = (int)p->ldb, ldc = (int)p->ldc;
    enum CBLAS_TRANSPOSE trans = p->b_transposed ? CblasTrans : CblasNoTrans;
    if (m == 1) { /* c = B^T a for the plain form: sgemv names B's own extents */
        enum CBLAS_TRANSPOSE as = p->b_transposed ? CblasNoTrans : CblasTrans;
        int rows = p->b_transposed ? n : k, cols = p->b_transposed ? k : n;
        BLAS(cblas_sgemv)
        (CblasRowMajor, as, rows, cols, p->alpha, p->b, ldb, p->a, 1, 0, p->c, 1);
        return;
    }
    BLAS(cblas_sgemm)
    (CblasRowMajor, CblasNoTrans, trans, m, n, k, p->alpha, p->a, lda, p->b, ldb, 0, p->c, ldc);
}

/* openblas_get_parallel(): 0 no threads, 1 its own, 2 OpenMP's; -1: not OpenBLAS. */
static int variant(void)
{
    LOOK_UP(get_int *, get, BLAS_NAME("openblas_get_parallel"));
    return get ? get() : -1;
}

/* A BLAS that we do not know is not trusted to be safe. */
bool blas_concurrent(void) { return variant() >= 1; }

void blas_set_threads(int64_t n)
{
    LOOK_UP(set_int *, set, BLAS_NAME("openblas_set_num_threads"));
    if (set) set((int)n);
}

void blas_single_thread(void)
{
    /* OpenMP's count belongs to the thread that sets it; the others follow the process's. */
    LOOK_UP(set_int *, set, "omp_set_num_threads");
    if (set && variant() == 2) set(1);
}
