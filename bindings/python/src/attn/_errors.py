# SPDX-License-Identifier: MIT
"""The statuses of libattn as exceptions."""
from __future__ import annotations

import ctypes

from ._lib import lib


class AttnError(Exception):
    """A call of libattn failed; `status` is its number in attn.h."""

    status: int

    def __init__(self, status: int, text: str = ""):
        meaning = lib.attn_status_string(status).decode()
        super().__init__(f"{text} ({meaning})" if text else meaning)
        self.status = status
        self._text = text

    def __reduce__(self):
        # Exception's own calls the class with the message that it holds.
        return type(self), (self.status, self._text), self.__dict__


class InvalidError(AttnError, ValueError):
    """ATTN_EINVAL: an argument is outside what its text allows."""


class NoMemoryError(AttnError, MemoryError):
    """ATTN_ENOMEM: memory could not be had."""


class TooLargeError(AttnError, OverflowError):
    """ATTN_EOVERFLOW: a product of sizes, or an extent for BLAS, overflows."""


class StateError(AttnError, RuntimeError):
    """ATTN_ESTATE: a weight is missing."""


class UnsupportedError(AttnError, NotImplementedError):
    """ATTN_EUNSUPPORTED: a valid wish that this build or CPU cannot serve."""


class BlasError(AttnError, RuntimeError):
    """ATTN_EBLAS: the BLAS found at run time is unusable; the text says why."""


class InternalError(AttnError, RuntimeError):
    """ATTN_EINTERNAL: a fault of libattn; please report it."""


_UNUSABLE_BLAS = -6
_CLASSES = {-1: InvalidError, -2: NoMemoryError, -3: TooLargeError, -4: StateError,
            -5: UnsupportedError, _UNUSABLE_BLAS: BlasError, -7: InternalError}


def check(status: int, text: str = "") -> None:
    """Raises what a status other than 0 stands for."""
    if status:
        if status == _UNUSABLE_BLAS:
            text = text_of(lib.attn_blas_info)[1]
        raise _CLASSES.get(status, AttnError)(status, text)


def text_of(function, *arguments) -> tuple[int, str]:
    """(status, text) of a function that ends in `char *text, size_t cap, size_t *needed`."""
    needed = ctypes.c_size_t()
    buffer = ctypes.create_string_buffer(2000)
    status = function(*arguments, buffer, len(buffer), ctypes.byref(needed))
    if needed.value > len(buffer):
        buffer = ctypes.create_string_buffer(needed.value)
        status = function(*arguments, buffer, len(buffer), None)
    return status, buffer.value.decode()
