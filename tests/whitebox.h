/* SPDX-License-Identifier: MIT */
/* For tests that see the inside of the library: forcing tile sizes. */
#ifndef ATTN_TEST_WHITEBOX_H
#define ATTN_TEST_WHITEBOX_H

#include "internal.h"
#include "rig.h"

/* A hook of the rig; context is a struct tiles. */
static inline void force_tiles(attn_op *op, const void *context)
{
    attn_i_op_test_tiles(op, *(const struct tiles *)context);
}

static inline void rig_tiles(struct rig *g, const struct tiles *tiles)
{
    rig_reset(g);
    g->hook = force_tiles;
    g->hook_context = tiles;
}

/* Every tile size of S in one: strips, tiles, blocks and parts. */
#define TILES_OF(S, PATH)                                                            \
    {                                                                                \
        .strip_rows = (S), .tile_keys = (S), .block_queries = (S), .part_keys = (S), \
        .path = (PATH)                                                               \
    }

static inline void print_tiles(const struct tiles *t)
{
    print_error("  tiles: strip_rows %d tile_keys %d block_queries %d part_keys %d path %d\n",
                (int)t->strip_rows, (int)t->tile_keys, (int)t->block_queries, (int)t->part_keys,
                (int)t->path);
}

/* Like rig_expect(), for each ISA and each of these tile sizes. */
static inline void expect_on(struct rig *g, const struct tiles *tiles, int n_tiles)
{
    for (const int32_t *isa = rig_isas(); *isa >= 0; isa++)
        for (int n = 0; n < n_tiles; n++) {
            rig_tiles(g, &tiles[n]);
            g->isa = *isa;
            attn_status status = rig_run(g);
            if (status == ATTN_OK && rig_check(g)) continue;
            rig_print(g, attn_status_string(status));
            print_tiles(&tiles[n]);
            fail();
        }
    rig_margin_note(g->margin.worst);
}

/* Default, tiny, odd and large tiles, and each path by force. */
static const struct tiles all_tiles[] = {
    TILES_OF(0, PATH_AUTO),     TILES_OF(1, PATH_AUTO),      TILES_OF(16, PATH_AUTO),
    TILES_OF(60, PATH_AUTO),    TILES_OF(0, PATH_TILES),     TILES_OF(0, PATH_DECODE),
    TILES_OF(0, PATH_TILES_NT), TILES_OF(16, PATH_TILES_NT), TILES_OF(16, PATH_DECODE),
    TILES_OF(1, PATH_DECODE),
};
#define N_ALL_TILES ((int)(sizeof all_tiles / sizeof *all_tiles))

#endif
