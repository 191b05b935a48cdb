"""The GPU runner whose model is spread over the GPUs of this machine: rank 0 draws, the others follow its launches.

Every rank captures the same graphs, since it is told the same launches in the same order; what the ranks exchange
within a forward is part of them. Tokens that a launch takes from the latest draw are rank 0's: it shares them before
each such launch, on the device, so that no host waits. Each GPU holds its part of every block of the cache; how many
there are is what the fullest one has room for. A rank that is gone is an error at the next launch; one that hangs, or
goes while others wait for it, is one when NCCL gives up (group.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from safegen.engine import kv_cache
from safegen.engine.backend import ForwardBatch
from safegen.engine.config import EngineConfig
from safegen.engine.gpu.device import CudaDevice, Device
from safegen.engine.gpu.loading import as_decoder, gpu_kernels
from safegen.engine.gpu.runner import GpuRunner
from safegen.engine.models.layers import Decoder
from safegen.engine.models.loader import read_config
from safegen.engine.parallel.group import Group, Transport
from safegen.engine.parallel.ranks import WORKER, Ranks
from safegen.engine.parallel.runner import load_part, meeting, parts_of
from safegen.engine.parallel.shard import Shard
from safegen.engine.parallel.worker import Commands, batch_of
from safegen.errors import RequestError
from safegen.kernels.api import DeviceOps, Quantization


class ParallelGpuRunner(GpuRunner):
    """`GpuRunner` of rank 0; `close` ends the other ranks."""

    def __init__(
        self,
        model: Decoder,
        ops: DeviceOps,
        device: Device,
        kv_dtype: torch.dtype,
        *,
        group: Group,
        ranks: Ranks,
        max_num_batched_tokens: int,
        max_context: int | None = None,
    ) -> None:
        super().__init__(
            model, ops, device, kv_dtype, max_num_batched_tokens=max_num_batched_tokens, max_context=max_context
        )
        self.group, self.ranks = group, ranks
        self._finalizer = weakref.finalize(self, ranks.close)

    @classmethod
    def spread(
        cls,
        path: str | Path,
        config: EngineConfig,
        quantization: Quantization | None,
        size: int,
        *,
        deterministic: bool,
    ) -> ParallelGpuRunner:
        """Start the ranks, one a GPU, and load each one's part. Raises ModelLoadError, and RequestError for sizes that
        do not divide and for too few GPUs."""
        if (num_gpus := torch.cuda.device_count()) < size:
            raise RequestError(
                f"tensor_parallel_size={size} with device='cuda' takes as many GPUs; there are {num_gpus}",
                field="tensor_parallel_size",
                value=size,
            )
        with torch.cuda.device(0):  # the application's own choice comes back
            kernels = gpu_kernels(quantization, deterministic)
            settings = {
                "path": str(Path(path).absolute()), "kernels": kernels.name, "kv_cache_dtype": config.kv_cache_dtype,
                "quantization": quantization, "deterministic": deterministic, "max_context": config.max_context,
                "max_num_batched_tokens": config.max_num_batched_tokens,
            }  # fmt: skip
            return cls.over(path, kernels, CudaDevice, settings, size, "nccl")

    @classmethod
    def over(
        cls,
        path: str | Path,
        kernels: DeviceOps,
        make_device: Callable[[], Device],
        settings: Mapping[str, Any],
        size: int,
        transport: Transport,
        worker: str = WORKER,
    ) -> ParallelGpuRunner:
        """make_device: once the part is loaded. settings: of the ranks. worker: the module that each one runs."""
        shard = Shard(0, size)
        shard.local(read_config(path))  # before any process is started
        with meeting(size, settings, worker) as (ranks, connect):
            model, group, options = load_part_of(path, kernels, shard, settings)
            connect(group, transport)
            return cls(model, kernels, make_device(), group=group, ranks=ranks, **options)

    def prepare_draws(self, vocab_size: int, max_rows: int) -> None:
        self.ranks.send({"do": "prepare_draws", "vocab_size": vocab_size, "max_rows": max_rows})
        super().prepare_draws(vocab_size, max_rows)
        self.ranks.wait()

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self.ranks.send({"do": "allocate", "num_blocks": num_blocks, "block_size": block_size})
        super().allocate(num_blocks, block_size)
        self.ranks.wait()

    def kv_cache_bytes(self, block_size: int, utilization: float) -> int:
        """Of the GPU that has the least."""
        self.ranks.send({"do": "kv_cache_bytes", "block_size": block_size, "utilization": utilization})
        own = super().kv_cache_bytes(block_size, utilization)
        return min(own, *(int(answer["bytes"]) for answer in self.ranks.wait()))

    def launch(self, batch: ForwardBatch, carried: NDArray[np.int32] | None = None) -> None:
        numbers, arrays = parts_of(batch)
        if carried is not None:
            arrays["carried"] = carried
        self.ranks.send({"do": "launch", "numbers": numbers}, arrays)
        try:
            if carried is not None:
                self.device.run(partial(self.group.share, self.latest_tokens))
            super().launch(batch, carried)
        except Exception as exc:  # the others have launched it: they are out of step from here on
            raise self.ranks.failed() from exc

    def copy_block(self, source: int, destination: int) -> None:
        self.ranks.send({"do": "copy_block", "source": source, "destination": destination})
        super().copy_block(source, destination)

    def close(self) -> None:
        """No process is left. Idempotent."""
        self._finalizer()


def load_gpu_rank(settings: Mapping[str, Any], shard: Shard) -> tuple[GpuRunner, Group]:
    """The part of a rank other than 0, on the GPU of its number."""
    torch.cuda.set_device(shard.rank)
    kernels = gpu_kernels(settings["quantization"], settings["deterministic"])
    model, group, options = load_part_of(settings["path"], kernels, shard, settings)
    return GpuRunner(model, kernels, CudaDevice(), **options), group


def load_part_of(
    path: str | Path, kernels: DeviceOps, shard: Shard, settings: Mapping[str, Any]
) -> tuple[Decoder, Group, dict[str, Any]]:
    """A rank's layers, its group, and the options of its runner."""
    device = "cuda" if kernels.name == "triton" else "cpu"
    model, _, group = load_part(path, kernels, settings["quantization"], shard, device)
    options = {
        "kv_dtype": kv_cache.resolve_dtype(settings["kv_cache_dtype"], kernels.name),
        "max_num_batched_tokens": settings["max_num_batched_tokens"],
        "max_context": settings["max_context"],
    }
    return as_decoder(model, path), group, options


def follow(
    commands: Commands,
    runner: GpuRunner,
    group: Group,
    transport: Transport,
    launched: Callable[[], None] = lambda: None,
) -> None:
    """Do what rank 0 does, but for the draws. launched: called after each command that starts something."""
    while True:
        command, arrays = commands.next()
        match command["do"]:
            case "connect":
                commands.connect(group, transport)
            case "prepare_draws":
                runner.prepare_draws(command["vocab_size"], command["max_rows"])
                commands.answer()
            case "allocate":
                runner.allocate(command["num_blocks"], command["block_size"])
                commands.answer()
            case "kv_cache_bytes":
                commands.answer(bytes=runner.kv_cache_bytes(command["block_size"], command["utilization"]))
            case "copy_block":
                runner.copy_block(command["source"], command["destination"])
                launched()
            case "launch":
                carried = arrays.pop("carried", None)
                if carried is not None:
                    runner.device.run(partial(group.share, runner.latest_tokens))
                runner.launch(batch_of(command, arrays), carried)
                launched()


__all__ = ["ParallelGpuRunner", "follow", "load_gpu_rank", "load_part_of"]
