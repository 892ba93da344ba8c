/* SPDX-License-Identifier: MIT */
/*
 * A BLAS that must be refused, found before the real one: wrong numbers, or,
 * with FAKE_INT64, one that says it takes 64-bit integers.
 */
void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                 const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
char *openblas_get_config(void);

void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                 const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    (void)order, (void)trans_a, (void)trans_b, (void)alpha, (void)a, (void)lda, (void)b,
        (void)ldb;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            c[(long)i * ldc + j] = (beta == 0 ? 0 : beta * c[(long)i * ldc + j]) + (float)k;
}

#ifdef FAKE_INT64
char *openblas_get_config(void)
{
    static char config[] = "OpenBLAS 0.3.99 USE64BITINT DYNAMIC_ARCH Imaginary MAX_THREADS=64";
    return config;
}
#endif
