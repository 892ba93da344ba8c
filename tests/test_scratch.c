/* SPDX-License-Identifier: MIT */
/* Scratch memory from inside: how it is carved, kept and given back, and sizes beyond any memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "whitebox.h"

#include <stdlib.h>
#include <string.h>

/* Arrays are aligned, in order, without overlap, and take what counting said. */
static void test_carving_counts_as_it_cuts(void **state)
{
    struct rng rng = rng_make(3);
    (void)state;
    for (int round = 0; round < 50; round++) {
        struct carver count = {0}, cut = {.base = (char *)(uintptr_t)(1 << 20)};
        size_t end = 0;
        for (int n = 0; n < 20; n++) {
            int64_t items = rng_int(&rng, 0, 70);
            size_t element = (size_t)rng_int(&rng, 1, 9), bytes = (size_t)items * element;
            assert_null(attn_i_carve(&count, items, element));
            char *at = attn_i_carve(&cut, items, element);
            assert_true((uintptr_t)at % WORKSPACE_ALIGN == 0);
            assert_int_equal(at - cut.base, end);
            end += (bytes + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
            assert_true(count.used == end && cut.used == end);
        }
    }
}

/* What does not fit any memory stays at WORKSPACE_TOO_LARGE, whatever comes after it. */
static void test_carving_sticks_when_too_large(void **state)
{
    static const struct {
        int64_t count;
        size_t element;
    } large[] = {{-1, 1},
                 {INT64_MAX, 8},
                 {INT64_MAX, 2},
                 {(int64_t)(WORKSPACE_TOO_LARGE / 2) + 1, 1},
                 {1, SIZE_MAX}};
    (void)state;
    for (size_t n = 0; n < sizeof large / sizeof *large; n++) {
        struct carver c = {.base = (char *)(uintptr_t)(1 << 20)};
        assert_non_null(attn_i_carve(&c, 5, 4));
        assert_null(attn_i_carve(&c, large[n].count, large[n].element));
        assert_true(c.used == WORKSPACE_TOO_LARGE);
        assert_null(attn_i_carve(&c, 1, 1));
        assert_true(c.used == WORKSPACE_TOO_LARGE);
    }
    struct carver c = {0}; /* a sum of what fits alone */
    attn_i_carve(&c, (int64_t)(WORKSPACE_TOO_LARGE / 2), 1);
    assert_true(c.used == WORKSPACE_TOO_LARGE / 2 + 1); /* rounded up */
    attn_i_carve(&c, (int64_t)(WORKSPACE_TOO_LARGE / 2), 1);
    assert_true(c.used == WORKSPACE_TOO_LARGE);
}

static void test_align(void **state)
{
    (void)state;
    for (uintptr_t at = 640; at <= 704; at++)
        assert_int_equal((uintptr_t)attn_i_align((void *)at), at == 640 ? 640 : 704);
}

static int64_t length(const struct scratch_list *list)
{
    int64_t n = 0;
    for (const struct scratch *b = list->head; b; b = b->next) n++;
    return n;
}

/* As many blocks as were in use at once; an idle one that is too small grows. */
static void test_blocks_are_kept(void **state)
{
    struct scratch_list list = {NULL};
    (void)state;
    struct scratch *a = attn_i_scratch_take(&list, 100), *b = attn_i_scratch_take(&list, 300);
    assert_true(a && b && a != b && a->bytes >= 100 && b->bytes >= 300);
    memset(a->memory, 1, 100);
    memset(b->memory, 2, 300);
    assert_int_equal(length(&list), 2);
    attn_i_scratch_put(a);
    attn_i_scratch_put(b);
    assert_ptr_equal(attn_i_scratch_take(&list, 200), b); /* large enough as it is */
    const void *memory = b->memory;
    assert_ptr_equal(attn_i_scratch_take(&list, 400), a); /* grew */
    assert_true(a->bytes >= 400 && b->memory == memory);
    memset(a->memory, 3, 400);
    attn_i_scratch_put(b);
    assert_ptr_equal(attn_i_scratch_take(&list, 300), b);
    assert_true(b->memory == memory && length(&list) == 2);
    attn_i_scratch_destroy(&list);
}

/* Blocks in use are left alone; the others work again afterwards. */
static void test_trim(void **state)
{
    struct scratch_list list = {NULL};
    (void)state;
    struct scratch *a = attn_i_scratch_take(&list, 100), *b = attn_i_scratch_take(&list, 100);
    attn_i_scratch_put(b);
    attn_i_scratch_trim(&list);
    assert_true(a->memory && a->bytes >= 100 && !b->memory && b->bytes == 0);
    assert_ptr_equal(attn_i_scratch_take(&list, 50), b);
    memset(b->memory, 1, 50);
    attn_i_scratch_put(a);
    attn_i_scratch_put(b);
    attn_i_scratch_destroy(&list);
}

/* Partial results of 2^40 parts: a status and a sentence, from everyone who is asked. */
static void test_plan_beyond_any_memory(void **state)
{
    const struct tiles tiles = {.tile_keys = 1, .part_keys = 1, .path = PATH_DECODE};
    const int64_t Lk = (int64_t)1 << 40;
    const float *in = (const float *)(uintptr_t)4096; /* nobody looks behind them */
    float *out = (float *)((uintptr_t)1 << 62);
    attn_op *op;
    char text[200];
    size_t bytes;
    (void)state;
    assert_int_equal(attn_op_create(&op, 4, 1, 1, 1 << 18), ATTN_OK);
    attn_i_op_test_tiles(op, tiles);
    assert_int_equal(attn_workspace_bytes(op, 1, 2, Lk, NULL, &bytes), ATTN_EOVERFLOW);
    assert_int_equal(attn_run(op, 1, 2, Lk, in, in, in, out), ATTN_EOVERFLOW);
    assert_int_equal(attn_explain(op, 1, 2, Lk, in, in, in, out, NULL, text, sizeof text, NULL),
                     ATTN_EOVERFLOW);
    assert_non_null(strstr(text, "scratch memory"));
    attn_op_destroy(op);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_carving_counts_as_it_cuts),
        cmocka_unit_test(test_carving_sticks_when_too_large),
        cmocka_unit_test(test_align),
        cmocka_unit_test(test_blocks_are_kept),
        cmocka_unit_test(test_trim),
        cmocka_unit_test(test_plan_beyond_any_memory),
    };
    return cmocka_run_group_tests_name("scratch", tests, NULL, NULL);
}
