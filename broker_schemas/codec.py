"""MessagePack with one extension: tensors as (dtype, shape, raw little-endian bytes)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

TENSOR_EXT = 1

# What a tensor may hold. bfloat16 has no numpy type: its bytes travel, and `numpy()` refuses it.
_NUMPY_DTYPES = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2",
    "int64": "<i8", "int32": "<i4", "int16": "<i2", "int8": "|i1", "uint8": "|u1", "bool": "|b1",
}  # fmt: skip
_ITEM_SIZES = {"bfloat16": 2} | {name: np.dtype(code).itemsize for name, code in _NUMPY_DTYPES.items()}


class DecodeError(ValueError):
    """The bytes are not a message of this codec."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array on the wire: `data` is its elements in C order, little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        if self.dtype not in _ITEM_SIZES:
            raise DecodeError(f"unknown tensor dtype {self.dtype!r}; known: {', '.join(sorted(_ITEM_SIZES))}")
        if any(size < 0 for size in self.shape):
            raise DecodeError(f"a {self.shape} tensor cannot be")
        expected = _ITEM_SIZES[self.dtype]
        for size in self.shape:
            expected *= size
        if expected != len(self.data):
            raise DecodeError(f"a {self.dtype} tensor of shape {self.shape} has {expected} bytes, got {len(self.data)}")

    @classmethod
    def of(cls, array: np.ndarray) -> Tensor:
        """The wire form of a numpy array of any supported dtype."""
        name = array.dtype.name
        if name not in _NUMPY_DTYPES:
            raise TypeError(f"no wire dtype for numpy {name}")
        return cls(name, tuple(array.shape), np.ascontiguousarray(array, dtype=_NUMPY_DTYPES[name]).tobytes())

    def numpy(self) -> np.ndarray:
        """A read-only view of the elements; raises TypeError for bfloat16."""
        if self.dtype not in _NUMPY_DTYPES:
            raise TypeError(f"numpy has no {self.dtype}")
        return np.frombuffer(self.data, dtype=_NUMPY_DTYPES[self.dtype]).reshape(self.shape)


def _default(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = Tensor.of(value)
    if isinstance(value, Tensor):
        return msgpack.ExtType(TENSOR_EXT, msgpack.packb([value.dtype, list(value.shape), value.data]))
    raise TypeError(f"cannot send a {type(value).__name__} over the broker")


def _ext_hook(code: int, payload: bytes) -> Any:
    if code != TENSOR_EXT:
        return msgpack.ExtType(code, payload)
    dtype, shape, data = msgpack.unpackb(payload)
    return Tensor(dtype, tuple(shape), data)


def pack(value: Any) -> bytes:
    """Encode plain values, `Tensor` and numpy arrays."""
    return msgpack.packb(value, default=_default, use_bin_type=True)


def unpack(raw: bytes) -> Any:
    """Decode what `pack` wrote; raises DecodeError for anything else."""
    try:
        return msgpack.unpackb(raw, ext_hook=_ext_hook, raw=False)
    except DecodeError:
        raise
    except Exception as error:  # msgpack raises a dozen types for bad bytes
        raise DecodeError(f"not a message of this codec: {error}") from error


def digest(value: Any) -> str:
    """sha256 of a value's encoding, as hex; map keys are sorted first, so the digest is of the content."""
    return hashlib.sha256(pack(_sorted(value))).hexdigest()


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [_sorted(item) for item in value]
    return value
