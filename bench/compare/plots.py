# SPDX-License-Identifier: MIT
"""The plots, from records alone."""
import textwrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402 (the backend comes first)
from matplotlib.ticker import FuncFormatter, NullLocator  # noqa: E402

import peers  # noqa: E402
import report  # noqa: E402
import stages  # noqa: E402

COLOURS = {"attn-blas": "#0b3c8c", "attn-vector": "#00a3a3", "PyTorch": "#d9541e",
           "ONNX Runtime": "#3f9b3f", "OpenVINO": "#8a4fbf", "NumPy": "#8c8c8c"}
MARKERS = {"attn-blas": "o", "attn-vector": "D", "PyTorch": "s", "ONNX Runtime": "^",
           "OpenVINO": "v", "NumPy": "x"}
STAGE_COLOURS = {"scores": "#3567b0", "softmax": "#e8a33d", "values": "#7aa6dc", "rest": "#b5b5b5"}
STYLE = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
         "grid.color": "#e4e4e4", "axes.axisbelow": True, "axes.titlesize": 11,
         "axes.titleweight": "bold", "legend.frameon": False, "figure.dpi": 130,
         "svg.fonttype": "none", "svg.hashsalt": "libattn"}
SCALING_CASES = 12


def _threads(n):
    return f"{n} thread{'s' if n > 1 else ''}"


def _counts(records):
    return sorted({r["threads"] for r in records})


def _series(records):
    """Who -> records: ours by name, of each library the fastest form of each case."""
    lines = {}
    for r in records:
        who = r["impl"] if peers.is_ours(r["impl"]) else r["library"]
        old = lines.setdefault(who, {}).get((r["case"], r["threads"]))
        if r["ok"] and r["min_ns"] and (old is None or r["min_ns"] < old["min_ns"]):
            lines[who][r["case"], r["threads"]] = r
    return {who: list(lines[who].values()) for who in COLOURS if lines.get(who)}


def _finish(figure, records, title, note, path):
    """Title above, and below where, when and how."""
    width, height = figure.get_size_inches()
    lines = [line for text in [note, *report.caption(records)]
             for line in textwrap.wrap(text, int(width * 17))]
    figure.text(0.01, 1 - 0.12 / height, title, va="top", fontsize=13, fontweight="bold")
    figure.text(0.01, 0.08 / height, "\n".join(lines), fontsize=7.5, color="#555555",
                va="bottom", linespacing=1.4)
    figure.tight_layout(rect=(0, (0.15 * len(lines) + 0.1) / height, 1, 1 - 0.35 / height))
    # the same bytes from the same records
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return path


def _length_axis(axis, lengths):
    axis.set_xscale("log", base=2)
    powers = [2**i for i in range(3, 20) if min(lengths) <= 2**i <= max(lengths)]
    axis.set_xticks(powers or sorted(lengths))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(
        lambda x, _: f"{x / 1024:g}k" if x >= 1024 else f"{x:g}"))


def _line(axis, who, points, rate):
    points = sorted(points, key=lambda r: r["K"])
    ours = who.startswith("attn")
    axis.plot([r["K"] for r in points], [r[rate] for r in points], label=who,
              color=COLOURS[who], marker=MARKERS[who], markersize=4.5 if ours else 3.5,
              linewidth=2.4 if ours else 1.3, zorder=4 if ours else 3)


def _ceiling(axis, value, text, below=False):
    if value:
        axis.axhline(value, color="#222222", linewidth=1, linestyle="--", zorder=2)
        axis.annotate(f"{text} {value:.0f}", (1, value), xycoords=("axes fraction", "data"),
                      xytext=(0, -3 if below else 3), textcoords="offset points", ha="right",
                      va="top" if below else "bottom", fontsize=8, color="#222222", zorder=5,
                      bbox={"facecolor": "white", "alpha": 0.7, "pad": 0.5, "linewidth": 0})


def _panels(counts):
    figure, axes = plt.subplots(1, len(counts), figsize=(1.2 + 5.2 * len(counts), 5.2),
                                squeeze=False)
    return figure, axes[0]


def _legend(figure, axes):
    """One for all panels, beside the title: nowhere in the way."""
    handles, labels = max((a.get_legend_handles_labels() for a in axes), key=lambda x: len(x[0]))
    figure.legend(handles, labels, loc="upper right", ncols=len(labels), fontsize=8.5,
                  columnspacing=1.2, handlelength=1.8)


def _speed(records, group, title, path):
    """GF/s against length, with the ceilings."""
    chosen = [r for r in records if r["group"] == group]
    if not chosen:
        return None
    counts = _counts(chosen)
    figure, axes = _panels(counts)
    for axis, threads in zip(axes, counts):
        here = [r for r in chosen if r["threads"] == threads]
        for who, points in _series(here).items():
            _line(axis, who, points, "gflops")
        fma, sgemm = here[0]["fma_gflops"], here[0]["sgemm_gflops"]
        close = fma and sgemm and abs(fma - sgemm) < 0.06 * max(fma, sgemm)
        _ceiling(axis, fma, "measured FMA peak", below=close and fma < sgemm)
        _ceiling(axis, sgemm, "measured sgemm", below=close and fma >= sgemm)
        _length_axis(axis, [r["L"] for r in here])
        axis.set_ylim(0, 1.1 * max([r["gflops"] or 0 for r in here] + [fma or 0, sgemm or 0]))
        axis.set_title(_threads(threads))
        axis.set_xlabel("L, queries and keys")
    axes[0].set_ylabel("GF/s of useful work")
    _legend(figure, axes)
    r = chosen[0]
    return _finish(figure, chosen, title,
                   f"{r['Hq']} heads of size {r['D']}, float32. Useful work: 4 D for each visible "
                   "(query, key) pair, softmax not counted. Of each library its fastest form.",
                   path)


def _decode(records, path):
    """GB/s of keys and values against the length of the cache, with what memory gives."""
    chosen = [r for r in records if r["group"] == "decode" and r["Hq"] != r["Hk"]]
    if not chosen:
        return None
    counts = _counts(chosen)
    figure, axes = _panels(counts)
    for axis, threads in zip(axes, counts):
        here = [r for r in chosen if r["threads"] == threads]
        for who, points in _series(here).items():
            _line(axis, who, points, "gbps")
        _ceiling(axis, here[0]["read_gbps"], "measured memory read")
        _length_axis(axis, [r["K"] for r in here])
        axis.set_ylim(bottom=0)
        axis.set_title(_threads(threads))
        axis.set_xlabel("keys in the cache")
    axes[0].set_ylabel("GB/s of keys and values, each read once")
    _legend(figure, axes)
    r = chosen[0]
    return _finish(figure, chosen, "Decoding: one query",
                   f"{r['Hq']} query heads share {r['Hk']} key/value heads of size {r['D']}, "
                   "float32. Above the dashed line: from the CPU's caches.", path)


def _stages(records, path):
    """Two stacks for each length: libattn, and the unfused chain."""
    chosen = [r for r in records if r["group"] == "stages"]
    if not chosen:
        return None
    lengths = sorted({r["L"] for r in chosen})
    who = [w for w in ("attn-blas", "unfused") if any(r["impl"] == w for r in chosen)]
    figure, axis = plt.subplots(figsize=(4.5 + 1.1 * len(lengths), 4.8))
    width = 0.8 / len(who)
    top = 0
    for r in chosen:
        at = lengths.index(r["L"]) + (who.index(r["impl"]) - (len(who) - 1) / 2) * width
        whole, bottom = sum(r["stages_ns"].values()), 0
        scale = r["Hq"] * r["L"] ** 2
        for stage in stages.NAMES:
            ns = r["stages_ns"][stage]
            axis.bar(at, ns / scale, 0.92 * width, bottom / scale, color=STAGE_COLOURS[stage],
                     hatch="///" if r["impl"] == "unfused" else None, edgecolor="white",
                     linewidth=0.6)
            if ns > 0.07 * whole:
                axis.text(at, (bottom + ns / 2) / scale, f"{100 * ns / whole:.0f} %", ha="center",
                          va="center", fontsize=7,
                          bbox={"facecolor": "white", "alpha": 0.75, "pad": 0.8, "linewidth": 0})
            bottom += ns
        top = max(top, bottom / scale)
    axis.set_xticks(range(len(lengths)), [str(n) for n in lengths])
    axis.set_xlabel("L, queries and keys")
    axis.set_ylabel("ns for each (query, key) pair")
    axis.set_ylim(0, 1.05 * top)
    axis.grid(axis="x", visible=False)
    handles = [plt.Rectangle((0, 0), 1, 1, color=STAGE_COLOURS[s]) for s in reversed(stages.NAMES)]
    names = {"scores": "scores, Q·Kᵀ", "softmax": "softmax", "values": "values, P·V",
             "rest": "rest: transposing, finishing"}
    axis.legend(handles, [names[s] for s in reversed(stages.NAMES)], loc="center left",
                bbox_to_anchor=(1, 0.5), fontsize=9)
    r = chosen[0]
    return _finish(figure, records, "Where the time goes",
                   "Left bars: libattn, its products timed from outside. Right, hatched: sgemm, "
                   "softmax of the whole matrix, sgemm, by attn-bench. "
                   f"{r['Hq']} heads of size {r['D']}, one thread, the fastest run of each.", path)


def _scaling(records, path):
    """How many times faster with more threads, for cases of each kind."""
    counts = _counts(records)
    if len(counts) < 2:
        return None
    few, many = counts[0], counts[-1]
    lines = {who: {(r["case"], r["threads"]): r["min_ns"] for r in points}
             for who, points in _series([r for r in records if not r.get("sweep")
                                         and r["group"] not in ("stages", "long")]).items()}
    names, groups = [], {}
    for r in records:  # the longest of each group and of decoding's kinds
        if r["case"] not in names and not r.get("sweep") and r["group"] not in ("stages", "long"):
            groups.setdefault((r["group"], r["Hq"] == r["Hk"]), []).append((r["flops"], r["case"]))
            names.append(r["case"])
    names = [max(g)[1] for g in groups.values()][:SCALING_CASES]
    figure, axis = plt.subplots(figsize=(11, 1.6 + 0.62 * len(names) + 0.6))
    width = 0.84 / len(lines)
    for i, (who, times) in enumerate(lines.items()):
        known = [(j, times[n, few] / times[n, many]) for j, n in enumerate(names)
                 if (n, few) in times and (n, many) in times]
        axis.barh([j + (i - (len(lines) - 1) / 2) * width for j, _ in known],
                  [x for _, x in known], 0.9 * width, color=COLOURS[who], label=who)
    axis.axvline(many / few, color="#222222", linestyle="--", linewidth=1)
    axis.annotate("ideal", (many / few, 1), xycoords=("data", "axes fraction"), fontsize=8,
                  xytext=(3, -2), textcoords="offset points", va="top")
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_xlabel(f"time on {_threads(few)} / time on {_threads(many)}")
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9)
    return _finish(figure, records, f"From {_threads(few)} to {many}",
                   "The longest case of each kind; of each library its fastest form.", path)


def _ratios(records, path):
    """Best peer's time over ours, every case."""
    chosen = [r for r in records if r.get("ratio_to_best_peer") and not r.get("sweep")
              and r["group"] != "long"]
    if not chosen:
        return None
    names = list(dict.fromkeys(r["case"] for r in chosen))
    counts, ours = _counts(chosen), [w for w in COLOURS if any(r["impl"] == w for r in chosen)]
    figure, axes = plt.subplots(1, len(counts), squeeze=False, sharey=True,
                                figsize=(2.5 + 4.6 * len(counts), 1.6 + 0.25 * len(names)))
    for axis, threads in zip(axes[0], counts):
        for who in ours:
            here = [r for r in chosen if r["threads"] == threads and r["impl"] == who]
            axis.plot([r["ratio_to_best_peer"] for r in here],
                      [names.index(r["case"]) for r in here], MARKERS[who], color=COLOURS[who],
                      label=who, markersize=6)
            for r in here if who == ours[0] else []:
                axis.annotate(r["best_peer"], (r["ratio_to_best_peer"], names.index(r["case"])),
                              xytext=(7, 0), textcoords="offset points", fontsize=6.5,
                              color="#666666", va="center", zorder=5,
                              bbox={"facecolor": "white", "pad": 0.6, "linewidth": 0})
        axis.axvline(1, color="#222222", linewidth=1)
        low = min(r["ratio_to_best_peer"] for r in chosen)
        high = max(r["ratio_to_best_peer"] for r in chosen)
        axis.set_xscale("log")
        axis.set_xlim(min(0.8, 0.9 * low), max(2, 1.5 * high))
        ticks = [t for t in (0.25, 0.5, 0.7, 1, 1.4, 2, 3, 5, 8, 12) if t <= max(2, 1.5 * high)
                 and t >= min(0.8, 0.9 * low)]
        axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_title(_threads(threads))
        axis.set_xlabel("time of the best peer / time of libattn")
    axes[0][0].set_yticks(range(len(names)), names, fontsize=8.5)
    axes[0][0].set_ylim(len(names) - 0.3, -0.7)
    if len(ours) > 1:
        axes[0][-1].legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8.5)
    return _finish(figure, chosen, "libattn against the best peer of each case",
                   "Right of 1: libattn is faster. The best peer is named beside the point.", path)


def draw(records, directory, suffix=".png"):
    """Draw what these records allow; the files written."""
    directory.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        paths = [
            _ratios(records, directory / ("ratios" + suffix)),
            _speed(records, "sweep", "Prefill", directory / ("prefill" + suffix)),
            _speed(records, "sweep-causal", "Causal prefill", directory / ("causal" + suffix)),
            _decode(records, directory / ("decode" + suffix)),
            _stages(records, directory / ("stages" + suffix)),
            _scaling(records, directory / ("threads" + suffix)),
        ]
    return [p for p in paths if p]
