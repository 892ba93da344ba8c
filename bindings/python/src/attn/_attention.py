# SPDX-License-Identifier: MIT
"""attention() and what goes with it."""
from __future__ import annotations

from typing import Any, Sequence, Union

import numpy as np

from . import _arrays
from ._args import Args, borrowed_args
from ._arrays import F32, Tensor, address, view
from ._errors import check, text_of
from ._lib import K, OUT, Q, V, lib
from ._op import Rules, Sizes, axes, kept_op, make_plan, pair

Numbers = Union[Tensor, Sequence[float]]
Integers = Union[Tensor, Sequence[int]]

_ndarray, _empty, _attn_run = np.ndarray, np.empty, lib.attn_run


def attention(q: Tensor, k: Tensor, v: Tensor, *, out: Tensor | None = None,
              mask: Tensor | None = None, bias: Tensor | None = None, causal: bool | str = False,
              scale: float | None = None, window: tuple[int, int] | None = None, chunk: int = 0,
              softcap: float = 0.0, alibi: Numbers | bool | None = None,
              sinks: Numbers | None = None, kv_lens: Integers | int | None = None,
              kv_starts: Integers | int | None = None, positions: Integers | int | None = None,
              segments: Tensor | tuple[Tensor, Tensor] | None = None,
              cu_seqlens_q: Integers | None = None, cu_seqlens_k: Integers | None = None,
              layout: str = "bhld", engine: str = "blas", threads: int = 0,
              return_weights: bool | str = False, return_scores: str | None = None,
              return_lse: bool = False) -> Any:
    """softmax(rules(scale * Q K^T)) V.

    Axes: B batch items, Hq query heads, Hk key/value heads (Hq a multiple of Hk; query head h
    uses key/value head h // (Hq // Hk)), Lq queries, Lk keys, Dk and Dv head sizes. The rules,
    their order and all edge cases are those of attn.h; a row that sees no key is 0.

    Arrays are float32: of NumPy, or CPU tensors that offer DLPack (PyTorch's, JAX's). They are
    read where they lie if the last axis is packed; other views are copied. No address is kept
    after the call. Any number of threads may call at once; the lock of Python is released
    meanwhile. The number of threads does not change the bits of a result.

    q, k, v        (B, Hq, Lq, Dk), (B, Hk, Lk, Dk), (B, Hk, Lk, Dv); without the first axis one
                   item, without the first two one head. layout "blhd": (B, L, H, D), (L, H, D)
    out            where to write: as q, with Dv for Dk; returned. Must not overlap an input. A
                   tensor needs NumPy 2.1
    mask           bool, True = attend (as in scaled_dot_product_attention, opposite of
                   nn.MultiheadAttention's), or float32, added to the scores; broadcasts to
                   (B, Hq, Lq, Lk)
    bias           float32, added to the scores: an additive mask beside a boolean one
    causal         "top_left": query i sees keys 0..i (PyTorch's is_causal); "bottom_right": the
                   last query sees every key (FlashAttention's; decoding with a cache); True:
                   where both mean the same, else a ValueError
    scale          default 1/sqrt(Dk)
    window         (left, right) keys around a query's own, -1 for no end (FlashAttention's
                   window_size). A model's "sliding window of W" is (W - 1, -1) with causal
    chunk          queries see keys of their own chunk of this many only
    softcap        scores become softcap * tanh(score / softcap), before the masks
    alibi          (Hq,) positive slopes, or True for the usual ones: adds -slope * distance
    sinks          (Hq,) logits that join the denominators
    kv_lens        (B,) or one number: keys that exist in each item (cache_seqlens)
    kv_starts      (B,) or one number: keys before it do not exist
    positions      (B,) or one number: where query 0 stands on the key axis
    segments       ids: queries see keys of their own segment only. A pair of integer arrays
                   (B, Lq), (B, Lk), or one for both; one id a token of a packed side
    cu_seqlens_q, cu_seqlens_k
                   (B + 1,) offsets: sequences packed one after the other without padding;
                   q is then (tokens, Hq, Dk), k and v (tokens, Hk, D)
    engine         "blas" or "vector": what forms the products, see attn_op_set_engine()
    threads        at most so many; 0: every CPU that this process may use
    return_weights True: also the weights (B, Hq, Lq, Lk); "mean": their mean over heads
                   (B, Lq, Lk). Memory of that size
    return_scores  "raw", "capped" or "masked": also the scores at that stage (B, Hq, Lq, Lk)
    return_lse     True: also the log-sum-exp of the scores, (B, Hq, Lq); (Hq, tokens) if packed

    Returns out; with any of the last three a tuple (out, weights, scores, lse) of what was
    asked for, in this order. Axes that q lacks are not there.

    Raises TypeError for another type, byte order or device, ValueError for shapes and values
    that do not fit, AttnError otherwise (also a ValueError, MemoryError, ... by its cause).
    """
    if scale is not None:
        scale = float(scale)
    if window is not None:
        window = pair(window)
    if (mask is bias is alibi is sinks is kv_lens is kv_starts is positions is segments
            is cu_seqlens_q is cu_seqlens_k is return_scores is None
            and return_weights is return_lse is False
            and type(q) is type(k) is type(v) is _ndarray
            and q.dtype is k.dtype is v.dtype is F32
            and q.flags.carray and k.flags.carray and v.flags.carray):
        # Packed arrays and nothing else: the call that must cost little.
        plan = make_plan(q.shape, k.shape, v.shape, causal, scale, window, chunk, softcap,
                         layout, engine, threads)
        op, B, Lq, Lk, shape, _ = plan
        if out is None:
            result = _empty(shape, F32)
        elif (type(out) is _ndarray and out.dtype is F32 and out.flags.carray
              and out.shape == shape):
            result = out
        else:
            result = None
        if result is not None:
            status = _attn_run(op, B, Lq, Lk, view(q), view(k), view(v), view(result))
            if status:
                addresses = [address(a) for a in (q, k, v, result)]
                check(status, explained(op, B, Lq, Lk, addresses, None, status))
            return result
    options = {"out": out, "mask": mask, "bias": bias, "causal": causal, "scale": scale,
               "window": window, "chunk": chunk, "softcap": softcap, "alibi": alibi,
               "sinks": sinks, "kv_lens": kv_lens, "kv_starts": kv_starts,
               "positions": positions, "segments": segments, "cu_seqlens_q": cu_seqlens_q,
               "cu_seqlens_k": cu_seqlens_k, "layout": layout, "engine": engine,
               "threads": threads, "return_weights": return_weights,
               "return_scores": return_scores, "return_lse": return_lse}
    with borrowed_args() as args:
        call = _Call(args, q, k, v, options)
        call.run(args)
        return call.results


def explain(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> str:
    """What attention() with these arguments would do, in words, without doing it.

    The path, engine, tiles, threads, workspace, operations and BLAS; or what is wrong with
    them. Takes the arguments of attention(). The wording may change.
    """
    defaults = attention.__kwdefaults__ or {}
    unknown = options.keys() - defaults.keys()
    if unknown:
        raise TypeError(f"attention() has no argument {', '.join(sorted(unknown))}")
    with borrowed_args() as args:
        return _Call(args, q, k, v, {**defaults, **options}).explain(args)[1]


def explained(op, B: int, Lq: int, Lk: int, addresses, args, status: int) -> str:
    """What is wrong with a run that returned this status, if looking at it again tells."""
    again, text = text_of(lib.attn_explain, op, B, Lq, Lk, *addresses, args)
    return text if again == status else ""


def _length_axis(ndim: int, layout: str, packed: bool) -> int:
    return -3 if packed or (layout == "blhd" and ndim > 2) else -2


def fill(args: Args, o: dict, sizes: Sizes, segment_shapes: tuple) -> None:
    """Sets the optional inputs of a run."""
    for name in ("mask", "bias"):
        if o[name] is not None:
            args.mask(o[name], name, sizes)
    if o["bias"] is not None and o["mask"] is not None and \
            _arrays.as_array(o["mask"], "mask").dtype != _arrays.BOOL:
        raise ValueError("with a bias the mask must be bool; add the two yourself")
    for name in ("alibi", "sinks"):
        if o[name] is not None and o[name] is not False:
            args.per_head(name, o[name], sizes.Hq)
    if o["kv_lens"] is not None or o["kv_starts"] is not None:
        args.key_range(o["kv_starts"], o["kv_lens"], sizes.B)
    if o["positions"] is not None:
        args.positions(o["positions"], sizes.B)
    if o["segments"] is not None:
        args.segments(o["segments"], *segment_shapes)


def ask(args: Args, o: dict, sizes: Sizes, packed_q: bool, missing: int) -> list[np.ndarray]:
    """Asks for weights, scores and log-sum-exp, in this order; without axes that q lacks."""
    extras = []
    drop = (0,) * missing
    if o["return_weights"] not in (False, True, "mean"):
        raise ValueError(f"return_weights must be True, False or 'mean', "
                         f"not {o['return_weights']!r}")
    if o["return_weights"]:
        mean = o["return_weights"] == "mean"
        extras.append(args.scores("weights", sizes, mean)[drop[:1] if mean else drop])
    if o["return_scores"] is not None:
        if o["return_scores"] == "weights":
            raise ValueError("weights are asked for by return_weights")
        extras.append(args.scores(o["return_scores"], sizes)[drop])
    if o["return_lse"]:
        heads = (sizes.Hq, sizes.Lq)
        extras.append(args.lse(heads if packed_q else (sizes.B, *heads))[drop])
    return extras


def causal_is_plain(o: dict, cu_q, cu_k) -> bool | None:
    """Whether causal=True has one meaning; None: it has where the lengths are the same."""
    if o["positions"] is not None:
        return True
    if o["kv_lens"] is not None:
        return False
    if cu_q is None and cu_k is None:
        return None
    return cu_q is not None and cu_k is not None and np.array_equal(cu_q, cu_k)


def offsets_of(o: dict) -> list[np.ndarray | None]:
    """The two cu_seqlens as packed arrays of int64."""
    result = []
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        a = None if o[name] is None else _arrays.integers(o[name], name)
        if a is not None and len(a) == 0:
            raise ValueError(f"{name} must hold at least one offset")
        result.append(a)
    return result


class _Call:
    """One run with optional tensors: checked, and set in args."""

    def __init__(self, args: Args, q, k, v, o: dict):
        layout = o["layout"]
        cu_q, cu_k = offsets_of(o)
        tensors = [_arrays.floats(x, name) for x, name in ((q, "q"), (k, "k"), (v, "v"))]
        self.plan = plan = make_plan(
            *(a.shape for a in tensors), *(o[name] for name in Rules._fields),
            None if cu_q is None else len(cu_q) - 1, None if cu_k is None else len(cu_k) - 1,
            causal_is_plain(o, cu_q, cu_k))
        packed = (cu_q is not None, cu_k is not None, cu_k is not None, cu_q is not None)
        length_axes = [_length_axis(a.ndim, layout, p) for a, p in zip(tensors, packed)]
        tensors = [_arrays.readable(a, axis) for a, axis in zip(tensors, length_axes)]
        result = _arrays.output(o["out"], "out", plan.out_shape, length_axes[Q])
        self.tensors = [*tensors, result]
        for slot, a, p in zip((Q, K, V, OUT), self.tensors, packed):
            if not a.flags.c_contiguous:
                args.strides(slot, axes(_arrays.strides_of(a), layout, p, 0))
        for side, offsets in (("q", cu_q), ("k", cu_k)):
            if offsets is not None:
                args.offsets(side, offsets)
        sizes = plan.sizes
        fill(args, o, sizes,
             ((sizes.Lq,) if cu_q is not None else (sizes.B, sizes.Lq),
              (sizes.Lk,) if cu_k is not None else (sizes.B, sizes.Lk)))
        missing = 0 if any(packed) else 4 - tensors[Q].ndim
        self.results = result if o["out"] is None else o["out"]
        extras = ask(args, o, sizes, packed[Q], missing)
        if extras:
            self.results = (self.results, *extras)

    def run(self, args: Args) -> None:
        plan, addresses = self.plan, [address(a) for a in self.tensors]
        status = lib.attn_run_args(plan.op, plan.B, plan.Lq, plan.Lk, *addresses, args.handle)
        if status:
            check(status, explained(plan.op, plan.B, plan.Lq, plan.Lk, addresses, args.handle,
                                    status))

    def explain(self, args: Args) -> tuple[int, str]:
        plan = self.plan
        return text_of(lib.attn_explain, plan.op, plan.B, plan.Lq, plan.Lk,
                       *(address(a) for a in self.tensors), args.handle)


def merge(out: Tensor, lse: Tensor, out_part: Tensor, lse_part: Tensor) -> None:
    """Fold attention over other keys into a result, in place.

    out (..., Dv), lse (...) of the same queries over one set of keys become those over both sets;
    out_part, lse_part are the result over the other. Packed float32; without sinks. lse comes
    from return_lse=True of layout "bhld". Raises as attention().
    """
    part, lse_of_part = _arrays.packed(out_part, "out_part"), _arrays.packed(lse_part, "lse_part")
    acc = _arrays.output(out, "out", part.shape)
    lse_acc = _arrays.output(lse, "lse", part.shape[:-1])
    if lse_of_part.shape != lse_acc.shape:
        raise ValueError(f"lse_part must have the shape {lse_acc.shape}, not {lse_of_part.shape}")
    check(lib.attn_merge(lse_acc.size, acc.shape[-1], address(acc), address(lse_acc),
                         address(part), address(lse_of_part)), "merge")


def merge_sinks(out: Tensor, lse: Tensor, sinks: Numbers) -> None:
    """Apply sinks (Hq,) once, after all parts were merged: changes out (B, Hq, Lq, Dv) in place.

    lse (B, Hq, Lq) is that of the merged result and stays. Packed float32. Raises as attention().
    """
    acc = _arrays.floats(out, "out")
    if acc.ndim != 4:
        raise ValueError(f"out must be (B, Hq, Lq, Dv), not the shape {acc.shape}")
    acc = _arrays.output(acc, "out", acc.shape)
    rows = _arrays.packed(lse, "lse")
    if rows.shape != acc.shape[:3]:
        raise ValueError(f"lse must have the shape {acc.shape[:3]}, not {rows.shape}")
    logits = _arrays.numbers(sinks, "sinks", acc.shape[1])
    check(lib.attn_merge_sinks(*acc.shape, address(acc), address(rows), address(logits)),
          "merge_sinks")


def blas_info() -> str:
    """Which BLAS is in use: version, core, threading, and whether it is usable."""
    return text_of(lib.attn_blas_info)[1]


def clear_cache() -> None:
    """Free the operations that attention() keeps for the next calls, with their memory."""
    make_plan.cache_clear()
    kept_op.cache_clear()
