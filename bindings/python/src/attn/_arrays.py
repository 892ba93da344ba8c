# SPDX-License-Identifier: MIT
"""Arrays of NumPy and of others: what is taken as it is, copied, or refused.

Memory is shared where libattn can read it. An input that it cannot (another inner stride than 1,
queries or keys that overlap or run backwards, addresses off the grid) is copied; an output is
refused. Nothing is converted: another type, byte order or device is an error.
"""
from __future__ import annotations

import ctypes
from typing import Any, Protocol, Union

import numpy as np


class DLPack(Protocol):
    """A tensor of another library, as torch.Tensor."""

    def __dlpack__(self, **options: Any) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


Tensor = Union[np.ndarray, DLPack]

F32 = np.dtype(np.float32)
BOOL = np.dtype(np.bool_)
_CPU = 1  # DLPack's number of the device

# The quickest way to an address, for writable packed arrays: an argument that ctypes passes as
# the address of the array's memory, and that keeps the array.
view: Any = (ctypes.c_char * 0).from_buffer
four = ctypes.c_int64 * 4


def as_array(x, name: str) -> np.ndarray:
    """x as an array of NumPy that shares its memory."""
    if isinstance(x, np.ndarray):
        if isinstance(x, np.ma.MaskedArray):
            raise TypeError(f"{name} is a masked array; give its data, and a mask by mask=")
        return x
    if hasattr(x, "__dlpack__"):
        try:
            device = x.__dlpack_device__()[0]
            if device == _CPU:
                return np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"{name} cannot be shared with NumPy: {error}") from error
        raise TypeError(f"{name} is not in the memory of the CPU (DLPack device {int(device)}); "
                        "move it there first")
    if hasattr(x, "__array_interface__") or hasattr(x, "__array__"):
        return np.asarray(x)
    raise TypeError(f"{name} must be an array of NumPy or a tensor on the CPU, "
                    f"not {type(x).__name__}")


def floats(x, name: str) -> np.ndarray:
    """x as an array that shares its memory; it must hold float32."""
    a = as_array(x, name)
    if a.dtype != F32:
        order = " in this machine's byte order" if a.dtype.newbyteorder() == F32 else ""
        raise TypeError(f"{name} must be float32{order}, not {a.dtype}; "
                        "convert it by .astype(numpy.float32)")
    return a


def copied(a: np.ndarray) -> np.ndarray:
    """A packed, aligned copy."""
    return np.array(a, order="C")


def strides_of(a: np.ndarray) -> tuple[int, ...]:
    """Strides in elements; of an aligned array they are whole."""
    return tuple(s // a.itemsize for s in a.strides)


def readable(a: np.ndarray, length_axis: int) -> np.ndarray:
    """a itself where libattn can read it by strides, else a packed copy."""
    size = a.itemsize
    length, width = a.shape[length_axis], a.shape[-1]
    if (a.flags.aligned and (width <= 1 or a.strides[-1] == size)
            and (length <= 1 or a.strides[length_axis] >= width * size)):
        return a
    return copied(a)


def packed(x, name: str) -> np.ndarray:
    """x as packed float32, copied only where it is not."""
    a = floats(x, name)
    return a if a.flags.c_contiguous and a.flags.aligned else copied(a)


def output(x, name: str, shape: tuple[int, ...], length_axis: int | None = None) -> np.ndarray:
    """An array to write to, with this shape; packed where there is no length_axis."""
    if x is None:
        return np.empty(shape, F32)
    a = floats(x, name)
    if a.shape != shape:
        raise ValueError(f"{name} must have the shape {shape}, not {a.shape}")
    if not a.flags.writeable:
        raise ValueError(f"{name} is read-only")
    fits = (a.flags.c_contiguous and a.flags.aligned) if length_axis is None \
        else readable(a, length_axis) is a
    if not fits:
        raise ValueError(f"{name} cannot be written with the strides {a.strides} (bytes): "
                         + ("it must be packed" if length_axis is None else
                            "the last axis must be packed, and rows must not overlap"))
    return a


def address(a: np.ndarray) -> int:
    """The address of the first element; the caller keeps the array."""
    return a.ctypes.data


def integers(x, name: str, count: int | None = None) -> np.ndarray:
    """A short list of integers as packed int64; one number stands for `count` times itself."""
    a = as_array(x, name) if hasattr(x, "__dlpack__") else np.asarray(x)
    if a.dtype.kind not in "iu" or not np.can_cast(a.dtype, np.int64):
        raise TypeError(f"{name} must hold integers of at most 64 bits with a sign, not {a.dtype}")
    if a.ndim == 0 and count is not None:
        a = np.broadcast_to(a, (count,))
    if a.ndim != 1 or (count is not None and len(a) != count):
        wanted = "one axis" if count is None else f"the shape ({count},)"
        raise ValueError(f"{name} must have {wanted}, not the shape {a.shape}")
    return np.ascontiguousarray(a, np.int64)


def numbers(x, name: str, count: int) -> np.ndarray:
    """A short list of numbers as packed float32."""
    a = as_array(x, name) if hasattr(x, "__dlpack__") else np.asarray(x)
    if a.dtype.kind not in "fiu":
        raise TypeError(f"{name} must hold numbers, not {a.dtype}")
    if a.shape != (count,):
        raise ValueError(f"{name} must have the shape ({count},), not {a.shape}")
    return np.ascontiguousarray(a, F32)
