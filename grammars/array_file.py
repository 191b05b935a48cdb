"""Arrays as bytes and back, for files that nobody vouches for: fixed types, every length checked, no code in the data.

count, then of each array: type, dimensions, their sizes; then the arrays' bytes, in order, little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TYPES = (np.dtype("<i4"), np.dtype("<i8"), np.dtype("u1"))
_COUNT = struct.Struct("<I")
_HEAD = struct.Struct("<BB")
_SIZE = struct.Struct("<Q")
_MAX_ARRAYS = 64
_MAX_DIMENSIONS = 2


def pack_arrays(arrays: Sequence[NDArray[Any]]) -> bytes:
    heads, bodies = [_COUNT.pack(len(arrays))], []
    for array in arrays:
        number = _TYPES.index(array.dtype.newbyteorder("<"))
        heads.append(_HEAD.pack(number, array.ndim) + b"".join(_SIZE.pack(size) for size in array.shape))
        bodies.append(np.ascontiguousarray(array, dtype=_TYPES[number]).tobytes())
    return b"".join([*heads, *bodies])


def unpack_arrays(content: bytes) -> list[NDArray[Any]] | None:
    """None when the content is no such file, to the byte. The arrays are read-only."""
    try:
        (count,) = _COUNT.unpack_from(content)
        at, shapes = _COUNT.size, list[tuple[np.dtype[Any], tuple[int, ...]]]()
        if count > _MAX_ARRAYS:
            return None
        for _ in range(count):
            number, dimensions = _HEAD.unpack_from(content, at)
            at += _HEAD.size
            if number >= len(_TYPES) or dimensions > _MAX_DIMENSIONS:
                return None
            shape = tuple(_SIZE.unpack_from(content, at + place * _SIZE.size)[0] for place in range(dimensions))
            at += dimensions * _SIZE.size
            shapes.append((_TYPES[number], shape))
    except struct.error:
        return None
    arrays = []
    for kind, shape in shapes:
        if any(size > len(content) for size in shape):
            return None
        items = 1
        for size in shape:
            items *= size  # Python's: it cannot overflow
        if items * kind.itemsize > len(content) - at:
            return None
        arrays.append(np.frombuffer(content, dtype=kind, count=items, offset=at).reshape(shape))
        at += items * kind.itemsize
    return arrays if at == len(content) else None
