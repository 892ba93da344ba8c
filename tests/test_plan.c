/* SPDX-License-Identifier: MIT */
/*
 * What src/plan.c promises of the cuts it makes: products that take BLAS's
 * small-matrix path, tiles that stay in a cache, tasks for many cores, no thread
 * that has next to nothing to do. None of it changes a result, so no other test
 * would notice.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "blas.h"
#include "job.h"
#include "whitebox.h"

static const int64_t sizes[] = {1, 7, 16, 40, 64, 80, 128, 200, 256, 300, 512, 1000, 4096};
#define N_SIZES ((int)(sizeof sizes / sizeof *sizes))
static const int64_t lengths[] = {17, 50, 100, 197, 384, 449, 1000, 4096, 20000};
#define N_LENGTHS ((int)(sizeof lengths / sizeof *lengths))

struct shape {
    int64_t B, Hq, Hk, Lq, Lk, Dk, Dv;
    int32_t causal, engine;
};

static attn_op *op_of(const struct shape *s)
{
    attn_op *op;
    assert_int_equal(attn_op_create(&op, s->Hq, s->Hk, s->Dk, s->Dv), ATTN_OK);
    assert_int_equal(attn_op_set_engine(op, s->engine), ATTN_OK);
    assert_int_equal(attn_op_set_causal(op, s->causal), ATTN_OK);
    assert_int_equal(attn_op_set_threads(op, 64), ATTN_OK);
    return op;
}

static struct plan plan_of(const attn_op *op, const struct shape *s, const attn_args *args)
{
    struct job job;
    struct plan plan;
    assert_int_equal(attn_i_check_sizes(op, s->B, s->Lq, s->Lk, args, &job, NULL), ATTN_OK);
    assert_int_equal(attn_i_plan(&job, &plan), ATTN_OK);
    return plan;
}

static struct plan plan_alone(const struct shape *s)
{
    attn_op *op = op_of(s);
    struct plan plan = plan_of(op, s, NULL);
    attn_op_destroy(op);
    return plan;
}

/* Both products of a strip and a tile are small, and the strip stays in L1 beside its tiles. */
static void expect_small(const struct shape *s, const struct cut *cut)
{
    int64_t keys = round_up(cut->tile_keys, LANES_MAX), Dv = round_up(s->Dv, LANES_MAX);
    int64_t used = min64(keys, round_up(s->Lk, LANES_MAX));
    assert_true(cut->strip_rows * used * s->Dk <= SMALL_PRODUCT);
    assert_true(cut->strip_rows * used * Dv <= SMALL_PRODUCT);
    assert_true(cut->tile_keys >= 64 && cut->tile_keys % LANES_MAX == 0);
    assert_true(cut->strip_rows * used <= 32 * 1024 / (int64_t)sizeof(float));
    assert_true(cut->strip_rows >= min64(16, s->Lq) && cut->strip_rows <= 60);
}

static void test_small_products_are_small(void **state)
{
    struct shape s = {.B = 1, .Hq = 2, .Hk = 2};
    (void)state;
    for (int n = 0; n < N_SIZES * N_SIZES * N_LENGTHS; n++)
        for (s.causal = 0; s.causal < 2; s.causal++) {
            s.Dk = sizes[n % N_SIZES];
            s.Dv = sizes[n / N_SIZES % N_SIZES];
            s.Lk = s.Lq = lengths[n / N_SIZES / N_SIZES];
            struct plan p = plan_alone(&s);
            if (p.few.strip_rows > 0) continue;
            if (p.many.path == PATH_TILES) expect_small(&s, &p.many);
            assert_int_equal(p.small_products, p.many.path == PATH_TILES);
            if (!attn_i_blas_small_path()) continue;
            assert_int_equal(p.many.path == PATH_TILES, s.Dk <= 976 && s.Dv <= 976);
        }
}

/* Tiles of the vector engine: whole register tiles of keys, panels that stay in L2. */
static void test_vector_tiles(void **state)
{
    struct shape s = {.B = 1, .Lq = 3000, .Lk = 3000, .engine = ATTN_ENGINE_VECTOR};
    (void)state;
    for (int n = 0; n < N_SIZES * 3; n++) {
        s.Hk = 1;
        s.Hq = 1 + n / N_SIZES * 3;
        s.Dk = s.Dv = sizes[n % N_SIZES];
        attn_op *op = op_of(&s);
        struct plan p = plan_of(op, &s, NULL);
        int64_t lanes = panel_lanes(op);
        assert_int_equal(p.many.path, PATH_VECTOR);
        assert_int_equal(p.many.tile_keys % ENDS_UNIT, 0);
        int64_t most = min64(8, max64(1, 64 * 1024 / (lanes * 2 * s.Dk))), least = min64(4, most);
        assert_true(p.many.strip_rows * s.Hq > least * lanes - s.Hq);
        assert_true(p.many.strip_rows * s.Hq <= most * lanes);
        assert_true(p.small_products);
        attn_op_destroy(op);
    }
}

/* The last queries are left to the kernels for few where their rows fill little of a vector. */
static void test_rest_of_queries(void **state)
{
    static const int64_t groups[] = {1, 2, 3, 4, 16};
    struct shape s = {.B = 1, .Hk = 1, .Lk = 90, .Dk = 16, .Dv = 16};
    (void)state;
    for (int n = 0; n < 5 * 1200; n++) {
        s.engine = n % 7 == 6 ? ATTN_ENGINE_BLAS : ATTN_ENGINE_VECTOR;
        s.Hq = groups[n % 5];
        s.Lq = 1 + n / 5;
        attn_op *op = op_of(&s);
        struct job job;
        struct plan p = plan_of(op, &s, NULL);
        assert_int_equal(attn_i_check_sizes(op, s.B, s.Lq, s.Lk, NULL, &job, NULL), ATTN_OK);
        int64_t W = op->kernels->width, rest = attn_i_rest(&job, &p, s.Lq);
        bool vector = p.many.path == PATH_VECTOR && p.many.strip_rows > 0;
        if (vector && s.Lq <= 1024) {
            int64_t least = 0; /* that leave whole vectors */
            while ((s.Lq - least) * s.Hq % W) least++;
            assert_int_equal(rest, least < s.Lq && least * s.Hq <= W / 4 + 1 ? least : 0);
            assert_true(rest * s.Hq <= p.rest.strip_rows * s.Hq);
        } else
            assert_int_equal(rest, 0);
        if (vector) assert_int_equal(p.n_units, ceil_div(s.Lq - rest, p.many.strip_rows));
        attn_op_destroy(op);
    }
}

/* Smaller blocks where there would be few tasks, larger ones where there are many. */
static void test_tasks_for_many_cores(void **state)
{
    struct shape s = {.Hq = 1, .Hk = 1, .Lq = 4096, .Lk = 4096, .Dk = 64, .Dv = 64};
    (void)state;
    for (s.engine = ATTN_ENGINE_BLAS; s.engine <= ATTN_ENGINE_VECTOR; s.engine++) {
        s.B = 1;
        struct plan one = plan_alone(&s);
        s.B = 64;
        struct plan many = plan_alone(&s);
        int64_t rows = many.many.block_strips * many.many.strip_rows;
        assert_true(one.n_tasks >= 16);
        int64_t rows_of_one = one.many.block_strips * one.many.strip_rows;
        /* Narrow vectors make 32 tasks of the largest blocks. */
        assert_true(ceil_div(s.Lq, rows) < 32 ? rows_of_one < rows : rows_of_one == rows);
        assert_int_equal(many.n_tasks, 64 * ceil_div(s.Lq, rows));
    }
    s = (struct shape){.B = 32, .Hq = 1, .Hk = 1, .Lq = 900, .Lk = 900, .Dk = 64, .Dv = 64};
    s.causal = ATTN_CAUSAL_TOP_LEFT;
    assert_int_equal(plan_alone(&s).n_tasks, 32); /* enough: no smaller blocks */
}

/* Few queries: parts of the keys for 32 cores, none shorter than 512 keys, whole tiles. */
static void test_parts_of_keys(void **state)
{
    static const int64_t heads[] = {1, 2, 5, 8, 32, 40};
    struct shape s = {.B = 1, .Dk = 64, .Dv = 64, .Lq = 1};
    (void)state;
    for (int h = 0; h < 6; h++)
        for (s.Lk = 1; s.Lk < 100000; s.Lk = s.Lk * 3 + 100) {
            s.Hq = s.Hk = heads[h];
            struct plan p = plan_alone(&s);
            int64_t n = p.few.n_parts, keys = p.few.part_keys;
            int64_t wanted = min64(ceil_div(32, min64(s.Hk, 32)), ceil_div(s.Lk, 512));
            assert_true(p.few.path == PATH_DECODE && p.many.strip_rows == 0);
            assert_true(n * keys >= s.Lk && (n - 1) * keys < s.Lk);
            assert_int_equal(keys % p.few.tile_keys, 0);
            assert_true(n <= wanted && (n * 2 > wanted || keys == p.few.tile_keys));
            assert_int_equal(p.n_tasks, s.Hk * n);
        }
}

/* Are there threads for so much work, when each must have its worth? */
static int64_t threads_for(double ns, const struct plan *p)
{
    return max64(1, min64(min64((int64_t)ns, 64), p->n_tasks));
}

static void assert_crew(const struct plan *p, double ns)
{
    assert_int_equal(p->crew.woken, threads_for(ns / WAKE_WORTH_NS, p));
    assert_int_equal(p->crew.most, threads_for(ns / JOIN_WORTH_NS, p));
}

/* Work is counted at 100 flops or 20 bytes a ns. */
static void test_threads_worth_waking(void **state)
{
    struct shape s = {.B = 2, .Hq = 4, .Hk = 4, .Lq = 1000, .Lk = 1000, .Dk = 64, .Dv = 64};
    attn_op *op = op_of(&s);
    attn_args *args;
    int64_t offsets[2][3] = {{0, 500, 1000}, {0, 500, 1000}};
    (void)state;
    assert_int_equal(attn_args_create(&args), ATTN_OK);
    const double key = 2 * 4 * 2e3 * 128 / 100; /* ns for one key of each query */
    struct plan p = plan_of(op, &s, NULL);
    assert_crew(&p, 1000 * key);
    s.Lk = 20;
    p = plan_of(op, &s, NULL);
    assert_crew(&p, 20 * key);
    s.Lk = 1000;
    p = plan_of(op, &s, NULL);
    assert_int_equal(attn_op_set_window(op, 9, 10), ATTN_OK); /* 20 keys again */
    p = plan_of(op, &s, NULL);
    assert_crew(&p, 20 * key);
    assert_int_equal(attn_op_set_window(op, 9, -1), ATTN_OK); /* no bound to the right */
    p = plan_of(op, &s, NULL);
    assert_crew(&p, 1000 * key);
    assert_int_equal(attn_op_set_window(op, -1, -1), ATTN_OK);
    assert_int_equal(attn_op_set_chunk(op, 10), ATTN_OK);
    p = plan_of(op, &s, NULL);
    assert_crew(&p, 10 * key);
    assert_int_equal(attn_op_set_chunk(op, 0), ATTN_OK);
    s.Lk = 40; /* packed: two sequences of 20 keys for 500 queries each */
    offsets[1][1] = 20, offsets[1][2] = 40;
    assert_int_equal(attn_args_set_offsets_q(args, offsets[0], ATTN_I64, 2), ATTN_OK);
    assert_int_equal(attn_args_set_offsets_k(args, offsets[1], ATTN_I64, 2), ATTN_OK);
    p = plan_of(op, &s, args);
    assert_crew(&p, 10 * key);
    assert_int_equal(attn_args_clear(args), ATTN_OK);
    s.Lq = 1, s.Lk = 4000; /* K and V: 16 MB */
    p = plan_of(op, &s, NULL);
    assert_crew(&p, 2 * 4 * 4000 * 128 * 4 / 20.0);
    s.Lk = 10;
    assert_int_equal(plan_of(op, &s, NULL).crew.most, 1);
    attn_args_destroy(args);
    attn_op_destroy(op);
}

/* Partial results of few queries are part of a caller's workspace: here they are most of it. */
static void test_workspace_holds_the_parts(void **state)
{
    struct shape s = {.B = 1, .Hk = 1, .Lq = 1, .Dk = 1, .Dv = 300};
    (void)state;
    for (s.Hq = 1; s.Hq <= 16; s.Hq *= 2)
        for (s.Lk = 400; s.Lk < 60000; s.Lk *= 2) {
            struct job job;
            size_t bytes;
            attn_op *op = op_of(&s);
            assert_int_equal(attn_op_set_threads(op, 1), ATTN_OK);
            struct plan p = plan_of(op, &s, NULL);
            assert_int_equal(attn_i_check_sizes(op, s.B, s.Lq, s.Lk, NULL, &job, NULL), ATTN_OK);
            assert_int_equal(attn_i_workspace(&job, &bytes), ATTN_OK);
            assert_true(bytes >= attn_i_plan_bytes(&p));
            attn_op_destroy(op);
        }
}

/* Random sizes, in which groups of many heads and many threads are not rare. */
static struct shape random_shape(struct rng *rng)
{
    int64_t G = rng_chance(rng, 0.5) ? rng_int(rng, 1, 8) : rng_int(rng, 9, 90);
    struct shape s = {
        .B = rng_int(rng, 1, 9),
        .Hk = rng_int(rng, 1, 4),
        .Lq = rng_chance(rng, 0.7) ? rng_int(rng, 1, 1000) : rng_int(rng, 1, 9000),
        .Lk = rng_int(rng, 0, 3000),
        .Dk = rng_chance(rng, 0.8) ? rng_int(rng, 1, 96) : rng_int(rng, 97, 1500),
        .causal = (int32_t)rng_int(rng, 0, 2),
        .engine = (int32_t)rng_int(rng, 0, 1),
    };
    s.Hq = s.Hk * G;
    s.Dv = rng_chance(rng, 0.5) ? s.Dk : rng_int(rng, 1, 96);
    return s;
}

static size_t workspace_of(const attn_op *op, const struct shape *s)
{
    size_t bytes;
    assert_int_equal(attn_workspace_bytes(op, s->B, s->Lq, s->Lk, NULL, &bytes), ATTN_OK);
    return bytes;
}

/* A run never takes more than its caller was told, nor does a smaller one. */
static void test_a_workspace_is_enough(void **state)
{
    static const int32_t isas[] = {ATTN_ISA_BASE, ATTN_ISA_AVX2, ATTN_ISA_ALL};
    (void)state;
    for (int n = 0; n < 6000; n++) {
        struct rng rng = rng_make((uint64_t)n);
        struct shape s = random_shape(&rng), less = s;
        attn_op *op = op_of(&s);
        assert_int_equal(attn_op_set_isa(op, isas[n % 3]), ATTN_OK);
        assert_int_equal(attn_op_set_threads(op, (int32_t)rng_int(&rng, 1, 256)), ATTN_OK);
        size_t bytes = workspace_of(op, &s);
        less.B = rng_int(&rng, 1, s.B);
        less.Lq = rng_int(&rng, 1, s.Lq);
        less.Lk = rng_int(&rng, 0, s.Lk);
        struct plan plan = plan_of(op, &s, NULL), smaller = plan_of(op, &less, NULL);
        if (attn_i_plan_bytes(&plan) > bytes || attn_i_plan_bytes(&smaller) > bytes ||
            workspace_of(op, &less) > bytes)
            fail_msg("row %d: %zu and %zu of %zu bytes", n, attn_i_plan_bytes(&plan),
                     attn_i_plan_bytes(&smaller), bytes);
        attn_op_destroy(op);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workspace_holds_the_parts),
        cmocka_unit_test(test_small_products_are_small),
        cmocka_unit_test(test_vector_tiles),
        cmocka_unit_test(test_rest_of_queries),
        cmocka_unit_test(test_tasks_for_many_cores),
        cmocka_unit_test(test_parts_of_keys),
        cmocka_unit_test(test_threads_worth_waking),
        cmocka_unit_test(test_a_workspace_is_enough),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
