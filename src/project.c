/* SPDX-License-Identifier: MIT */
/*
 * Projections, y = x W + b.
 *
 * Weights are copied into panels of columns, each cut along E into pieces of at
 * most PANEL_DEPTH rows, so that every product of a few rows of x with a piece
 * takes BLAS's small-matrix path: nothing is packed again in a run (measured:
 * 110 to 114 GF/s for 16 to 512 rows, one sgemm 67 to 102; Zen 4).
 * Elsewhere a panel is wider and a piece is all of E.
 *
 * A task is a block of rows of x with one panel; the product lands in a tile of
 * the thread's own, and the bias is added on its way to y, wherever that lies.
 */
#include "project.h"
#include "blas.h"

#include <stdlib.h>

/* Measured best of 8 to 80 rows, widths 32 to 128, depths 192 to 768: a layer of E 512 to 4096
   and 1 to 512 rows takes 0.94 to 1.0 of the time that 40 x 64 x 384 takes (Zen 4). */
#define PANEL_WIDTH 64
#define PANEL_DEPTH 768
#define PANEL_ROWS 16      /* rows of x in one product, at most */
#define PANEL_WIDTH_NT 256 /* without the small-matrix path */
#define PANEL_ROWS_NT 240
#define TASK_ROWS 240

void attn_i_matrix_shape(struct matrix *w, int64_t E, int64_t H, int64_t D)
{
    *w = (struct matrix){.E = E, .N = H * D, .H = H, .D = D};
    if (attn_i_blas_small_path()) {
        w->width = PANEL_WIDTH;
        w->depth = ceil_div(E, ceil_div(E, PANEL_DEPTH));
        w->rows = min64(PANEL_ROWS, SMALL_PRODUCT / (w->width * w->depth));
    } else {
        w->width = PANEL_WIDTH_NT;
        w->depth = E;
        w->rows = PANEL_ROWS_NT;
    }
}

void attn_i_matrix_clear(struct matrix *w)
{
    free(w->panels);
    free(w->bias);
    w->panels = NULL;
    w->bias = NULL;
}

int64_t attn_i_matrix_tile(const struct matrix *w) { return w->rows * w->width; }

/* Columns of the panel at n0 as stored: OpenBLAS's small-matrix kernels call malloc for 1 to 8
   columns more than a multiple of 16, so the last panel is filled up with zeros. */
static int64_t stored_width(const struct matrix *w, int64_t n0)
{
    return round_up(min64(w->width, w->N - n0), LANES_MAX);
}

/* w[k * by_k + n * by_n] into panels. */
static void copy_panels(const struct matrix *m, float *panels, const float *w, int64_t by_k,
                        int64_t by_n)
{
    for (int64_t n0 = 0; n0 < m->N; n0 += m->width) {
        int64_t width = stored_width(m, n0);
        float *to = panels + n0 * m->E;
        for (int64_t k = 0; k < m->E; k++)
            for (int64_t n = n0; n < n0 + width; n++)
                *to++ = n < m->N ? w[k * by_k + n * by_n] : 0.0f;
    }
}

attn_status attn_i_matrix_set(struct matrix *w, const float *from, int64_t by_k, int64_t by_n,
                              const float *bias)
{
    /* large blocks of malloc lie 16 bytes behind a line: every vector would cross one */
    size_t bytes = (size_t)w->E * (size_t)round_up(w->N, LANES_MAX) * sizeof(float);
    float *panels = aligned_alloc(WORKSPACE_ALIGN, bytes);
    float *copy = bias ? malloc((size_t)w->N * sizeof *copy) : NULL;
    if (!panels || (bias && !copy)) {
        free(panels);
        free(copy);
        return ATTN_ENOMEM;
    }
    copy_panels(w, panels, from, by_k, by_n);
    if (copy) memcpy(copy, bias, (size_t)w->N * sizeof *copy);
    attn_i_matrix_clear(w);
    w->panels = panels;
    w->bias = copy;
    return ATTN_OK;
}

static int64_t panel_count(const struct matrix *w) { return ceil_div(w->N, w->width); }

/* A tile of rows [r0, r0 + rows) of all items and the columns of the panel at n0 to y, with the
   bias: cut where the item or the head changes. */
static void store_tile(const struct projecting *p, const struct projection *to, const float *tile,
                       int64_t r0, int64_t rows, int64_t n0)
{
    const struct matrix *w = to->w;
    int64_t cols = min64(w->width, w->N - n0), ld = stored_width(w, n0);
    for (int64_t r = r0; r < r0 + rows;) {
        int64_t b = r / p->L, l = r % p->L, nr = min64(p->L - l, r0 + rows - r);
        for (int64_t n = n0; n < n0 + cols;) {
            int64_t h = n / w->D, d = n % w->D, nc = min64(w->D - d, n0 + cols - n);
            p->op->kernels->add_bias(
                nr, nc, tile + (r - r0) * ld + (n - n0), ld, w->bias ? w->bias + n : NULL,
                to->y.data + b * to->y.sb + h * to->y.sh + l * to->y.sl + d, to->y.sl);
            n += nc;
        }
        r += nr;
    }
}

static void project_task(const struct projecting *p, float *tile, int64_t task)
{
    const struct projection *to = p->to;
    int64_t panel = task / p->row_blocks, block = task % p->row_blocks;
    while (panel >= panel_count(to->w)) panel -= panel_count(to++->w);
    const struct matrix *w = to->w;
    int64_t n0 = panel * w->width, width = stored_width(w, n0);
    int64_t end = min64((block + 1) * TASK_ROWS, p->B * p->L);
    for (int64_t r = block * TASK_ROWS; r < end; r += w->rows) {
        int64_t rows = min64(w->rows, end - r);
        for (int64_t k0 = 0; k0 < w->E; k0 += w->depth) {
            struct product product = {
                .m = rows,
                .n = width,
                .k = min64(w->depth, w->E - k0),
                .alpha = 1.0f,
                .beta = k0 == 0 ? 0.0f : 1.0f,
                .a = p->x + r * p->E + k0,
                .lda = p->E,
                .b = w->panels + n0 * w->E + k0 * width,
                .ldb = width,
                .c = tile,
                .ldc = width,
            };
            attn_i_sgemm(&product);
        }
        store_tile(p, to, tile, r, rows, n0);
    }
}

static void project_tasks(void *context, int32_t worker, struct tasks *tasks)
{
    const struct projecting *p = context;
    float *tile = p->tiles + (size_t)worker * p->tile_floats;
    int32_t saved = attn_i_blas_thread_enter();
    for (int64_t task; attn_i_next_task(tasks, &task);) project_task(p, tile, task);
    attn_i_blas_thread_leave(saved);
}

int64_t attn_i_matrix_tasks(const struct matrix *w, int64_t rows)
{
    int64_t tasks; /* sizes that nobody has memory for come here, too, to be counted */
    return __builtin_mul_overflow(panel_count(w), ceil_div(rows, TASK_ROWS), &tasks) ? INT32_MAX
                                                                                     : tasks;
}

void attn_i_project(struct projecting *p)
{
    int64_t rows = p->B * p->L, tasks = 0, N = 0;
    p->row_blocks = ceil_div(rows, TASK_ROWS);
    for (int32_t i = 0; i < p->n; i++) {
        tasks += attn_i_matrix_tasks(p->to[i].w, rows);
        N += p->to[i].w->N;
    }
    double flops = 2.0 * (double)rows * (double)p->E * (double)N;
    struct crew crew = attn_i_crew(flops / FLOPS_PER_NS, p->op->threads, tasks);
    attn_i_parallel(crew, tasks, project_tasks, p);
}
