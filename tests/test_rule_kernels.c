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
            kn->mask_add_row(n, t, add + first, stride, n % 3 * 1000);
            for (int64_t i = 0; i < n; i++) {
                float a = add[first + i * stride];
                bool keeps = keep[first + i * stride] != 0;
                assert_true(ref_close(keeps ? (double)in[i] : (double)-INFINITY, 0, s[i]));
                double sum = a == -INFINITY ? (double)a : (double)(in[i] + a);
                assert_true(ref_close(sum, 0, t[i]));
            }
        }
}

static enum sight sight_of(int64_t count, int64_t n)
{
    return count == 0 ? SEES_NONE : count == n ? SEES_ALL : SEES_SOME;
}

static void test_segment_and_sight(void **state)
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
        assert_int_equal(kn->segment_sight(n, ids, id), sight_of(equal, n));
        assert_int_equal(kn->mask_sight(n, mask), sight_of(nonzero, n));
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

/* All, none, and all or none but one anywhere, of any nonzero byte. */
static void test_sights(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= N_MAX; n++)
        for (int64_t at = -1; at < n; at++)
            for (int keep = 0; keep < 2; keep++) {
                struct pages id_pages, bytes;
                pages_end(&id_pages, (size_t)n * sizeof(int32_t));
                pages_end(&bytes, (size_t)n);
                int32_t *ids = id_pages.p;
                uint8_t *mask = bytes.p;
                int64_t count = 0;
                for (int64_t i = 0; i < n; i++) {
                    bool keeps = (i == at) != (keep == 1);
                    mask[i] = (uint8_t)(keeps ? 1u << (i + n) % 8 : 0u);
                    ids[i] = keeps ? INT32_MIN : (int32_t)i;
                    count += keeps;
                }
                assert_int_equal(kn->mask_sight(n, mask), sight_of(count, n));
                assert_int_equal(kn->segment_sight(n, ids, INT32_MIN), sight_of(count, n));
                pages_free(&id_pages);
                pages_free(&bytes);
            }
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
        cmocka_unit_test(test_softcap_row), cmocka_unit_test(test_softcap_of_special_numbers),
        cmocka_unit_test(test_mask_rows),   cmocka_unit_test(test_segment_and_sight),
        cmocka_unit_test(test_sights),      cmocka_unit_test(test_alibi_row),
    };
    return RUN_ON_EACH_ISA("rule kernels", tests);
}
