# SPDX-License-Identifier: MIT
"""Finds libattn, loads it, and declares every function of attn.h.

`lib` is the loaded library: `lib.attn_run(...)` and all others may be called
directly, with the meaning that attn.h gives them. Addresses are passed as
integers, None, or ctypes arrays. ctypes gives up Python's lock during a call.
"""
from __future__ import annotations

import ctypes
import importlib.util
import os
import pathlib

# The release whose functions are declared below.
NEEDED = (0, 1)

_P, _TEXT = ctypes.c_void_p, ctypes.c_char_p
_I32, _I64, _SIZE = ctypes.c_int32, ctypes.c_int64, ctypes.c_size_t
_DOUBLE = ctypes.c_double
_RUN = [_P, _I64, _I64, _I64, _P, _P, _P, _P]

# name: (result, arguments). Every pointer is a c_void_p: it takes an address.
PROTOTYPES = {
    "attn_op_create": (_I32, [_P, _I64, _I64, _I64, _I64]),
    "attn_op_copy": (_I32, [_P, _P]),
    "attn_op_destroy": (None, [_P]),
    "attn_op_set_scale": (_I32, [_P, _DOUBLE]),
    "attn_op_set_causal": (_I32, [_P, _I32]),
    "attn_op_set_window": (_I32, [_P, _I64, _I64]),
    "attn_op_set_chunk": (_I32, [_P, _I64]),
    "attn_op_set_softcap": (_I32, [_P, _DOUBLE]),
    "attn_op_set_layout": (_I32, [_P, _I32]),
    "attn_op_set_engine": (_I32, [_P, _I32]),
    "attn_op_set_threads": (_I32, [_P, _I32]),
    "attn_op_set_isa": (_I32, [_P, _I32]),
    "attn_op_trim": (_I32, [_P]),
    "attn_args_create": (_I32, [_P]),
    "attn_args_destroy": (None, [_P]),
    "attn_args_clear": (_I32, [_P]),
    "attn_args_set_strides": (_I32, [_P, _I32, _P]),
    "attn_args_set_mask_bool": (_I32, [_P, _P, _P, _P]),
    "attn_args_set_mask_add": (_I32, [_P, _P, _P, _P]),
    "attn_args_set_key_range": (_I32, [_P, _I64, _P, _P]),
    "attn_args_set_positions": (_I32, [_P, _I64, _P]),
    "attn_args_set_alibi": (_I32, [_P, _I64, _P]),
    "attn_args_set_sinks": (_I32, [_P, _I64, _P]),
    "attn_args_set_segments": (_I32, [_P, _P, _P]),
    "attn_args_set_offsets_q": (_I32, [_P, _P, _I32, _I64]),
    "attn_args_set_offsets_k": (_I32, [_P, _P, _I32, _I64]),
    "attn_args_set_weights": (_I32, [_P, _P]),
    "attn_args_set_scores_out": (_I32, [_P, _I32, _P, _I32]),
    "attn_args_set_lse": (_I32, [_P, _P]),
    "attn_args_set_type": (_I32, [_P, _I32, _I32]),
    "attn_args_set_workspace": (_I32, [_P, _P, _SIZE]),
    "attn_run": (_I32, _RUN),
    "attn_run_args": (_I32, [*_RUN, _P]),
    "attn_merge": (_I32, [_I64, _I64, _P, _P, _P, _P]),
    "attn_merge_sinks": (_I32, [_I64, _I64, _I64, _I64, _P, _P, _P]),
    "attn_alibi_slopes": (_I32, [_I64, _P]),
    "attn_mask_dims": (_I32, [_I64, _P, _I64, _P, _P]),
    "attn_layer_create": (_I32, [_P, _P, _I64, _I64, _I64]),
    "attn_layer_destroy": (None, [_P]),
    "attn_layer_set_weights": (_I32, [_P, _I32, _I32, _P, _I64, _P]),
    "attn_layer_project": (_I32, [_P, _I32, _I64, _I64, _P, _P, _P]),
    "attn_layer_run": (_I32, [_P, _I64, _I64, _I64, _P, _P, _P, _P]),
    "attn_workspace_bytes": (_I32, [_P, _I64, _I64, _I64, _P, _P]),
    "attn_layer_workspace_bytes": (_I32, [_P, _I64, _I64, _I64, _P, _P]),
    "attn_explain": (_I32, [*_RUN, _P, _P, _SIZE, _P]),
    "attn_version": (_TEXT, []),
    "attn_status_string": (_TEXT, [_I32]),
    "attn_blas_info": (_I32, [_P, _SIZE, _P]),
}

# The numbers of attn.h, under the names that this package's arguments have.
CAUSAL = {False: 0, "top_left": 1, "bottom_right": 2}
LAYOUT = {"bhld": 0, "blhd": 1}
ENGINE = {"blas": 0, "vector": 1}
STAGE = {"raw": 0, "capped": 1, "masked": 2, "weights": 3}
Q, K, V, OUT = 0, 1, 2, 3
I32, I64 = 1, 2
MEAN_HEADS = 1
WEIGHT = {"q": 0, "k": 1, "v": 2, "o": 3}
ORDER = {"in_out": 1, "out_in": 2}


def _wheel_blas():
    """Loads OpenBLAS's wheel, so that the loader knows it when libattn asks for it.

    Not by importing it, for that would put its names before those of everyone.
    """
    spec = importlib.util.find_spec("scipy_openblas32")
    if spec is None or not spec.submodule_search_locations:
        raise OSError("the package scipy-openblas32 is not installed")
    folder = pathlib.Path(spec.submodule_search_locations[0]) / "lib"
    return [ctypes.CDLL(str(file)) for file in sorted(folder.glob("libscipy_openblas.*"))]


def _load():
    """(library, its name, what must stay loaded)."""
    chosen = os.environ.get("ATTN_LIBRARY")
    if chosen:
        return ctypes.CDLL(chosen), chosen, []
    own = pathlib.Path(__file__).with_name("libattn.so.0")
    if own.exists():
        blas = _wheel_blas()
        return ctypes.CDLL(str(own)), str(own), blas
    return ctypes.CDLL("libattn.so.0"), "libattn.so.0", []


def _declare(library, name):
    missing = [function for function in PROTOTYPES if not hasattr(library, function)]
    if "attn_version" in missing:
        raise ImportError(f"{name} is not libattn")
    library.attn_version.restype = _TEXT
    version = library.attn_version().decode()
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers[0] != NEEDED[0] or numbers < NEEDED or missing:
        needed = ".".join(map(str, NEEDED))
        raise ImportError(f"{name} is libattn {version}; this package needs {needed} or a later "
                          f"{NEEDED[0]}.x" + (f"; it lacks {', '.join(missing)}" if missing else ""))
    for function, (result, arguments) in PROTOTYPES.items():
        getattr(library, function).restype = result
        getattr(library, function).argtypes = arguments


try:
    lib, path, _blas = _load()
except OSError as error:
    raise ImportError(
        "libattn was not found. It is looked for at the path in the environment variable "
        f"ATTN_LIBRARY, in this package, and where the system's loader looks: {error}") from error
_declare(lib, path)
__version__: str = lib.attn_version().decode()
