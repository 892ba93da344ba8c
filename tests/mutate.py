#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Does the suite notice? Changes one place of src/ at a time, in a copy, and runs the tests.

    tests/mutate.py --count 100 --seed 1 --work DIR

Comparisons are flipped, bounds and indices moved by one, rescales dropped, strides exchanged, locks
skipped, ... A mutant that does not compile is not counted; one that the tests let through is printed
with its place, to be explained or to get its test.
"""
import argparse
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# (name, pattern, replacements); a pattern matches within one line of code.
KINDS = [
    ("comparison", r" < (?!<)", [" <= ", " > "]),
    ("comparison", r" <= ", [" < "]),
    ("comparison", r" > (?!>)", [" >= ", " < "]),
    ("comparison", r" >= ", [" > "]),
    ("equality", r" == ", [" != "]),
    ("equality", r" != ", [" == "]),
    ("logic", r" && ", [" || "]),
    ("logic", r" \|\| ", [" && "]),
    ("off by one", r"(?<=[\w\])]) \+ 1\b", ["", " + 2"]),
    ("off by one", r"(?<=[\w\])]) - 1\b", ["", " - 2"]),
    ("sign", r"(?<=[\w\])]) \+ (?=\w)", [" - "]),
    ("sign", r"(?<=[\w\])]) - (?=\w)", [" + "]),
    ("product", r"(?<=[\w\])]) \* (?=\w)", [" + "]),
    ("min and max", r"\bmin64\(", ["max64("]),
    ("min and max", r"\bmax64\(", ["min64("]),
    ("stride", r"->sl\b", ["->sh"]),
    ("stride", r"->sh\b", ["->sl"]),
    ("stride", r"->sb\b", ["->sh"]),
    ("stride", r"\bldk\b(?=[,;])", ["ldv"]),
    ("constant", r"\b0\.0f\b", ["1.0f"]),
    ("constant", r"\b1\.0f\b", ["0.0f"]),
    ("constant", r"-INFINITY", ["-1e30f"]),
    ("rescale", r"^(\s+)[^;=(]*\*= [^;]*;", [r"\1;"]),
    ("lock", r"^(\s+)pthread_mutex_(un)?lock\([^;]*;", [r"\1;"]),
    ("call", r"^(\s+)(?:attn_i_|kn->|op->kernels->)\w+\([^;=]*\);$", [r"\1;"]),
    ("branch", r"\bif \((?!!)", ["if (!"]),
]


def places(files):
    """Every (file, line, kind, start, end, replacement) that could be changed."""
    found = []
    for file in files:
        comment = False
        for number, line in enumerate(file.read_text().splitlines()):
            code = line.split("/*")[0] if not comment else ""
            comment = (comment or "/*" in line) and "*/" not in line.split("/*")[-1]
            if code.lstrip().startswith(("#", "*", "//")) or not code.strip():
                continue
            for kind, pattern, replacements in KINDS:
                for match in re.finditer(pattern, code):
                    if kind == "branch" and code.count("(") != code.count(")"):
                        continue  # the condition goes on
                    for text in replacements:
                        found.append((file, number, kind, match, text))
    return found


def change(line, kind, match, text):
    if kind == "branch":  # the whole condition is turned round
        depth, i = 0, match.end() - 2
        start = line.index("(", match.start())
        for i in range(start, len(line)):
            depth += {"(": 1, ")": -1}.get(line[i], 0)
            if depth == 0:
                break
        return line[:start] + "(!" + line[start:i + 1] + ")" + line[i + 1:]
    return line[:match.start()] + match.expand(text) + line[match.end():]


def run(command, cwd, timeout, log):
    try:
        return subprocess.run(command, cwd=cwd, timeout=timeout, stdout=log, stderr=log,
                              stdin=subprocess.DEVNULL).returncode
    except subprocess.TimeoutExpired:
        return -1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="a directory to build in")
    parser.add_argument("--only", default="", help="files whose names match this")
    options = parser.parse_args()
    tree, build = options.work / "tree", options.work / "build"
    options.work.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns("build", ".git"))
    shared = ROOT.parent / "shared"
    if shared.exists() and not (options.work / "shared").exists():
        (options.work / "shared").symlink_to(shared)
    log = open(options.work / "mutate.log", "w")
    jobs = str(len(os.sched_getaffinity(0)))
    setup = ["cmake", "-S", tree, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
             "-DCMAKE_C_FLAGS_RELEASE=-O1", "-DATTN_BUILD_TESTS=ON", "-DATTN_BUILD_BENCH=OFF",
             "-DATTN_BUILD_EXAMPLES=OFF"]
    if run(setup, tree, 300, log) or run(["ninja", "-j", jobs], build, 900, log):
        sys.exit("the tree does not build: see mutate.log")
    tests = ["ctest", "-j", jobs, "-L", "quick", "--stop-on-failure", "--timeout", "120"]
    if run(tests, build, 1800, log):
        sys.exit("the suite fails as it is: see mutate.log")
    rng = random.Random(options.seed)
    todo = places([f for f in sorted(tree.glob("src/*.[ch]")) if re.search(options.only, f.name)])
    rng.shuffle(todo)
    killed, alive, broken, begin = 0, [], 0, time.time()
    for file, number, kind, match, text in todo:
        if killed + len(alive) >= options.count:
            break
        original = file.read_text()
        lines = original.splitlines(keepends=True)
        before = lines[number]
        lines[number] = change(before.rstrip("\n"), kind, match, text) + "\n"
        if lines[number] == before:
            continue
        file.write_text("".join(lines))
        if run(["ninja", "-j", jobs], build, 600, log):
            broken += 1
        elif run(tests, build, 900, log):
            killed += 1
        else:
            alive.append(f"{file.relative_to(tree)}:{number + 1}: {kind}\n"
                         f"  - {before.strip()}\n  + {lines[number].strip()}")
            print(alive[-1], flush=True)
        file.write_text(original)
        print(f"{killed} noticed, {len(alive)} not, {broken} do not compile, "
              f"{time.time() - begin:.0f} s", file=sys.stderr, flush=True)
    print(f"seed {options.seed}: {killed} of {killed + len(alive)} mutants noticed, "
          f"{broken} did not compile")
    sys.exit(0)


if __name__ == "__main__":
    main()
