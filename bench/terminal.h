/* SPDX-License-Identifier: MIT */
/* For people: colours, and a line that says what runs. Both only on a terminal. */
#ifndef BENCH_TERMINAL_H
#define BENCH_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

enum colour { PLAIN, BOLD, RED, YELLOW };

/* Begin or (PLAIN) end a colour: nothing where the file is no terminal, TERM is dumb or unset, or
   NO_COLOR is set and not empty (no-color.org). */
void terminal_colour(FILE *file, enum colour colour);

/* A line on stderr in the place of the last one, cut to the terminal's width; false, and nothing
   written, where stderr is no terminal. */
bool terminal_status(const char *text);
/* Take it away: before anything else is written, and at the end. */
void terminal_clear(void);

#endif
