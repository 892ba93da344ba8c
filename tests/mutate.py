#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Would the suite notice? Changes one place of src/ at a time, in a copy, and runs the tests.

    tests/mutate.py --count 100 --seed 1

The seed draws lines of code, each as likely as any other, and a change to each: a comparison
turned, a bound moved by one, a statement (a rescale, a lock) left out, strides exchanged, ... A
mutant that does not compile, or compiles to the same code, is drawn anew. The others face the tests
labelled quick, then sweep, until one fails; those that did well on the same file come first. A test
that takes ten times as long as it should has noticed, too. Each mutant is a line of the report, with
what killed it; the survivors are to be explained, or to get their test.
"""
import argparse
import filecmp
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# (name, what it matches in a line without comments and strings, what may stand there instead)
KINDS = [
    ("comparison", r" < ", [" <= ", " >= "]),
    ("comparison", r" <= ", [" < ", " > "]),
    ("comparison", r" > ", [" >= ", " <= "]),
    ("comparison", r" >= ", [" > ", " < "]),
    ("equality", r" == ", [" != "]),
    ("equality", r" != ", [" == "]),
    ("logic", r" && ", [" || "]),
    ("logic", r" \|\| ", [" && "]),
    ("logic", r"!(?=[\w(*])", [""]),
    ("branch", r"\b(if|while) \(", [None]),
    ("arithmetic", r"(?<=[\w\])]) \+ (?=[\w(])", [" - "]),
    ("arithmetic", r"(?<=[\w\])]) - (?=[\w(])", [" + "]),
    ("arithmetic", r"(?<=[\w\])]) \* (?=[\w(])", [" + ", " / "]),
    ("arithmetic", r"(?<=[\w\])]) / (?=[\w(])", [" * "]),
    ("arithmetic", r"(?<=[\w\])]) % (?=[\w(])", [" / "]),
    ("assignment", r" \+= ", [" = ", " -= "]),
    ("assignment", r" -= ", [" = ", " += "]),
    ("assignment", r" \*= ", [" = "]),
    ("off by one", r"(?<=[\w\])]) \+ 1\b(?![.\w])", ["", " + 2"]),
    ("off by one", r"(?<=[\w\])]) - 1\b(?![.\w])", ["", " - 2"]),
    ("min and max", r"\bmin64\(", ["max64("]),
    ("min and max", r"\bmax64\(", ["min64("]),
    ("constant", r"(?<![\w.\[])\d+\b(?![.\w\]])", [+1, -1]),
    ("constant", r"\b0\.0f\b", ["1.0f"]),
    ("constant", r"\b1\.0f\b", ["0.0f"]),
    ("constant", r"-INFINITY\b", ["0.0f"]),
    ("constant", r"\btrue\b", ["false"]),
    ("constant", r"\bfalse\b", ["true"]),
    ("status", r"\bATTN_EINVAL\b", ["ATTN_EOVERFLOW"]),
    ("status", r"\bATTN_(EOVERFLOW|ENOMEM|EUNSUPPORTED|ESTATE|EBLAS)\b", ["ATTN_EINVAL"]),
    ("stride", r"(?<=[.>])sb\b", ["sh"]),
    ("stride", r"(?<=[.>])sh\b", ["sl"]),
    ("stride", r"(?<=[.>])sl\b", ["sh"]),
    ("stride", r"(?<=[.>])ldk\b", ["ldv"]),
    ("stride", r"(?<=[.>])ldv\b", ["ldk"]),
    ("axis", r"\bDk\b", ["Dv"]),
    ("axis", r"\bDv\b", ["Dk"]),
    ("axis", r"\bLq\b", ["Lk"]),
    ("axis", r"\bLk\b", ["Lq"]),
    ("axis", r"\bHq\b", ["Hk"]),
    ("axis", r"\bHk\b", ["Hq"]),
    ("axis", r"(?<=[.>])lo\b", ["hi"]),
    ("axis", r"(?<=[.>])hi\b", ["lo"]),
    ("statement", r"^\s+(?!return|typedef|extern|goto)[\w.>\-\[\]()*]+ [-+*|&]?= [^;{]*;$", [";"]),
    ("statement", r"^\s+(?!return|TRY|REQUIRE|pthread_mutex)[\w.>\-]+\([^;]*\);$", [";"]),
    ("statement", r"\b(break|continue);", [";"]),
    ("lock", r"\bpthread_mutex_(un)?lock\([^;]*;", [";"]),
    ("check", r"^\s+(TRY|REQUIRE|FAIL)\(.*;$", [";"]),
]
SKIP = re.compile(r"^\s*#|_Static_assert|static_assert|\bassert\(|\bextern\b")


def without_comments(text):
    """The same lines, with comments and what stands in quotes as blanks."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())  # noqa: E731
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\])*\'', blank, text,
                  flags=re.S)


def negated(line, match):
    """The condition that begins at the match, turned; None when it goes on in the next line."""
    start, depth = match.end() - 1, 0
    for i in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[i], 0)
        if depth == 0:
            return f"{line[:start]}(!{line[start:i + 1]}){line[i + 1:]}"
    return None


def changes(line, code):
    """{kind: [the line, changed]}"""
    found = {}
    for kind, pattern, replacements in KINDS:
        for match in re.finditer(pattern, code):
            for text in replacements:
                if text is None:
                    new = negated(line, match)
                else:
                    new = str(int(match.group()) + text) if isinstance(text, int) else text
                    new = line[:match.start()] + new + line[match.end():]
                if new is not None:
                    found.setdefault(kind, []).append(new)
    return found


class Mutant:
    """Number n of the seed: line `number` of a file, from 0, becomes `new`."""

    def __init__(self, n, file, number, kind, old, new):
        self.n, self.file, self.number, self.kind, self.old, self.new = n, file, number, kind, old, new

    def write(self):
        lines = self.file.read_text().splitlines(keepends=True)
        lines[self.number] = self.new + "\n"
        self.file.write_text("".join(lines))

    def __str__(self):
        return (f"{self.n} src/{self.file.name}:{self.number + 1} {self.kind}: "
                f"`{self.old.strip()}` -> `{self.new.strip()}`")


def draw(sources, seed):
    """All mutants of a seed, in order."""
    rng = random.Random(seed)
    lines = []
    for file in sources:
        text = file.read_text()
        for number, (line, code) in enumerate(zip(text.splitlines(),
                                                  without_comments(text).splitlines())):
            found = {} if SKIP.search(code) else changes(line, code)
            if found:
                lines.append((file, number, line, found))
    rng.shuffle(lines)
    for n, (file, number, line, found) in enumerate(lines):
        kind = rng.choice(sorted(found))
        yield Mutant(n, file, number, kind, line, rng.choice(found[kind]))


class Test:
    """A test of ctest, run by hand so that it can be built alone and comes when it is its turn."""

    def __init__(self, entry, build, step):
        properties = {p["name"]: p["value"] for p in entry["properties"]}
        self.name, self.command, self.build = entry["name"], entry["command"], build
        self.labels = properties.get("LABELS", [])
        self.cwd = properties.get("WORKING_DIRECTORY", build)
        self.env = dict(v.split("=", 1) for v in properties.get("ENVIRONMENT", []))
        self.env["ATTN_TEST_STEP"] = str(step * (5 if "sweep" in self.labels else 1))
        self.target = os.path.relpath(self.command[0], build)
        self.seconds, self.kills = 0.0, {}

    def run(self, limit):
        """None when it passed, else what happened."""
        with subprocess.Popen(self.command, cwd=self.cwd, env={**os.environ, **self.env},
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, start_new_session=True) as process:
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return "too slow"
        return None if status == 0 else f"signal {-status}" if status < 0 else "failed"


def copy_changed(source, to):
    """Files that differ, with a new time, so that what a stopped run left is built again."""
    to.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        if entry.name in ("build", ".git"):
            continue
        if entry.is_dir():
            copy_changed(entry, to / entry.name)
        elif not (to / entry.name).exists() or not filecmp.cmp(entry, to / entry.name, False):
            shutil.copy(entry, to / entry.name)


class Suite:
    def __init__(self, work, jobs):
        self.tree, self.build, self.jobs = work / "tree", work / "build", str(jobs)
        self.log = open(work / "mutate.log", "w", encoding="utf-8")
        self.tests = []

    def command(self, *words):
        return subprocess.run(words, cwd=self.tree, stdout=self.log, stderr=self.log,
                              stdin=subprocess.DEVNULL, check=False).returncode == 0

    def ninja(self, *targets):
        return self.command("ninja", "-C", self.build, "-j", self.jobs, *targets)

    def set_up(self, keep, step):
        copy_changed(ROOT, self.tree)
        shared, copy = ROOT.parent / "shared", self.tree.parent / "shared"
        if shared.exists() and not copy.exists():
            copy.symlink_to(shared)
        if not self.command("cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja",
                            "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O1",
                            "-DATTN_BUILD_TESTS=ON", "-DATTN_BUILD_BENCH=OFF",
                            "-DATTN_BUILD_EXAMPLES=OFF") or not self.ninja():
            sys.exit(f"the tree does not build: see {self.log.name}")
        listed = json.loads(subprocess.run(["ctest", "--show-only=json-v1"], cwd=self.build,
                                           check=True, capture_output=True).stdout)
        self.tests = [Test(t, self.build, step) for t in listed["tests"]]
        self.tests = [t for t in self.tests if {"quick", "sweep"} & set(t.labels)
                      and re.search(keep, t.name) and t.target.startswith("tests/test_")]
        for test in self.tests:
            begin = time.time()
            what = test.run(600)
            test.seconds = time.time() - begin
            if what:
                sys.exit(f"{test.name} {what} as it is")

    def objects(self):
        """A digest of the library's code."""
        digest = hashlib.sha256()
        for file in sorted(self.build.glob("CMakeFiles/attn_*.dir/src/*.o")):
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def killer(self, mutant):
        """What killed it, or None."""
        name = mutant.file.name
        for test in sorted(self.tests, key=lambda t: ("sweep" in t.labels, -t.kills.get(name, 0),
                                                      t.seconds)):
            if not self.ninja(test.target):
                return "its build"
            what = test.run(20 + 10 * test.seconds)
            if what:
                test.kills[name] = test.kills.get(name, 0) + 1
                return f"{test.name} ({what})"
        return None


def chosen(n, numbers):
    """Is n among "3,17,30-"?"""
    for part in filter(None, numbers.split(",")):
        first, dash, last = part.partition("-")
        if int(first) <= n <= (int(last) if last else n if dash else int(first)):
            return True
    return not numbers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build" / "mutate",
                        help="where the copy is built [build/mutate]; survivors.txt is written there")
    parser.add_argument("--files", default="", help="only files of src/ whose names match")
    parser.add_argument("--tests", default="", help="only tests whose names match")
    parser.add_argument("--numbers", default="", help="only these mutants of the seed, as 3,17,30-")
    parser.add_argument("--step", type=int, default=1,
                        help="run only each nth row of the tests that have many (of sweeps, 5n)")
    parser.add_argument("-j", type=int, default=len(os.sched_getaffinity(0)), help="jobs of ninja")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    suite = Suite(options.work.resolve(), options.j)
    suite.set_up(options.tests, options.step)
    objects, begin = suite.objects(), time.time()
    sources = [f for f in sorted((suite.tree / "src").glob("*.[ch]"))
               if re.search(options.files, f.name)]
    killed, alive = 0, []
    for mutant in draw(sources, options.seed):
        if killed + len(alive) >= options.count:
            break
        if not chosen(mutant.n, options.numbers):
            continue
        original = mutant.file.read_text()
        mutant.write()
        counts = suite.ninja("attn_static") and suite.objects() != objects
        killer = suite.killer(mutant) if counts else None
        mutant.file.write_text(original)
        if not counts:
            continue
        if killer:
            killed += 1
        else:
            alive.append(str(mutant))
        print(f"{mutant} | {'killed by ' + killer if killer else 'SURVIVES'}", flush=True)
    (options.work / "survivors.txt").write_text("".join(f"{m}\n" for m in alive))
    print(f"seed {options.seed}: {killed} of {killed + len(alive)} mutants killed in "
          f"{time.time() - begin:.0f} s")


if __name__ == "__main__":
    main()
