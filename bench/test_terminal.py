#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests what attn-bench does for people: messages, colours, progress, plots, completion.

    test_terminal.py ATTN-BENCH [LIBRARY]

LIBRARY is test_wrong.c as a shared library (see test_bench.sh). Prints TAP.
"""
import json
import os
import pathlib
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

BENCH = os.path.abspath(sys.argv[1])
WRONG = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else None
COMPLETION = pathlib.Path(__file__).resolve().parent / "completion"
FAST = ["--min-time", "0.000001", "-r", "2", "--no-peaks", "--no-memory"]
ESCAPE, COLOUR = "\033[", re.compile(r"\033\[[0-9;]*m")
SVG = "{http://www.w3.org/2000/svg}"

count = failures = 0


def check(name, condition, shown=""):
    global count, failures
    count += 1
    print(f"{'ok' if condition else 'not ok'} {count} - {name}")
    if not condition:
        failures += 1
        print("".join(f"# {line[:300]}\n" for line in str(shown).splitlines()[:12]), end="")


def skip(name, why):
    global count
    count += 1
    print(f"ok {count} - {name} # SKIP {why}")


def run(*arguments, program=BENCH, **more):
    environment = {**os.environ, "TERM": "xterm", **more}
    environment.pop("NO_COLOR", None) if "NO_COLOR" not in more else None
    return subprocess.run([program, *arguments], capture_output=True, text=True,
                          env=environment, errors="surrogateescape")


def on_terminal(*arguments, stdout=False, **more):
    """What a terminal gets: stderr, with stdout=True stdout alone."""
    main, side = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "TERM": "xterm", **more}
    with tempfile.TemporaryFile() as other:
        files = {"stdout": side, "stderr": other} if stdout else {"stdout": other, "stderr": side}
        child = subprocess.Popen([BENCH, *arguments], env=environment, **files)
        os.close(side)
        seen = b""
        try:
            while chunk := os.read(main, 65536):
                seen += chunk
        except OSError:  # the end, on Linux
            pass
        child.wait(60)
        other.seek(0)
        rest = other.read()
    os.close(main)
    return seen.decode(errors="replace"), rest.decode(errors="replace")


def test_messages():
    for words, meant in [
            (["--caual", "none"], "--causal?"), (["--treads", "2"], "--threads?"),
            (["--pogress"], "--progress?"), (["-t", "2"], "-T?"), (["--caus"], "--causal?"),
            (["--Impl=fused"], "--impl?"), (["causal"], "--causal?"),
            (["vector"], "--engine vector?"), (["bert-base"], "--model bert-base?"),
            (["-m", "bert-bas"], "bert-base?"), (["-m", "llama3"], "llama3-8b-prefill?"),
            (["-m", "gpt3"], "gpt2?"), (["--causal", "topleft"], "top-left?"),
            (["--impl", "fussed"], "fused?"), (["-o", "jsno"], "json?")]:
        done = run(*words)
        check(f"{' '.join(words)}: did you mean {meant}", done.returncode == 2 and
              f"did you mean {meant}" in done.stderr, done.stderr)
    for words in ["--xyz"], ["-Z"], ["--causal", "yes"], ["--impl", "onednn"]:
        done = run(*words)
        check(f"{' '.join(words)}: nothing is near", done.returncode == 2 and
              "did you mean" not in done.stderr, done.stderr)
    for words, allowed in [
            (["-T", "0"], "1 to 1024"), (["-r", "x"], "1 to 10000"),
            (["-H", "99999"], "1 to 16384"),
            (["--causal", "yes"], "none, top-left, bottom-right"), (["-o", "xml"], "md, csv, json"),
            (["--plot", "x.png"], ".svg"), (["--plot", ".svg"], ".svg"),
            (["--plot", "x.svg", "--dry-run"], "--dry-run measures nothing"),
            (["--min-time", "0"], "above 0 and at most 3600"),
            (["--window", "5"], "LEFT:RIGHT"), (["--progress=1"], "takes no value")]:
        done = run(*words)
        check(f"{' '.join(words)}: says {allowed}", done.returncode == 2 and not done.stdout and
              allowed in done.stderr and "try --help" in done.stderr, done.stderr)


def test_progress():
    work = ["-q", "16,24", "--impl", "fused", *FAST]
    seen, out = on_terminal(*work)
    check("a terminal sees what runs", "[1/2] timing: run b=1 q=16" in seen, seen)
    check("and how long it will take",
          re.search(r"\[2/2\] timing, about \d+ s left: run", seen), seen)
    check("the line is cleared", seen.rstrip("\n").endswith("\r\033[K") and "\n[" not in seen, seen)
    check("results are as without", out.count("\n") == 4 and ESCAPE not in out, out)
    seen, _ = on_terminal(*work, "--no-progress")
    check("--no-progress: nothing", "[1/2]" not in seen and "\033[K" not in seen, seen)
    seen, _ = on_terminal(*work, TERM="dumb")
    check("TERM=dumb: nothing", "[1/2]" not in seen and ESCAPE not in seen, seen)
    seen, _ = on_terminal(*work, "--progress")
    check("--progress: lines that stay", seen.count("[1/2]") == 1 and "\033[K" not in seen, seen)
    done = run(*work)
    check("no terminal: nothing", "[1/2]" not in done.stderr and ESCAPE not in done.stderr,
          done.stderr)
    done = run(*work, "--progress")
    lines = re.findall(r"\[\d/2\] timing.*: run b=1 .*, 1 row\n", done.stderr)
    check("--progress without a terminal", len(lines) == 2, done.stderr)


def test_colours():
    work = ["-q", "16", "--impl", "fused", "-T", "1000", *FAST]
    seen, _ = on_terminal(*work)
    check("warnings have a colour", "\033[33mwarning:" in seen, seen)
    seen, _ = on_terminal(*work, NO_COLOR="1")
    check("NO_COLOR: none", "warning:" in seen and not COLOUR.search(seen), seen)
    seen, _ = on_terminal(*work, NO_COLOR="")
    check("NO_COLOR empty is as not set", COLOUR.search(seen), seen)
    seen, _ = on_terminal(*work, stdout=True)
    check("a table's head is bold on a terminal", seen.startswith("\033[1m| impl"), seen)
    check("the table is the same", COLOUR.sub("", seen).count("\n") == 3, seen)
    done = run(*work)
    check("no terminal: no colour", ESCAPE not in done.stdout + done.stderr)
    seen, _ = on_terminal(*work, "-o", "json", stdout=True)
    check("json has no colour", ESCAPE not in seen and json.loads(seen), seen)
    if WRONG:
        seen, _ = on_terminal(*work, stdout=True, LD_PRELOAD=WRONG, ATTN_BENCH_ERROR="zero")
        check("a wrong row is red", re.search(r"\033\[1;31m *NO\033\[0m", seen), seen)


def plot(path, *arguments, **more):
    done = run(*arguments, "--plot", str(path), "-o", "json", **more)
    tree = xml.parse(path).getroot()  # raises where it is not well-formed
    texts = [e.text for e in tree.iter(SVG + "text")]
    return done, json.loads(done.stdout), tree, texts


def test_plots(tmp):
    fast = ["--min-time", "0.000001", "-r", "2", "--no-memory"]
    done, rows, tree, texts = plot(tmp / "lines.svg", "-q", "64,16,32", "-H", "2", "-d", "16",
                                   *fast)
    points = sorted(e[0].text for e in tree.iter(SVG + "circle"))
    check("lines: a point a row", done.returncode == 0 and len(points) == len(rows) == 6, points)
    wanted = sorted(f"{r['impl']} q={r['q']}: {r['gflops']:.4g}, median {r['gflops_median']:.4g}"
                    for r in rows)
    check("lines: points have the rows' numbers", points == wanted, (points, wanted))
    check("lines: axis, series, ceilings, what is constant",
          {"q: queries of an item", "fused", "unfused", "GF/s of useful work",
           "measured ceiling: multiply-adds in registers",
           "measured ceiling: square sgemm"} <= set(texts) and
          any(t.startswith("run ") and "h=2" in t and "T=1" in t for t in texts), texts)
    dashed = [e for e in tree.iter(SVG + "line") if e.get("stroke-dasharray") == "5 3"]
    check("lines: two ceilings, and in the legend", len(dashed) == 4, len(dashed))
    by_x = sorted((float(e.get("cx")), float(e[0].text.split("q=")[1].split(":")[0]))
                  for e in tree.iter(SVG + "circle"))
    check("lines: in the order of q", [q for _, q in by_x] == sorted(q for _, q in by_x), by_x)

    done, rows, tree, texts = plot(tmp / "bars.svg", "-m", "minilm,clip-text,whisper-base-cross",
                                   "--impl", "fused", "--engine", "blas,vector", *fast)
    bars = [e for e in tree.iter(SVG + "rect") if e.get("height") == "12.0"]
    check("bars: a bar a row, two panels", len(bars) == len(rows) == 6 and
          {"GF/s of useful work", "GB/s of keys and values (decoding)"} <= set(texts), texts)
    check("bars: models and engines are named", {"fused blas", "fused vector"} <= set(texts) or
          {"blas", "vector"} <= set(texts), texts)
    check("bars: the model says it all", {"minilm", "clip-text"} <= set(texts), texts)
    first = [(float(b.get("width")), r["gflops"]) for b, r in zip(bars[:4], rows[:4])]
    scale = first[0][0] / first[0][1]
    check("bars: as long as the numbers", all(abs(w - v * scale) <= 0.1 + 0.06 * v / first[0][1]
                                              for w, v in first), first)
    done, rows, tree, texts = plot(tmp / "softmax.svg", "--stage", "softmax", "-q", "16", *FAST)
    check("softmax: ns a score, no ceilings", "ns a score (softmax alone)" in texts and
          not any("ceiling" in (t or "") for t in texts), texts)

    done, rows, tree, texts = plot(tmp / "rules.svg", "-q", "16,32,48", "--window", "none,3:0",
                                   "--impl", "fused", *FAST)
    check("rules: by what they are, or none", {"no rule", "window 3:0"} <= set(texts), texts)

    odd = tmp / "a<b>&\"c\x01\udcff"
    os.symlink(BENCH, odd)
    done = run("-q", "16", *FAST, "--plot", str(tmp / "odd.svg"), program=str(odd))
    text = xml.parse(tmp / "odd.svg").getroot().find(SVG + "desc").text
    check("odd characters", done.returncode == 0 and 'a<b>&"c??' in text and "-q 16" in text, text)
    done = run("-q", "16", *FAST, "--plot", str(tmp / "none" / "x.svg"))
    check("no such folder: status 3, before measuring", done.returncode == 3 and
          "--plot" in done.stderr and not done.stdout, done.stderr)
    if os.path.exists("/dev/full"):
        os.symlink("/dev/full", tmp / "full.svg")
        done = run("-q", "16", *FAST, "--plot", str(tmp / "full.svg"))
        check("a full disk: status 3", done.returncode == 3, done.stderr)
    if WRONG:
        done, rows, tree, texts = plot(tmp / "wrong.svg", "-q", "16,32,64", "--impl", "fused",
                                       *FAST, LD_PRELOAD=WRONG, ATTN_BENCH_ERROR="zero")
        check("wrong rows are marked", done.returncode == 1 and texts.count("WRONG") == 3, texts)


def options():
    """Every option of --help."""
    lines = run("--help").stdout.split("\n\n")[1].splitlines()
    return [word.rstrip(",") for line in lines for word in line[:26].split() if word[0] == "-"]


def names(option):
    return re.search(r"is not one of (.*?)(;|$)", run(option, "?").stderr)[1].split(", ")


def complete(*words):
    """What bash offers for the last of the words."""
    script = f""". {COMPLETION}/attn-bench.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _attn_bench && printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", script, "bash", BENCH, *words], capture_output=True,
                          text=True)
    return done.stdout.split()


def test_completion():
    known = options()
    check("--help has the options", len(known) > 45 and "--plot" in known, known)
    check("bash: every option and no other", sorted(complete("")) == sorted(known),
          set(complete("")) ^ set(known))
    zsh = (COMPLETION / "_attn-bench").read_text()
    offered = {o for o in re.findall(r"(?<=[\s{,*)'\"])--?[A-Za-z][\w-]*(?=[=\[,}])", zsh)}
    check("zsh: every option and no other", offered == set(known), offered ^ set(known))
    for option in "--model", "--causal", "--alibi", "--stage", "--impl", "--engine", "--isa", "-o":
        check(f"bash: every value of {option}", complete(option, "") == names(option),
              complete(option, ""))
        listed = " ".join(names(option))
        check(f"zsh: every value of {option}", option == "--model" or listed in zsh, listed)
    check("bash: behind a comma", complete("--impl", "naive,fu") == ["naive,fused"])
    check("bash: behind an equals sign", complete("--impl", "=", "fu") == ["fused"])
    check("bash: formats are no list", complete("-o", "md,c") == [])
    check("bash: a number is nobody's guess", complete("-q", "") == [])
    if shutil.which("zsh"):
        done = subprocess.run(["zsh", "-n", str(COMPLETION / "_attn-bench")], capture_output=True)
        check("zsh reads its file", done.returncode == 0 and not done.stderr, done.stderr)
    else:
        skip("zsh reads its file", "no zsh")


def test_best_isa():
    """The best instruction set is what the CPU has, not a lesser one."""
    cpu = pathlib.Path("/proc/cpuinfo")
    flags = set(cpu.read_text().split()) if cpu.exists() else set()
    if not {"avx2", "fma"} <= flags or os.uname().machine != "x86_64":
        skip("the best instruction set", "no x86-64 with AVX2")
        return
    best = "avx512" if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags else "avx2"
    rows = json.loads(run("-q", "16", "-o", "json", "--isa", f"best,{best}", *FAST).stdout)
    check(f"the best instruction set is {best}", {r["isa"] for r in rows} == {best} and
          len(rows) == 4, rows)


with tempfile.TemporaryDirectory() as folder:
    test_messages()
    test_progress()
    test_colours()
    test_plots(pathlib.Path(folder))
    test_completion()
    test_best_isa()
print(f"1..{count}")
sys.exit(failures > 0)
