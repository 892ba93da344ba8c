/* SPDX-License-Identifier: MIT */
/*
 * The products and copies that are ours: rows times keys, weights times
 * values, transposing, adding a bias, the scan for non-finite numbers. Inputs
 * end at an unreadable page (OpenBLAS#535).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "whitebox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100};
#define N_SIZES 18

/* What a few rows of a random problem look like, all of it at page ends. */
struct few {
    struct pages q_pages[16], o_pages[16], x_pages, s_pages;
    const float *q[16];
    float *o[16];
    struct few_rows in;
};

static void few_make(struct few *f, struct rng *rng, int64_t rows, int64_t keys, int64_t D,
                     bool values)
{
    int64_t ldx = D + rng_int(rng, 0, 5), lds = round_up(keys, LANES_MAX);
    memset(f, 0, sizeof *f);
    for (int64_t r = 0; r < rows; r++) {
        pages_end(&f->q_pages[r], (size_t)D * sizeof(float));
        pages_end(&f->o_pages[r], (size_t)D * sizeof(float));
        f->q[r] = f->q_pages[r].p;
        f->o[r] = f->o_pages[r].p;
        rng_normals(rng, D, f->q_pages[r].p, 1);
        for (int64_t d = 0; d < D; d++) f->o[r][d] = values ? prefill() : 0;
    }
    int64_t n_x = (keys - 1) * ldx + D; /* the last row has no padding behind it */
    pages_end(&f->x_pages, (size_t)n_x * sizeof(float));
    rng_normals(rng, n_x, f->x_pages.p, 1);
    pages_end(&f->s_pages, (size_t)(rows * lds) * sizeof(float));
    rng_normals(rng, rows * lds, f->s_pages.p, 1);
    f->in = (struct few_rows){.rows = rows,
                              .keys = keys,
                              .D = D,
                              .q = f->q,
                              .o = f->o,
                              .x = f->x_pages.p,
                              .ldx = ldx,
                              .s = f->s_pages.p,
                              .lds = lds,
                              .scale = 0.25f,
                              .first = values};
}

static void few_free(struct few *f)
{
    for (int64_t r = 0; r < f->in.rows; r++) {
        pages_free(&f->q_pages[r]);
        pages_free(&f->o_pages[r]);
    }
    pages_free(&f->x_pages);
    pages_free(&f->s_pages);
}

static void expect_dots(const struct few_rows *in)
{
    for (int64_t r = 0; r < in->rows; r++)
        for (int64_t j = 0; j < in->keys; j++) {
            double dot = 0, size = 0;
            for (int64_t d = 0; d < in->D; d++) {
                double x = (double)in->q[r][d] * (double)in->x[j * in->ldx + d];
                dot += x;
                size += fabs(x);
            }
            double tol = 0.25 * (ref_accumulation(in->D) + REF_U) * size;
            if (!ref_close(0.25 * dot, tol, in->s[r * in->lds + j]))
                fail_msg("rows %d keys %d D %d: row %d key %d", (int)in->rows, (int)in->keys,
                         (int)in->D, (int)r, (int)j);
        }
}

static void expect_values(const struct few_rows *in, const double *before)
{
    for (int64_t r = 0; r < in->rows; r++)
        for (int64_t d = 0; d < in->D; d++) {
            double sum = in->first ? 0 : before[r * in->D + d], size = fabs(sum);
            for (int64_t j = 0; j < in->keys; j++) {
                double x = (double)in->s[r * in->lds + j] * (double)in->x[j * in->ldx + d];
                sum += x;
                size += fabs(x);
            }
            if (!ref_close(sum, ref_accumulation(in->keys + 1) * size, in->o[r][d]))
                fail_msg("rows %d keys %d D %d: row %d column %d", (int)in->rows, (int)in->keys,
                         (int)in->D, (int)r, (int)d);
        }
}

static void products_of(const struct kernels *kn, int64_t rows, int64_t keys, int64_t D)
{
    struct rng rng = rng_make((uint64_t)(rows * 1000 + keys * 17 + D));
    struct few f;
    double before[16 * 100] = {0};
    few_make(&f, &rng, rows, keys, D, false);
    kn->dot_rows(&f.in);
    expect_dots(&f.in);
    few_free(&f);
    few_make(&f, &rng, rows, keys, D, true);
    kn->add_rows(&f.in);
    expect_values(&f.in, before);
    for (int64_t n = 0; n < rows * D; n++) before[n] = (double)f.o[n / D][n % D];
    f.in.first = false;
    kn->add_rows(&f.in);
    expect_values(&f.in, before);
    few_free(&f);
}

static void test_few_rows(void **state)
{
    (void)state;
    for (const int32_t *isa = rig_isas(); *isa >= 0; isa++)
        for (int64_t n = 0; n < N_SIZES * N_SIZES; n++)
            for (int64_t rows = 1 + n % 3; rows <= 16 && !rig_skip(n); rows += rows < 8 ? 3 : 5)
                products_of(attn_i_kernels(*isa), rows, sizes[n % N_SIZES], sizes[n / N_SIZES]);
}

/* A row's bits do not depend on the rows beside it. */
static void test_rows_are_independent(void **state)
{
    (void)state;
    for (const int32_t *isa = rig_isas(); *isa >= 0; isa++)
        for (int64_t n = 0; n < N_SIZES; n++) {
            const struct kernels *kn = attn_i_kernels(*isa);
            struct rng rng = rng_make((uint64_t)n);
            int64_t D = sizes[n], keys = sizes[N_SIZES - 1 - n];
            struct few f;
            few_make(&f, &rng, 7, keys, D, true);
            int64_t lds = f.in.lds;
            float *s = copy_floats(f.in.s, 7 * lds), alone[112], o[100];
            float *o_row = o;
            for (int64_t r = 0; r < 7; r++) {
                struct few_rows one = f.in;
                one.rows = 1;
                one.q = &f.q[r];
                one.o = &o_row;
                one.s = s + r * lds;
                kn->add_rows(&one);
                f.in.rows = 7;
                kn->add_rows(&f.in);
                assert_true(same_bits("values", o, f.o[r], D));
                one.s = alone;
                kn->dot_rows(&one);
                struct few_rows all = f.in;
                all.s = must_alloc((size_t)(7 * lds), sizeof(float));
                kn->dot_rows(&all);
                if (!same_bits("scores", alone, all.s + r * lds, keys))
                    fail_msg("isa %s D %d keys %d r %d", kn->name, (int)D, (int)keys, (int)r);
                free(all.s);
            }
            free(s);
            few_free(&f);
        }
}

/* 0 times NaN is NaN, in every lane: the engines rely on it and select elsewhere. */
static void test_add_rows_keeps_nan(void **state)
{
    (void)state;
    for (const int32_t *isa = rig_isas(); *isa >= 0; isa++)
        for (int64_t d = 0; d < 33; d++) {
            struct rng rng = rng_make(1);
            struct few f;
            few_make(&f, &rng, 3, 5, 33, true);
            ((float *)f.x_pages.p)[3 * f.in.ldx + d] = NAN;
            for (int64_t r = 0; r < 3; r++) f.in.s[r * f.in.lds + 3] = 0;
            attn_i_kernels(*isa)->add_rows(&f.in);
            for (int64_t c = 0; c < 33; c++)
                for (int64_t r = 0; r < 3; r++) assert_true(isnan(f.o[r][c]) == (c == d));
            few_free(&f);
        }
}

static void transpose_once(const struct kernels *kn, int64_t rows, int64_t cols)
{
    int64_t ldx = cols + rows % 3, ldy = rows + cols % 4, n_x = (rows - 1) * ldx + cols;
    struct pages pages;
    struct gbuf y;
    pages_end(&pages, (size_t)n_x * sizeof(float));
    float *x = pages.p;
    for (int64_t i = 0; i < n_x; i++) x[i] = (float)i;
    gbuf_make(&y, (cols - 1) * ldy + rows, 1);
    kn->transpose(rows, cols, x, ldx, y.p, ldy);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            assert_true(y.p[c * ldy + r] == x[r * ldx + c]);
            y.p[c * ldy + r] = prefill();
        }
    assert_true(gbuf_untouched(&y));
    gbuf_free(&y);
    pages_free(&pages);
}

static void test_transpose(void **state)
{
    (void)state;
    for (const int32_t *isa = rig_isas(); *isa >= 0; isa++)
        for (int64_t rows = 1; rows <= 40; rows++)
            for (int64_t cols = 1; cols <= 40; cols++)
                if (!rig_skip(rows * 41 + cols)) transpose_once(attn_i_kernels(*isa), rows, cols);
}

static void test_all_finite(void **state)
{
    static const uint32_t bad[] = {0x7fc00001, 0xffc12345, 0x7fa00001, 0x7f800000, 0xff800000};
    (void)state;
    for (const int32_t *isa = rig_isas(); *isa >= 0; isa++)
        for (int64_t cols = 1; cols <= 40; cols++) {
            int64_t ldx = cols + 2, n = 2 * ldx + cols;
            struct pages pages;
            if (rig_skip(cols)) continue;
            pages_end(&pages, (size_t)n * sizeof(float));
            float *x = pages.p;
            for (int64_t at = 0; at < n; at++) {
                for (int64_t i = 0; i < n; i++) x[i] = i % 2 ? 3.4e38f : -1e-45f;
                bool counts = at % ldx < cols;
                assert_true(attn_i_kernels(*isa)->all_finite(3, cols, x, ldx));
                memcpy(&x[at], &bad[at % 5], sizeof *x);
                assert_int_equal(attn_i_kernels(*isa)->all_finite(3, cols, x, ldx), !counts);
            }
            pages_free(&pages);
        }
}

static void test_add_bias(void **state)
{
    (void)state;
    for (const int32_t *isa = rig_isas(); *isa >= 0; isa++)
        for (int64_t cols = 1; cols <= 70; cols++) {
            struct pages xs, bs;
            struct gbuf y;
            pages_end(&xs, (size_t)(3 * cols) * sizeof(float));
            pages_end(&bs, (size_t)cols * sizeof(float));
            float *x = xs.p, *bias = bs.p;
            for (int64_t i = 0; i < 3 * cols; i++) x[i] = (float)i;
            for (int64_t i = 0; i < cols; i++) bias[i] = 0.5f;
            for (int with = 0; with < 2; with++) {
                gbuf_make(&y, 2 * (cols + 3) + cols, 1);
                attn_i_kernels(*isa)->add_bias(3, cols, x, cols, with ? bias : NULL, y.p,
                                               cols + 3);
                for (int64_t i = 0; i < 3 * cols; i++) {
                    float *to = &y.p[i / cols * (cols + 3) + i % cols];
                    assert_true(*to == (float)i + (with ? 0.5f : 0));
                    *to = prefill();
                }
                assert_true(gbuf_untouched(&y));
                gbuf_free(&y);
            }
            pages_free(&xs);
            pages_free(&bs);
        }
}

static void test_tables(void **state)
{
    (void)state;
    assert_int_equal(attn_i_kernels(ATTN_ISA_BASE)->isa, ATTN_ISA_BASE);
    for (int32_t mask = 0; mask < 8; mask++) {
        const struct kernels *kn = attn_i_kernels(mask);
        assert_int_equal(kn->isa & ~mask, 0);
        assert_true(kn->width >= 1 && kn->width <= LANES_MAX && LANES_MAX % kn->width == 0);
    }
    assert_ptr_equal(attn_i_kernels(-1), attn_i_kernels(ATTN_ISA_ALL));
    assert_true(attn_i_cpu_count() >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_rows),
        cmocka_unit_test(test_rows_are_independent),
        cmocka_unit_test(test_add_rows_keeps_nan),
        cmocka_unit_test(test_transpose),
        cmocka_unit_test(test_all_finite),
        cmocka_unit_test(test_add_bias),
        cmocka_unit_test(test_tables),
    };
    return cmocka_run_group_tests_name("products", tests, NULL, NULL);
}
