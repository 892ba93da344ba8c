/* SPDX-License-Identifier: MIT */
/*
 * Elements that lie more than 2^31 and 2^32 elements apart, in every tensor and
 * along every axis: mappings of up to a terabyte of which only the pages with
 * elements exist. A count or a product kept in 32 bits reads or writes
 * elsewhere.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void ok(attn_status status) { assert_int_equal(status, ATTN_OK); }

/* ------------------------------------------------------------ far tensors */

/* Zeros that cost nothing until they are touched. */
struct sparse {
    void *p;
    size_t bytes;
};

static struct sparse sparse_make(int64_t count, size_t element)
{
    struct sparse s = {.bytes = (size_t)count * element};
    if (getenv("ATTN_TEST_EMULATOR") != NULL) skip(); /* qemu-user keeps a record of each page */
    s.p = mmap(NULL, s.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
               -1, 0);
    if (s.p == MAP_FAILED) {
        print_message("no mapping of %zu bytes here\n", s.bytes);
        skip();
    }
    return s;
}

static void sparse_free(struct sparse *s) { munmap(s->p, s->bytes); }

/* A tensor of dims (B, H, L, D), packed in near and by other strides in far. */
struct pair {
    int64_t dims[4], strides[4];
    float *near, *far;
    struct sparse memory;
};

static int64_t count(const int64_t dims[4]) { return dims[0] * dims[1] * dims[2] * dims[3]; }

/* Packed strides in the order of the axes, but the one axis, which steps over all the others. */
static void strides_with(const int64_t dims[4], int axis, int64_t stride, int64_t strides[4])
{
    int64_t step = 1;
    for (int a = 3; a >= 0; a--) {
        strides[a] = a == axis ? stride : step;
        step *= a == axis ? 1 : dims[a];
    }
}

static int64_t at(const int64_t dims[4], const int64_t strides[4], int64_t n)
{
    int64_t where = 0;
    for (int a = 3; a >= 0; n /= dims[a--]) where += n % dims[a] * strides[a];
    return where;
}

static struct pair pair_make(uint64_t seed, const int64_t dims[4], int axis, int64_t stride)
{
    struct pair p;
    struct rng rng = rng_make(seed);
    int64_t reach = 1, lowest = 0;
    memcpy(p.dims, dims, sizeof p.dims);
    strides_with(dims, axis, stride, p.strides);
    for (int a = 0; a < 4; a++) {
        int64_t far = (dims[a] - 1) * p.strides[a];
        reach += far < 0 ? -far : far;
        lowest += far < 0 ? far : 0;
    }
    p.near = must_alloc((size_t)count(dims), sizeof(float));
    rng_normals(&rng, count(dims), p.near, 1);
    p.memory = sparse_make(reach, sizeof(float));
    p.far = (float *)p.memory.p - lowest;
    for (int64_t n = 0; n < count(dims); n++) p.far[at(dims, p.strides, n)] = p.near[n];
    return p;
}

static void pair_free(struct pair *p)
{
    free(p->near);
    sparse_free(&p->memory);
}

/* ---------------------------------------------------------------- strides */

enum { B = 2, Hq = 4, Hk = 2, D = 8 };

struct shape {
    int64_t Lq, Lk; /* several tiles; few queries: the decode path */
    int axis;
    int64_t stride, of_out;
};

/* All four tensors at once, and out may not go backwards. Bits must not change. */
static void far_run(const struct shape *s)
{
    const int64_t dims[4][4] = {
        {B, Hq, s->Lq, D}, {B, Hk, s->Lk, D}, {B, Hk, s->Lk, D}, {B, Hq, s->Lq, D}};
    struct pair p[4];
    attn_op *op;
    attn_args *args;
    ok(attn_op_create(&op, Hq, Hk, D, D));
    ok(attn_args_create(&args));
    for (int slot = ATTN_Q; slot <= ATTN_OUT; slot++) {
        p[slot] = pair_make((uint64_t)slot, dims[slot], s->axis,
                            slot == ATTN_OUT ? s->of_out : s->stride);
        ok(attn_args_set_strides(args, slot, p[slot].strides));
    }
    ok(attn_run(op, B, s->Lq, s->Lk, p[0].near, p[1].near, p[2].near, p[3].near));
    ok(attn_run_args(op, B, s->Lq, s->Lk, p[0].far, p[1].far, p[2].far, p[3].far, args));
    for (int64_t n = 0; n < count(dims[3]); n++) {
        float got = p[3].far[at(dims[3], p[3].strides, n)];
        if (memcmp(&got, &p[3].near[n], sizeof got) != 0)
            fail_msg("axis %d, stride %lld, Lq %d: out[%d] is %g and should be %g", s->axis,
                     (long long)s->stride, (int)s->Lq, (int)n, (double)got, (double)p[3].near[n]);
    }
    for (int slot = 0; slot < 4; slot++) pair_free(&p[slot]);
    attn_args_destroy(args);
    attn_op_destroy(op);
}

static void test_far_strides(void **state)
{
    static const int64_t beyond_31 = ((int64_t)1 << 31) + 36, beyond_32 = ((int64_t)1 << 32) + 36;
    (void)state;
    for (int64_t Lq = 2; Lq <= 100; Lq += 98) {
        for (int axis = 0; axis < 2; axis++) {
            far_run(&(struct shape){Lq, 700, axis, beyond_31, beyond_31});
            far_run(&(struct shape){Lq, 700, axis, beyond_32, beyond_32});
            far_run(&(struct shape){Lq, 700, axis, -beyond_32, beyond_32});
        }
        far_run(&(struct shape){Lq, 700, 2, INT32_MAX, INT32_MAX}); /* the most that BLAS takes */
    }
}

/* ------------------------------------------------------------------ masks */

/* The same mask packed and with one axis far: of the boolean or of the additive one. */
static void far_mask(int axis, int64_t stride, bool additive)
{
    enum { Lq = 40, Lk = 50 };
    const int64_t dims[4] = {B, Hq, Lq, Lk}, dims_q[4] = {B, Hq, Lq, D},
                  dims_k[4] = {B, Hk, Lk, D};
    int64_t strides[4];
    attn_op *op;
    attn_args *args;
    struct pair mask = pair_make(9, dims, axis, additive ? stride : 0), q, k;
    struct sparse bytes;
    float *out[2];
    q = pair_make(1, dims_q, 3, 1);
    k = pair_make(2, dims_k, 3, 1);
    strides_with(dims, axis, stride, strides);
    bytes = sparse_make(at(dims, strides, count(dims) - 1) + 1, 1);
    uint8_t *packed = must_alloc((size_t)count(dims), 1), *far = bytes.p;
    for (int64_t n = 0; n < count(dims); n++) {
        packed[n] = mask.near[n] > -0.5f;
        if (!additive) far[at(dims, strides, n)] = packed[n];
    }
    ok(attn_op_create(&op, Hq, Hk, D, D));
    for (int n = 0; n < 2; n++) {
        out[n] = must_alloc((size_t)count(dims_q), sizeof(float));
        ok(attn_args_create(&args));
        if (additive)
            ok(attn_args_set_mask_add(args, n ? mask.far : mask.near, dims, n ? strides : NULL));
        else
            ok(attn_args_set_mask_bool(args, n ? far : packed, dims, n ? strides : NULL));
        ok(attn_run_args(op, B, Lq, Lk, q.near, k.near, k.near, out[n], args));
        attn_args_destroy(args);
    }
    assert_true(same_bits("far mask", out[0], out[1], count(dims_q)));
    attn_op_destroy(op);
    free(out[0]);
    free(out[1]);
    free(packed);
    sparse_free(&bytes);
    pair_free(&mask);
    pair_free(&q);
    pair_free(&k);
}

static void test_far_masks(void **state)
{
    static const int64_t beyond_31 = ((int64_t)1 << 31) + 36, beyond_32 = ((int64_t)1 << 32) + 36;
    (void)state;
    for (int axis = 0; axis < 4; axis++)
        for (int additive = 0; additive < 2; additive++) {
            far_mask(axis, beyond_31, additive);
            far_mask(axis, beyond_32, additive);
        }
}

/* ------------------------------------------------------------------- keys */

/* 2^32 keys and some, of which only the last 20 exist: with their segment ids and their mask. The
   cut depends on the number of keys, so that sums may be made in another order: 20 products of
   numbers around 1, each rounded a few times, are within 20 u of a sum of weights that is 1. */
static void far_keys(int64_t Lq)
{
    const int64_t n = 20, first = ((int64_t)1 << 32) + 4, all = first + n;
    const int64_t dims[4] = {1, 2, Lq, 4}, mask_dims[2][4] = {{1, 1, 1, n}, {1, 1, 1, all}};
    struct pair q = pair_make(1, dims, 3, 1);
    struct sparse k = sparse_make(all * 4, sizeof(float)),
                  v = sparse_make(all * 4, sizeof(float)),
                  ids = sparse_make(all, sizeof(int32_t)), mask = sparse_make(all, 1);
    struct rng rng = rng_make(5);
    float *k_at = (float *)k.p + first * 4, *v_at = (float *)v.p + first * 4, *out[2], lse[2][80];
    int32_t *ids_at = (int32_t *)ids.p + first, ids_q[40] = {0};
    uint8_t *mask_at = (uint8_t *)mask.p + first;
    rng_normals(&rng, n * 4, k_at, 1);
    rng_normals(&rng, n * 4, v_at, 1);
    for (int64_t j = 0; j < n; j++) {
        ids_at[j] = (int32_t)(j % 3 == 0);
        mask_at[j] = j % 5 != 1;
    }
    for (int far = 0; far < 2; far++) {
        attn_op *op;
        attn_args *args;
        int64_t begin = far ? first : 0, end = begin + n, Lk_all = far ? all : n;
        out[far] = must_alloc((size_t)count(dims), sizeof(float));
        ok(attn_op_create(&op, 2, 1, 4, 4));
        ok(attn_op_set_causal(op, ATTN_CAUSAL_BOTTOM_RIGHT));
        ok(attn_args_create(&args));
        ok(attn_args_set_key_range(args, 1, &begin, &end));
        ok(attn_args_set_segments(args, ids_q, far ? ids.p : ids_at));
        ok(attn_args_set_mask_bool(args, far ? mask.p : mask_at, mask_dims[far], NULL));
        ok(attn_args_set_lse(args, lse[far]));
        ok(attn_run_args(op, 1, Lq, Lk_all, q.near, far ? k.p : k_at, far ? v.p : v_at, out[far],
                         args));
        attn_args_destroy(args);
        attn_op_destroy(op);
    }
    for (int64_t i = 0; i < count(dims); i++)
        assert_true(fabsf(out[0][i] - out[1][i]) <= 20 * 0x1p-24f * 4);
    for (int64_t i = 0; i < 2 * Lq; i++)
        assert_true(lse[0][i] == lse[1][i] || fabsf(lse[0][i] - lse[1][i]) <= 20 * 0x1p-24f * 4);
    free(out[0]);
    free(out[1]);
    pair_free(&q);
    sparse_free(&k);
    sparse_free(&v);
    sparse_free(&ids);
    sparse_free(&mask);
}

static void test_far_keys(void **state)
{
    (void)state;
    far_keys(2);
    far_keys(40);
}

/* ---------------------------------------------------------- packed tokens */

/* Two sequences in buffers of 2^32 tokens and some: offsets, queries, keys, outputs and lse. */
static void test_far_tokens(void **state)
{
    enum { Q = 40, K = 50, SIZE = 4 };
    const int64_t far_q = ((int64_t)1 << 32) + 5, far_k = ((int64_t)1 << 32) + 9;
    const int64_t near_offsets[2][3] = {{0, 3, 3 + Q}, {0, 20, 20 + K}};
    int64_t far_offsets[2][3], tokens[2] = {far_q + 3 + Q, far_k + 20 + K};
    struct sparse q = sparse_make(tokens[0] * SIZE, sizeof(float)),
                  k = sparse_make(tokens[1] * SIZE, sizeof(float)),
                  out = sparse_make(tokens[0] * SIZE, sizeof(float)),
                  lse = sparse_make(tokens[0], sizeof(float));
    float *q_at = (float *)q.p + far_q * SIZE, *k_at = (float *)k.p + far_k * SIZE;
    float near_out[(3 + Q) * SIZE], near_lse[3 + Q];
    struct rng rng = rng_make(6);
    (void)state;
    rng_normals(&rng, (3 + Q) * SIZE, q_at, 1);
    rng_normals(&rng, (20 + K) * SIZE, k_at, 1);
    for (int n = 0; n < 3; n++) {
        far_offsets[0][n] = near_offsets[0][n] + far_q;
        far_offsets[1][n] = near_offsets[1][n] + far_k;
    }
    for (int far = 0; far < 2; far++) {
        attn_op *op;
        attn_args *args;
        ok(attn_op_create(&op, 1, 1, SIZE, SIZE));
        ok(attn_args_create(&args));
        ok(attn_args_set_offsets_q(args, far ? far_offsets[0] : near_offsets[0], ATTN_I64, 2));
        ok(attn_args_set_offsets_k(args, far ? far_offsets[1] : near_offsets[1], ATTN_I64, 2));
        ok(attn_args_set_lse(args, far ? lse.p : near_lse));
        ok(attn_run_args(op, 2, far ? tokens[0] : 3 + Q, far ? tokens[1] : 20 + K,
                         far ? q.p : q_at, far ? k.p : k_at, far ? k.p : k_at,
                         far ? out.p : near_out, args));
        attn_args_destroy(args);
        attn_op_destroy(op);
    }
    assert_true(same_bits("out", near_out, (float *)out.p + far_q * SIZE, (3 + Q) * SIZE));
    assert_true(same_bits("lse", near_lse, (float *)lse.p + far_q, 3 + Q));
    sparse_free(&q);
    sparse_free(&k);
    sparse_free(&out);
    sparse_free(&lse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_far_strides),
        cmocka_unit_test(test_far_masks),
        cmocka_unit_test(test_far_keys),
        cmocka_unit_test(test_far_tokens),
    };
    return cmocka_run_group_tests_name("far", tests, NULL, NULL);
}
