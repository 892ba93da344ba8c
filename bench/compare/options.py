# SPDX-License-Identifier: MIT
"""The command line. Needs nothing that is not installed yet: run --help starts this alone."""
import argparse
import re
import sys

import machine

DESCRIPTION = ("Times libattn and what people would use instead, interleaved in one process on the "
               "same arrays, and checks that all agree.")


def parse_threads(text):
    words = text.split(",")
    if not all(w == "all" or w.isdecimal() and 1 <= int(w) <= 4096 for w in words):
        raise argparse.ArgumentTypeError(f"not a list of numbers or the word all: {text}")
    return sorted({machine.cores() if w == "all" else int(w) for w in words})


def pattern(text):
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"not a regular expression: {error}") from error


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="bench/compare/run", description=DESCRIPTION)
    add = parser.add_argument
    add("--json", metavar="FILE", help="write a list of records, one an implementation and case")
    add("--md", metavar="FILE", help="write the tables there as well as to stdout")
    add("--plots", metavar="DIR", help="draw the plots, as PNG, into this directory")
    add("--svg", action="store_true", help="draw them as SVG instead: text, for a repository")
    add("--cases", metavar="REGEX", type=pattern, help="only cases whose names match (see --list)")
    add("--impl", metavar="REGEX", type=pattern, help="only implementations whose names match")
    add("--threads", metavar="LIST", type=parse_threads, default="1,all",
        help="numbers, and the word all for every core this process may use [%(default)s]")
    add("--reps", metavar="N", type=int, default=15,
        help="visits of each implementation, in random order each time [%(default)s]")
    add("--time", metavar="SECONDS", type=float, default=6,
        help="of visits for a case; then it ends, after three at least [%(default)s]")
    add("--seed", metavar="N", type=int, default=1, help="of the order [%(default)s]")
    add("--quick", action="store_true",
        help="few and small cases, few repetitions: to see that all works, not to quote")
    add("--no-memory", action="store_true", help="do not measure memory")
    add("--from", metavar="FILE", nargs="+", dest="files",
        help="measure nothing: take records from earlier runs, medians if there are several")
    add("--list", action="store_true", help="print the cases and implementations")
    for name, what in (("lib", "libattn"), ("attn-bench", "attn-bench"), ("shim", "stages.c")):
        add(f"--{name}", metavar="FILE", help=f"{what}, compiled [given by run]")
    options = parser.parse_args(arguments)
    if options.quick:
        options.reps, options.time = min(options.reps, 3), min(options.time, 1)
    if not options.lib and not (options.files or options.list):
        parser.error("--lib is needed; bench/compare/run gives it")
    return options


if __name__ == "__main__":
    parse(sys.argv[1:])
