# SPDX-License-Identifier: MIT
"""Time by stage: of libattn from outside (stages.c, preloaded), and of the unfused chain of
attn-bench. Started as a program it is the process that has stages.c preloaded."""
import ctypes
import json
import os
import subprocess
import sys

NAMES = ["scores", "softmax", "values", "rest"]
LENGTHS = [64, 128, 256, 512, 1024, 2048, 4096]
QUICK_LENGTHS = [128, 512]
HEADS, D = 4, 64
RUNS = 7


def _fused(lib, lengths):
    """In the preloaded process: ns by stage of the fastest run, for each length."""
    import cases
    import peers
    module = peers.load("libattn", lib)
    shim = ctypes.CDLL(None)
    shim.stages_begin.restype = None
    shim.stages_end.restype, shim.stages_end.argtypes = None, [ctypes.POINTER(ctypes.c_double)]
    answer = {}
    for L in lengths:
        case = cases.Case("stages", str(L), HEADS, HEADS, L, L, D)
        run = peers.build(module, "attn-blas", case, cases.Data(case), 1)
        run.call()
        best = None
        for _ in range(RUNS):
            ns = (ctypes.c_double * len(NAMES))()
            shim.stages_begin()
            run.call()
            shim.stages_end(ns)
            best = min(best or list(ns), list(ns), key=sum)
        if not best[0] or not best[2]:
            raise RuntimeError("saw no products")
        answer[L] = dict(zip(NAMES, best))
    return answer


def _unfused(attn_bench, lengths):
    """ns by stage of sgemm, softmax over the whole matrix, sgemm."""
    lines = subprocess.run(
        [attn_bench, "-H", str(HEADS), "-q", ",".join(map(str, lengths)), "-d", str(D), "-T", "1",
         "--impl", "unfused", "--stage", "run,scores,softmax,values", "--no-memory", "--no-peaks",
         "--no-verify", "--min-time", "0.02", "-r", str(RUNS), "-o", "jsonl"],
        check=True, text=True, capture_output=True).stdout.splitlines()
    answer = {}
    for row in map(json.loads, lines):
        answer.setdefault(row["q"], {})[row["stage"]] = row["min_ns"]
    for stages in answer.values():
        whole = stages.pop("run")
        stages["rest"] = max(0.0, whole - sum(stages.values()))
    return answer


def measure(lib, shim, attn_bench, quick=False):
    """Records (without what all records have) of group 'stages'; what cannot be had is left out
    with a word on stderr."""
    lengths = QUICK_LENGTHS if quick else LENGTHS
    records = []

    def add(impl, answer):
        for L, ns in answer.items():
            records.append({"group": "stages", "case": f"stages {HEADS}x{L}x{D}", "impl": impl,
                            "threads": 1, "L": int(L), "D": D, "Hq": HEADS, "stages_ns": ns,
                            "min_ns": sum(ns.values())})
    try:
        if not shim or not os.path.exists(shim):
            raise RuntimeError("stages.c was not compiled")
        out = subprocess.run([sys.executable, __file__, str(lib), *map(str, lengths)], check=True,
                             text=True, stdout=subprocess.PIPE,
                             env={**os.environ, "LD_PRELOAD": str(shim)}).stdout
        add("attn-blas", json.loads(out))
    except (OSError, RuntimeError, ValueError, subprocess.CalledProcessError) as error:
        print(f"compare: no stages of libattn: {error}", file=sys.stderr)
    try:
        add("unfused", _unfused(attn_bench, lengths))
    except (OSError, KeyError, ValueError, TypeError, subprocess.CalledProcessError) as error:
        print(f"compare: no stages of the unfused chain: {error}", file=sys.stderr)
    return records


if __name__ == "__main__":
    print(json.dumps(_fused(sys.argv[1], [int(a) for a in sys.argv[2:]])))
