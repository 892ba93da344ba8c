/* SPDX-License-Identifier: MIT */
/* Linked with a BLAS that is no good (fake_blas.c): no op is made, and the words say why. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn.h"

#include <stdlib.h>
#include <string.h>

static void test_no_op_is_made(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) { /* the same answer ever after */
        attn_op *op = (attn_op *)&op;
        assert_int_equal(attn_op_create(&op, 1, 1, 8, 8), ATTN_EBLAS);
        assert_null(op);
    }
}

static void test_the_words_say_why(void **state)
{
    char text[1000];
    (void)state;
    assert_int_equal(attn_blas_info(text, sizeof text, NULL), ATTN_EBLAS);
    print_message("%s\n", text);
    assert_non_null(strstr(text, "unusable"));
    assert_non_null(strstr(text, EXPECTED));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_op_is_made),
        cmocka_unit_test(test_the_words_say_why),
    };
    return cmocka_run_group_tests_name("refused", tests, NULL, NULL);
}
