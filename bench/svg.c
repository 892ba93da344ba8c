/* SPDX-License-Identifier: MIT */
/* See svg.h. */
#include "svg.h"

#include "utf8.h"

#include <math.h>
#include <string.h>

/* The mean width of a letter in the usual fonts, in their size. */
#define LETTER 0.56

/* XML has no control characters, no U+FFFE and no U+FFFF, not even escaped. */
static void print_text(FILE *f, const char *text)
{
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        size_t n = utf8_length(s);
        if (n == 0 || *s < 0x20 || *s == 0x7f || (n == 3 && memcmp(s, "\xef\xbf", 2) == 0))
            fputc('?', f);
        else if (*s == '&' || *s == '<' || *s == '>' || *s == '"')
            fprintf(f, "&#%d;", *s);
        else
            fwrite(s, 1, n, f);
        s += n == 0 ? 1 : n;
    }
}

void svg_begin(FILE *f, double width, double height, const char *title, const char *description)
{
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "viewBox=\"0 0 %.0f %.0f\" role=\"img\" font-family=\"sans-serif\">\n<title>",
            width, height, width, height);
    print_text(f, title);
    fputs("</title>\n<desc>", f);
    print_text(f, description);
    fputs("</desc>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n", f);
}

void svg_end(FILE *f) { fputs("</svg>\n", f); }

void svg_text(FILE *f, double x, double y, enum svg_anchor anchor, double size,
              const char *colour, const char *text)
{
    static const char *const anchors[] = {"start", "middle", "end"};
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%.0f\" fill=\"%s\">",
            x, y, anchors[anchor], size, colour);
    print_text(f, text);
    fputs("</text>\n", f);
}

void svg_line(FILE *f, double x1, double y1, double x2, double y2, const char *colour,
              double width, const char *dash)
{
    fprintf(f,
            "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
            "stroke-width=\"%.1f\"",
            x1, y1, x2, y2, colour, width);
    if (*dash) fprintf(f, " stroke-dasharray=\"%s\"", dash);
    fputs("/>\n", f);
}

void svg_box(FILE *f, double x, double y, double width, double height, const char *colour,
             const char *text)
{
    fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"><title>",
            x, y, width, height, colour);
    print_text(f, text);
    fputs("</title></rect>\n", f);
}

void svg_dot(FILE *f, double x, double y, double radius, const char *colour, const char *text)
{
    fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\"><title>", x, y, radius,
            colour);
    print_text(f, text);
    fputs("</title></circle>\n", f);
}

double svg_text_width(const char *text, double size)
{
    return (double)strlen(text) * size * LETTER;
}

double svg_step(double max, int n)
{
    double step = pow(10, floor(log10(max / n)));
    if (step * n >= max) return step;
    if (step * 2 * n >= max) return step * 2;
    return step * 5 * n >= max ? step * 5 : step * 10;
}
