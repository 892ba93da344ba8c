/* SPDX-License-Identifier: MIT */
/*
 * The conformance cases of ONNX's Attention operator: whatever lies in the
 * folder that ATTN_ONNX_DATA names (none: skip), read by shapes and attributes;
 * no case is known by its name. What a name means stands in the README there.
 *
 *     ATTN_ONNX_REQUIRE=1   the folder must be there, and every case be read
 *     ATTN_ONNX_ONLY=text   only cases with this in their name
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn.h"
#include "onnx_case.h"
#include "ref.h"

#include "mem.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run {
    struct onnx_case *c;
    const struct onnx_tensor *q, *k, *v, *mask, *past_k, *past_v, *lengths, *y, *scores;
    bool flat; /* 3-D tensors, (B, L, heads * D) */
    int64_t B, Hq, Hk, Lq, L_new, past, Lk, Dk, Dv;
    float *keys, *values, *out, *stage; /* keys, values joined, (B, Hk, Lk, D) */
    int mode;
    attn_op *op;
    attn_args *args;
};

static bool no(struct run *r, const char *what)
{
    if (r->c->error[0] == '\0') snprintf(r->c->error, sizeof r->c->error, "%s", what);
    return false;
}

/* ------------------------------------------------- what the case asks for */

static bool is_known(const char *name, const char *const *known)
{
    while (*known != NULL && strcmp(*known, name) != 0) known++;
    return *known != NULL;
}

/* Anything that this runner does not understand makes the case fail. */
static bool knows_everything(struct run *r)
{
    static const char *const attrs[] = {
        "opset", "is_causal", "kv_num_heads",          "q_num_heads",
        "scale", "softcap",   "qk_matmul_output_mode", "softmax_precision",
        NULL};
    static const char *const inputs[] = {
        "Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen", NULL};
    static const char *const outputs[] = {"Y", "present_key", "present_value", "qk_matmul_output",
                                          NULL};
    for (int n = 0; n < r->c->n_attrs; n++)
        if (!is_known(r->c->attrs[n].name, attrs)) return no(r, "unknown attribute");
    for (int n = 0; n < r->c->n_tensors; n++) {
        const struct onnx_tensor *t = &r->c->tensors[n];
        if (!is_known(t->name, t->output ? outputs : inputs)) return no(r, "unknown tensor");
    }
    return true;
}

/* An option that the case needs and the library lacks, or NULL. */
static const char *lacking_option(const struct run *r)
{
    (void)r; /* none at present */
    return NULL;
}

static bool is_float(const struct onnx_tensor *t)
{
    return t != NULL && (t->dtype == ONNX_F32 || t->dtype == ONNX_F16);
}

static bool find_tensors(struct run *r)
{
    r->q = onnx_find(r->c, "Q", false);
    r->k = onnx_find(r->c, "K", false);
    r->v = onnx_find(r->c, "V", false);
    r->mask = onnx_find(r->c, "attn_mask", false);
    r->past_k = onnx_find(r->c, "past_key", false);
    r->past_v = onnx_find(r->c, "past_value", false);
    r->lengths = onnx_find(r->c, "nonpad_kv_seqlen", false);
    r->y = onnx_find(r->c, "Y", true);
    r->scores = onnx_find(r->c, "qk_matmul_output", true);
    if (!is_float(r->q) || !is_float(r->k) || !is_float(r->v) || !is_float(r->y))
        return no(r, "Q, K, V or Y is missing or has no float type");
    if ((r->past_k == NULL) != (r->past_v == NULL)) return no(r, "one past without the other");
    if (r->past_k != NULL && (!is_float(r->past_k) || !is_float(r->past_v) ||
                              r->past_k->rank != 4 || r->past_v->rank != 4))
        return no(r, "the past's type or rank");
    if (r->past_k != NULL && r->lengths != NULL) return no(r, "a past and lengths together");
    if (r->lengths != NULL && r->lengths->dtype != ONNX_I64) return no(r, "the type of lengths");
    if (r->mask != NULL && !is_float(r->mask) && r->mask->dtype != ONNX_BOOL)
        return no(r, "the type of the mask");
    return true;
}

static bool find_sizes(struct run *r)
{
    if (r->q->rank != r->k->rank || r->q->rank != r->v->rank || r->q->rank < 3 || r->q->rank > 4)
        return no(r, "the ranks of Q, K and V");
    r->flat = r->q->rank == 3;
    int l = r->flat ? 1 : 2, last = r->q->rank - 1;
    r->Hq = r->flat ? (int64_t)onnx_number(r->c, "q_num_heads", 0) : r->q->dims[1];
    r->Hk = r->flat ? (int64_t)onnx_number(r->c, "kv_num_heads", 0) : r->k->dims[1];
    if (r->Hq < 1 || r->Hk < 1) return no(r, "3-D tensors without numbers of heads");
    r->B = r->q->dims[0];
    r->Lq = r->q->dims[l];
    r->L_new = r->k->dims[l];
    r->past = r->past_k != NULL ? r->past_k->dims[2] : 0;
    r->Lk = r->past + r->L_new;
    r->Dk = r->flat ? r->q->dims[last] / r->Hq : r->q->dims[last];
    r->Dv = r->flat ? r->v->dims[last] / r->Hk : r->v->dims[last];
    r->mode = (int)onnx_number(r->c, "qk_matmul_output_mode", 0);
    int precision = (int)onnx_number(r->c, "softmax_precision", 1); /* ours is float32 at least */
    if (precision != 1 && precision != 10 && precision != 11 && precision != 16)
        return no(r, "the softmax precision");
    return r->mode >= 0 && r->mode <= 3 ? true : no(r, "the output mode");
}

/* past and new along the length, as (B, Hk, Lk, D). */
static float *join(const struct run *r, const struct onnx_tensor *past,
                   const struct onnx_tensor *fresh, int64_t D)
{
    float *to = must_alloc((size_t)(r->B * r->Hk * r->Lk * D), sizeof *to);
    for (int64_t n = 0; n < r->B * r->Hk * r->Lk * D; n++) {
        int64_t d = n % D, j = n / D % r->Lk, h = n / D / r->Lk % r->Hk,
                b = n / D / r->Lk / r->Hk;
        int64_t i = j - r->past;
        if (i < 0)
            to[n] = past->f[((b * r->Hk + h) * r->past + j) * D + d];
        else if (r->flat)
            to[n] = fresh->f[((b * r->L_new + i) * r->Hk + h) * D + d];
        else
            to[n] = fresh->f[((b * r->Hk + h) * r->L_new + i) * D + d];
    }
    return to;
}

/* ------------------------------------------------------------- the library */

static attn_status set_op(struct run *r)
{
    attn_status st = attn_op_create(&r->op, r->Hq, r->Hk, r->Dk, r->Dv);
    if (st == ATTN_OK)
        st = attn_op_set_layout(r->op, r->flat ? ATTN_LAYOUT_BLHD : ATTN_LAYOUT_BHLD);
    if (st == ATTN_OK && onnx_has(r->c, "scale"))
        st = attn_op_set_scale(r->op, onnx_number(r->c, "scale", 0));
    if (st == ATTN_OK) st = attn_op_set_softcap(r->op, onnx_number(r->c, "softcap", 0));
    if (st == ATTN_OK && onnx_number(r->c, "is_causal", 0) != 0)
        st = attn_op_set_causal(r->op, ATTN_CAUSAL_TOP_LEFT);
    return st;
}

/* numpy's right-aligned broadcasting; a last extent shorter than Lk stays short. */
static attn_status set_mask(struct run *r)
{
    int64_t dims[4] = {1, 1, 1, 1};
    if (r->mask == NULL) return ATTN_OK;
    if (r->mask->rank > 4 || r->mask->rank < 1) return ATTN_EINVAL;
    for (int a = 0; a < r->mask->rank; a++) dims[4 - r->mask->rank + a] = r->mask->dims[a];
    return r->mask->dtype == ONNX_BOOL ? attn_args_set_mask_bool(r->args, r->mask->b, dims, NULL)
                                       : attn_args_set_mask_add(r->args, r->mask->f, dims, NULL);
}

static attn_status set_positions(struct run *r)
{
    int64_t pos[64];
    if (r->B > 64) return ATTN_EINVAL;
    for (int64_t b = 0; b < r->B; b++)
        pos[b] = r->lengths != NULL ? r->lengths->i64[b] - r->Lq : r->past;
    return attn_args_set_positions(r->args, r->B, pos);
}

static attn_status set_args(struct run *r)
{
    const int64_t k[4] = {r->Hk * r->Lk * r->Dk, r->Lk * r->Dk, r->Dk, 1};
    const int64_t v[4] = {r->Hk * r->Lk * r->Dv, r->Lk * r->Dv, r->Dv, 1};
    attn_status st = attn_args_create(&r->args);
    if (st == ATTN_OK) st = attn_args_set_strides(r->args, ATTN_K, k);
    if (st == ATTN_OK) st = attn_args_set_strides(r->args, ATTN_V, v);
    if (st == ATTN_OK) st = set_mask(r);
    if (st == ATTN_OK && r->lengths != NULL)
        st = attn_args_set_key_range(r->args, r->lengths->count, NULL, r->lengths->i64);
    if (st == ATTN_OK && (r->past > 0 || r->lengths != NULL)) st = set_positions(r);
    if (st == ATTN_OK && r->scores != NULL)
        st = attn_args_set_scores_out(r->args, r->mode, r->stage, 0);
    return st;
}

static attn_status run_case(struct run *r, float *out)
{
    return attn_run_args(r->op, r->B, r->Lq, r->Lk, r->q->f, r->keys, r->values, out, r->args);
}

/* ---------------------------------------------------------------- checking */

/* Rows of n numbers, relative to the largest finite one of the row. */
static bool rows_close(struct run *r, const char *name, const struct onnx_tensor *want,
                       const float *got, int64_t count, int64_t n, double rel)
{
    if (want->count != count || want->f == NULL) return no(r, "an output's shape or type");
    struct ref_margin m = {0};
    for (int64_t row = 0; row < count; row += n) {
        double size = 0;
        for (int64_t i = row; i < row + n; i++)
            if (isfinite(want->f[i])) size = fmax(size, fabs((double)want->f[i]));
        for (int64_t i = row; i < row + n; i++) {
            int64_t b = i / (count / r->B), j = i % n;
            bool beyond = r->lengths != NULL && j >= r->lengths->i64[b];
            if (name[0] == 'q' && r->mode < 2 && beyond) continue; /* ours says -inf there */
            ref_compare(&m, i, (double)want->f[i], rel * size, got[i]);
        }
    }
    if (m.bad == 0) return true;
    snprintf(r->c->error, sizeof r->c->error, "%s: %d of %d wrong; element %d is %.9g, not %.9g",
             name, (int)m.bad, (int)m.seen, (int)m.at, (double)m.got, m.want);
    return false;
}

static bool check_present(struct run *r, const char *name, const float *joined, int64_t D)
{
    const struct onnx_tensor *want = onnx_find(r->c, name, true);
    if (want == NULL) return true;
    return rows_close(r, name, want, joined, r->B * r->Hk * r->Lk * D, D, 0);
}

static bool check(struct run *r)
{
    int64_t n_out = r->B * r->Hq * r->Lq * r->Dv, n_scores = r->B * r->Hq * r->Lq * r->Lk;
    double rel = r->y->dtype == ONNX_F16 ? 3e-3 : 2e-6;
    if (!rows_close(r, "Y", r->y, r->out, n_out, r->Dv, rel)) return false;
    if (!check_present(r, "present_key", r->keys, r->Dk)) return false;
    if (!check_present(r, "present_value", r->values, r->Dv)) return false;
    return r->scores == NULL || rows_close(r, "qk", r->scores, r->stage, n_scores, r->Lk, rel);
}

/* With lengths, off = n - Lq is also what the other alignment means by itself. */
static bool check_other_alignment(struct run *r)
{
    if (r->lengths == NULL || onnx_number(r->c, "is_causal", 0) == 0) return true;
    int64_t n = r->B * r->Hq * r->Lq * r->Dv;
    float *out = must_alloc((size_t)n, sizeof *out);
    attn_status st = attn_op_set_causal(r->op, ATTN_CAUSAL_BOTTOM_RIGHT);
    if (st == ATTN_OK) st = attn_args_set_positions(r->args, 0, NULL);
    if (st == ATTN_OK) st = run_case(r, out);
    bool same = st == ATTN_OK && memcmp(out, r->out, (size_t)n * sizeof *out) == 0;
    free(out);
    return same ? true : no(r, "bottom-right alignment is not off = n - Lq");
}

static bool attend_and_check(struct run *r)
{
    r->keys = join(r, r->past_k, r->k, r->Dk);
    r->values = join(r, r->past_v, r->v, r->Dv);
    r->out = must_alloc((size_t)(r->B * r->Hq * r->Lq * r->Dv), sizeof(float));
    r->stage = must_alloc((size_t)(r->B * r->Hq * r->Lq * r->Lk), sizeof(float));
    attn_status st = set_op(r);
    if (st == ATTN_OK) st = set_args(r);
    if (st == ATTN_OK) st = run_case(r, r->out);
    bool fine =
        st == ATTN_OK ? check(r) && check_other_alignment(r) : no(r, attn_status_string(st));
    attn_args_destroy(r->args);
    attn_op_destroy(r->op);
    free(r->keys);
    free(r->values);
    free(r->out);
    free(r->stage);
    return fine;
}

struct tally {
    int held, read, passed, lacking;
};

static void one_case(const char *folder, const char *name, struct tally *t)
{
    struct onnx_case *c = must_alloc(1, sizeof *c);
    struct run r = {.c = c};
    const char *option = NULL;
    t->held++;
    bool readable =
        onnx_read(c, folder) && knows_everything(&r) && find_tensors(&r) && find_sizes(&r);
    t->read += readable;
    if (readable) option = lacking_option(&r);
    if (option != NULL) {
        print_message("%s needs %s\n", name, option);
        t->lacking++;
    } else if (readable && attend_and_check(&r)) {
        t->passed++;
    } else {
        print_error("%s: %s\n", name, c->error);
    }
    onnx_free(c);
    free(c);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_case(const struct dirent *entry)
{
    const char *only = getenv("ATTN_ONNX_ONLY");
    bool folder =
        entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN || entry->d_type == DT_LNK;
    return folder && strchr(entry->d_name, '.') == NULL &&
           (only == NULL || strstr(entry->d_name, only) != NULL);
}

static void test_cases(void **state)
{
    const char *data = getenv("ATTN_ONNX_DATA"), *require = getenv("ATTN_ONNX_REQUIRE");
    bool required = require != NULL && strcmp(require, "1") == 0;
    struct tally t = {0};
    struct dirent **entries = NULL;
    (void)state;
    if (data == NULL || *data == '\0') data = ATTN_ONNX_DEFAULT;
    if (strcmp(data, "none") == 0) {
        print_message("onnx: skipped, ATTN_ONNX_DATA says none\n");
        skip();
    }
    int n = scandir(data, &entries, is_case, by_name);
    if (n < 0) {
        print_message("onnx: skipped, there is no folder %s\n", data);
        if (required) fail_msg("ATTN_ONNX_REQUIRE is 1 and there is no folder %s", data);
        skip();
    }
    for (int i = 0; i < n; i++) {
        char folder[1024];
        snprintf(folder, sizeof folder, "%s/%s", data, entries[i]->d_name);
        one_case(folder, entries[i]->d_name, &t);
        free(entries[i]);
    }
    free(entries);
    print_message(
        "onnx: %d cases held, %d read, %d passed, %d need an option that is not there\n", t.held,
        t.read, t.passed, t.lacking);
    assert_int_equal(t.read, t.held);
    assert_int_equal(t.passed + t.lacking, t.read);
    if (required) assert_true(t.held > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases)};
    return cmocka_run_group_tests_name("onnx", tests, NULL, NULL);
}
