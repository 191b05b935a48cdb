"""A memory-mapped reader of GGUF files (versions 2 and 3, little-endian): metadata and where the tensors lie.

Follows the format specification of the ggml project (docs/gguf.md). Nothing is copied at open: tensor bytes are views
of the mapping, and string arrays (vocabularies of a quarter million entries) are only walked, not decoded, until they
are asked for. The mapping is private and copy-on-write, so a view can be handed on as a writable buffer without any
write ever reaching the file.

Every corruption is a `ModelLoadError` that names the file and the place: wrong magic, an unknown version, a file that
ends early, counts that the file cannot hold, duplicate names, tensors outside the data section or on top of each other.
Not read: version 1, big-endian files, nested arrays, split files (merge them first), quantization types that no kernel
here serves.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from safegen.errors import ModelLoadError

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 65_535

# ggml type id -> (kind, elements in a block, bytes of a block).
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    30: ("bf16", 1, 2),
}
_UNSERVED_TYPES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"), 1: np.dtype("<i1"), 2: np.dtype("<u2"), 3: np.dtype("<i2"), 4: np.dtype("<u4"),
    5: np.dtype("<i4"), 6: np.dtype("<f4"), 7: np.dtype("<u1"), 10: np.dtype("<u8"), 11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}  # fmt: skip
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class StringArray(Sequence[str]):
    """An array of strings inside the file, decoded as a whole when first indexed or iterated."""

    def __init__(self, reader: _Reader, key: str, start: int, count: int) -> None:
        self._reader, self._key, self._start, self._count = reader, key, start, count
        self._decoded: list[str] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self.tolist()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def tolist(self) -> list[str]:
        if self._decoded is None:
            try:
                self._decoded = [raw.decode() for raw in self._reader.raw_strings(self._start, self._count)]
            except UnicodeDecodeError as error:
                self._reader.fail(f"metadata {self._key!r} holds a string that is not UTF-8: {error}")
        return self._decoded


MetadataValue: TypeAlias = int | float | bool | str | StringArray | NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies. shape: outermost dimension first, [out, in] for a weight. offset: bytes from file start."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class _Reader:
    """A bounds-checked cursor over the mapped file."""

    def __init__(self, path: str, buffer: mmap.mmap) -> None:
        self.path, self.buffer, self.position, self.end = path, buffer, 0, len(buffer)

    def fail(self, message: str, *, tensor: str | None = None, hint: str | None = None) -> NoReturn:
        raise ModelLoadError(
            message, path=self.path, tensor=tensor, hint=hint or "download the file again and compare its checksum"
        )

    def take(self, num_bytes: int, what: str) -> int:
        """Move past num_bytes; returns where they start."""
        start = self.position
        if num_bytes > self.end - start:
            self.fail(f"the file ends at byte {self.end} inside {what} (needs {num_bytes} bytes at {start})")
        self.position = start + num_bytes
        return start

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.buffer, self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.buffer, self.take(8, what))[0])

    def string(self, what: str) -> str:
        length = self.u64(what)
        start = self.take(length, what)
        try:
            return self.buffer[start : start + length].decode()
        except UnicodeDecodeError as error:
            self.fail(f"{what} at byte {start} is not UTF-8: {error}")

    def skip_strings(self, count: int, what: str) -> None:
        """Walk over count strings. The loop is the cost of opening a file with a large vocabulary: keep it bare."""
        position, buffer, length_at = self.position, self.buffer, _U64.unpack_from
        try:
            for _ in range(count):
                position += 8 + length_at(buffer, position)[0]
        except (struct.error, OverflowError):  # a length past the end, or past what an offset can hold
            position = self.end + 1
        if position > self.end:
            self.fail(f"the file ends at byte {self.end} inside {what}, an array of {count} strings")
        self.position = position

    def raw_strings(self, position: int, count: int) -> Iterator[bytes]:
        buffer, length_at = self.buffer, _U64.unpack_from
        for _ in range(count):
            start = position + 8
            position = start + length_at(buffer, position)[0]
            yield buffer[start:position]

    def value(self, kind: int, key: str) -> MetadataValue:
        what = f"metadata {key!r}"
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self._array(key, what)
        if kind not in _SCALARS:
            self.fail(f"{what} has the unknown value type {kind}")
        dtype = _SCALARS[kind]
        scalar: int | float = np.frombuffer(self.buffer, dtype, 1, self.take(dtype.itemsize, what))[0].item()
        return bool(scalar) if kind == _BOOL else scalar

    def _array(self, key: str, what: str) -> MetadataValue:
        kind, count = self.u32(what), self.u64(what)
        item_bytes = 8 if kind == _STRING else _SCALARS[kind].itemsize if kind in _SCALARS else 0
        if not item_bytes:
            self.fail(f"{what} is an array of value type {kind}, which is not read (nested arrays and unknown types)")
        if count * item_bytes > self.end - self.position:
            self.fail(f"{what} claims {count} entries, more than the file can hold")
        if kind == _STRING:
            start = self.position
            self.skip_strings(count, what)
            return StringArray(self, key, start, count)
        values = np.frombuffer(self.buffer, _SCALARS[kind], count, self.take(count * item_bytes, what))
        return values.astype(np.bool_) if kind == _BOOL else values


class GgufFile:
    """An open GGUF file.

    metadata: key -> Python scalar, str, numpy array (a view) or StringArray. tensors: name -> GgufTensor.
    Thread-safe after construction; the mapping lives as long as any view of it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        reader = _Reader(self.path, _map(self.path))
        self._buffer = reader.buffer
        self.version, num_tensors, num_metadata = _header(reader)
        self.metadata: Mapping[str, MetadataValue] = _metadata(reader, num_metadata)
        if _as_count(self.metadata.get("split.count", 1)) > 1:
            reader.fail(
                f"one of {self.metadata['split.count']} parts of a split model",
                hint="merge the parts with `llama-gguf-split --merge FIRST_PART OUTPUT`",
            )
        self.tensors: Mapping[str, GgufTensor] = _tensors(reader, num_tensors, _alignment(reader, self.metadata))

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes, a view of the mapped file: [bytes]."""
        tensor = self.tensors[name]
        return np.frombuffer(self._buffer, np.uint8, tensor.num_bytes, tensor.offset)

    def drop_pages(self) -> None:
        """Give back the memory of what has been read so far; what is read again comes from the file again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._buffer.madvise(mmap.MADV_DONTNEED)


def is_gguf(path: Path) -> bool:
    """Whether the file starts with the GGUF magic. Raises OSError as `open` does."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _map(path: str) -> mmap.mmap:
    try:
        with open(path, "rb") as file:
            num_bytes = file.seek(0, 2)
            if num_bytes < 24:
                raise ModelLoadError(
                    f"{num_bytes} bytes are too few for a GGUF header", path=path, hint="download the file again"
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise ModelLoadError(
            f"cannot be opened: {error.strerror or error}", path=path, hint="give the path of a readable GGUF file"
        ) from error


def _header(reader: _Reader) -> tuple[int, int, int]:
    """Version, tensor count, metadata count."""
    if reader.buffer[:4] != MAGIC:
        reader.fail(f"not a GGUF file: it starts with {reader.buffer[:4]!r}", hint="give a GGUF file or a model folder")
    reader.position = 4
    version = reader.u32("the version")
    if version not in (2, 3):
        big_endian = int.from_bytes(version.to_bytes(4, "little"), "big") in (2, 3)
        kind = "a big-endian file" if big_endian else f"GGUF version {version}"
        reader.fail(f"{kind} is not served", hint="convert the model again with a current llama.cpp")
    num_tensors, num_metadata = reader.u64("the tensor count"), reader.u64("the metadata count")
    # A tensor entry takes at least 32 bytes, a metadata entry at least 13: an absurd count stops here, not in a loop.
    for what, count, least_bytes in (("tensors", num_tensors, 32), ("metadata entries", num_metadata, 13)):
        if count * least_bytes > reader.end:
            reader.fail(f"the header claims {count} {what}, more than {reader.end} bytes can hold")
    return version, num_tensors, num_metadata


def _metadata(reader: _Reader, count: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    for index in range(count):
        key = reader.string(f"metadata key {index}")
        if key in metadata:
            reader.fail(f"metadata {key!r} appears twice")
        metadata[key] = reader.value(reader.u32(f"metadata {key!r}"), key)
    return metadata


def _alignment(reader: _Reader, metadata: Mapping[str, MetadataValue]) -> int:
    alignment = _as_count(metadata.get("general.alignment", DEFAULT_ALIGNMENT))
    if alignment < 8 or alignment & (alignment - 1):
        reader.fail(f"general.alignment is {metadata['general.alignment']!r}; it must be a power of two of at least 8")
    return alignment


def _as_count(value: MetadataValue) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _tensors(reader: _Reader, count: int, alignment: int) -> dict[str, GgufTensor]:
    entries: dict[str, GgufTensor] = {}
    for index in range(count):
        tensor = _tensor_entry(reader, index, alignment)
        if tensor.name in entries:
            reader.fail("the tensor is listed twice", tensor=tensor.name)
        entries[tensor.name] = tensor
    data_start = -(-reader.position // alignment) * alignment
    placed = {
        name: GgufTensor(name, entry.kind, entry.shape, data_start + entry.offset, entry.num_bytes)
        for name, entry in entries.items()
    }
    _check_places(reader, placed)
    return placed


def _tensor_entry(reader: _Reader, index: int, alignment: int) -> GgufTensor:
    """One tensor info; its offset still counts from the start of the data section."""
    name = reader.string(f"the name of tensor {index}")
    num_dimensions = reader.u32(f"tensor {name!r}")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS or len(name) > MAX_NAME_BYTES:
        reader.fail(f"{num_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are possible", tensor=name[:80])
    shape = tuple(reader.u64(f"tensor {name!r}") for _ in range(num_dimensions))[::-1]
    type_id, offset = reader.u32(f"tensor {name!r}"), reader.u64(f"tensor {name!r}")
    if type_id not in TENSOR_TYPES:
        reader.fail(
            f"tensor type {_UNSERVED_TYPES.get(type_id, type_id)} is not served",
            tensor=name,
            hint=f"use a file quantized to one of {', '.join(kind.upper() for kind, _, _ in TENSOR_TYPES.values())}",
        )
    kind, block_elements, block_bytes = TENSOR_TYPES[type_id]
    if min(shape) < 1 or shape[-1] % block_elements:
        reader.fail(f"shape {list(shape)} does not divide into {kind} blocks of {block_elements}", tensor=name)
    if offset % alignment:
        reader.fail(f"offset {offset} is no multiple of the alignment {alignment}", tensor=name)
    return GgufTensor(name, kind, shape, offset, math.prod(shape) // block_elements * block_bytes)


def _check_places(reader: _Reader, tensors: Mapping[str, GgufTensor]) -> None:
    previous: GgufTensor | None = None
    for tensor in sorted(tensors.values(), key=lambda entry: entry.offset):
        tensor_end = tensor.offset + tensor.num_bytes
        if tensor_end > reader.end:
            reader.fail(
                f"the file is truncated: the tensor ends at byte {tensor_end}, the file at {reader.end}",
                tensor=tensor.name,
            )
        if previous is not None and tensor.offset < previous.offset + previous.num_bytes:
            reader.fail(f"the tensor overlaps {previous.name!r}", tensor=tensor.name)
        previous = tensor


__all__ = ["GgufFile", "GgufTensor", "MetadataValue", "StringArray", "is_gguf"]
