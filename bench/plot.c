/* SPDX-License-Identifier: MIT */
/* See plot.h: the drawing. What is drawn is decided in plot_panel.c. */
#define _POSIX_C_SOURCE 200809L
#include "plot.h"

#include "plot_panel.h"
#include "svg.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WIDTH = 900, MARGIN = 20, HEAD = 92, ROW = 18, TITLES = 44, LINES_HIGH = 300 };
enum { LINES_TICKS = 48, BARS_TICKS = 30, LETTERS = 138 };
enum { BAR = 14, BAR_GAP = 8, CASE_WIDEST = 300, SMALL = 11, TEXT_SIZE = 12, STEPS = 6 };
/* Beyond that nobody finds anything. */
enum { SERIES_MAX = 16, BARS_MAX = 300 };
#define LOG_FROM 8.0 /* times the smallest: then the axis is logarithmic */
#define GREY "#666"
#define GRID "#ddd"
#define WRONG "#d00000"

/* Okabe and Ito's colours, which also those tell apart who see fewer. */
static const char *const colours[] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                      "#56b4e9", "#d55e00", "#6a6a6a", "#8c6bb1"};
static const char *const ceiling_colours[PLOT_CEILINGS] = {"#111", "#888"};
#define N_COLOURS (sizeof colours / sizeof *colours)
static const char *colour_of(size_t series) { return colours[series % N_COLOURS]; }

/* The rectangle of the data, and what its sides stand for. */
struct area {
    double left, top, width, height;
    double max; /* the values' axis goes from 0 to it */
    double x_low, x_high;
    bool is_log;
};

static size_t bars_of(const struct panel *p) { return p->n < BARS_MAX ? p->n : BARS_MAX; }

static double largest(const struct panel *p)
{
    double max = 0;
    for (size_t i = 0; i < p->n; i++) {
        max = fmax(max, panel_value(p, &p->rows[i]));
        max = fmax(max, panel_median(p, &p->rows[i]));
        for (int c = 0; c < PLOT_CEILINGS; c++)
            max = fmax(max, panel_ceiling(p, &p->rows[i], c)); /* of a NaN fmax takes the other */
    }
    return max > 0 ? max * 1.05 : 1;
}

static void row_text(char text[PLOT_LABEL * 3], const struct panel *p, size_t i)
{
    char x[64] = "";
    if (p->x) snprintf(x, sizeof x, "%s=%.0f", p->x->title, panel_x(p, &p->rows[i]));
    snprintf(text, PLOT_LABEL * 3, "%s %s%s: %.4g, median %.4g%s", p->series[p->series_of[i]], x,
             p->cases[i], panel_value(p, &p->rows[i]), panel_median(p, &p->rows[i]),
             p->rows[i].verified == 0 ? ", WRONG" : "");
}

/* ----------------------------------------------------------------- legend */

/* Entries one after the other, in as many rows as they take; f is NULL: only count the rows. */
struct legend {
    FILE *f;
    double x, y;
    int rows;
};

static void legend_entry(struct legend *l, const char *colour, const char *dash, const char *name)
{
    double width = 26 + svg_text_width(name, TEXT_SIZE) + 16;
    if (l->rows == 0 || l->x + width > WIDTH - MARGIN) {
        l->x = MARGIN;
        l->y += ROW;
        l->rows++;
    }
    if (l->f) {
        svg_line(l->f, l->x, l->y - 4, l->x + 20, l->y - 4, colour, *dash ? 1.5 : 5, dash);
        svg_text(l->f, l->x + 26, l->y, SVG_START, TEXT_SIZE, "#222", name);
    }
    l->x += width;
}

/* Returns the height. */
static double legend(FILE *f, const struct panel *p, double top)
{
    struct legend l = {.f = f, .y = top};
    char text[PLOT_LABEL + 32];
    for (size_t i = 0; i < p->n_series && i < SERIES_MAX; i++)
        legend_entry(&l, colour_of(i), "", p->series[i]);
    for (int c = 0; c < PLOT_CEILINGS; c++)
        if (panel_ceiling_name(p, c) && isfinite(panel_ceiling(p, &p->rows[0], c))) {
            snprintf(text, sizeof text, "measured ceiling: %s", panel_ceiling_name(p, c));
            legend_entry(&l, ceiling_colours[c], "5 3", text);
        }
    size_t left =
        p->x ? (p->n_series > SERIES_MAX ? p->n_series - SERIES_MAX : 0) : p->n - bars_of(p);
    if (left) {
        snprintf(text, sizeof text, "(%zu more %s not drawn)", left, p->x ? "series" : "rows");
        legend_entry(&l, "#fff", "", text);
    }
    return l.rows * ROW;
}

/* ------------------------------------------------------------------ lines */

static double at_x(const struct area *a, double x)
{
    double from = a->x_low, to = a->x_high;
    if (a->is_log) x = log(x), from = log(from), to = log(to);
    return a->left + a->width * (x - from) / (to - from);
}

static double at_y(const struct area *a, double value)
{
    return a->top + a->height * (1 - value / a->max);
}

static struct area lines_area(const struct panel *p, double top)
{
    struct area a = {MARGIN + 50, top,  WIDTH - 2 * MARGIN - 70, LINES_HIGH, largest(p), 0,
                     0,           false};
    a.x_low = a.x_high = panel_x(p, &p->rows[0]);
    for (size_t i = 0; i < p->n; i++) {
        a.x_low = fmin(a.x_low, panel_x(p, &p->rows[i]));
        a.x_high = fmax(a.x_high, panel_x(p, &p->rows[i]));
    }
    a.is_log = a.x_low > 0 && a.x_high / a.x_low >= LOG_FROM;
    return a;
}

/* Rows by x; which: of this series, or (SIZE_MAX) of all. Returns how many. */
static size_t sorted(const struct panel *p, size_t which, size_t *order)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        if (which != SIZE_MAX && p->series_of[i] != which) continue;
        size_t j = n++;
        for (; j > 0 && panel_x(p, &p->rows[order[j - 1]]) > panel_x(p, &p->rows[i]); j--)
            order[j] = order[j - 1];
        order[j] = i;
    }
    return n;
}

/* A grid, numbers on both sides, and under the x axis a number for each value that has room. */
static void draw_grid(FILE *f, const struct panel *p, const struct area *a, const size_t *order,
                      size_t n)
{
    char text[64];
    double step = svg_step(a->max, STEPS), taken = -1e9;
    for (double v = 0; v <= a->max; v += step) {
        svg_line(f, a->left, at_y(a, v), a->left + a->width, at_y(a, v), GRID, 1, "");
        snprintf(text, sizeof text, "%g", v);
        svg_text(f, a->left - 6, at_y(a, v) + 4, SVG_END, SMALL, GREY, text);
    }
    for (size_t i = 0; i < n; i++) {
        double x = panel_x(p, &p->rows[order[i]]);
        snprintf(text, sizeof text, "%.0f", x);
        double half = svg_text_width(text, SMALL) / 2 + 4;
        if (at_x(a, x) - half < taken) continue;
        taken = at_x(a, x) + half;
        svg_text(f, at_x(a, x), a->top + a->height + 16, SVG_MIDDLE, SMALL, GREY, text);
    }
    snprintf(text, sizeof text, "%s: %.*s", p->x->title, (int)strcspn(p->x->what, ";,"),
             p->x->what);
    svg_text(f, a->left + a->width / 2, a->top + a->height + 34, SVG_MIDDLE, TEXT_SIZE, "#222",
             text);
}

/* A ceiling depends on the threads alone: a level line for each number, or, where threads are the
   axis, a line through all. */
static void draw_ceiling(FILE *f, const struct panel *p, const struct area *a, int c,
                         const size_t *order, size_t n)
{
    bool over_threads = strcmp(p->x->name, "threads") == 0;
    const char *colour = ceiling_colours[c];
    double right = a->left + a->width;
    for (size_t i = 1; over_threads && i < n; i++) {
        const struct record *b = &p->rows[order[i - 1]], *r = &p->rows[order[i]];
        if (isfinite(panel_ceiling(p, b, c) + panel_ceiling(p, r, c)))
            svg_line(f, at_x(a, panel_x(p, b)), at_y(a, panel_ceiling(p, b, c)),
                     at_x(a, panel_x(p, r)), at_y(a, panel_ceiling(p, r, c)), colour, 1.5, "5 3");
    }
    for (size_t t = 0; !over_threads && t < p->n_threads; t++) {
        const struct record *r = &p->rows[p->threads[t]];
        double y = at_y(a, panel_ceiling(p, r, c));
        char text[32];
        if (!isfinite(y)) continue;
        svg_line(f, a->left, y, right, y, colour, 1.5, "5 3");
        snprintf(text, sizeof text, "T=%" PRId64, r->threads);
        if (p->n_threads > 1) svg_text(f, right + 4, y + 4, SVG_START, SMALL, colour, text);
    }
}

static void draw_series(FILE *f, const struct panel *p, const struct area *a, size_t which,
                        const size_t *order, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct record *r = &p->rows[order[i]];
        double x = at_x(a, panel_x(p, r)), y = at_y(a, panel_value(p, r));
        char text[PLOT_LABEL * 3];
        if (i > 0) {
            const struct record *b = &p->rows[order[i - 1]];
            svg_line(f, at_x(a, panel_x(p, b)), at_y(a, panel_value(p, b)), x, y,
                     colour_of(which), 2, which < N_COLOURS ? "" : "2 2");
        }
        svg_line(f, x, y, x, at_y(a, panel_median(p, r)), colour_of(which), 1, "");
        row_text(text, p, order[i]);
        bool wrong = r->verified == 0;
        svg_dot(f, x, y, wrong ? 6 : 3.5, wrong ? WRONG : colour_of(which), text);
        if (wrong) svg_text(f, x, y - 10, SVG_MIDDLE, SMALL, WRONG, "WRONG");
    }
}

static void draw_lines(FILE *f, const struct panel *p, double top, size_t *order)
{
    struct area a = lines_area(p, top);
    size_t n = sorted(p, SIZE_MAX, order);
    draw_grid(f, p, &a, order, n);
    for (int c = 0; c < PLOT_CEILINGS; c++) draw_ceiling(f, p, &a, c, order, n);
    for (size_t i = 0; i < p->n_series && i < SERIES_MAX; i++)
        draw_series(f, p, &a, i, order, sorted(p, i, order));
}

/* ------------------------------------------------------------------- bars */

static bool begins_case(const struct panel *p, size_t i)
{
    return i == 0 || strcmp(p->cases[i - 1], p->cases[i]) != 0;
}

static double bars_height(const struct panel *p)
{
    double height = 0;
    for (size_t i = 0; i < bars_of(p); i++) height += BAR + (begins_case(p, i) ? BAR_GAP : 0);
    return height + BAR_GAP;
}

static void draw_bar(FILE *f, const struct panel *p, const struct area *a, size_t i, double y)
{
    const struct record *r = &p->rows[i];
    char text[PLOT_LABEL * 3];
    double scale = a->width / a->max, value = panel_value(p, r);
    row_text(text, p, i);
    svg_box(f, a->left, y + 1, value * scale, BAR - 2, colour_of(p->series_of[i]), text);
    double median = a->left + panel_median(p, r) * scale;
    svg_line(f, median, y + 3, median, y + BAR - 3, "#fff", 1, "");
    for (int c = 0; c < PLOT_CEILINGS; c++) {
        double x = a->left + panel_ceiling(p, r, c) * scale;
        if (isfinite(x)) svg_line(f, x, y - 2, x, y + BAR, ceiling_colours[c], 1.5, "5 3");
    }
    bool wrong = r->verified == 0;
    snprintf(text, sizeof text, "%.3g%s", value, wrong ? " WRONG" : "");
    svg_text(f, a->left + fmax(value, panel_median(p, r)) * scale + 5, y + BAR - 3.5, SVG_START,
             SMALL, wrong ? WRONG : "#222", text);
}

static void draw_bars(FILE *f, const struct panel *p, double top)
{
    double widest = 0, y = top;
    char text[PLOT_LABEL];
    for (size_t i = 0; i < bars_of(p); i++)
        widest = fmax(widest, svg_text_width(p->cases[i], TEXT_SIZE));
    struct area a = {
        .left = MARGIN + fmin(widest, CASE_WIDEST) + 10, .top = top, .max = largest(p)};
    a.width = WIDTH - MARGIN - 30 - a.left;
    a.height = bars_height(p);
    double step = svg_step(a.max, STEPS);
    for (double v = 0; v <= a.max; v += step) {
        double x = a.left + a.width * v / a.max;
        svg_line(f, x, top, x, top + a.height, GRID, 1, "");
        snprintf(text, sizeof text, "%g", v);
        svg_text(f, x, top + a.height + 16, SVG_MIDDLE, SMALL, GREY, text);
    }
    for (size_t i = 0; i < bars_of(p); i++, y += BAR) {
        if (begins_case(p, i)) {
            y += BAR_GAP;
            bool fits = svg_text_width(p->cases[i], TEXT_SIZE) <= CASE_WIDEST;
            snprintf(text, sizeof text, fits ? "%s" : "%.41s ...", p->cases[i]);
            svg_text(f, a.left - 8, y + BAR - 3, SVG_END, TEXT_SIZE, "#222", text);
        }
        draw_bar(f, p, &a, i, y);
    }
}

/* ---------------------------------------------------------------- the whole */

/* The axis with its numbers included. */
static double data_height(const struct panel *p)
{
    return p->x ? LINES_HIGH + LINES_TICKS : bars_height(p) + BARS_TICKS;
}

static double panel_height(const struct panel *p)
{
    return p->n ? TITLES + data_height(p) + legend(NULL, p, 0) + 2 * MARGIN : 0;
}

static void draw_panel(FILE *f, const struct panel *p, double top, size_t *order)
{
    svg_text(f, MARGIN, top + 14, SVG_START, 14, "#000", unit_title(p->unit));
    svg_text(f, MARGIN, top + 30, SVG_START, SMALL, GREY, p->constant);
    top += TITLES;
    if (p->x)
        draw_lines(f, p, top, order);
    else
        draw_bars(f, p, top);
    legend(f, p, top + data_height(p));
}

/* Where, with what and when. */
static void draw_head(FILE *f, const struct record *r)
{
    char text[1024];
    svg_text(f, MARGIN, 28, SVG_START, 17, "#000", "attn-bench");
    snprintf(text, sizeof text,
             "%s; libattn %s; %s; minimum of %" PRId64 " samples, the mark is the median",
             r->cpu ? r->cpu : "unknown CPU", r->version, r->time ? r->time : "", r->repetitions);
    svg_text(f, MARGIN, 46, SVG_START, SMALL, GREY, text);
    const char *blas = r->blas ? r->blas : "unknown BLAS";
    for (int line = 0; line < 2 && *blas; line++) {
        size_t n = strlen(blas);
        for (n = n < LETTERS ? n : LETTERS; blas[n] && n > 1 && blas[n - 1] != ' ';) n--;
        snprintf(text, sizeof text, "%.*s", (int)n, blas);
        svg_text(f, MARGIN, 61 + 15 * line, SVG_START, SMALL, GREY, text);
        blas += n;
    }
}

/* A pipe or a terminal (EINVAL) holds nothing. */
static bool empty(FILE *file) { return ftruncate(fileno(file), 0) == 0 || errno == EINVAL; }

bool plot_write(FILE *file, const struct record *records, size_t n)
{
    struct panel panels[UNIT_COUNT] = {{.n = 0}};
    size_t *order = calloc(n, sizeof *order);
    bool ok = order != NULL;
    double height = HEAD, top = HEAD;
    for (enum unit u = 0; ok && u < UNIT_COUNT; u++) {
        ok = panel_make(&panels[u], u, records, n);
        height += ok ? panel_height(&panels[u]) : 0;
    }
    ok = ok && empty(file);
    if (ok) {
        svg_begin(file, WIDTH, height, "attn-bench", records[0].command);
        draw_head(file, &records[0]);
        for (enum unit u = 0; u < UNIT_COUNT; top += panel_height(&panels[u++]))
            if (panels[u].n) draw_panel(file, &panels[u], top, order);
        svg_end(file);
    }
    for (enum unit u = 0; u < UNIT_COUNT; u++) panel_free(&panels[u]);
    free(order);
    return ok && fflush(file) == 0 && !ferror(file);
}
