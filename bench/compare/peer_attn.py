# SPDX-License-Identifier: MIT
"""libattn, by ctypes: everything is made before the call that is timed."""
import ctypes
import functools
import weakref

import numpy as np

from cases import pack_items
from measure import Run, Skip

IN_OUT, TOP_LEFT, BOTTOM_RIGHT, I64_TYPE, EUNSUPPORTED = 1, 1, 2, 2, -5
ENGINES = {"attn-blas": 0, "attn-vector": 1}

I32, I64, P = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
HANDLE, SIZE = ctypes.POINTER(P), ctypes.POINTER(ctypes.c_size_t)
PROTOTYPES = {  # name: (result, arguments), as in attn.h
    "attn_op_create": (I32, [HANDLE, I64, I64, I64, I64]),
    "attn_op_destroy": (None, [P]),
    "attn_op_set_causal": (I32, [P, I32]),
    "attn_op_set_window": (I32, [P, I64, I64]),
    "attn_op_set_engine": (I32, [P, I32]),
    "attn_op_set_threads": (I32, [P, I32]),
    "attn_args_create": (I32, [HANDLE]),
    "attn_args_destroy": (None, [P]),
    "attn_args_set_key_range": (I32, [P, I64, P, P]),
    "attn_args_set_offsets_q": (I32, [P, P, I32, I64]),
    "attn_args_set_offsets_k": (I32, [P, P, I32, I64]),
    "attn_layer_create": (I32, [HANDLE, P, I64, I64, I64]),
    "attn_layer_destroy": (None, [P]),
    "attn_layer_set_weights": (I32, [P, I32, I32, P, I64, P]),
    "attn_run": (I32, [P, I64, I64, I64, P, P, P, P]),
    "attn_run_args": (I32, [P, I64, I64, I64, P, P, P, P, P]),
    "attn_layer_run": (I32, [P, I64, I64, I64, P, P, P, P]),
    "attn_status_string": (ctypes.c_char_p, [I32]),
    "attn_version": (ctypes.c_char_p, []),
    "attn_blas_info": (I32, [ctypes.c_char_p, ctypes.c_size_t, SIZE]),
}

lib = None


def load(path):
    """The library, every function with its types; once a process."""
    global lib
    lib = ctypes.CDLL(str(path))
    for name, (result, arguments) in PROTOTYPES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments


def versions():
    text = ctypes.create_string_buffer(512)
    lib.attn_blas_info(text, len(text), None)
    return {"libattn": lib.attn_version().decode(),
            "libattn's BLAS": " ".join(text.value.decode().split())}


def set_threads(threads):
    """Nothing: each op has its own."""


def _try(status):
    if status != 0:
        raise RuntimeError("libattn: " + lib.attn_status_string(status).decode())


def _pointer(array):
    return P(array.ctypes.data)


class _Handle:
    """A handle that is freed when the last reference goes; .p is the pointer."""

    def __init__(self, kind, *arguments):
        self.p = P()
        _try(getattr(lib, f"attn_{kind}_create")(ctypes.byref(self.p), *arguments))
        weakref.finalize(self, getattr(lib, f"attn_{kind}_destroy"), self.p)


def _op(case, threads, engine):
    op = _Handle("op", case.Hq, case.Hk, case.D, case.D)
    _try(lib.attn_op_set_threads(op.p, threads))
    status = lib.attn_op_set_engine(op.p, engine)
    if status == EUNSUPPORTED:
        raise Skip("this libattn or CPU does not have the engine")
    _try(status)
    if case.causal:
        _try(lib.attn_op_set_causal(op.p, TOP_LEFT if case.L == case.K else BOTTOM_RIGHT))
    if case.window:
        _try(lib.attn_op_set_window(op.p, case.window - 1, 0))
    return op


def _run(function, arguments, result, keep):
    """Arguments are ctypes objects already: the call converts nothing."""
    call = functools.partial(function, *arguments)

    def checked():
        _try(call())
        return result()
    return Run(call=call, result=checked, keep=keep)


def _plain(case, data, op):
    out = data.out("heads", (case.B, case.Hq, case.L, case.D))
    arrays = [_pointer(a) for a in (data.q, data.k, data.v, out)]
    sizes = [I64(case.B), I64(case.L), I64(case.K)]
    if not case.lengths:
        return _run(lib.attn_run, [op.p, *sizes, *arrays], lambda: out, (op,))
    args = _Handle("args")
    ends = np.array(case.lengths, np.int64)
    _try(lib.attn_args_set_key_range(args.p, case.B, None, _pointer(ends)))
    return _run(lib.attn_run_args, [op.p, *sizes, *arrays, args.p], lambda: out, (op, args))


def _packed(case, data, op):
    tokens = [data.tokens(name) for name in "qkv"]
    n = sum(case.lengths)
    out = data.out("tokens", (n, case.Hq, case.D))
    offsets = np.concatenate([[0], np.cumsum(case.lengths)]).astype(np.int64)
    args = _Handle("args")
    _try(lib.attn_args_set_offsets_q(args.p, _pointer(offsets), I64_TYPE, case.B))
    _try(lib.attn_args_set_offsets_k(args.p, _pointer(offsets), I64_TYPE, case.B))

    def result():
        ends = zip(offsets[:-1], offsets[1:])
        return pack_items(case, [out[a:b].transpose(1, 0, 2)[None] for a, b in ends])
    arguments = [op.p, I64(case.B), I64(n), I64(n), *map(_pointer, [*tokens, out]), args.p]
    return _run(lib.attn_run_args, arguments, result, (op, args))


def _layer(case, data, op):
    layer = _Handle("layer", op.p, case.E, case.E, case.E)
    for which, (weight, bias) in enumerate(zip(data.weights, data.biases)):
        _try(lib.attn_layer_set_weights(layer.p, which, IN_OUT, _pointer(weight), 0,
                                        _pointer(bias)))
    out = data.out("layer", data.x.shape)
    arguments = [layer.p, I64(1), I64(case.L), I64(case.L), _pointer(data.x), None, _pointer(out),
                 None]
    return _run(lib.attn_layer_run, arguments, lambda: out, (layer, op))


def _build(case, data, threads, engine):
    op = _op(case, threads, engine)
    if case.layer:
        return _layer(case, data, op)
    return (_packed if case.group == "varlen" else _plain)(case, data, op)


FORMS = {name: functools.partial(_build, engine=engine) for name, engine in ENGINES.items()}
