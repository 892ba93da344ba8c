# SPDX-License-Identifier: MIT
"""MultiHeadAttention: projection weights around an operation."""
from __future__ import annotations

from typing import Any

import numpy as np

from . import _arrays
from ._args import borrowed_args
from ._arrays import Tensor, address, four
from ._attention import ask, attention, causal_is_plain, explained, fill, offsets_of
from ._errors import check
from ._lib import ORDER, WEIGHT, lib
from ._op import Handle, Rules, Sizes, choice, integer, make_op, pair
from ._torch import torch_weights

_NOTHING = {"mask": None, "bias": None, "alibi": None, "sinks": None, "kv_lens": None,
            "kv_starts": None, "positions": None, "segments": None, "cu_seqlens_q": None,
            "cu_seqlens_k": None, "return_weights": False, "return_scores": None,
            "return_lse": False}


class MultiHeadAttention:
    """Multi-head attention with projections (Vaswani et al., arXiv:1706.03762).

        Q = X_q W_Q + b_Q,  K = X_k W_K + b_K,  V = X_v W_V + b_V
        Y = attention(Q, K, V) W_O + b_O

    Head h owns the columns h * D .. h * D + D - 1 of a projection. Inputs and output are
    (batch, length, width); batch_first=False: (length, batch, width), as in PyTorch's default.

    embed_dim    width of queries; also of the output, unless out_dim says otherwise
    num_heads    Hq;  num_kv_heads: Hk, a divisor (grouped heads); default num_heads
    kdim, vdim   widths of keys and values; default embed_dim
    head_dim     size of a query and key head; default embed_dim / num_heads
    value_dim    size of a value head; default head_dim
    causal, scale, window, chunk, softcap, engine, threads: as for attention()

    Threads: any number may call one object at once, but not while set_weights() runs.
    """

    def __init__(self, embed_dim: int, num_heads: int, *, num_kv_heads: int | None = None,
                 kdim: int | None = None, vdim: int | None = None, head_dim: int | None = None,
                 value_dim: int | None = None, out_dim: int | None = None,
                 batch_first: bool = True, causal: bool | str = False,
                 scale: float | None = None, window: tuple[int, int] | None = None,
                 chunk: int = 0, softcap: float = 0.0, engine: str = "blas", threads: int = 0):
        self.embed_dim, self.num_heads = integer(embed_dim, "embed_dim"), integer(num_heads,
                                                                                "num_heads")
        if self.num_heads < 1 or (head_dim is None and self.embed_dim % self.num_heads):
            raise ValueError(f"embed_dim = {embed_dim} is not a multiple of num_heads = "
                             f"{num_heads}; give head_dim")
        self.num_kv_heads = self.num_heads if num_kv_heads is None else num_kv_heads
        self.kdim = self.embed_dim if kdim is None else kdim
        self.vdim = self.embed_dim if vdim is None else vdim
        self.head_dim = self.embed_dim // self.num_heads if head_dim is None else head_dim
        self.value_dim = self.head_dim if value_dim is None else value_dim
        self.out_dim = self.embed_dim if out_dim is None else out_dim
        self.batch_first = batch_first
        self.causal = causal
        rules = Rules(causal, scale, pair(window), chunk, softcap, "bhld", engine, threads)
        self._rules = rules._asdict()
        self._has_output = False
        self._op = make_op(self.num_heads, self.num_kv_heads, self.head_dim, self.value_dim,
                           rules)
        self._layer = self._make_layer(self.kdim)
        # One attn_layer has one width for keys and values.
        self._v_layer = self._layer if self.vdim == self.kdim else self._make_layer(self.vdim)

    def _make_layer(self, kv_width: int) -> Handle:
        return Handle(lib.attn_layer_create, lib.attn_layer_destroy, self._op, self.embed_dim,
                      integer(kv_width, "kdim, vdim"), integer(self.out_dim, "out_dim"))

    def _widths(self, which: str) -> tuple[int, int]:
        """(E_in, N) of a projection."""
        return {"q": (self.embed_dim, self.num_heads * self.head_dim),
                "k": (self.kdim, self.num_kv_heads * self.head_dim),
                "v": (self.vdim, self.num_kv_heads * self.value_dim),
                "o": (self.num_heads * self.value_dim, self.out_dim)}[which]

    def set_weights(self, w_q: Tensor, b_q: Tensor | None, w_k: Tensor, b_k: Tensor | None,
                    w_v: Tensor, b_v: Tensor | None, w_o: Tensor | None = None,
                    b_o: Tensor | None = None, *, order: str = "out_in") -> MultiHeadAttention:
        """Set all weights; float32, copied. Returns self.

        order   "out_in": w is (N, E_in), y = x W^T + b, what torch.nn.Linear stores;
                "in_out": w is (E_in, N), y = x W + b, as in the books
        b_...   (N,), or None for none
        w_o     None: the joined heads (B, Lq, Hq * Dv) are the output

        N is Hq * Dk for W_Q, Hk * Dk for W_K, Hk * Dv for W_V, out_dim for W_O.
        Threads: the object to yourself.
        """
        for which, w, b in (("q", w_q, b_q), ("k", w_k, b_k), ("v", w_v, b_v), ("o", w_o, b_o)):
            self._set(which, w, b, order)
        return self

    def _set(self, which: str, w, b, order: str) -> None:
        name, layer = "w_" + which, self._v_layer if which == "v" else self._layer
        flag = choice(ORDER, order, "order")
        if w is None:
            if which != "o" or b is not None:
                raise ValueError(f"{name} is missing")
            check(lib.attn_layer_set_weights(layer, WEIGHT[which], flag, None, 0, None))
            self._has_output = False
            return
        width, n = self._widths(which)
        shape = (n, width) if order == "out_in" else (width, n)
        w = _arrays.floats(w, name)
        if w.shape != shape:
            raise ValueError(f"{name} must have the shape {shape}, not {w.shape}")
        w = _arrays.readable(w, 0)
        if b is not None:
            b = _arrays.packed(b, "b_" + which)
            if b.shape != (n,):
                raise ValueError(f"b_{which} must have the shape ({n},), not {b.shape}")
        row = w.strides[0] // w.itemsize if w.shape[0] > 1 else 0
        check(lib.attn_layer_set_weights(layer, WEIGHT[which], flag, address(w), row,
                                         None if b is None else address(b)), name)
        self._has_output = self._has_output or which == "o"

    @classmethod
    def from_torch(cls, module: Any, **options: Any) -> MultiHeadAttention:
        """A copy of a torch.nn.MultiheadAttention, with its weights and its batch_first.

        options: as of the constructor (causal, engine, ...). Masks have the polarity of
        attention(): True = attend. Raises ValueError for what cannot be had here: add_bias_kv,
        add_zero_attn, dropout in training.
        """
        settings, weights = torch_weights(module)
        return cls(**{**settings, **options}).set_weights(*weights)

    # ------------------------------------------------------------------ runs

    def __call__(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, *,
                 out: Tensor | None = None, **options: Any) -> Any:
        """Y for query (B, Lq, embed_dim); (Lq, embed_dim) is one item.

        key     (B, Lk, kdim); default: query (self-attention)
        value   (B, Lk, vdim); default: key
        out     where to write, (B, Lq, out_dim), packed; returned
        options mask, bias, alibi, sinks, kv_lens, kv_starts, positions, segments, cu_seqlens_q,
                cu_seqlens_k, return_weights, return_scores, return_lse: as for attention().
                With cu_seqlens: query (tokens, embed_dim), key (tokens, kdim)

        Returns out, or a tuple as attention() does. Raises as attention(), and StateError before
        the weights are set.
        """
        key = query if key is None else key
        value = key if value is None else value
        x = _arrays.floats(query, "query")
        k = x if key is query else _arrays.floats(key, "key")
        v = k if value is key else x if value is query else _arrays.floats(value, "value")
        swap = not self.batch_first and x.ndim == 3
        if swap:
            same = k is x, v is k
            x, k, v = (np.swapaxes(a, 0, 1) for a in (x, k, v))
            k = x if same[0] else k
            v = k if same[1] else v
        written = None if swap else out
        if v is k and self.vdim == self.kdim:
            result = self._run(x, k, written, _options(options))
        else:
            result = self.attend(x, self.project("k", k), self.project("v", v), out=written,
                                 **options)
        return _swapped(result, out) if swap else result

    def _run(self, query, key, out, o: dict) -> Any:
        cu_q, cu_k = offsets_of(o)
        x = self._input(query, "query", self.embed_dim, cu_q is not None)
        kv = x if key is query else self._input(key, "key", self.kdim, cu_k is not None)
        if key is query and self.kdim != self.embed_dim:
            raise ValueError(f"keys have the width {self.kdim}: give a key")
        (b_q, length_q), (b_k, length_k) = _lengths(x, cu_q), _lengths(kv, cu_k)
        if b_q != b_k:
            raise ValueError(f"query and key must have the same batch, not {b_q} and {b_k}")
        plain = causal_is_plain(o, cu_q, cu_k)
        if self.causal is True and not (length_q == length_k if plain is None else plain):
            raise ValueError("causal=True has two meanings here: make this object with "
                             "'top_left' or 'bottom_right'")
        sizes = Sizes(b_q, self.num_heads, self.num_kv_heads, length_q, length_k, self.head_dim,
                      self.value_dim)
        result = _arrays.output(out, "out", (*x.shape[:-1], self._out_width))
        addresses = [address(x), None if key is query else address(kv), address(result)]
        with borrowed_args() as args:
            for side, offsets in (("q", cu_q), ("k", cu_k)):
                if offsets is not None:
                    args.offsets(side, offsets)
            fill(args, o, sizes, (x.shape[:-1] if cu_q is not None else (b_q, length_q),
                                  kv.shape[:-1] if cu_k is not None else (b_k, length_k)))
            extras = ask(args, o, sizes, cu_q is not None,
                         1 if x.ndim == 2 and cu_q is None and cu_k is None else 0)
            status = lib.attn_layer_run(self._layer, *sizes[:1], length_q, length_k, *addresses,
                                        args.handle)
            if status:
                kv_address = addresses[1] or addresses[0]
                check(status, explained(
                    self._op, b_q, length_q, length_k,
                    [addresses[0], kv_address, kv_address, addresses[2]], args.handle, status))
        result = result if out is None else out
        return (result, *extras) if extras else result

    def project(self, which: str, x: Tensor, out: Tensor | None = None) -> Any:
        """One projection, x W + b, written where you want it: into a cache, for instance.

        which   "q", "k", "v" or "o"
        x       (B, L, E_in); (L, E_in) is one item
        out     (B, H, L, D) with H and D of the projection, any view with packed rows, as
                cache[:, :, n:n + L]; for "o" (B, L, out_dim). Default: a new array

        Returns out. Raises StateError before this weight is set.
        """
        choice(WEIGHT, which, "which")
        width, n = self._widths(which)
        a = self._input(x, "x", width, False)
        a = a[None] if a.ndim == 2 else a
        batch, length, _ = a.shape
        heads = {"q": self.num_heads, "o": 1}.get(which, self.num_kv_heads)
        shape = (batch, length, n) if which == "o" else (batch, heads, length, n // heads)
        y = _arrays.output(out, "out", shape, -2)
        strides = _arrays.strides_of(y)
        strides = (strides[0], 0, *strides[1:]) if which == "o" else strides
        layer = self._v_layer if which == "v" else self._layer
        check(lib.attn_layer_project(layer, WEIGHT[which], batch, length, address(a), address(y),
                                     four(*strides)), f"projection {which!r}")
        return y if out is None else out

    def attend(self, query: Tensor, k: Tensor, v: Tensor, *, out: Tensor | None = None,
               **options: Any) -> Any:
        """Y from a query and heads that project() made: decoding with a cache.

        query   (B, Lq, embed_dim); k (B, Hk, Lk, Dk), v (B, Hk, Lk, Dv)
        out, options: as of a call, without cu_seqlens

        Returns as a call does.
        """
        _options(options)
        if options.get("cu_seqlens_q") is not None or options.get("cu_seqlens_k") is not None:
            raise ValueError("cu_seqlens need one input for keys and values")
        x = _arrays.floats(query, "query")
        q = self.project("q", x)
        joined = np.empty((q.shape[0], q.shape[2], self.num_heads, self.value_dim), _arrays.F32)
        result = attention(q, k, v, out=np.swapaxes(joined, 1, 2), **self._rules, **options)
        extras = result[1:] if isinstance(result, tuple) else ()
        y = joined.reshape(*joined.shape[:2], -1)
        if self._has_output:
            y = self.project("o", y)
        if x.ndim == 2:
            y, extras = y[0], tuple(a[0] for a in extras)
        return _delivered(y, extras, out)

    @property
    def _out_width(self) -> int:
        return self.out_dim if self._has_output else self.num_heads * self.value_dim

    def _input(self, x, name: str, width: int, packed: bool) -> np.ndarray:
        a = _arrays.packed(x, name)
        if a.ndim not in ((2,) if packed else (2, 3)) or a.shape[-1] != width:
            wanted = f"(tokens, {width})" if packed else f"(B, L, {width})"
            raise ValueError(f"{name} must be {wanted}, not the shape {a.shape}")
        return a


def _options(given: dict) -> dict:
    unknown = given.keys() - _NOTHING.keys()
    if unknown:
        raise TypeError(f"no such argument: {', '.join(sorted(unknown))}")
    return {**_NOTHING, **given}


def _lengths(x: np.ndarray, offsets) -> tuple[int, int]:
    """(batch items, length): of packed sequences their number, and all tokens."""
    if offsets is not None:
        return len(offsets) - 1, x.shape[0]
    return (1 if x.ndim == 2 else x.shape[0]), x.shape[-2]


def _swapped(result, out):
    """A result in the order (length, batch, width), written to out if there is one."""
    y, *extras = result if isinstance(result, tuple) else (result,)
    return _delivered(np.swapaxes(y, 0, 1), extras, out)


def _delivered(y: np.ndarray, extras, out) -> Any:
    """What a call returns; y is copied to out if there is one."""
    if out is not None:
        _arrays.output(out, "out", y.shape)[...] = y
    first = y if out is None else out
    return (first, *extras) if extras else first
