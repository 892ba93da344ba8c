# SPDX-License-Identifier: MIT
"""Unfused NumPy: product, softmax over the whole score matrix, product; everything allocated
before. As many heads at a time as keep their scores in the cache, but whole heads."""
import numpy as np
import threadpoolctl

from cases import aligned, pack_items
from measure import Run

SCORES_AT_ONCE = 1 << 18


def _blas():
    found = threadpoolctl.ThreadpoolController().lib_controllers
    return [c for c in found if c.internal_api == "openblas" and "numpy" in c.filepath]


def versions():
    return {"numpy": np.__version__,
            "numpy's BLAS": ", ".join(f"OpenBLAS {c.version} {c.architecture}" for c in _blas())}


def set_threads(threads):
    for controller in _blas():
        controller.set_num_threads(threads)


class _Attention:
    """Heads of queries that share keys are one taller matrix of queries."""

    def __init__(self, q, k, v, out, scale, mask=None):
        H, L, D = q.shape
        self.q, self.k, self.v, self.out, self.scale = q, k.swapaxes(1, 2), v, out, scale
        self.mask = mask
        self.step = max(1, min(H, SCORES_AT_ONCE // (L * k.shape[1])))
        self.scaled = aligned((self.step, L, D))
        self.scores = aligned((self.step, L, k.shape[1]))
        self.row = aligned((self.step, L, 1))

    def __call__(self):
        H = len(self.q)
        for h in range(0, H, self.step):
            n = min(self.step, H - h)
            q, s, row, out = self.scaled[:n], self.scores[:n], self.row[:n], self.out[h:h + n]
            np.multiply(self.q[h:h + n], self.scale, out=q)
            np.matmul(q, self.k[h:h + n], out=s)
            if self.mask is not None:
                np.add(s, self.mask, out=s)
            np.max(s, axis=2, keepdims=True, out=row)
            np.subtract(s, row, out=s)
            np.exp(s, out=s)
            np.sum(s, axis=2, keepdims=True, out=row)
            np.matmul(s, self.v[h:h + n], out=out)
            np.divide(out, row, out=out)


def _heads(case, data):
    group = case.Hq // case.Hk
    out = data.out("heads", (case.B, case.Hq, case.L, case.D))
    shape = (case.B, case.Hk, group * case.L, case.D)
    q, o = data.q.reshape(shape), out.reshape(shape)
    mask = data.mask() if data.visible() is not None else None
    if mask is not None and case.causal:
        mask = np.tile(mask, (1, 1, group, 1))
    parts = []
    for b in range(case.B):
        m = None if mask is None else mask[b if len(mask) > 1 else 0]
        parts.append(_Attention(q[b], data.k[b], data.v[b], o[b], np.float32(case.scale), m))
    return Run(call=lambda: [part() for part in parts], result=lambda: out)


def _items(case, data):
    outs = [data.out(("item", b), (1, case.Hq, n, case.D)) for b, n in enumerate(case.lengths)]
    items = zip(*(data.items(name) for name in "qkv"), outs)
    parts = [_Attention(q[0], k[0], v[0], o[0], np.float32(case.scale)) for q, k, v, o in items]
    return Run(call=lambda: [part() for part in parts], result=lambda: pack_items(case, outs))


def _layer(case, data):
    L, E, H, D = case.L, case.E, case.Hq, case.D
    x, out = data.x[0], data.out("layer", data.x.shape)
    joined, bias = np.concatenate(data.weights[:3], 1), np.concatenate(data.biases[:3])
    projected, heads, rows = aligned((L, 3 * E)), aligned((H, L, D)), aligned((L, E))
    q, k, v = projected.reshape(L, 3, H, D).transpose(1, 2, 0, 3)
    attend = _Attention(q, k, v, heads, np.float32(case.scale))

    def call():
        np.matmul(x, joined, out=projected)
        np.add(projected, bias, out=projected)
        attend()
        rows.reshape(L, H, D)[...] = heads.transpose(1, 0, 2)
        np.matmul(rows, data.weights[3], out=out[0])
        np.add(out[0], data.biases[3], out=out[0])
    return Run(call=call, result=lambda: out)


def _build(case, data, threads):
    if case.layer:
        return _layer(case, data)
    return (_items if case.group == "varlen" else _heads)(case, data)


FORMS = {"numpy": _build}
