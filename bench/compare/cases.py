# SPDX-License-Identifier: MIT
"""The cases: shapes, their work, their data, and float64 results to compare with."""
import dataclasses
import functools
import re

import numpy as np

TOLERANCE = 1e-4  # of the largest result; float32 is at 1e-6, bfloat16 at 2e-3
ROWS_COMPARED = 24


@dataclasses.dataclass(frozen=True)
class Case:
    """One shape. Heads Hq over Hk, L queries against K keys, head size D."""

    group: str
    label: str
    Hq: int
    Hk: int
    L: int
    K: int
    D: int
    causal: bool = False
    window: int = 0  # keys that a query sees, its own and window - 1 before it
    lengths: tuple = ()  # of the items of a batch; else there is one item
    E: int = 0  # width of a layer with projections
    sweep: bool = False  # for the plots only
    quick: bool = False
    once: bool = False  # too long to repeat: one run, in the process that measures memory

    @property
    def name(self):
        return f"{self.group} {self.label}"

    @property
    def B(self):
        return len(self.lengths) or 1

    @property
    def scale(self):
        return self.D**-0.5

    @property
    def grouped(self):
        return self.Hq != self.Hk

    @property
    def decode(self):
        return self.group == "decode"

    @property
    def layer(self):
        return self.E > 0

    def pairs(self):
        """(query, key) pairs of one query head that count: padding does not."""
        if self.lengths:
            return sum(n * n for n in self.lengths)
        if self.window:
            return sum(min(i + 1, self.window) for i in range(self.L))
        if self.causal:
            return self.L * (self.L + 1) // 2
        return self.L * self.K

    def flops(self):
        """Useful multiplications and additions: both products, and the projections of a layer."""
        products = 2 * self.pairs() * self.Hq * 2 * self.D
        return products + (8 * self.B * self.L * self.E**2 if self.layer else 0)

    def kv_bytes(self):
        return 2 * 4 * self.Hk * self.K * self.D

    def tiny(self):
        """The same kind of case at its smallest: to warm a library up without its memory."""
        L, K = (1, 8) if self.decode else (8, 8)
        return dataclasses.replace(self, L=L, K=K, window=min(self.window, 4),
                                   lengths=tuple(range(1, len(self.lengths) + 1)))


# ------------------------------------------------------------------ the list

DENSE = [(12, 12, 128, 64), (12, 12, 384, 64), (4, 4, 197, 64), (12, 12, 1024, 64),
         (4, 4, 4096, 64), (4, 4, 4096, 128), (32, 8, 512, 128)]
SMALL = [(1, 16, 64), (8, 32, 64), (16, 49, 32), (8, 10, 512)]
LENGTHS = (16, 87, 158, 229, 300, 371, 442, 512)
LAYERS = [(768, 12, 16), (768, 12, 128), (768, 12, 512), (512, 8, 197)]
SWEEP = [16, 24, 32, 48, 64, 96, 128, 160, 197, 256, 320, 384, 500, 512, 640, 768, 1000, 1024,
         1536, 2048, 3072, 4096]
QUICK_SWEEP = {16, 64, 197, 512}


def _shape(Hq, Hk, L, D):
    heads = str(Hq) if Hq == Hk else f"{Hq}/{Hk}"
    return f"{heads}x{L}x{D}"


def _prefill(group, causal):
    return [Case(group, _shape(*s), s[0], s[1], s[2], s[2], s[3], causal=causal,
                 quick=s[2] <= 128 or s[0] == 32) for s in DENSE]


def _decode(Hq, Hk, D, K, **more):
    return Case("decode", _shape(Hq, Hk, K, D), Hq, Hk, 1, K, D, **more)


def _sweep(group, causal):
    return [Case(group, _shape(4, 4, L, 64), 4, 4, L, L, 64, causal=causal, sweep=True,
                 quick=L in QUICK_SWEEP) for L in SWEEP]


def all_cases():
    """Every case, in the order of the report."""
    cases = _prefill("dense", False) + _prefill("causal", True)
    cases += [_decode(32, 8, 128, K, quick=K == 512) for K in (512, 4096, 32768)]
    cases += [_decode(H, H, D, K, quick=D == 64 and K == 512)
              for H, D in ((12, 64), (8, 128)) for K in (512, 4096)]
    cases += [Case("small", _shape(H, H, L, D), H, H, L, L, D, quick=H == 8)
              for H, L, D in SMALL]
    cases += [Case(group, f"12x(16..512)x64, {len(LENGTHS)} items", 12, 12, 512, 512, 64,
                   lengths=LENGTHS, quick=True) for group in ("padded", "varlen")]
    cases += [Case("window", f"{_shape(H, H, L, 64)}, {W} keys", H, H, L, L, 64, causal=True,
                   window=W, quick=L == 1024) for H, L, W in ((12, 1024, 128), (4, 4096, 256))]
    cases += [Case("layer", f"E {E}, {H} heads, L {L}", H, H, L, L, E // H, E=E, quick=L == 16)
              for E, H, L in LAYERS]
    cases += [Case("long", _shape(1, 1, L, 64), 1, 1, L, L, 64, once=True)
              for L in (16384, 65536)]
    cases += _sweep("sweep", False) + _sweep("sweep-causal", True)
    cases += [_decode(32, 8, 128, K, sweep=True, quick=K == 128)
              for K in (128, 256, 1024, 2048, 8192, 16384)]
    return cases


def choose(pattern=None, quick=False):
    """The cases whose names match, in the order of the report."""
    wanted = re.compile(pattern or "")
    return [c for c in all_cases() if wanted.search(c.name) and (c.quick or not quick)]


# ------------------------------------------------------------------ data

def aligned(shape, dtype=np.float32):
    """An array of zeros that begins on a cache line and is there, page by page."""
    n = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(n + 64, np.uint8)
    raw.fill(0)
    start = -raw.ctypes.data % 64
    return raw[start:start + n].view(dtype).reshape(shape)


class Data:
    """Inputs of a case, the same for everyone. Other layouts of them, and outputs, are made once
    and kept, so that they never count as anyone's time or memory."""

    def __init__(self, case, seed=1):
        self.case, self._kept = case, {}
        random = np.random.default_rng([seed, case.Hq, case.L, case.K, case.D])

        def normal(*shape, scale=1.0):
            array = aligned(shape)
            random.standard_normal(dtype=np.float32, out=array)
            array *= np.float32(scale)
            return array

        if case.layer:
            self.x = normal(1, case.L, case.E)
            self.weights = [normal(case.E, case.E, scale=case.E**-0.5) for _ in range(4)]
            self.biases = [normal(case.E, scale=0.1) for _ in range(4)]
        else:
            self.q = normal(case.B, case.Hq, case.L, case.D)
            self.k = normal(case.B, case.Hk, case.K, case.D)
            self.v = normal(case.B, case.Hk, case.K, case.D)

    def keep(self, key, make):
        """What make() returns, made at the first call."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def copy(self, key, view):
        """A packed copy of a view."""
        def make():
            array = aligned(view.shape, view.dtype)
            array[...] = view
            return array
        return self.keep(key, make)

    def out(self, key, shape):
        return self.keep(("out", key, tuple(shape)), lambda: aligned(shape))

    def spoil(self):
        """NaN into every output, so that what a run leaves out is seen."""
        for key, array in self._kept.items():
            if key[0] == "out":
                array.fill(np.nan)

    def rows(self, name):
        """q, k or v as (B, L, H * D), what some peers want."""
        array = getattr(self, name)
        B, H, L, D = array.shape
        return self.copy(("rows", name), array.transpose(0, 2, 1, 3)).reshape(B, L, H * D)

    def items(self, name):
        """Each item of a batch of lengths by itself, without padding: (1, H, n, D)."""
        array = getattr(self, name)
        return [self.copy(("item", name, b), array[b:b + 1, :, :n])
                for b, n in enumerate(self.case.lengths)]

    def tokens(self, name):
        """All items one after the other, without padding: (tokens, H, D)."""
        return self.keep(("tokens", name), lambda: np.ascontiguousarray(np.concatenate(
            [item[0].transpose(1, 0, 2) for item in self.items(name)])))

    def visible(self):
        """The boolean mask (B or 1, 1, L or 1, K) of padding or a window; None: all."""
        case = self.case
        if case.lengths:
            see = np.arange(case.K)[None, :] < np.array(case.lengths)[:, None]
            return self.keep("visible", see[:, None, None, :].copy)
        if case.window or case.causal:
            i, j = np.arange(case.L)[:, None] + case.K - case.L, np.arange(case.K)[None, :]
            see = (j <= i) & (j > i - (case.window or case.K))
            return self.keep("visible", see[None, None].copy)
        return None

    def mask(self):
        """The same to be added: 0 or -inf."""
        return self.keep("mask", lambda: np.where(self.visible(), 0, -np.inf).astype(np.float32))


# ------------------------------------------------------------------ checking

def pack_items(case, items):
    """Results (1, H, n, D) of the items as one array (B, H, L, D), zeros where padding is."""
    out = np.zeros((case.B, case.Hq, case.L, case.D), np.float32)
    for b, item in enumerate(items):
        out[b, :, :item.shape[2]] = item[0]
    return out


def _projected(data):
    case = data.case
    x = data.x[0].astype(np.float64)
    heads = [(x @ data.weights[i] + data.biases[i]).reshape(case.L, case.Hq, case.D)
             for i in range(3)]
    return [h.transpose(1, 0, 2)[None] for h in heads]


def _row_numbers(case, n):
    return np.unique(np.linspace(0, n - 1, min(n, ROWS_COMPARED)).astype(int))


def reference(data):
    """Some rows in float64: a list of (item, row numbers, results (Hq, rows, D) or (rows, E))."""
    case = data.case
    q, k, v = _projected(data) if case.layer else (data.q, data.k, data.v)
    group, result = case.Hq // case.Hk, []
    for b in range(case.B):
        n, K = (case.lengths[b],) * 2 if case.lengths else (case.L, case.K)
        rows = _row_numbers(case, n)
        heads = []
        for h in range(case.Hq):
            scores = q[b, h, rows].astype(np.float64) @ k[b, h // group, :K].T.astype(np.float64)
            scores *= case.scale
            if case.causal:
                i, j = rows[:, None] + K - n, np.arange(K)[None, :]
                scores[(j > i) | (j <= i - (case.window or K))] = -np.inf
            weights = np.exp(scores - scores.max(1, keepdims=True))
            heads.append(weights @ v[b, h // group, :K] / weights.sum(1, keepdims=True))
        result.append((b, rows, np.stack(heads)))
    if case.layer:
        (b, rows, heads), = result
        joined = heads.transpose(1, 0, 2).reshape(len(rows), case.E)
        result = [(b, rows, joined @ data.weights[3] + data.biases[3])]
    return result


class Checker:
    """Compares results with float64 on some rows, and with the first one seen on all rows."""

    def __init__(self, data):
        self.case, self.expected, self.first = data.case, reference(data), None
        self.size = max(np.abs(values).max() for _, _, values in self.expected)

    @functools.cached_property
    def counted(self):
        """Where results count: everywhere but in padding."""
        case = self.case
        if not case.lengths:
            return slice(None)
        see = np.arange(case.L)[None, :] < np.array(case.lengths)[:, None]
        return np.broadcast_to(see[:, None, :, None], (case.B, case.Hq, case.L, case.D))

    def error(self, out):
        """The largest error relative to the largest result; NaN counts as infinite."""
        worst = 0.0
        for b, rows, values in self.expected:
            got = out[b][rows] if self.case.layer else out[b][:, rows]
            worst = max(worst, _largest(got - values))
        seen = out[self.counted]
        if self.first is None:
            if worst <= TOLERANCE * self.size:
                self.first = seen.copy()
        else:
            worst = max(worst, _largest(seen - self.first))
        return worst / self.size


def _largest(differences):
    value = float(np.abs(differences).max(initial=0.0))
    return float("inf") if np.isnan(value) else value
