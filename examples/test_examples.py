#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Check one example against plain float64 loops: test_examples.py PROGRAM

Runs PROGRAM --dump, reads the tensors that it prints after its text, computes the
results again from the inputs with nothing but Python's own floats, and compares.

Tolerances are not chosen but computed: every number here is a pair (value, bound),
and the bound says how far a float32 computation of it may be off, in any order of
summation, to first order as in Higham, "Accuracy and Stability of Numerical
Algorithms", chapter 3. With u = 2^-24:

    sum of n products   sum(|a| eb + ea |b| + ea eb) + n u sum(|a| |b|)
    scale               2 u |s| more (the factor itself is rounded, then a product)
    softmax             scores off by d (with the rounding of s - max s) make weights
                        off by the factor exp(2 d); exp, sum and division add
                        (n + 16) u; a weight below 2^-126 may be 0

A weight that must be 0 has the bound 0. NaN or Inf on either side is a failure.
"""
import math
import os
import subprocess
import sys

U = 2.0 ** -24


class Mat:
    """A matrix of values v, and of bounds e of their errors."""

    def __init__(self, v, e=None):
        self.v = [list(row) for row in v]
        self.e = [list(row) for row in e] if e else [[0.0] * len(row) for row in v]

    def __matmul__(self, other):
        v, e = [], []
        columns = list(zip(zip(*other.v), zip(*other.e)))
        for a, ea in zip(self.v, self.e):
            v.append([math.fsum(x * y for x, y in zip(a, b)) for b, _ in columns])
            e.append([math.fsum(abs(x) * dy + dx * abs(y) + dx * dy
                                for x, dx, y, dy in zip(a, ea, b, eb))
                      + len(a) * U * math.fsum((abs(x) + dx) * (abs(y) + dy)
                                               for x, dx, y, dy in zip(a, ea, b, eb))
                      for b, eb in columns])
        return Mat(v, e)

    @property
    def T(self):
        return Mat(zip(*self.v), zip(*self.e))

    def columns(self, begin, end):
        return Mat([row[begin:end] for row in self.v], [row[begin:end] for row in self.e])

    def rows(self, begin, end):
        return Mat(self.v[begin:end], self.e[begin:end])


def scaled(m, factor):
    return Mat([[x * factor for x in row] for row in m.v],
               [[d * abs(factor) + 2 * U * abs(x * factor) for x, d in zip(row, e)]
                for row, e in zip(m.v, m.e)])


def softmax(s, visible=lambda i, j: True):
    v, e = [], []
    for i, (row, errors) in enumerate(zip(s.v, s.e)):
        seen = [j for j in range(len(row)) if visible(i, j)]
        top = max(row[j] for j in seen)
        p = {j: math.exp(row[j] - top) for j in seen}
        total = math.fsum(p.values())
        off = max(errors[j] + U * abs(row[j] - top) for j in seen)
        factor = math.expm1(2 * off) + (len(seen) + 16) * U
        v.append([p[j] / total if j in p else 0.0 for j in range(len(row))])
        e.append([w * factor + 2.0 ** -126 if j in p else 0.0 for j, w in enumerate(v[-1])])
    return Mat(v, e)


def attend(q, k, v, scale=None, visible=lambda i, j: True):
    """(scores, weights, output) of one head. Keys that no query sees do not enter."""
    scale = 1 / math.sqrt(len(q.v[0])) if scale is None else scale
    scores = scaled(q @ k.T, scale)
    weights = softmax(scores, visible)
    return scores, weights, weights @ v


def joined(heads):
    return Mat([sum(parts, []) for parts in zip(*(h.v for h in heads))],
               [sum(parts, []) for parts in zip(*(h.e for h in heads))])


class Example:
    """The tensors of one run of a program, and the comparisons made with them."""

    def __init__(self, program):
        self.tensors, self.checked, self.numbers = {}, 0, 0
        self.difference = self.share = 0.0
        text, _, dumped = run(program, "--dump").partition("tensor ")
        expect(text == run(program), "the text is the same with and without --dump")
        expect(text.count("\n") > 8 and "nan" not in text, "the text is there, without NaN")
        for block in dumped.split("tensor "):
            head, _, body = block.partition("\n")
            name, *dims = head.split()
            data = [float(x) for x in body.split()]
            dims = [int(d) for d in dims]
            expect(len(data) == math.prod(dims), f"{name} has as many numbers as its extents say")
            self.tensors[name] = (dims, data)

    def raw(self, name):
        return self.tensors[name][1]

    def mats(self, name):
        """The tensor as a list of matrices: its last two extents."""
        dims, data = self.tensors[name]
        r, c = dims[-2:]
        rows = [data[i:i + c] for i in range(0, len(data), c)]
        return [Mat(rows[i:i + r]) for i in range(0, len(rows), r)]

    def mat(self, name):
        mats = self.mats(name)
        expect(len(mats) == 1, f"{name} is one matrix")
        return mats[0]

    def compare(self, name, *wanted):
        """The tensor against the matrices in order."""
        got = self.raw(name)
        values = [x for m in wanted for row in m.v for x in row]
        bounds = [x for m in wanted for row in m.e for x in row]
        expect(len(got) == len(values), f"{name}: {len(got)} numbers, {len(values)} wanted")
        for i, (x, y, bound) in enumerate(zip(got, values, bounds)):
            expect(near(x, y, bound), f"{name}[{i}] is {x!r}, {y!r} wanted within {bound:.3g}")
            self.difference = max(self.difference, abs(x - y))
            if bound > 0:
                self.share = max(self.share, abs(x - y) / bound)
        self.checked += 1
        self.numbers += len(got)


def near(x, y, bound):
    """False for NaN and Inf on either side, whatever the bound."""
    return math.isfinite(x) and math.isfinite(y) and math.isfinite(bound) and abs(x - y) <= bound


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def run(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)
    expect(done.returncode == 0, f"exit code {done.returncode}: {done.stderr.strip()}")
    expect(done.stderr == "", f"nothing on stderr, but: {done.stderr.strip()}")
    return done.stdout


def largest(weights):
    return [max(range(len(row)), key=row.__getitem__) for row in weights.v]


def check_general(x):
    states, h = x.mat("states"), x.mat("h")
    _, weights, context = attend(h, states, states, scale=1)
    x.compare("weights", weights)
    x.compare("context", context)
    x.compare("all_weights", weights)
    x.compare("all_context", context)
    expect(largest(x.mat("weights")) == [0, 1, 2, 4, 3, 5], "each step looks at its word")


def check_self(x):
    h = x.mats("h")
    w_q, w_k, w_v = x.mat("w_q"), x.mat("w_k"), x.mat("w_v")
    raw = [attend(t, t, t, scale=1) for t in h]
    projected = [attend(t @ w_q, t @ w_k, t @ w_v, scale=1) for t in h]
    for prefix, runs in ("", raw), ("layer_", projected):
        x.compare(prefix + "scores", *(r[0] for r in runs))
        x.compare(prefix + "weights", *(r[1] for r in runs))
        x.compare(prefix + "out", *(r[2] for r in runs))
    for name, bank_looks_at in ("weights", 1), ("layer_weights", 0):
        for table in x.mats(name):
            expect(largest(table)[1] == bank_looks_at, f"{name}: where bank looks")
    for table in x.mats("scores"):
        expect(table.v == table.T.v, "raw scores are symmetric")


def check_projected(x):
    h = x.mat("h")
    q, k, v = h @ x.mat("w_q"), h @ x.mat("w_k"), h @ x.mat("w_v")
    x.compare("q", q)
    x.compare("k", k)
    x.compare("v", v)
    _, weights, out = attend(q, k, v)
    x.compare("weights", weights)
    x.compare("out", out)
    _, weights, out = attend(h @ x.mat("w_q_verb"), k, v)
    x.compare("weights_verb", weights)
    x.compare("out_verb", out)
    expect(largest(x.mat("weights"))[3:] == [4, 3], "green and apple look at each other")
    expect(largest(x.mat("weights_verb")) == [1] * 5, "all look at the verb")


def check_scaled(x):
    v = x.mat("v")
    for n in range(3):
        q, k = x.mat(f"q{n}"), x.mat(f"k{n}")
        runs = [attend(q, k, v, scale=1), attend(q, k, v)]
        x.compare(f"scores{n}", *(r[0] for r in runs))
        x.compare(f"weights{n}", *(r[1] for r in runs))
        x.compare(f"out{n}", *(r[2] for r in runs))
        sharp, soft = ([max(row) for row in m.v] for m in x.mats(f"weights{n}"))
        expect(sum(sharp) > sum(soft), "the scale makes weights softer")
        for m in x.mats(f"weights{n}"):
            for row in m.v:
                expect(near(math.fsum(row), 1, (len(row) + 16) * U), "weights sum to 1")


def multi_head(h_q, h_kv, w_q, w_k, w_v, heads, kv_heads, visible=lambda i, j: True):
    """(weights of each head, joined heads) of projected attention."""
    q, k, v = h_q @ w_q, h_kv @ w_k, h_kv @ w_v
    d_k, d_v = len(w_q.v[0]) // heads, len(w_v.v[0]) // kv_heads
    weights, outputs = [], []
    for head in range(heads):
        g = head // (heads // kv_heads)
        _, a, o = attend(q.columns(head * d_k, (head + 1) * d_k),
                         k.columns(g * d_k, (g + 1) * d_k),
                         v.columns(g * d_v, (g + 1) * d_v), visible=visible)
        weights.append(a)
        outputs.append(o)
    return weights, joined(outputs)


def check_multi_head(x):
    h, w_o = x.mat("h"), x.mat("w_o")
    matrices = x.mat("w_q"), x.mat("w_k"), x.mat("w_v")
    weights, heads = multi_head(h, h, *matrices, 2, 2)
    x.compare("multi_weights", *weights)
    x.compare("multi", heads @ w_o)
    x.compare("joined", heads)
    x.compare("one_by_one", heads @ w_o)
    weights, heads = multi_head(h, h, *matrices, 1, 1)
    x.compare("single_weights", *weights)
    x.compare("single", heads @ w_o)
    expect(largest(x.mats("multi_weights")[1]) == [0, 0, 1, 2, 3, 4, 5], "head 1 looks one back")


def check_cross_grouped(x):
    weights, out = [], []
    for text, picture, n in zip(x.mats("caption"), x.mats("image"), x.raw("n_patches")):
        inside = picture.rows(0, int(n))
        (a,), o = multi_head(text, inside, x.mat("w_q"), x.mat("w_k"), x.mat("w_v"), 1, 1)
        pad = [[0.0] * (len(picture.v) - int(n))] * len(a.v)
        weights.append(joined([a, Mat(pad)]))
        out.append(o)
    x.compare("weights", *weights)
    x.compare("out", *out)
    expect(largest(x.mats("weights")[0])[1] == 4, "the word dog looks at the dog")
    q, k, v = x.mats("q"), x.mats("k"), x.mats("v")
    for kv_heads in 4, 2, 1:
        group = [h // (4 // kv_heads) for h in range(4)]
        x.compare(f"out{kv_heads}", *(attend(q[h], k[g], v[g])[2] for h, g in enumerate(group)))


def check_decode(x):
    matrices = x.mat("w_q"), x.mat("w_k"), x.mat("w_v")
    for b, h in enumerate(x.mats("x")):
        h = h.rows(0, len(x.mat(f"y{b}").v))
        weights, heads = multi_head(h, h, *matrices, 4, 2, visible=lambda i, j: j <= i)
        x.compare(f"y{b}", heads @ x.mat("w_o"))
        if b == 0:
            x.compare("triangle", weights[0])


CHECKS = {"1_general": check_general, "2_self": check_self, "3_projected": check_projected,
          "4_scaled": check_scaled, "5_multi_head": check_multi_head,
          "6_cross_grouped": check_cross_grouped, "7_decode": check_decode}


def main():
    if len(sys.argv) != 2:
        print("usage: test_examples.py PROGRAM", file=sys.stderr)
        return 2
    # The comparison itself first: it must not let a NaN pass.
    for x, y in (math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan), (math.inf, math.inf):
        expect(not near(x, y, 1.0), "NaN and Inf are never near")
    name = os.path.splitext(os.path.basename(sys.argv[1]))[0]
    try:
        example = Example(sys.argv[1])
        CHECKS[name](example)
    except AssertionError as error:
        print(f"not ok 1 - {name}: {error}")
        return 1
    print(f"ok 1 - {name}: {example.checked} tensors, {example.numbers} numbers, largest difference "
          f"{example.difference:.1e}, at most {100 * example.share:.0f} % of its bound")
    return 0


if __name__ == "__main__":
    sys.exit(main())
