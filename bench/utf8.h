/* SPDX-License-Identifier: MIT */
#ifndef BENCH_UTF8_H
#define BENCH_UTF8_H

#include <stddef.h>

/* Bytes of the UTF-8 character at s; 0: none. A command line may hold anything. */
size_t utf8_length(const unsigned char *s);

#endif
