# SPDX-License-Identifier: MIT
"""The optional tensors of one run, as an attn_args."""
from __future__ import annotations

import contextlib

import numpy as np

from . import _arrays
from ._arrays import BOOL, F32, address, as_array, four
from ._errors import check
from ._lib import I64, MEAN_HEADS, STAGE, lib
from ._op import Handle, Sizes, choice


class Args:
    """An attn_args, with what it borrows kept alive until clear()."""

    def __init__(self):
        self.handle = Handle(lib.attn_args_create, lib.attn_args_destroy)
        self.kept: list[np.ndarray] = []

    def clear(self) -> None:
        lib.attn_args_clear(self.handle)
        self.kept.clear()

    def _put(self, name: str, *values) -> None:
        check(getattr(lib, "attn_args_set_" + name)(self.handle, *values), name)

    def _keep(self, array: np.ndarray) -> int:
        self.kept.append(array)
        return address(array)

    def strides(self, slot: int, strides: tuple) -> None:
        self._put("strides", slot, four(*strides))

    def mask(self, mask, name: str, sizes: Sizes) -> None:
        """bool: where to attend; float32: added. Broadcast to (B, Hq, Lq, Lk) as NumPy does."""
        a = as_array(mask, name)
        if a.dtype == BOOL and name == "mask":
            setter = "mask_bool"
        else:
            setter = "mask_add"
            if a.dtype != F32:
                wanted = "bool (True = attend) or float32 (added)" if name == "mask" else "float32"
                raise TypeError(f"{name} must be {wanted}, not {a.dtype}")
        full = (sizes.B, sizes.Hq, sizes.Lq, sizes.Lk)
        if a.ndim > 4 or any(n not in (1, f) for n, f in zip(a.shape[::-1], full[::-1])):
            raise ValueError(f"{name} must broadcast to (B, Hq, Lq, Lk) = {full}, "
                             f"not the shape {a.shape}")
        if not a.flags.aligned:
            a = _arrays.copied(a)
        missing = 4 - a.ndim
        dims = [1] * missing + list(a.shape)
        strides = [0] * missing + list(_arrays.strides_of(a))
        if dims[3] != sizes.Lk:  # libattn reads a short last axis as "no further key"
            dims[3], strides[3] = sizes.Lk, 0
        self._put(setter, self._keep(a), four(*dims), four(*strides))

    def key_range(self, begin, end, batch: int) -> None:
        begin, end = (None if x is None else _arrays.integers(x, name, batch)
                      for x, name in ((begin, "kv_starts"), (end, "kv_lens")))
        self._put("key_range", batch, None if begin is None else address(begin),
                  None if end is None else address(end))

    def positions(self, positions, batch: int) -> None:
        a = _arrays.integers(positions, "positions", batch)
        self._put("positions", batch, address(a))

    def per_head(self, what: str, x, heads: int) -> None:
        """alibi or sinks."""
        a = alibi_slopes(heads) if x is True else _arrays.numbers(x, what, heads)
        self._put(what, heads, address(a))

    def segments(self, segments, q_shape: tuple, k_shape: tuple) -> None:
        q, k = segments if isinstance(segments, tuple) else (segments, segments)
        addresses = []
        for x, name, shape in ((q, "q", q_shape), (k, "k", k_shape)):
            a = as_array(x, f"segments of {name}")
            if a.dtype.kind not in "iu" or a.shape != shape:
                raise ValueError(f"segments of {name} must be integers of the shape {shape}, "
                                 f"not {a.dtype} of {a.shape}")
            ids = np.ascontiguousarray(a, np.int32)
            if ids.dtype != a.dtype and not np.array_equal(ids, a):
                raise ValueError(f"segments of {name} do not fit in 32 bits")
            addresses.append(self._keep(ids))
        self._put("segments", *addresses)

    def offsets(self, side: str, offsets: np.ndarray) -> None:
        """Of packed sequences, int64: what offsets_of() gives."""
        self._put("offsets_" + side, address(offsets), I64, len(offsets) - 1)

    def scores(self, stage: str, sizes: Sizes, mean: bool = False) -> np.ndarray:
        """Asks for the scores at a stage; returns where they will be."""
        heads = () if mean else (sizes.Hq,)
        a = np.empty((sizes.B, *heads, sizes.Lq, sizes.Lk), F32)
        self._put("scores_out", choice(STAGE, stage, "return_scores"), self._keep(a),
                  MEAN_HEADS if mean else 0)
        return a

    def lse(self, shape: tuple) -> np.ndarray:
        a = np.empty(shape, F32)
        self._put("lse", self._keep(a))
        return a


_idle: list[Args] = []


@contextlib.contextmanager
def borrowed_args():
    """An empty Args for one run, given back afterwards. list.pop() and append() are atomic."""
    try:
        args = _idle.pop()
    except IndexError:
        args = Args()
    try:
        yield args
    finally:
        args.clear()
        if len(_idle) < 64:
            _idle.append(args)


def alibi_slopes(heads: int) -> np.ndarray:
    """The usual slopes of ALiBi (Press et al., arXiv:2108.12409): float32 (heads,)."""
    if heads < 1:
        raise ValueError(f"heads must be at least 1, not {heads}")
    slopes = np.empty(heads, F32)
    check(lib.attn_alibi_slopes(heads, address(slopes)))
    return slopes
