# SPDX-License-Identifier: MIT
"""What this machine is, and its ceilings as attn-bench measures them."""
import datetime
import json
import os
import platform
import subprocess
import sys


def cores():
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def cpu():
    """The model, with a word for its newest vector instructions: names of virtual machines'
    processors say little."""
    name, flags = platform.processor() or platform.machine(), set()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    name = value.strip()
                elif key.strip() in ("flags", "Features"):
                    flags = set(value.split())
    except OSError:
        pass
    known = [("avx512_bf16", "AVX-512 with BF16"), ("avx512f", "AVX-512"), ("avx2", "AVX2"),
             ("asimd", "NEON")]
    word = next((text for flag, text in known if flag in flags), None)
    return f"{name} ({word})" if word else name


def commit(root):
    """The short commit of the source, with + when it has changes; None when unknown."""
    def git(*arguments):
        return subprocess.run(["git", "-C", root, *arguments], check=True, text=True,
                              capture_output=True).stdout.strip()
    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def context(root, seed):
    """What every record says about where and when it was measured."""
    now = datetime.datetime.now(datetime.UTC)
    return {"cpu": cpu(), "cores": cores(), "time": now.isoformat(timespec="seconds"),
            "commit": commit(root), "load": os.getloadavg()[0], "seed": seed,
            "openblas_coretype": os.environ.get("OPENBLAS_CORETYPE")}


def ceilings(attn_bench, threads):
    """{threads: {"fma_gflops", "sgemm_gflops", "read_gbps"}}; empty when they cannot be had."""
    answer = {n: {} for n in threads}
    common = ["-T", ",".join(map(str, threads)), "--impl", "fused", "--no-memory", "--no-verify",
              "-r", "2", "--min-time", "0.05", "-o", "jsonl"]
    for shape in (["-H", "4", "-q", "256", "-d", "64"],
                  ["-H", "32", "-g", "8", "-q", "1", "-k", "32768", "-d", "128"]):
        try:
            out = subprocess.run([attn_bench, *shape, *common], check=True, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
            for row in map(json.loads, out.splitlines()):
                for key in ("fma_gflops", "sgemm_gflops", "read_gbps"):
                    if row[key] is not None:
                        mine = answer[row["threads"]]
                        mine[key] = max(mine.get(key, 0), row[key])
        except (OSError, KeyError, ValueError, subprocess.CalledProcessError) as error:
            print(f"compare: no ceilings: {error}", file=sys.stderr)
            break
    return answer


def larger(a, b):
    """Two measurements of ceilings: what the machine can, not what it does while disturbed."""
    return {n: {k: max(a[n].get(k, 0), b[n].get(k, 0)) for k in {**a[n], **b[n]}} for n in a}
