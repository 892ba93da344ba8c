/* SPDX-License-Identifier: MIT */
/* SVG as text: the few elements that a plot needs. Knows nothing of what is drawn. */
#ifndef BENCH_SVG_H
#define BENCH_SVG_H

#include <stdio.h>

/* Title and description are for readers that do not see the picture. */
void svg_begin(FILE *f, double width, double height, const char *title, const char *description);
void svg_end(FILE *f);

enum svg_anchor { SVG_START, SVG_MIDDLE, SVG_END };
/* y is the base line. */
void svg_text(FILE *f, double x, double y, enum svg_anchor anchor, double size,
              const char *colour, const char *text);
/* dash: lengths of strokes and gaps, "" for none. */
void svg_line(FILE *f, double x1, double y1, double x2, double y2, const char *colour,
              double width, const char *dash);
/* A box and a dot have a text that shows when they are pointed at. */
void svg_box(FILE *f, double x, double y, double width, double height, const char *colour,
             const char *text);
void svg_dot(FILE *f, double x, double y, double radius, const char *colour, const char *text);

/* About what a text takes. */
double svg_text_width(const char *text, double size);
/* 1, 2 or 5 times a power of ten: at most n steps from 0 to max. */
double svg_step(double max, int n);

#endif
