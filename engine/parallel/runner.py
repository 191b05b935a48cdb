"""The backend whose model is spread over processes: rank 0 lies in this one, schedules and draws.

Every call goes to the other ranks first (ranks.py), then is done here; within a forward the ranks meet after each
attention and each MLP (group.py). A forward that fails anywhere leaves them out of step, so it ends all of them: every
request gets an EngineError at once.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safegen.engine.backend import ForwardBatch, RowMasks
from safegen.engine.config import KvCacheDtype
from safegen.engine.models.base import Model
from safegen.engine.models.early_exit import EarlyExit
from safegen.engine.models.loader import load_model, read_config
from safegen.engine.parallel.group import Group, ParallelOps, Transport
from safegen.engine.parallel.ranks import WORKER, Ranks
from safegen.engine.parallel.shard import Shard
from safegen.engine.runner import ModelRunner
from safegen.errors import RequestError
from safegen.kernels.api import Ops, Quantization
from safegen.kernels.api import ops as named_ops

_GROUP_INPUTS = 32  # that share a scale in weights quantized on load


def load_rank(
    path: str | Path, kernels: str, quantization: Quantization | None, shard: Shard
) -> tuple[Model, Ops, Group]:
    """A rank's part of a model, and the group that is not connected yet. Raises ModelLoadError, RequestError."""
    return load_part(path, named_ops(kernels, quantization), quantization, shard)


def load_part(
    path: str | Path, kernels: Ops, quantization: Quantization | None, shard: Shard, device: str = "cpu"
) -> tuple[Model, Ops, Group]:
    """`load_rank` on kernels that are made already. quantization: theirs."""
    config = read_config(path)
    local = shard.local(config)
    for inputs in (local.num_heads * local.head_dim, local.intermediate_size):
        if quantization is not None and inputs % _GROUP_INPUTS:
            raise RequestError(
                f"quantization={quantization!r} with tensor_parallel_size={shard.size} would cut a group of "
                f"{_GROUP_INPUTS} inputs: a rank has {inputs}. Fix: choose a smaller tensor_parallel_size.",
                field="tensor_parallel_size",
                value=shard.size,
            )
    group = Group(shard)
    ops = ParallelOps(kernels, group, config.vocab_size)
    return load_model(path, ops, device=device, shard=shard), ops, group


@contextlib.contextmanager
def meeting(
    size: int, settings: Mapping[str, Any], worker: str = WORKER
) -> Iterator[tuple[Ranks, Callable[[Group, Transport], None]]]:
    """The other ranks, which load their parts meanwhile, and what connects this one with them; in a block that ends
    them if it raises."""
    folder = tempfile.mkdtemp(prefix="safegen-ranks-")  # readable by this user alone
    meeting_file = str(Path(folder) / "meeting")
    ranks = Ranks(size, {**settings, "meeting_file": meeting_file}, worker)

    def connect(group: Group, transport: Transport) -> None:
        ranks.wait()  # all are loaded
        ranks.send({"do": "connect"})
        try:
            group.connect(meeting_file, transport)
        except RuntimeError as exc:
            raise ranks.failed() from exc
        ranks.wait()

    try:
        yield ranks, connect
    except BaseException:
        ranks.close()
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def parts_of(batch: ForwardBatch) -> tuple[dict[str, int], dict[str, NDArray[np.int32]]]:
    """Its numbers and its arrays, for a message."""
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    return {name: value for name, value in values.items() if name not in arrays}, arrays


class ParallelRunner(ModelRunner):
    """`ModelRunner` of rank 0; `close` ends the other ranks."""

    def __init__(self, model: Model, ops: Ops, kv_cache_dtype: KvCacheDtype, ranks: Ranks, size: int) -> None:
        super().__init__(model, ops, kv_cache_dtype)
        self.ranks = ranks
        self._size = size
        self._finalizer = weakref.finalize(self, ranks.close)

    @classmethod
    def spread(
        cls,
        path: str | Path,
        kernels: str,
        kv_cache_dtype: KvCacheDtype,
        quantization: Quantization | None,
        size: int,
    ) -> ParallelRunner:
        """Start the ranks and load each one's part. Raises ModelLoadError, and RequestError for sizes that do not
        divide."""
        shard = Shard(0, size)
        shard.local(read_config(path))  # before any process is started
        settings = {
            "path": str(Path(path).absolute()), "kernels": kernels, "kv_cache_dtype": kv_cache_dtype,
            "quantization": quantization,
        }  # fmt: skip
        with meeting(size, settings) as (ranks, connect):
            model, ops, group = load_rank(path, kernels, quantization, shard)
            connect(group, "gloo")
        return cls(model, ops, kv_cache_dtype, ranks, size)

    def bytes_per_block(self, block_size: int) -> int:
        """Of all ranks together: they share this machine's memory."""
        return super().bytes_per_block(block_size) * self._size

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self.ranks.send({"do": "allocate", "num_blocks": num_blocks, "block_size": block_size})
        super().allocate(num_blocks, block_size)
        self.ranks.wait()

    def copy_block(self, source: int, destination: int) -> None:
        self.ranks.send({"do": "copy_block", "source": source, "destination": destination})
        super().copy_block(source, destination)

    def close(self) -> None:
        """No process is left. Idempotent."""
        self._finalizer()

    def _compute(self, model: Model, batch: ForwardBatch, masks: RowMasks | None) -> NDArray[np.float32]:
        if not self._cache:
            return super()._compute(model, batch, masks)  # which refuses
        numbers, arrays = parts_of(batch)
        num_layers = model.num_layers if isinstance(model, EarlyExit) else None
        self.ranks.send({"do": "forward", "numbers": numbers, "num_layers": num_layers}, arrays)
        try:
            return super()._compute(model, batch, masks)
        except Exception as exc:
            raise self.ranks.failed() from exc


__all__ = ["ParallelRunner", "load_part", "load_rank", "meeting", "parts_of"]
