"""How fast this processor computes a model, measured in a few seconds on a slice of it: some of its layers and some of
its vocabulary, of the model's own shapes and kinds of weights, filled with constants. Nothing of the file's weights is
read, so a model of any size can be planned for before it is downloaded in full.

The slice is larger than the caches, so that weights stream from memory as the real ones do. What is timed is the
backend's own forward: `rows` tokens at once, the head for some of them, decoding with a long context, a long prompt.
Rates of the whole model follow by the ratio of layers and of vocabulary. Each time is the median of repeated forwards:
what else the machine does counts, as it will when the model serves.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safegen.engine.backend import ForwardBatch
from safegen.engine.config import KvCacheDtype
from safegen.engine.model_size import TENSOR_BYTES, TENSOR_ELEMENTS, float_kind, layer_kind, parameters_a_layer
from safegen.engine.models.config import ModelConfig
from safegen.engine.models.loader import Checkpoint, build_model, open_checkpoint
from safegen.engine.models.native import fused
from safegen.engine.runner import ModelRunner
from safegen.kernels.api import Quantization, Weight, ops
from safegen.kernels.quant import FLOAT_KINDS

ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_HEAD_ROWS = (1, 8, 64)
_SECONDS_EACH, _LEAST_TIMES = 0.2, 4  # after which a forward is not repeated
_PROMPT_TOKENS = 512
_CONTEXT_SEQUENCES, _CONTEXT_TOKENS = 8, 512
_BLOCK_SIZE = 16
_NUM_BLOCKS = 256
_LEAST_SLICE_BYTES = 160 << 20
_MOST_HEAD_BYTES = 64 << 20
_FILLING_BYTE = 0x24  # as a half float 0.016: scales of blocks are plain small numbers
_FILLING = 0.02


@dataclass(frozen=True, slots=True)
class SliceTimes:
    """Seconds of the whole model. layers: by number of rows, the context short. head: by number of sampled rows.
    context_token_s: a token of context that one decoded row looks at. prompt_pair_s: a pair of prompt tokens."""

    layers: dict[int, float]
    head: dict[int, float]
    context_token_s: float
    prompt_pair_s: float


def measure_slice(
    path: str | Path,
    quantization: Quantization | None = None,
    kv_cache_dtype: KvCacheDtype = "auto",
    *,
    repeats: int = 12,
    least_bytes: int = _LEAST_SLICE_BYTES,
) -> SliceTimes:
    """Measure the native kernels on a slice of at least that many bytes, or on all layers. Raises ModelLoadError."""
    checkpoint = open_checkpoint(path)
    config = _sliced(checkpoint, least_bytes)
    backend = ops("cpu", quantization)
    model = build_model(checkpoint, config, _ConstantWeights(checkpoint), backend, torch.device("cpu"))
    runner = ModelRunner(fused(model), backend, kv_cache_dtype)
    runner.allocate(_NUM_BLOCKS, _BLOCK_SIZE)
    return _Measurement(runner, repeats).of(checkpoint.config, config)


def _sliced(checkpoint: Checkpoint, least_bytes: int) -> ModelConfig:
    """The model's config with as few layers as make up that many bytes, and a vocabulary that is not much more."""
    config, bytes_each = checkpoint.config, _bytes_each(checkpoint)
    layer_bytes = parameters_a_layer(config) * bytes_each
    num_layers = min(config.num_layers, max(1, math.ceil(least_bytes / layer_bytes)))
    vocab_size = min(config.vocab_size, max(1024, int(_MOST_HEAD_BYTES / (config.hidden_size * bytes_each))))
    return replace(
        config,
        num_layers=num_layers,
        sliding_window=config.sliding_window[:num_layers],
        vocab_size=vocab_size,
        max_position=max(config.max_position, _PROMPT_TOKENS),
        eos_token_ids=(),
    )


def _bytes_each(checkpoint: Checkpoint) -> float:
    """Of a weight of the layers, about."""
    kind = _ConstantWeights(checkpoint).kind("blk.0.ffn_down.weight")
    return TENSOR_BYTES[kind] / TENSOR_ELEMENTS[kind]


class _ConstantWeights:
    """A `WeightSource` of the checkpoint's names and kinds, and of whatever shape is asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.path = checkpoint.config.path
        self._file = checkpoint.file
        self._float_kind = "" if checkpoint.file is not None else float_kind(checkpoint)
        self._layer_kind = "" if checkpoint.file is not None else layer_kind(checkpoint)

    def __contains__(self, name: str) -> bool:
        return self._file is not None and name in self._file.tensors

    def kind(self, name: str) -> str:
        tensor = None if self._file is None else self._file.tensors.get(name)
        folder_kind = self._layer_kind if name.startswith("blk.") else self._float_kind
        return tensor.kind if tensor is not None else folder_kind or "f16"

    def weight(self, name: str, shape: tuple[int, int]) -> Weight:
        kind = self.kind(name)
        if kind in FLOAT_KINDS:
            return Weight(kind, shape, torch.full(shape, _FILLING, dtype=FLOAT_KINDS[kind]))
        row_bytes = shape[1] // TENSOR_ELEMENTS[kind] * TENSOR_BYTES[kind]
        return Weight(kind, shape, torch.full((shape[0], row_bytes), _FILLING_BYTE, dtype=torch.uint8))

    def vector(self, name: str, length: int) -> Tensor:
        return torch.ones(length)

    def unread(self) -> list[str]:
        return []


class _Measurement:
    def __init__(self, runner: ModelRunner, repeats: int) -> None:
        self._runner, self._repeats = runner, repeats

    def of(self, whole: ModelConfig, part: ModelConfig) -> SliceTimes:
        scale, head_scale = whole.num_layers / part.num_layers, whole.vocab_size / part.vocab_size
        batches = {("layers", rows): _decode(rows, _BLOCK_SIZE, 0) for rows in ROW_COUNTS}
        batches |= {("head", rows): _decode(rows, _BLOCK_SIZE, rows) for rows in _HEAD_ROWS}
        batches["context", _CONTEXT_SEQUENCES] = _decode(_CONTEXT_SEQUENCES, _CONTEXT_TOKENS, 0)
        batches["prompt", _PROMPT_TOKENS] = _prompt(_PROMPT_TOKENS)
        seconds = self._medians(batches)
        layers = {rows: scale * seconds["layers", rows] for rows in ROW_COUNTS}
        head = {rows: head_scale * _excess(seconds["head", rows], seconds["layers", rows]) for rows in _HEAD_ROWS}
        context = _excess(seconds["context", _CONTEXT_SEQUENCES], seconds["layers", _CONTEXT_SEQUENCES])
        most = ROW_COUNTS[-1]
        slope = (seconds["layers", most] - seconds["layers", most // 2]) / (most // 2)
        products = seconds["layers", most] + slope * (_PROMPT_TOKENS - most)
        pairs = _excess(seconds["prompt", _PROMPT_TOKENS], products)
        return SliceTimes(
            layers,
            head,
            scale * context / (_CONTEXT_SEQUENCES * (_CONTEXT_TOKENS - _BLOCK_SIZE)),
            scale * pairs / (_PROMPT_TOKENS**2 / 2),
        )

    def _medians(self, batches: dict[tuple[str, int], ForwardBatch]) -> dict[tuple[str, int], float]:
        """Of forwards in turns, so that a busy moment meets all of them alike. The first of each is for warming up."""
        times: dict[tuple[str, int], list[float]] = {key: [] for key in batches}
        for _ in range(self._repeats + 1):
            for key, batch in batches.items():
                if len(times[key]) < _LEAST_TIMES or sum(times[key]) < _SECONDS_EACH:
                    started_s = time.perf_counter()
                    self._runner.forward(batch)
                    times[key].append(time.perf_counter() - started_s)
        return {key: statistics.median(values[1:]) for key, values in times.items()}


def _excess(longer: float, shorter: float) -> float:
    return max(0.0, longer - shorter)


def _decode(num_sequences: int, context: int, num_sampled: int) -> ForwardBatch:
    """One token of each of some sequences, at the end of a context. Each has blocks of its own, as far as they go."""
    each = -(-context // _BLOCK_SIZE)
    table = np.arange(num_sequences * each, dtype=np.int32).reshape(num_sequences, each) % _NUM_BLOCKS
    slots = table[:, -1] * _BLOCK_SIZE + (context - 1) % _BLOCK_SIZE
    return _batch(
        np.full(num_sequences, context - 1),
        slots,
        range(num_sequences + 1),
        [context] * num_sequences,
        table,
        num_sampled,
    )


def _prompt(num_tokens: int) -> ForwardBatch:
    positions = np.arange(num_tokens)
    table = np.arange(-(-num_tokens // _BLOCK_SIZE), dtype=np.int32)[None]
    return _batch(positions, positions, (0, num_tokens), [num_tokens], table, 0)


def _batch(
    position: NDArray[np.integer[Any]],
    slot: NDArray[np.integer[Any]],
    query_start: Sequence[int],
    context_len: Sequence[int],
    table: NDArray[np.int32],
    num_sampled: int,
) -> ForwardBatch:
    num_rows = len(position)
    return ForwardBatch(
        step_id=0,
        ids=(np.arange(num_rows, dtype=np.int32) * 7) % 1000,
        position=position.astype(np.int32),
        slot=slot.astype(np.int32),
        query_start=np.array(query_start, dtype=np.int32),
        context_len=np.array(context_len, dtype=np.int32),
        block_table=np.ascontiguousarray(table, dtype=np.int32),
        sampled_rows=np.arange(num_sampled, dtype=np.int32),
        block_size=_BLOCK_SIZE,
    )


__all__ = ["ROW_COUNTS", "SliceTimes", "measure_slice"]
