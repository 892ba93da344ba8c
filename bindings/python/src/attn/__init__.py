# SPDX-License-Identifier: MIT
"""Attention on the CPU, by libattn.

    out = attn.attention(q, k, v, causal="top_left")            arrays of NumPy, or CPU tensors
    mha = attn.MultiHeadAttention.from_torch(module)            with its projections
    attn.plot_weights(weights, tokens)                          a heat map

attn.lib is the library itself, every function of attn.h declared for ctypes; attn.path is where
it was found, attn.__version__ its version. The search: the environment variable ATTN_LIBRARY (a
path, or a name for the system's loader), the library inside this package, the system's
libattn.so.0.
"""
from ._args import alibi_slopes
from ._attention import attention, blas_info, clear_cache, explain, merge, merge_sinks
from ._errors import (AttnError, BlasError, InternalError, InvalidError, NoMemoryError,
                      StateError, TooLargeError, UnsupportedError)
from ._layer import MultiHeadAttention
from ._lib import __version__, lib, path
from ._plot import plot_weights

__all__ = ["AttnError", "BlasError", "InternalError", "InvalidError", "MultiHeadAttention",
           "NoMemoryError", "StateError", "TooLargeError", "UnsupportedError", "__version__",
           "alibi_slopes", "attention", "blas_info", "clear_cache", "explain", "lib", "merge",
           "merge_sinks", "path", "plot_weights"]
