#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The heat maps of doc/guide.md, from what the examples compute with libattn.

    heatmaps.py BUILD/examples            draws them beside this file; needs matplotlib
    heatmaps.py --check BUILD/examples    compares the numbers in those that lie there

Rows are queries, columns keys; a cell says how much of its weight the query gives the key.
"""
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as xml

HERE = pathlib.Path(__file__).resolve().parent
SHOWN = 0.005  # a weight below it is an empty cell; two decimals are shown
SIZE_MAX = 40_000
SVG = "{http://www.w3.org/2000/svg}"

MONEY, RIVER = ["money", "bank", "grows"], ["river", "bank", "floods"]
GREEN = ["she", "ate", "a", "green", "apple"]
SMALL = ["a", "small", "dog", "saw", "a", "small", "cat"]

# file -> program, then for each panel: title, tensor, which matrix of it, rows, columns
MAPS = {
    "1_general": ("1_general", [
        ("weights of the decoder's steps", "weights", 0,
         ["le", "chat", "boit", "lait", "froid", "."],
         ["the", "cat", "drinks", "cold", "milk", "."])]),
    "2_self": ("2_self", [
        ("raw tokens", "weights", 0, MONEY, MONEY), ("raw tokens", "weights", 1, RIVER, RIVER),
        ("projected", "layer_weights", 0, MONEY, MONEY),
        ("projected", "layer_weights", 1, RIVER, RIVER)]),
    "3_projected": ("3_projected", [
        ("first W_Q", "weights", 0, GREEN, GREEN),
        ("another W_Q: all ask for the verb", "weights_verb", 0, GREEN, GREEN)]),
    "4_scaled": ("4_scaled", [
        ("scale 1", "weights1", 0, range(6), range(8)),
        ("scale 1/√64", "weights1", 1, range(6), range(8))]),
    "5_multi_head": ("5_multi_head", [
        ("head 0: the same word", "multi_weights", 0, SMALL, SMALL),
        ("head 1: one back", "multi_weights", 1, SMALL, SMALL),
        ("a single head: both", "single_weights", 0, SMALL, SMALL)]),
    "6_cross": ("6_cross_grouped", [
        ("picture 0: six patches", "weights", 0, ["sky", "dog", "grass"], range(6)),
        ("picture 1: four patches", "weights", 1, ["sky", "dog", "grass"], range(6))]),
    "7_decode": ("7_decode", [
        ("rows 0-4 by prefill, 5-8 one a step", "triangle", 0, range(9), range(9))]),
}


def tensors(program):
    """What PROGRAM --dump prints: name -> list of matrices (of rows)."""
    text = subprocess.run([program, "--dump"], check=True, capture_output=True, text=True).stdout
    found = {}
    for block in text.split("tensor ")[1:]:
        head, _, body = block.partition("\n")
        name, *dims = head.split()
        numbers, columns = [float(x) for x in body.split()], int(dims[-1])
        rows = [numbers[i:i + columns] for i in range(0, len(numbers), columns)]
        per = int(dims[-2]) if len(dims) > 1 else 1
        found[name] = [rows[i:i + per] for i in range(0, len(rows), per)]
    return found


def panels(name, examples):
    program, wanted = MAPS[name]
    found = tensors(pathlib.Path(examples) / program)
    return [(title, found[tensor][which], list(map(str, rows)), list(map(str, columns)))
            for title, tensor, which, rows, columns in wanted]


def shown(weights):
    return [f"{w:.2f}".lstrip("0") for row in weights for w in row if w >= SHOWN]


def smaller(svg):
    """Without comments, which repeat every text, long lists of fonts and needless digits."""
    svg = re.sub(r"\s*<!--.*?-->|^ +", "", svg, flags=re.S | re.M)
    svg = re.sub(r"font-family: [^\";]*", "font-family: sans-serif", svg)
    svg = re.sub(r" \n(?=[LMz\"])", "", svg)
    return re.sub(r"\d+\.\d{3,}", lambda n: f"{float(n[0]):.1f}", svg)


def draw(name, examples):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "libattn", "font.size": 8,
                                "axes.titlesize": 9})
    parts = panels(name, examples)
    cell = 0.34
    widths = [len(p[3]) for p in parts]
    figure, axes = plt.subplots(1, len(parts), squeeze=False, layout="constrained",
                                width_ratios=widths,
                                figsize=(cell * sum(widths) + 0.9 * len(parts) + 0.3,
                                         cell * len(parts[0][2]) + 0.8))
    for axis, (title, weights, rows, columns) in zip(axes[0], parts):
        axis.pcolormesh(weights, cmap="Blues", vmin=0, vmax=1, edgecolors="#dddddd", linewidth=0.5,
                        clip_on=False)
        for i, row in enumerate(weights):
            for j, w in enumerate(row):
                if w >= SHOWN:
                    axis.text(j + 0.5, i + 0.5, f"{w:.2f}".lstrip("0"), ha="center", va="center",
                              color="white" if w > 0.6 else "black", fontsize=7)
        axis.set(title=title, aspect="equal", ylim=(len(rows), 0))
        axis.set_xticks([j + 0.5 for j in range(len(columns))], columns, rotation=45)
        axis.set_yticks([i + 0.5 for i in range(len(rows))], rows)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    path = HERE / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    path.write_text(smaller(path.read_text()))
    print(f"{path.name}: {path.stat().st_size} bytes")


def check(name, examples):
    """What is wrong with a committed map, in words; None: nothing."""
    path = HERE / f"{name}.svg"
    if path.stat().st_size > SIZE_MAX:
        return f"{path.stat().st_size} bytes"
    texts = [e.text for e in xml.parse(path).getroot().iter(SVG + "text")]
    drawn = [float(t) for t in texts if re.fullmatch(r"\.\d\d|1\.00", t)]
    wanted = [w for p in panels(name, examples) for row in p[1] for w in row if w >= SHOWN]
    if len(drawn) != len(wanted):
        return f"{len(drawn)} numbers, {len(wanted)} wanted"
    # two decimals, and what float32 may differ from machine to machine
    off = [(d, w) for d, w in zip(drawn, wanted) if not abs(d - w) <= 0.005 + 1e-5]
    return f"shown and computed differ: {off}" if off else None


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        wrong = {name: why for name in MAPS if (why := check(name, sys.argv[2]))}
        sys.exit("\n".join(f"{name}: {why}" for name, why in wrong.items()) or 0)
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for each in MAPS:
        draw(each, sys.argv[1])
