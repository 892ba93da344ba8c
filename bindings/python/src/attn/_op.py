# SPDX-License-Identifier: MIT
"""Ops, and what shapes mean: everything that is worked out once for many calls."""
from __future__ import annotations

import ctypes
import functools
import operator
import weakref
from typing import NamedTuple

from ._errors import check
from ._lib import CAUSAL, ENGINE, LAYOUT, lib


class Sizes(NamedTuple):
    """The axes, as attn.h names them. Packed queries: B sequences, Lq tokens in all."""

    B: int
    Hq: int
    Hk: int
    Lq: int
    Lk: int
    Dk: int
    Dv: int


class Handle:
    """Owns a handle of libattn; ctypes passes it as the pointer."""

    def __init__(self, create, destroy, *arguments):
        handle = ctypes.c_void_p()
        check(create(ctypes.byref(handle), *arguments), create.__name__)
        self._as_parameter_ = handle
        # Not at exit: a thread may still be in a run then.
        weakref.finalize(self, destroy, handle).atexit = False


def integer(x, name: str, bits: int = 64) -> int:
    """x as an int that fits: ctypes would cut off what does not."""
    try:
        n = operator.index(x)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(x).__name__}") from None
    if not -(1 << (bits - 1)) <= n < 1 << (bits - 1):
        raise ValueError(f"{name} = {n} does not fit in {bits} bits")
    return n


def choice(table: dict, x, name: str) -> int:
    """The number that a word stands for."""
    if isinstance(x, (str, bool)) and x in table:
        return table[x]
    raise ValueError(f"{name} must be one of {', '.join(map(repr, table))}, not {x!r}")


def pair(window) -> tuple[int, int] | None:
    """A window as a tuple of int, which can be looked up; not of floats that equal them."""
    if window is None:
        return None
    left, right = window
    if type(left) is type(right) is int:
        return left, right
    return integer(left, "window"), integer(right, "window")


class Rules(NamedTuple):
    """How to attend, as the arguments of attention() say it."""

    causal: bool | str = False
    scale: float | None = None
    window: tuple[int, int] | None = None
    chunk: int = 0
    softcap: float = 0.0
    layout: str = "bhld"
    engine: str = "blas"
    threads: int = 0


def make_op(heads: int, kv_heads: int, head_dim: int, value_dim: int, rules: Rules) -> Handle:
    """An attn_op with these sizes and rules; causal is True only where the alignments agree."""
    sizes = tuple(integer(n, name) for n, name in
                  ((heads, "heads"), (kv_heads, "kv heads"), (head_dim, "head size"),
                   (value_dim, "value size")))
    if kv_heads > 0 and heads % kv_heads != 0:
        raise ValueError(f"{heads} query heads are not a multiple of {kv_heads} key/value heads")
    return kept_op(sizes, settings(rules))


def settings(rules: Rules) -> tuple[tuple, ...]:
    """(name, values...) of the setters of an attn_op, each value checked and of one type.

    Only then they may be looked up: True, 1 and 1.0 are one key, but not one rule.
    """
    causal = "top_left" if rules.causal is True else rules.causal
    result = [("causal", choice(CAUSAL, causal, "causal")),
              ("layout", choice(LAYOUT, rules.layout, "layout")),
              ("engine", choice(ENGINE, rules.engine, "engine"))]
    if rules.scale is not None:
        result.append(("scale", float(rules.scale)))
    if rules.window is not None:
        result.append(("window", *(integer(n, "window") for n in rules.window)))
    return (*result, ("chunk", integer(rules.chunk, "chunk")), ("softcap", float(rules.softcap)),
            ("threads", integer(rules.threads, "threads", 32)))


@functools.lru_cache(maxsize=64)
def kept_op(sizes: tuple, setters: tuple) -> Handle:
    """An attn_op, kept for the next caller."""
    op = Handle(lib.attn_op_create, lib.attn_op_destroy, *sizes)
    for name, *values in setters:
        check(getattr(lib, "attn_op_set_" + name)(op, *values),
              f"{name} = {values[0] if len(values) == 1 else tuple(values)}")
    return op


def axes(values: tuple, layout: str, packed: bool, pad: int) -> tuple:
    """A shape, or strides, in the order (B, H, L, D); axes that are not there count as pad."""
    if packed or (layout == "blhd" and len(values) == 3):
        length, head, size = values
        return pad, head, length, size
    if layout == "blhd" and len(values) == 4:
        batch, length, head, size = values
        return batch, head, length, size
    return (pad,) * (4 - len(values)) + tuple(values)


def _ranks(shapes: dict, packed: dict) -> None:
    for name, shape in shapes.items():
        if packed[name]:
            if len(shape) != 3:
                raise ValueError(f"{name} is packed and must be (tokens, heads, size), not {shape}")
        elif any(packed.values()):
            if len(shape) != 4:
                raise ValueError(f"{name} must have 4 axes beside packed sequences, not {shape}")
        elif not 2 <= len(shape) <= 4:
            raise ValueError(f"{name} must have 2, 3 or 4 axes, not the shape {shape}")
    if not any(packed.values()) and len({len(shape) for shape in shapes.values()}) != 1:
        raise ValueError("q, k and v must have the same number of axes, not the shapes "
                         + ", ".join(map(str, shapes.values())))


def sizes_of(q: tuple, k: tuple, v: tuple, layout: str, n_q: int | None,
             n_k: int | None) -> Sizes:
    """The sizes that three shapes stand for; n: sequences of a packed side."""
    choice(LAYOUT, layout, "layout")
    shapes = {"q": q, "k": k, "v": v}
    packed = {"q": n_q is not None, "k": n_k is not None, "v": n_k is not None}
    _ranks(shapes, packed)
    (bq, hq, lq, dq), (bk, hk, lk, dk), (bv, hv, lv, dv) = (
        axes(shapes[name], layout, packed[name], 1) for name in shapes)
    bq = bq if n_q is None else n_q
    bk, bv = (bk, bv) if n_k is None else (n_k, n_k)
    texts = f"q {q}, k {k}, v {v}, layout {layout!r}"
    if (bk, hk, lk) != (bv, hv, lv):
        raise ValueError(f"k and v must have the same batch, heads and length: {texts}")
    if dq != dk:
        raise ValueError(f"q and k must have the same head size: {texts}")
    if bq != bk:
        raise ValueError(f"q and k must have the same batch, not {bq} and {bk}: {texts}")
    return Sizes(bq, hq, hk, lq, lk, dk, dv)


class Plan(NamedTuple):
    """What the shapes and rules of a call come to."""

    op: Handle
    B: int
    Lq: int
    Lk: int
    out_shape: tuple[int, ...]
    sizes: Sizes


# typed: 1 and True are one key otherwise, and what is wrong as the first would be right once the
# second was seen.
@functools.lru_cache(maxsize=256, typed=True)
def make_plan(q: tuple, k: tuple, v: tuple, causal, scale, window, chunk, softcap, layout, engine,
              threads, n_q=None, n_k=None, aligned=None) -> Plan:
    """From the shapes of q, k and v.

    aligned: whether causal=True has one meaning; None: if the lengths are the same.
    """
    sizes = sizes_of(q, k, v, layout, n_q, n_k)
    if causal is True and not (sizes.Lq == sizes.Lk if aligned is None else aligned):
        raise ValueError(
            "causal=True has two meanings where queries and keys differ in number: say "
            "'top_left' (query i sees keys 0..i, PyTorch's is_causal) or 'bottom_right' "
            "(the last query sees every key: FlashAttention's, and decoding with a cache)")
    rules = Rules(causal, scale, window, chunk, softcap, layout, engine, threads)
    op = make_op(sizes.Hq, sizes.Hk, sizes.Dk, sizes.Dv, rules)
    return Plan(op, sizes.B, sizes.Lq, sizes.Lk, (*q[:-1], sizes.Dv), sizes)
