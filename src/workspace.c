/* SPDX-License-Identifier: MIT */
/* Scratch memory: a lock-free list of blocks that an op keeps, and the carving of a block. */
#include "internal.h"

#include <stdlib.h>

static bool take(struct scratch *block)
{
    int32_t idle = 0;
    return atomic_load_explicit(&block->busy, memory_order_relaxed) == 0 &&
           atomic_compare_exchange_strong_explicit(&block->busy, &idle, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

static struct scratch *take_idle(struct scratch_list *list, size_t bytes)
{
    struct scratch *b = atomic_load_explicit(&list->head, memory_order_acquire);
    for (; b; b = b->next)
        if (atomic_load_explicit(&b->bytes, memory_order_relaxed) >= bytes && take(b)) {
            if (b->bytes >= bytes) /* a trim may have come between */
                return b;
            attn_i_scratch_put(b);
        }
    return NULL;
}

/* Nodes are never unlinked before the op goes, so there is no ABA to fear. */
static struct scratch *add_node(struct scratch_list *list)
{
    struct scratch *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    atomic_init(&b->busy, 1);
    atomic_init(&b->bytes, 0);
    b->next = atomic_load_explicit(&list->head, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&list->head, &b->next, b, memory_order_release,
                                                  memory_order_relaxed))
        ;
    return b;
}

struct scratch *attn_i_scratch_take(struct scratch_list *list, size_t bytes)
{
    struct scratch *b = take_idle(list, bytes);
    if (b) return b;
    b = take_idle(list, 0); /* an idle one that is too small grows */
    if (!b) b = add_node(list);
    if (!b || b->bytes >= bytes) return b;
    free(b->memory);
    b->memory = malloc(bytes);
    b->bytes = b->memory ? bytes : 0;
    if (b->memory) return b;
    attn_i_scratch_put(b);
    return NULL;
}

void attn_i_scratch_put(struct scratch *block)
{
    atomic_store_explicit(&block->busy, 0, memory_order_release);
}

void attn_i_scratch_trim(struct scratch_list *list)
{
    struct scratch *b = atomic_load_explicit(&list->head, memory_order_acquire);
    for (; b; b = b->next)
        if (take(b)) {
            free(b->memory);
            b->memory = NULL;
            b->bytes = 0;
            attn_i_scratch_put(b);
        }
}

void attn_i_scratch_destroy(struct scratch_list *list)
{
    struct scratch *b = atomic_load_explicit(&list->head, memory_order_acquire);
    while (b) {
        struct scratch *next = b->next;
        free(b->memory);
        free(b);
        b = next;
    }
}

void *attn_i_align(void *p)
{
    uintptr_t rest = (uintptr_t)p % WORKSPACE_ALIGN;
    return (char *)p + (rest ? WORKSPACE_ALIGN - rest : 0);
}

void *attn_i_carve(struct carver *c, int64_t count, size_t element)
{
    size_t bytes, used = c->used;
    if (count < 0 || __builtin_mul_overflow((size_t)count, element, &bytes) ||
        bytes > WORKSPACE_TOO_LARGE / 2 ||
        used >= WORKSPACE_TOO_LARGE - bytes - WORKSPACE_ALIGN) {
        c->used = WORKSPACE_TOO_LARGE;
        return NULL;
    }
    c->used = used + (bytes + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
    return c->base ? c->base + used : NULL;
}
