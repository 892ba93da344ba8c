/* SPDX-License-Identifier: MIT */
/* See utf8.h. */
#include "utf8.h"

size_t utf8_length(const unsigned char *s)
{
    /* by the first byte: length, and the range of the second, which rules out overlong forms,
       surrogates and what lies beyond Unicode */
    static const struct {
        unsigned char first, last, length, low, high;
    } forms[] = {
        {0x00, 0x7f, 1, 0x00, 0x00}, {0xc2, 0xdf, 2, 0x80, 0xbf}, {0xe0, 0xe0, 3, 0xa0, 0xbf},
        {0xe1, 0xec, 3, 0x80, 0xbf}, {0xed, 0xed, 3, 0x80, 0x9f}, {0xee, 0xef, 3, 0x80, 0xbf},
        {0xf0, 0xf0, 4, 0x90, 0xbf}, {0xf1, 0xf3, 4, 0x80, 0xbf}, {0xf4, 0xf4, 4, 0x80, 0x8f}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (s[0] < forms[i].first || s[0] > forms[i].last) continue;
        if (forms[i].length > 1 && (s[1] < forms[i].low || s[1] > forms[i].high)) return 0;
        for (size_t j = 2; j < forms[i].length; j++)
            if ((s[j] & 0xc0) != 0x80) return 0;
        return forms[i].length;
    }
    return 0;
}
