# SPDX-License-Identifier: MIT
"""Records: making, merging, writing them as JSON and as Markdown."""
import json
import statistics

import peers

UNITS = {"decode": ("gbps", "GB/s")}
RATES = ("gflops", "GF/s")
CEILINGS = [("multiply-adds", "fma_gflops", "GF/s"), ("sgemm", "sgemm_gflops", "GF/s"),
            ("reading memory", "read_gbps", "GB/s")]


def record(case, impl, threads, run, memory, error, tolerance):
    """What was measured of one implementation. Unknown is None, here and in the JSON."""
    fastest = min(run.samples) if run and run.samples else None
    ok = error is not None and error <= tolerance
    return {
        "case": case.name, "threads": threads, "impl": impl, "library": peers.FAMILY[impl],
        "min_ns": fastest,
        "median_ns": statistics.median(run.samples) if fastest else None,
        "samples": len(run.samples) if fastest else 0,
        "visits_ns": run.visits if fastest else [],
        "gflops": case.flops() / fastest if fastest else None,
        "gbps": case.kv_bytes() / fastest if fastest and case.decode else None,
        "peak_added_mib": memory, "max_error": error, "ok": ok,
        "group": case.group, "sweep": case.sweep, "flops": case.flops(),
        "kv_bytes": case.kv_bytes() if case.decode else None,
        "B": case.B, "Hq": case.Hq, "Hk": case.Hk, "L": case.L, "K": case.K, "D": case.D,
        "E": case.E or None, "causal": case.causal, "window": case.window or None,
        "lengths": list(case.lengths) or None,
    }


def _same_problem(records):
    """Records by case and threads, in order."""
    groups = {}
    for r in records:
        groups.setdefault((r["case"], r["threads"]), []).append(r)
    return groups.values()


def is_direct(impl):
    """Grouped heads as they are, not folded into queries (which a caller may do, but must know)."""
    return not impl.endswith("-folded")


def add_ratios(records):
    """Time of the best peer over ours: above 1, we are faster. Wrong results do not count."""
    for group in _same_problem(r for r in records if r["group"] != "stages"):
        peer = [r for r in group if r["ok"] and r["min_ns"] and not peers.is_ours(r["impl"])]
        best = min(peer, key=lambda r: r["min_ns"], default=None)
        direct = min((r["min_ns"] for r in peer if is_direct(r["impl"])), default=None)
        for r in group:
            ours = best and peers.is_ours(r["impl"]) and r["ok"] and r["min_ns"]
            r["best_peer"] = best["impl"] if ours else None
            r["ratio_to_best_peer"] = best["min_ns"] / r["min_ns"] if ours else None
            r["ratio_to_best_direct"] = direct / r["min_ns"] if ours and direct else None


def add_context(records, context, versions, ceilings):
    for r in records:
        r.update(context)
        r["versions"] = versions
        mine = ceilings.get(r["threads"], {})
        for key in ("fma_gflops", "sgemm_gflops", "read_gbps"):
            r[key] = mine.get(key)
        for name, rate, ceiling in (("pct_fma", "gflops", "fma_gflops"),
                                    ("pct_sgemm", "gflops", "sgemm_gflops"),
                                    ("pct_read", "gbps", "read_gbps")):
            known = r.get(rate) and r[ceiling]
            r[name] = 100 * r[rate] / r[ceiling] if known else None
    every = list(dict.fromkeys(key for r in records for key in r))
    for r in records:  # all have all
        for key in every:
            r.setdefault(key, None)


def merge(runs):
    """One list from several runs: medians of their minima, medians and ratios."""
    if len(runs) == 1:
        return runs[0]
    by_key = {}
    for run in runs:
        for r in run:
            by_key.setdefault((r["case"], r["threads"], r["impl"]), []).append(r)
    merged = []
    for group in by_key.values():
        r = dict(group[-1])
        for key in ("min_ns", "median_ns", "peak_added_mib", "ratio_to_best_peer",
                    "ratio_to_best_direct", "gflops", "gbps", "pct_fma", "pct_sgemm", "pct_read"):
            known = [g[key] for g in group if g.get(key) is not None]
            r[key] = statistics.median(known) if known else None
        for key in ("fma_gflops", "sgemm_gflops", "read_gbps"):
            r[key] = max((g[key] for g in group if g.get(key)), default=None)
        r["ok"] = all(g["ok"] for g in group)
        r["runs"] = len(group)
        merged.append(r)
    return merged


def write_json(path, records):
    """One record a line: a list that diffs well."""
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n")
        file.write(",\n".join(json.dumps(r) for r in records))
        file.write("\n]\n")


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


# ------------------------------------------------------------------ Markdown

def _number(x):
    """Three figures, or as many as the whole part has."""
    if x is None:
        return "–"
    digits = 0 if abs(x) >= 100 else 1 if abs(x) >= 10 else 2 if abs(x) >= 1 else 3
    return f"{x:.{digits}f}"


def _row(cells):
    return "| " + " | ".join(cells) + " |\n"


def _short_blas(info):
    """Name, version, core, threading: without how it was configured."""
    name, *facts = info.removeprefix("BLAS: ").split("; ")
    return ", ".join([" ".join(name.split()[:2]), *facts])


def caption(records):
    """Where and when, in a few lines of text."""
    r, runs = records[-1], max(r.get("runs", 1) for r in records)
    versions = dict(r["versions"])
    ours = versions.pop("libattn", "?") + (f" ({r['commit']})" if r.get("commit") else "")
    blas = _short_blas(versions.pop("libattn's BLAS", "?"))
    lines = [f"{r['cpu']}, {r['cores']} cores; {r['time'][:10]}; minimum of "
             f"{_samples(records)} calls" + (f", median of {runs} runs" if runs > 1 else ""),
             f"libattn {ours} over {blas}",
             ", ".join(f"{k} {v}" for k, v in versions.items())]
    if r.get("openblas_coretype"):
        lines.append(f"OPENBLAS_CORETYPE={r['openblas_coretype']} was set: both OpenBLAS run that "
                     "core's kernels")
    return lines


def _samples(records):
    counts = [r["samples"] for r in records if r.get("samples") and peers.is_ours(r["impl"])]
    low, high = min(counts, default=0), max(counts, default=0)
    return str(low) if low == high else f"{low} to {high}"


def _best(group, family, rate):
    right = [r for r in group if r["library"] == family and r["ok"] and r[rate]]
    return max(right, key=lambda r: r[rate], default=None)


def _libraries(records):
    return [f for f in peers.FAMILIES if f != "libattn"
            and any(r.get("library") == f for r in records)]


def _ours(records):
    return [i for i in peers.FORMS["libattn"] if any(r["impl"] == i for r in records)]


def _summary_row(group, ours, libraries):
    first = group[0]
    rate, unit = UNITS.get(first["group"], RATES)
    mine = {r["impl"]: r for r in group if r["impl"] in ours}
    cells = [first["case"], unit]
    cells += [_number(mine[i][rate]) if i in mine and mine[i]["ok"]
              else "WRONG" if i in mine else "–" for i in ours]
    cells += [_number((_best(group, f, rate) or {rate: None})[rate]) for f in libraries]
    cells += [_number(mine[i]["ratio_to_best_peer"] if i in mine else None) for i in ours]
    known = next((r for r in mine.values() if r["best_peer"]), None)
    best = next((r for r in group if known and r["impl"] == known["best_peer"]), None)
    direct = known and known["ratio_to_best_direct"]
    note = ""
    if known and not is_direct(known["best_peer"]) and direct:
        note = f" (direct: {_number(direct)})"
    cells += [(known["best_peer"] if known else "–") + note]
    own = next(iter(mine.values()), {"peak_added_mib": None})
    cells += [_number(own["peak_added_mib"]), _number(best["peak_added_mib"] if best else None)]
    return _row(cells)


def _summary(records, threads):
    mine = [r for r in records if r["threads"] == threads and not r.get("sweep")
            and r["group"] != "stages"]
    if not mine:
        return ""
    ours, libraries = _ours(mine), _libraries(mine)
    head = ["case", "", *ours, *libraries,
            *[f"ratio {i}" if len(ours) > 1 else "ratio" for i in ours], "best peer",
            "+MiB", "+MiB peer"]
    r = mine[0]
    text = f"\n### {threads} thread{'s' if threads > 1 else ''}\n\n"
    known = [f"{what} {_number(r[key])} {unit}" for what, key, unit in CEILINGS if r[key]]
    text += f"Measured ceilings: {', '.join(known) or 'unknown'}.\n\n"
    text += _row(head) + _row(["---"] * 2 + ["---:"] * (len(head) - 5) + ["---"] + ["---:"] * 2)
    return text + "".join(_summary_row(g, ours, libraries) for g in _same_problem(mine))


def _details(records):
    head = ["case", "threads", "form", "min ms", "median ms", "GF/s", "GB/s", "% FMA", "% read",
            "+MiB", "largest error", "calls"]
    text = _row(head) + _row(["---", "---:", "---"] + ["---:"] * (len(head) - 3))
    for r in records:
        if r["group"] == "stages" or r.get("sweep"):
            continue
        error = "–" if r["max_error"] is None else f"{r['max_error']:.0e}"
        text += _row([
            r["case"], str(r["threads"]), r["impl"],
            *(_number(r[k] / 1e6 if r[k] else None) for k in ("min_ns", "median_ns")),
            *(_number(r[k]) for k in ("gflops", "gbps", "pct_fma", "pct_read", "peak_added_mib")),
            error + ("" if r["ok"] else " WRONG"), str(r["samples"])])
    return text


def markdown(records):
    lines = caption(records)
    text = "".join(f"{line}  \n" for line in lines[:-1]) + lines[-1] + "\n"
    for threads in sorted({r["threads"] for r in records}):
        text += _summary(records, threads)
    return (text + "\n<details><summary>Every form</summary>\n\n" + _details(records)
            + "\n</details>\n")
