/* SPDX-License-Identifier: MIT */
/* attn_merge: results over parts of the keys fold into the result over all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PARTS_MAX 5

/* A run over the keys [begin, end) of g's own tensors. */
static void run_part(struct rig *g, int64_t begin, int64_t end, float *out, float *lse)
{
    int64_t begins[RIG_B_MAX], ends[RIG_B_MAX];
    const struct spec *s = &g->s;
    for (int64_t b = 0; b < s->B; b++) {
        begins[b] = begin;
        ends[b] = end;
    }
    assert_int_equal(attn_args_set_key_range(g->args, s->B, begins, ends), ATTN_OK);
    assert_int_equal(attn_args_set_lse(g->args, lse), ATTN_OK);
    assert_int_equal(
        attn_run_args(g->op, s->B, s->Lq, s->Lk, g->q.at, g->k.at, g->v.at, out, g->args),
        ATTN_OK);
}

static void expect_whole(struct rig *g, const float *out, const float *lse)
{
    int64_t rows = g->s.B * g->s.Hq * g->s.Lq;
    struct ref_margin m = {0};
    double lse_max = 0;
    rig_solve(g);
    for (int64_t r = 0; r < rows; r++)
        if (isfinite(lse[r])) lse_max = fmax(lse_max, fabs((double)lse[r]));
    double rel = 1e-4 + 0x1p-23 * lse_max;
    for (int64_t r = 0; r < rows; r++)
        ref_compare(&m, r, g->ref.lse.x[r], g->ref.lse.tol[r] + rel, lse[r]);
    for (int64_t n = 0; n < rows * g->s.Dv; n++)
        ref_compare(&m, n, g->ref.out.x[n], g->ref.out.tol[n] + 3 * rel, out[n]);
    if (m.bad == 0) return;
    rig_print(g, "merged result");
    fail_msg("element %d is %.9g, should be %.9g", (int)m.at, (double)m.got, m.want);
}

/* Random cuts, some parts empty, folded in any order. */
static void merge_row(int64_t row)
{
    struct rng rng = rng_make((uint64_t)row);
    struct spec s = {.seed = (uint64_t)row,
                     .row = row,
                     .B = rng_int(&rng, 1, 2),
                     .Hq = 4,
                     .Hk = 2,
                     .Lq = rng_int(&rng, 1, 9),
                     .Lk = rng_int(&rng, 1, 60),
                     .Dk = 8};
    s.Dv = rng_int(&rng, 1, 40);
    s.std = row % 3 ? 1 : 8;
    s.mask_bool.on = row % 2 == 1;
    s.mask_bool.full = FULL_Q;
    s.mask_bool.density = 0.3;
    int64_t rows = s.B * 4 * s.Lq, cuts[PARTS_MAX + 1] = {0};
    struct rig g;
    rig_make(&g, &s);
    rig_prepare(&g);
    for (int p = 1; p < PARTS_MAX; p++) cuts[p] = rng_int(&rng, cuts[p - 1], s.Lk);
    cuts[PARTS_MAX] = s.Lk;
    struct gbuf out[2], lse[2];
    for (int n = 0; n < 2; n++) {
        gbuf_make(&out[n], rows * s.Dv, row % 16);
        gbuf_make(&lse[n], rows, row % 16);
    }
    for (int n = 0; n < PARTS_MAX; n++) {
        int p = row % 2 ? n : PARTS_MAX - 1 - n, to = n == 0 ? 0 : 1;
        run_part(&g, cuts[p], cuts[p + 1], out[to].p, lse[to].p);
        if (to == 0) continue;
        assert_int_equal(attn_merge(rows, s.Dv, out[0].p, lse[0].p, out[1].p, lse[1].p), ATTN_OK);
    }
    expect_whole(&g, out[0].p, lse[0].p);
    for (int n = 0; n < 2; n++) {
        assert_true(gbuf_intact(&out[n]) && gbuf_intact(&lse[n]));
        gbuf_free(&out[n]);
        gbuf_free(&lse[n]);
    }
    rig_free(&g);
}

static void test_merge_of_parts(void **state)
{
    (void)state;
    for (int64_t row = 0; row < 80; row++)
        if (!rig_skip(row)) merge_row(row);
}

/* One row each: accumulator, part, and what comes out. */
static void test_merge_by_hand(void **state)
{
    const float inf = INFINITY, nan = NAN;
    const struct {
        float o_acc, lse_acc, o_part, lse_part, o, lse;
    } rows[] = {
        {0, -inf, 0, -inf, 0, -inf}, /* two empty parts */
        {5, 2, 0, -inf, 5, 2},       /* an empty part changes nothing */
        {0, -inf, 5, 2, 5, 2},
        {1, 0, 3, 0, 2, 0.6931472f}, /* equal shares */
        {1, 10000, 3, 10000, 2, 10000.693f},
        {1, -10000, 3, -10000, 2, -9999.307f},
        {1, 500, 3, -500, 1, 500}, /* one share underflows */
        {1, -500, 3, 500, 3, 500},
        {nan, nan, 3, 0, nan, nan}, /* a NaN row stays one */
        {3, 0, nan, nan, nan, nan},
        {nan, 0, 3, 500, nan, 500}, /* a NaN value whose share underflows, too */
        {3, 500, nan, 0, nan, 500},
    };
    (void)state;
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        float o[3] = {rows[n].o_acc, rows[n].o_acc, 77}, lse = rows[n].lse_acc;
        const float part[2] = {rows[n].o_part, rows[n].o_part};
        assert_int_equal(attn_merge(1, 2, o, &lse, part, &rows[n].lse_part), ATTN_OK);
        bool fine = ref_close((double)rows[n].o, 2e-6, o[0]) &&
                    ref_close((double)rows[n].o, 2e-6, o[1]) && o[2] == 77 &&
                    ref_close((double)rows[n].lse, 2e-3, lse);
        if (!fine) fail_msg("row %d: o %g lse %g", (int)n, (double)o[0], (double)lse);
    }
}

static void test_merge_of_no_rows(void **state)
{
    (void)state;
    assert_int_equal(attn_merge(0, 4, NULL, NULL, NULL, NULL), ATTN_OK);
}

static void test_merge_errors(void **state)
{
    float o[8] = {1, 2, 3, 4, 5, 6, 7, 8}, lse[2] = {1, 2}, before[8];
    const float part[8] = {0}, part_lse[2] = {0};
    (void)state;
    memcpy(before, o, sizeof o);
    assert_int_equal(attn_merge(-1, 4, o, lse, part, part_lse), ATTN_EINVAL);
    assert_int_equal(attn_merge(2, 0, o, lse, part, part_lse), ATTN_EINVAL);
    assert_int_equal(attn_merge(2, -4, o, lse, part, part_lse), ATTN_EINVAL);
    assert_int_equal(attn_merge(2, 4, NULL, lse, part, part_lse), ATTN_EINVAL);
    assert_int_equal(attn_merge(2, 4, o, NULL, part, part_lse), ATTN_EINVAL);
    assert_int_equal(attn_merge(2, 4, o, lse, NULL, part_lse), ATTN_EINVAL);
    assert_int_equal(attn_merge(2, 4, o, lse, part, NULL), ATTN_EINVAL);
    assert_int_equal(attn_merge(INT64_MAX / 2, 4, o, lse, part, part_lse), ATTN_EOVERFLOW);
    assert_int_equal(attn_merge(INT64_MAX / 4, 3, o, lse, part, part_lse), ATTN_EOVERFLOW);
    assert_memory_equal(o, before, sizeof o);
    assert_true(lse[0] == 1 && lse[1] == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merge_of_parts),
        cmocka_unit_test(test_merge_by_hand),
        cmocka_unit_test(test_merge_of_no_rows),
        cmocka_unit_test(test_merge_errors),
    };
    return cmocka_run_group_tests_name("merge", tests, NULL, NULL);
}
