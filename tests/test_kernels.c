/* SPDX-License-Identifier: MIT */
/*
 * The vector loops, each instruction set against doubles. Inputs end at an
 * unreadable page wherever a kernel does not own its padding (OpenBLAS#535).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "each_isa.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_MAX 70

static const uint32_t nan_bits[] = {0x7fc00001, 0xffc12345, 0x7fa00001};

/* n floats whose end touches an unreadable page. */
static float *at_page_end(struct pages *pages, int64_t n)
{
    pages_end(pages, (size_t)n * sizeof(float));
    return pages->p;
}

static double ulp_of(double x) { return fmax(ldexp(1, ilogb(x) - 23), 0x1p-149); }

/* ------------------------------------------------------------------- exp */

/* A dense sample of the floats in [-104, -0]: every 701st one. */
static void test_exp_is_within_2_ulp(void **state)
{
    uint32_t first = bits_of_float(-0.0f), last = bits_of_float(-104.0f);
    float x[64], y[64];
    double worst = 0;
    (void)state;
    for (uint32_t bits = first; bits < last; bits += 64 * 701) {
        if (rig_skip(bits / (64 * 701))) continue;
        for (uint32_t i = 0; i < 64; i++) x[i] = y[i] = float_of_bits(bits + i * 701);
        kn->exp_row(64, y);
        for (int i = 0; i < 64; i++) {
            double want = exp((double)x[i]);
            if (want < 0x1p-126) {
                if (bits_of_float(y[i]) != 0)
                    fail_msg("exp(%.9g) is %g", (double)x[i], (double)y[i]);
                continue;
            }
            double ulps = fabs((double)y[i] - want) / ulp_of(want);
            if (!(ulps <= 2)) fail_msg("exp(%.9g) is off by %g ulp", (double)x[i], ulps);
            worst = fmax(worst, ulps);
        }
    }
    print_message("%s: exp is off by at most %.2f ulp\n", kn->name, worst);
}

/* In each lane and in the tail. */
static void test_exp_of_special_numbers(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 40; n++)
        for (int64_t at = 0; at < n; at++) {
            struct pages pages;
            float *x = at_page_end(&pages, n);
            for (int k = 0; k < 8; k++) {
                const float in[8] = {float_of_bits(nan_bits[0]),
                                     float_of_bits(nan_bits[1]),
                                     float_of_bits(nan_bits[2]),
                                     -INFINITY,
                                     0,
                                     -0.0f,
                                     -3e38f,
                                     -88};
                for (int64_t i = 0; i < n; i++) x[i] = -1;
                memcpy(&x[at], &in[k], sizeof *x);
                kn->exp_row(n, x);
                if (k < 3)
                    assert_true(isnan(x[at]));
                else
                    assert_true(bits_of_float(x[at]) == (k == 4 || k == 5 ? 0x3f800000 : 0));
                for (int64_t i = 0; i < n; i++)
                    if (i != at) assert_true(ref_close(0.36787944117, 6e-8, x[i]));
            }
            pages_free(&pages);
        }
}

/* --------------------------------------------------------------- softmax */

struct tile {
    float *s, *o; /* rows x lds, rows x Dv */
    float m[8], l[8];
    double big_m[8], big_l[8];
    double *want; /* exp(s - m) of the last tile */
};

/* 2 ulp of exp, the rounding of its argument s - m, and what is flushed to 0. */
static bool exp_close(double want, float got)
{
    double x = want > 0 ? fabs(log(want)) : 0;
    return ref_close(want, want * REF_U * (5 + x) + 0x1p-100, got);
}

/* What goes into sums with values ends at 2^-100 of the largest: its products are no denormals. */
static void test_weights_end_at_2_to_the_minus_100(void **state)
{
    const double least = -100 * log(2);
    (void)state;
    for (int64_t at = 1; at < LANES_MAX; at++) {
        _Alignas(64) float s[LANES_MAX] = {0};
        float m = -INFINITY, l = 0;
        struct softmax_rows t = {.rows = 1, .cols = LANES_MAX, .s = s, .lds = LANES_MAX};
        t.m = &m;
        t.l = &l;
        for (int64_t j = 1; j < LANES_MAX; j++) s[j] = (float)least - 1e-3f * (float)j;
        s[at] = (float)least + 1e-3f;
        kn->softmax_rows(&t);
        assert_true(m == 0 && l == 1 && s[0] == 1);
        for (int64_t j = 1; j < LANES_MAX; j++)
            if (j != at) assert_true(s[j] == 0);
        assert_true(exp_close(exp(least + 1e-3), s[at]) && s[at] > 0);
    }
}

/* One tile of random scores and sights folded into m, l, o; the doubles beside. */
static void fold_tile(struct rng *rng, struct tile *t, int64_t rows, int64_t cols, int64_t lds,
                      int64_t Dv, bool first)
{
    int32_t sight[8][2];
    double scores[8 * N_MAX], o_factor[8];
    for (int64_t r = 0; r < rows; r++) {
        sight[r][0] = (int32_t)rng_int(rng, 0, cols);
        sight[r][1] = (int32_t)rng_int(rng, 0, cols);
        double shift = (double)rng_int(rng, -120, 120), old = t->big_m[r];
        for (int64_t j = 0; j < lds; j++) {
            t->s[r * lds + j] = j < cols ? rng_normal(rng, 3) + (float)shift : prefill();
            if (rng_chance(rng, 0.1) && j < cols) t->s[r * lds + j] = -INFINITY;
            if (j < cols) scores[r * N_MAX + j] = (double)t->s[r * lds + j];
        }
        for (int64_t j = sight[r][0]; j < sight[r][1]; j++)
            t->big_m[r] = fmax(t->big_m[r], scores[r * N_MAX + j]);
        o_factor[r] = old == -INFINITY ? 0 : exp(old - t->big_m[r]);
        t->big_l[r] *= o_factor[r];
        for (int64_t j = 0; j < cols; j++) {
            bool seen = j >= sight[r][0] && j < sight[r][1] && t->big_m[r] != -INFINITY;
            t->want[r * N_MAX + j] = seen ? exp(scores[r * N_MAX + j] - t->big_m[r]) : 0;
            t->big_l[r] += t->want[r * N_MAX + j];
        }
        for (int64_t d = 0; d < Dv; d++) t->o[r * Dv + d] = first ? prefill() : 1;
    }
    struct softmax_rows in = {.rows = rows,
                              .cols = cols,
                              .s = t->s,
                              .lds = lds,
                              .m = t->m,
                              .l = t->l,
                              .o = first ? NULL : t->o,
                              .ldo = Dv,
                              .Dv = Dv,
                              .sight = (const int32_t(*)[2])sight};
    kn->softmax_rows(&in);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < Dv && !first; d++)
            if (t->big_m[r] != -INFINITY && o_factor[r] > 0)
                assert_true(exp_close(o_factor[r], t->o[r * Dv + d]));
}

static void test_softmax_rows(void **state)
{
    (void)state;
    for (int64_t cols = 1; cols <= N_MAX; cols++) {
        struct rng rng = rng_make((uint64_t)cols);
        int64_t rows = rng_int(&rng, 1, 8), lds = round_up(cols, LANES_MAX);
        int64_t Dv = rng_int(&rng, 1, 40);
        struct gbuf s, o;
        struct tile t = {.want = must_alloc(8 * N_MAX, sizeof(double))};
        gbuf_make(&s, rows * lds, 0);
        gbuf_make(&o, rows * Dv, 1);
        t.s = s.p;
        t.o = o.p;
        for (int r = 0; r < 8; r++) t.m[r] = -INFINITY, t.big_m[r] = -INFINITY;
        for (int tile = 0; tile < 5; tile++) {
            fold_tile(&rng, &t, rows, cols, lds, Dv, tile == 0);
            for (int64_t r = 0; r < rows; r++) {
                assert_true((double)t.m[r] == t.big_m[r]);
                assert_true(ref_close(t.big_l[r], 2e-6 * t.big_l[r], t.l[r]));
                for (int64_t j = 0; j < cols; j++)
                    assert_true(exp_close(t.want[r * N_MAX + j], t.s[r * lds + j]));
            }
            assert_true(gbuf_intact(&s) && gbuf_intact(&o));
        }
        free(t.want);
        gbuf_free(&s);
        gbuf_free(&o);
    }
}

/* NaN and +inf make the sum NaN, in any lane, whatever came before. */
static void test_softmax_keeps_nan(void **state)
{
    (void)state;
    for (int64_t cols = 1; cols <= 40; cols++)
        for (int k = 0; k < 4; k++) {
            struct gbuf s;
            float m = 2, l = 3;
            gbuf_make(&s, round_up(cols, LANES_MAX), 0);
            for (int64_t j = 0; j < cols; j++) s.p[j] = (float)j;
            float bad = k < 3 ? float_of_bits(nan_bits[k]) : INFINITY;
            memcpy(&s.p[cols * 7 % cols + cols / 2], &bad, sizeof bad);
            struct softmax_rows in = {.rows = 1,
                                      .cols = cols,
                                      .s = s.p,
                                      .m = &m,
                                      .l = &l,
                                      .lds = round_up(cols, LANES_MAX)};
            kn->softmax_rows(&in);
            assert_true(isnan(l));
            gbuf_free(&s);
        }
}

static void test_weights_row(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= N_MAX; n++) {
        struct rng rng = rng_make((uint64_t)n);
        struct pages pages;
        float *s = at_page_end(&pages, n), in[N_MAX];
        rng_normals(&rng, n, in, 3);
        in[n / 2] = -INFINITY;
        memcpy(s, in, (size_t)n * sizeof *s);
        kn->weights_row(n, s, 10, 4);
        for (int64_t i = 0; i < n; i++) {
            assert_true(exp_close(exp((double)in[i] - 10) / 4, s[i]));
        }
        kn->weights_row(n, s, -INFINITY, 0); /* a row that sees nothing */
        for (int64_t i = 0; i < n; i++) assert_true(s[i] == 0);
        pages_free(&pages);
    }
}

static void test_finish_scale_merge(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= N_MAX; n++) {
        struct gbuf x, y;
        const float factor[2] = {0.25f, EMPTY_ROW};
        gbuf_make(&x, 2 * n, 1);
        gbuf_make(&y, n, 3);
        for (int64_t i = 0; i < n; i++) x.p[i] = (float)i, x.p[n + i] = i % 2 ? NAN : 1;
        kn->finish_rows(2, n, x.p, n, factor);
        for (int64_t i = 0; i < n; i++) assert_true(x.p[i] == (float)i / 4 && x.p[n + i] == 0);
        kn->scale_row(n, x.p, 8);
        for (int64_t i = 0; i < n; i++) assert_true(x.p[i] == (float)i * 2);
        for (int64_t i = 0; i < n; i++) y.p[i] = 1;
        kn->merge_row(n, x.p, 0.5f, y.p, 2);
        for (int64_t i = 0; i < n; i++) assert_true(x.p[i] == (float)i + 2);
        for (int64_t i = 0; i < n; i++) y.p[i] = NAN;
        kn->merge_row(n, x.p, 1, y.p, 0); /* plain arithmetic: 0 * NaN is NaN */
        for (int64_t i = 0; i < n; i++) assert_true(isnan(x.p[i]));
        assert_true(gbuf_intact(&x) && gbuf_intact(&y));
        gbuf_free(&x);
        gbuf_free(&y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp_is_within_2_ulp),
        cmocka_unit_test(test_exp_of_special_numbers),
        cmocka_unit_test(test_weights_end_at_2_to_the_minus_100),
        cmocka_unit_test(test_softmax_rows),
        cmocka_unit_test(test_softmax_keeps_nan),
        cmocka_unit_test(test_weights_row),
        cmocka_unit_test(test_finish_scale_merge),
    };
    return RUN_ON_EACH_ISA("kernels", tests);
}
