"""One seam over the two kinds of files that weights come in: GGUF files and Hugging Face safetensors folders.

A `WeightSource` hands out one tensor at a time by its canonical name, the one GGUF uses for every family
("token_embd.weight", "blk.0.attn_q.weight"; models/family.py translates for safetensors). Files are mapped, never read
as a whole: a tensor is a view until someone converts or packs it, so loading needs the packed weights plus one tensor.
Quantized blocks come out as raw bytes, weights of quantized safetensors as digits with their scales
(engine/quantized). Nothing is ever unpickled. Each source remembers what was asked for, so the
loader can refuse a checkpoint that holds weights its architecture does not use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn, Protocol, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from safegen.engine.gguf import GgufFile
from safegen.engine.quantized.base import QuantizedFormat
from safegen.errors import ModelLoadError
from safegen.kernels.api import Weight
from safegen.kernels.quant import FLOAT_KINDS, dequantize

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_KINDS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
_INCOMPLETE = "the checkpoint is incomplete or of another model; download it again"


class WeightSource(Protocol):
    """Tensors by canonical name. Used by one thread, during load."""

    path: str

    def __contains__(self, name: str) -> bool: ...

    def weight(self, name: str, shape: tuple[int, int]) -> Weight:
        """A matrix as it lies in the file. Raises ModelLoadError if it is missing or of another shape."""
        ...

    def vector(self, name: str, length: int) -> Tensor:
        """A norm weight or bias: fp32 [length], a copy."""
        ...

    def unread(self) -> list[str]:
        """Names, as the file has them, of tensors that nobody asked for."""
        ...


class GgufWeights:
    """The tensors of one GGUF file."""

    def __init__(self, file: GgufFile) -> None:
        self.path = file.path
        self._file = file
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._file.tensors

    def weight(self, name: str, shape: tuple[int, int]) -> Weight:
        kind, stored = self._stored(name, shape)
        return Weight(kind, shape, stored)

    def vector(self, name: str, length: int) -> Tensor:
        kind, stored = self._stored(name, (length,))
        return dequantize(kind, stored).clone()

    def unread(self) -> list[str]:
        return [name for name in self._file.tensors if name not in self._read]

    def _stored(self, name: str, shape: tuple[int, ...]) -> tuple[str, Tensor]:
        """The kind and the data: floats in shape, or raw blocks [..., bytes a row]."""
        tensor = self._file.tensors.get(name)
        if tensor is None:
            raise ModelLoadError("the tensor is missing", path=self.path, tensor=name, hint=_INCOMPLETE)
        _check_shape(self.path, name, tensor.shape, [shape])
        self._read.add(name)
        raw = torch.from_numpy(self._file.raw(name))
        if tensor.kind in FLOAT_KINDS:
            return tensor.kind, raw.view(FLOAT_KINDS[tensor.kind]).reshape(shape)
        return tensor.kind, raw.reshape(*shape[:-1], -1)


class SafetensorsWeights:
    """The tensors of a Hugging Face folder: model.safetensors, or shards listed in model.safetensors.index.json.

    translate: canonical name -> the checkpoint's name, given the set of all its names. quantized: how the layers are
    stored where they are not plain floats. Implements `StoredTensors` for it.
    """

    def __init__(
        self,
        folder: Path,
        translate: Callable[[str, frozenset[str]], str],
        quantized: QuantizedFormat | None = None,
    ) -> None:
        self.path = str(folder)
        self._folder = folder
        self._shards: dict[str, Any] = {}
        self._shard_of = self._find_tensors()
        self._names = frozenset(self._shard_of)
        self._translate = translate
        self._quantized = quantized
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._translate(name, self._names) in self._names

    def weight(self, name: str, shape: tuple[int, int]) -> Weight:
        stored_name = self._translate(name, self._names)
        if self._quantized is not None:
            weight = self._quantized.read(self, stored_name.removesuffix(".weight"), shape)
            if weight is not None:
                return weight
        stored = self.tensor(stored_name, list(_KINDS), [shape])
        return Weight(_KINDS[self.dtype(stored_name)], shape, stored)

    def vector(self, name: str, length: int) -> Tensor:
        stored = self.tensor(self._translate(name, self._names), list(_KINDS), [(length,)])
        return stored.to(torch.float32, copy=True)

    def unread(self) -> list[str]:
        left = self._names - self._read
        return sorted(name for name in left if self._quantized is None or not self._quantized.is_unused(name))

    def holds(self, name: str) -> bool:
        return name in self._names

    def dtype(self, name: str) -> str:
        dtype: str = self._slice(name)[0].get_dtype()
        return dtype

    def tensor(self, name: str, dtypes: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Tensor:
        view, shard = self._slice(name)
        self._read.add(name)
        _check_shape(str(self._folder / shard), name, tuple(view.get_shape()), shapes)
        if view.get_dtype() not in dtypes:
            served = ", ".join(dtypes)
            hint = "use a checkpoint of one of these; a quantized one needs quantization_config in its config.json"
            self._fail(f"dtype {view.get_dtype()} is not served here; due is {served}", shard, name, hint=hint)
        try:
            return cast(Tensor, self._open(shard).get_tensor(name))
        except SafetensorError as error:
            self._fail(f"cannot be read: {error}", shard, name)

    def refuse(self, name: str, message: str, hint: str) -> NoReturn:
        self._fail(message, self._shard_of.get(name), name, hint)

    def _slice(self, name: str) -> tuple[Any, str]:
        """A view of the tensor that nothing is read of yet, and the file that holds it."""
        shard = self._shard_of.get(name)
        if shard is None:
            self._fail("the tensor is missing", None, name)
        try:
            return self._open(shard).get_slice(name), shard
        except SafetensorError as error:
            self._fail(f"cannot be read: {error}", shard, name)

    def _find_tensors(self) -> dict[str, str]:
        """Tensor name -> file name."""
        if (self._folder / INDEX_FILE).exists():
            return self._indexed()
        if (self._folder / SINGLE_FILE).exists():
            return dict.fromkeys(self._open(SINGLE_FILE).keys(), SINGLE_FILE)
        files = sorted(self._folder.glob("*.safetensors"))
        if len(files) == 1:  # GPTQ checkpoints of old have names such as gptq_model-4bit-128g.safetensors
            return dict.fromkeys(self._open(files[0].name).keys(), files[0].name)
        pickles = sorted(self._folder.glob("*.bin")) + sorted(self._folder.glob("*.pt*"))
        found = f"; {pickles[0].name} is a pickle, which is never loaded" if pickles else ""
        raise ModelLoadError(
            f"no {SINGLE_FILE} and no {INDEX_FILE} in the folder{found}",
            path=self.path,
            hint="use a checkpoint saved as safetensors",
        )

    def _indexed(self) -> dict[str, str]:
        try:
            shard_of = json.loads((self._folder / INDEX_FILE).read_text("utf-8"))["weight_map"]
            plain = all(PurePosixPath(str(shard)).name == shard for shard in shard_of.values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._fail(f"no usable index: {error!r}", INDEX_FILE)
        if not plain:
            self._fail("the index points outside the folder", INDEX_FILE)
        for shard in sorted(set(shard_of.values())):
            listed = {name for name, file in shard_of.items() if file == shard}
            missing = listed - set(self._open(shard).keys())
            if missing:
                self._fail("the index lists the tensor in this file, which does not hold it", shard, min(missing))
        return dict(shard_of)

    def _open(self, shard: str) -> Any:
        if shard not in self._shards:
            path = self._folder / shard
            if not path.is_file():
                self._fail("the file is missing", shard)
            try:
                self._shards[shard] = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                self._fail(f"corrupt or truncated: {error}", shard)
        return self._shards[shard]

    def _fail(self, message: str, shard: str | None, tensor: str | None = None, hint: str | None = None) -> NoReturn:
        path = self.path if shard is None else str(self._folder / shard)
        raise ModelLoadError(message, path=path, tensor=tensor, hint=hint or _INCOMPLETE)


def _check_shape(path: str, name: str, stored: tuple[int, ...], expected: Sequence[tuple[int, ...]]) -> None:
    if stored not in expected:
        raise ModelLoadError(
            f"shape {list(stored)}, but the config needs {' or '.join(str(list(shape)) for shape in expected)}",
            path=path,
            tensor=name,
            hint="config and weights are of different models; download both again",
        )


__all__ = ["GgufWeights", "SafetensorsWeights", "WeightSource"]
