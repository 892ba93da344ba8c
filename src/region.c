/* SPDX-License-Identifier: MIT */
/* Extents, strides and overlaps of tensors in memory. */
#include "region.h"

attn_status attn_i_region_extent(struct region *r, struct text *why)
{
    r->lo = 0;
    r->hi = 0;
    for (int a = 0; a < 4; a++)
        if (r->len[a] == 0) return ATTN_OK; /* no element */
    for (int a = 0; a < 4; a++) {
        int64_t reach, *end = r->stride[a] < 0 ? &r->lo : &r->hi;
        if (r->len[a] > 1 && (__builtin_mul_overflow(r->len[a] - 1, r->stride[a], &reach) ||
                              __builtin_add_overflow(*end, reach, end)))
            FAIL(ATTN_EOVERFLOW, "the strides of %s reach beyond any memory", r->name);
    }
    int64_t most = PTRDIFF_MAX / (int64_t)sizeof(float) / 2;
    if (r->hi >= most || r->lo <= -most)
        FAIL(ATTN_EOVERFLOW, "the strides of %s reach beyond any memory", r->name);
    r->hi++;
    return ATTN_OK;
}

static bool hulls_meet(const struct region *a, const struct region *b)
{
    uintptr_t pa = (uintptr_t)a->at, pb = (uintptr_t)b->at;
    uintptr_t a0 = pa + (uintptr_t)(a->lo * (int64_t)a->element);
    uintptr_t a1 = pa + (uintptr_t)(a->hi * (int64_t)a->element);
    uintptr_t b0 = pb + (uintptr_t)(b->lo * (int64_t)b->element);
    uintptr_t b1 = pb + (uintptr_t)(b->hi * (int64_t)b->element);
    return a->at && b->at && a->lo < a->hi && b->lo < b->hi && a0 < b1 && b0 < a1;
}

/* The same elements, counted from the lowest one by strides that are not negative. */
static struct region upward(const struct region *r)
{
    struct region up = *r;
    up.at += r->lo * (int64_t)r->element;
    for (int a = 0; a < 4; a++)
        if (up.stride[a] < 0) up.stride[a] = -up.stride[a];
    return up;
}

/* Elements that r touches of every `period`, from its pointer on; -1 if it is not periodic. */
static int64_t inner_extent(const struct region *r, int64_t period)
{
    int64_t extent = 1;
    for (int a = 0; a < 4; a++) {
        if (r->len[a] <= 1 || r->stride[a] % period == 0) continue;
        if (r->stride[a] > period) return -1;
        extent += (r->len[a] - 1) * r->stride[a];
    }
    return extent;
}

/* Seen modulo a stride of a, do the two lie side by side? */
static bool interleave_on(const struct region *a, const struct region *b)
{
    intptr_t bytes = (intptr_t)((uintptr_t)b->at - (uintptr_t)a->at);
    for (int axis = 0; axis < 3; axis++) {
        int64_t period = a->stride[axis];
        if (a->len[axis] <= 1 || period <= 0 || bytes % (intptr_t)sizeof(float)) continue;
        int64_t ea = inner_extent(a, period), eb = inner_extent(b, period);
        int64_t shift = bytes / (intptr_t)sizeof(float) % period;
        if (shift < 0) shift += period;
        if (ea >= 0 && eb >= 0 && shift >= ea && shift + eb <= period) return true;
    }
    return false;
}

/* Two tensors that interleave, like q and out in one packed (B, L, 4, H, D) buffer, have hulls
   that meet but no element in common. */
static bool interleave(const struct region *a, const struct region *b)
{
    struct region ua = upward(a), ub = upward(b);
    return interleave_on(&ua, &ub) || interleave_on(&ub, &ua);
}

bool attn_i_overlap(const struct region *a, const struct region *b)
{
    bool floats = a->element == sizeof(float) && b->element == sizeof(float);
    return hulls_meet(a, b) && !(floats && interleave(a, b));
}

/* Do the axes nest, each stride stepping over all that lies inside? */
static bool overlaps_itself(const struct region *r)
{
    bool done[4] = {false};
    int64_t extent = 1;
    for (int n = 0; n < 4; n++) {
        int next = -1;
        for (int a = 0; a < 4; a++)
            if (!done[a] && (next < 0 || r->stride[a] < r->stride[next] ||
                             (r->stride[a] == r->stride[next] && r->len[a] < r->len[next])))
                next = a;
        done[next] = true;
        if (r->len[next] <= 1) continue;
        if (r->stride[next] < extent) return true;
        extent += (r->len[next] - 1) * r->stride[next];
    }
    return false;
}

attn_status attn_i_region_check(struct region *r, bool output, struct text *why)
{
    if (r->len[0] > 0 && r->len[2] > 0) {
        if (!r->at) FAIL(ATTN_EINVAL, "%s is NULL", r->name);
        if ((uintptr_t)r->at % sizeof(float))
            FAIL(ATTN_EINVAL, "%s is not aligned to 4 bytes", r->name);
    }
    if (r->len[3] > 1 && r->stride[3] != 1)
        FAIL(ATTN_EINVAL, "the inner stride of %s is %lld and must be 1", r->name,
             LL(r->stride[3]));
    if (r->len[2] > 1 && r->stride[2] < r->len[3])
        FAIL(ATTN_EINVAL, "the L stride of %s is %lld and must be at least D = %lld", r->name,
             LL(r->stride[2]), LL(r->len[3]));
    if (r->len[2] > 1 && r->stride[2] > INT32_MAX)
        FAIL(ATTN_EOVERFLOW, "the L stride of %s, %lld, exceeds BLAS's integer", r->name,
             LL(r->stride[2]));
    r->stride[3] = 1;
    if (r->len[2] <= 1) r->stride[2] = r->len[3];
    for (int a = 0; a < 2; a++)
        if (r->len[a] <= 1) r->stride[a] = 0;
    TRY(attn_i_region_extent(r, why));
    if (output && r->hi > 0 && overlaps_itself(r))
        FAIL(ATTN_EINVAL, "%s overlaps itself: its strides do not nest", r->name);
    return ATTN_OK;
}
