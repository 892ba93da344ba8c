/* SPDX-License-Identifier: MIT */
/*
 * The vector loops that apply rules to a row of scores: softcap, masks,
 * segments, ALiBi, and the counting that skips tiles. As test_kernels.c.
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

static void test_softcap_row(void **state)
{
    static const float caps[] = {50, 1, 0.01f, 3e4f, 1e30f};
    double worst = 0;
    (void)state;
    for (int c = 0; c < 5; c++)
        for (int64_t n = 1; n <= N_MAX; n++) {
            struct rng rng = rng_make((uint64_t)(n * 5 + c));
            struct pages pages;
            float *s = at_page_end(&pages, n), in[N_MAX];
            for (int64_t i = 0; i < n; i++)
                in[i] =
                    rng_normal(&rng, 1) * powf(10, (float)rng_int(&rng, -6, 8)) * caps[c] / 100;
            memcpy(s, in, (size_t)n * sizeof *s);
            kn->softcap_row(n, s, caps[c]);
            for (int64_t i = 0; i < n; i++) {
                double want = (double)caps[c] * tanh((double)in[i] / (double)caps[c]);
                double err = fabs((double)s[i] - want) / (REF_U * fabs(want) + 1e-40);
                worst = fmax(worst, err);
                assert_true(err < 8);
            }
            pages_free(&pages);
        }
    print_message("%s: softcap is off by at most %.2f half ulps\n", kn->name, worst);
}

static void test_softcap_of_special_numbers(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 40; n++) {
        float s[40];
        for (int k = 0; k < 3; k++) {
            for (int64_t i = 0; i < n; i++) memcpy(&s[i], &nan_bits[k], sizeof *s);
            kn->softcap_row(n, s, 5);
            for (int64_t i = 0; i < n; i++) assert_true(isnan(s[i]));
        }
        for (int64_t i = 0; i < n; i++) s[i] = i % 2 ? -INFINITY : INFINITY;
        kn->softcap_row(n, s, 5);
        for (int64_t i = 0; i < n; i++) assert_true(s[i] == (i % 2 ? -5 : 5));
    }
}

static void test_mask_rows(void **state)
{
    static const int64_t strides[] = {1, 0, 3, -1, -2};
    (void)state;
    for (int64_t n = 1; n <= 45; n++)
        for (int k = 0; k < 5; k++) {
            int64_t stride = strides[k], span = n * (stride < 0 ? -stride : stride) + 1;
            float in[45], s[45], t[45], add[45 * 3 + 1];
            uint8_t keep[45 * 3 + 1];
            struct rng rng = rng_make((uint64_t)(n * 5 + k));
            for (int64_t i = 0; i < span; i++) {
                keep[i] = (uint8_t)(rng_chance(&rng, 0.5) ? rng_int(&rng, 1, 255) : 0);
                add[i] = rng_chance(&rng, 0.3) ? -INFINITY : rng_normal(&rng, 1);
            }
            for (int64_t i = 0; i < n; i++) in[i] = s[i] = t[i] = rng_chance(&rng, 0.2) ? NAN : 1;
            int64_t first = stride < 0 ? span - 1 : 0;
            kn->mask_bool_row(n, s, keep + first, stride);
            kn->mask_add_row(n, t, add + first, stride);
            for (int64_t i = 0; i < n; i++) {
                float a = add[first + i * stride];
                bool keeps = keep[first + i * stride] != 0;
                assert_true(ref_close(keeps ? (double)in[i] : (double)-INFINITY, 0, s[i]));
                double sum = a == -INFINITY ? (double)a : (double)(in[i] + a);
                assert_true(ref_close(sum, 0, t[i]));
            }
        }
}

static void test_segment_and_count(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= N_MAX; n++) {
        struct rng rng = rng_make((uint64_t)n);
        struct pages scores, id_pages, bytes;
        float *s = at_page_end(&scores, n);
        pages_end(&id_pages, (size_t)n * sizeof(int32_t));
        pages_end(&bytes, (size_t)n);
        int32_t *ids = id_pages.p, id = n % 2 ? -1 : INT32_MIN;
        uint8_t *mask = bytes.p;
        int64_t equal = 0, nonzero = 0;
        for (int64_t i = 0; i < n; i++) {
            ids[i] = rng_chance(&rng, 0.5) ? id : (int32_t)rng_int(&rng, 0, 9);
            mask[i] = (uint8_t)(rng_chance(&rng, 0.5) ? rng_int(&rng, 1, 255) : 0);
            s[i] = i % 5 == 4 ? NAN : (float)i;
            equal += ids[i] == id;
            nonzero += mask[i] != 0;
        }
        assert_int_equal(kn->count_equal(n, ids, id), equal);
        assert_int_equal(kn->count_nonzero(n, mask), nonzero);
        kn->segment_row(n, s, ids, id);
        for (int64_t i = 0; i < n; i++) {
            double kept = i % 5 == 4 ? (double)NAN : (double)i;
            assert_true(ref_close(ids[i] == id ? kept : (double)-INFINITY, 0, s[i]));
        }
        pages_free(&scores);
        pages_free(&id_pages);
        pages_free(&bytes);
    }
}

/* More than any narrow counter holds. */
static void test_count_of_many(void **state)
{
    int64_t n = 70000;
    uint8_t *mask = must_alloc((size_t)n, 1);
    int32_t *ids = must_alloc((size_t)n, sizeof *ids);
    (void)state;
    memset(mask, 255, (size_t)n);
    assert_int_equal(kn->count_nonzero(n, mask), n);
    assert_int_equal(kn->count_equal(n, ids, 0), n);
    mask[n / 2] = 0;
    ids[n / 3] = 1;
    assert_int_equal(kn->count_nonzero(n, mask), n - 1);
    assert_int_equal(kn->count_equal(n, ids, 0), n - 1);
    free(mask);
    free(ids);
}

static void test_alibi_row(void **state)
{
    static const float ats[] = {0, 5, -3, 100, 1e6f, -1e6f};
    (void)state;
    for (int64_t n = 1; n <= N_MAX; n++)
        for (int k = 0; k < 6; k++) {
            struct pages pages;
            float *s = at_page_end(&pages, n);
            for (int64_t i = 0; i < n; i++) s[i] = 0.5f;
            kn->alibi_row(n, s, 0.125f, ats[k]);
            for (int64_t i = 0; i < n; i++) {
                double bias = 0.125 * fabs((double)ats[k] - (double)i);
                assert_true(ref_close(0.5 - bias, 2 * REF_U * bias, s[i]));
            }
            pages_free(&pages);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_softcap_row),   cmocka_unit_test(test_softcap_of_special_numbers),
        cmocka_unit_test(test_mask_rows),     cmocka_unit_test(test_segment_and_count),
        cmocka_unit_test(test_count_of_many), cmocka_unit_test(test_alibi_row),
    };
    return RUN_ON_EACH_ISA("rule kernels", tests);
}
