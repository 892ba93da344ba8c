/* SPDX-License-Identifier: MIT */
/* See terminal.h. */
#define _DEFAULT_SOURCE 1
#include "terminal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define WIDTH_DEFAULT 80

/* Does it understand escape sequences? */
static bool is_terminal(FILE *file)
{
    const char *term = getenv("TERM");
    return isatty(fileno(file)) && term && *term && strcmp(term, "dumb") != 0;
}

void terminal_colour(FILE *file, enum colour colour)
{
    static const char *const codes[] = {
        [PLAIN] = "\033[0m", [BOLD] = "\033[1m", [RED] = "\033[1;31m", [YELLOW] = "\033[33m"};
    const char *no = getenv("NO_COLOR");
    if (is_terminal(file) && !(no && *no)) fputs(codes[colour], file);
}

/* ------------------------------------------------------------ status line */

static bool shown;

static int terminal_width(void)
{
    struct winsize size;
    bool known = ioctl(fileno(stderr), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return known ? size.ws_col : WIDTH_DEFAULT;
}

/* The last column stays free: some terminals go to the next line there. */
bool terminal_status(const char *text)
{
    if (!is_terminal(stderr)) return false;
    fprintf(stderr, "\r\033[K%.*s", terminal_width() - 1, text);
    shown = true;
    return true;
}

void terminal_clear(void)
{
    if (shown) fputs("\r\033[K", stderr);
    shown = false;
}
