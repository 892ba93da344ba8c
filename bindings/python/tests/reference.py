# SPDX-License-Identifier: MIT
"""Attention in float64, straight from attn.h, and how far float32 may be from it."""
import numpy as np

U = 2.0 ** -24  # half an ulp of float32, relative


def visible(Lq, Lk, causal=False, window=None, chunk=0, begin=0, end=None, position=None):
    """(Lq, Lk) bool, of one item."""
    end = Lk if end is None else end
    off = position if position is not None else (0 if causal == "top_left" else end - Lq)
    i, j = np.arange(Lq)[:, None] + off, np.arange(Lk)[None, :]
    seen = (j >= begin) & (j < end) & np.ones((Lq, 1), bool)
    if causal:
        seen &= j <= i
    if window:
        left, right = window
        seen &= (j >= i - left) if left >= 0 else True
        seen &= (j <= i + right) if right >= 0 else True
    if chunk:
        seen &= i // chunk == j // chunk
    return seen, np.abs(i - j)


def attention(q, k, v, *, scale=None, softcap=0.0, mask=None, bias=None, alibi=None, sinks=None,
              kv_starts=None, kv_lens=None, positions=None, segments=None, **rules):
    """(out, weights, lse, tolerance of out) of (B, H, L, D) arrays."""
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    B, Hq, Lq, Dk = q.shape
    k, v = (np.repeat(a, Hq // a.shape[1], axis=1) for a in (k, v))
    Lk = k.shape[2]
    scale = Dk ** -0.5 if scale is None else scale
    s = scale * q @ k.swapaxes(2, 3)
    # A dot product of Dk terms, then the scale: (Dk + 2) roundings of what |q| |k| sums to. A
    # softcap has a slope of at most 1, and each addition one more rounding.
    error = (Dk + 2) * U * abs(scale) * (np.abs(q) @ np.abs(k).swapaxes(2, 3))
    if softcap:
        s = softcap * np.tanh(s / softcap)
        error = error + 8 * U * softcap
    per_item = [[None] * B if x is None else x for x in (kv_starts, kv_lens, positions)]
    seen, distance = map(np.stack, zip(*(
        visible(Lq, Lk, begin=b or 0, end=e, position=p, **rules) for b, e, p in zip(*per_item))))
    seen = np.broadcast_to(seen[:, None], s.shape).copy()
    if alibi is not None:
        s = s - np.asarray(alibi, np.float64)[:, None, None] * distance[:, None]
    for added in (bias, mask if mask is not None and mask.dtype != bool else None):
        if added is not None:
            s = s + added
    if mask is not None and mask.dtype == bool:
        seen &= mask
    if segments is not None:
        seen &= (segments[0][:, :, None] == segments[1][:, None, :])[:, None]
    seen &= s > -np.inf
    s = np.where(seen, s, -np.inf)
    error = np.where(seen, error + 4 * U * np.abs(np.where(seen, s, 0)), 0)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    w = np.exp(s - top)
    total = w.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    if sinks is not None:
        total = total + np.exp(np.asarray(sinks, np.float64)[:, None, None] - top)
    w = np.divide(w, total, out=np.zeros_like(w), where=seen.any(-1, keepdims=True))
    # exp turns an absolute error of a score into a relative one of a weight, twice as large with
    # that of the sum; exp itself and the division take a few ulp, and sums of Lk terms Lk.
    of_weight = 2 * error.max(initial=0) + (Lk + 16) * U
    return w @ v, w, lse, 2 * of_weight * np.abs(v).max(initial=0)


def agree(got, wanted, tolerance):
    """Equal within the tolerance; a NaN on one side only is a difference."""
    got = np.asarray(got)
    assert got.shape == wanted.shape, f"{got.shape} is not {wanted.shape}"
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(wanted))
    finite = np.isfinite(wanted)
    worst = np.abs(got[finite] - wanted[finite]).max(initial=0)
    assert worst <= tolerance, f"off by {worst:.3g}, allowed {tolerance:.3g}"
