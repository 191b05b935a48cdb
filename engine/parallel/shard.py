"""Which part of a model a rank has, and the weights cut accordingly as they are read.

    by outputs      q, k, v, gate, up       whole heads and inner features; their biases too
    by inputs       attention output, down  partial sums, which the ranks add up; rank 0 alone has the bias
    by vocabulary   embedding, head         ceil(vocabulary / ranks) ids each, the last one perhaps fewer
    replicated      norms; a KV head where there are fewer than ranks

Families read their layers as ever: they are given the sizes of the rank, and a source that hands out its part. Floats
and GGUF blocks are views of the mapped file, so a rank reads its part alone (of weights cut by inputs a copy of it).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from safegen.engine.models.config import ModelConfig
from safegen.engine.weights import WeightSource
from safegen.errors import ModelLoadError, RequestError
from safegen.kernels.api import Scales, Weight
from safegen.kernels.quant import BLOCK_TYPES

Span = tuple[int, int]
_BY_INPUTS = ("attn_output", "ffn_down")
_BY_VOCABULARY = ("token_embd", "output")


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `rank` of `size` equal ones."""

    rank: int
    size: int

    def local(self, config: ModelConfig) -> ModelConfig:
        """The sizes of this rank; the vocabulary stays whole. RequestError where they do not divide."""
        for name in ("num_heads", "intermediate_size"):
            if getattr(config, name) % self.size:
                self._refuse(f"does not divide the model's {name}, {getattr(config, name)}")
        if config.num_kv_heads % self.size and self.size % config.num_kv_heads:
            self._refuse(f"neither divides the model's num_kv_heads, {config.num_kv_heads}, nor is a multiple of it")
        if self.ids_a_rank(config.vocab_size) * (self.size - 1) >= config.vocab_size:
            self._refuse(f"leaves a rank without any of {config.vocab_size} token ids")
        return replace(
            config,
            num_heads=config.num_heads // self.size,
            num_kv_heads=max(1, config.num_kv_heads // self.size),
            intermediate_size=config.intermediate_size // self.size,
        )

    def even(self, total: int) -> Span:
        return total // self.size * self.rank, total // self.size * (self.rank + 1)

    def kv_heads(self, total: int) -> Span:
        """Of all KV heads; ranks share one where there are fewer than ranks."""
        if total >= self.size:
            return self.even(total)
        return total * self.rank // self.size, total * self.rank // self.size + 1

    def ids_a_rank(self, vocab_size: int) -> int:
        return -(-vocab_size // self.size)

    def ids(self, vocab_size: int) -> Span:
        count = self.ids_a_rank(vocab_size)
        return count * self.rank, min(count * (self.rank + 1), vocab_size)

    def _refuse(self, why: str) -> None:
        raise RequestError(
            f"tensor_parallel_size={self.size} {why}. Fix: choose a size that divides the model's heads and features.",
            field="tensor_parallel_size",
            value=self.size,
        )


class ShardedWeights:
    """`WeightSource` of a rank's part. config: of the whole model. Names and shapes asked for are those of the rank."""

    def __init__(self, source: WeightSource, config: ModelConfig, shard: Shard) -> None:
        self.path = source.path
        self._source, self._config, self._shard = source, config, shard

    def __contains__(self, name: str) -> bool:
        return name in self._source

    def weight(self, name: str, shape: tuple[int, int]) -> Weight:
        role, (num_outputs, num_inputs) = _role(name), shape
        if role in _BY_INPUTS:
            start, stop = self._shard.even(num_inputs * self._shard.size)
            whole = self._source.weight(name, (num_outputs, num_inputs * self._shard.size))
            return replace(self._columns(whole, start, stop, name), split="inputs")
        if role in _BY_VOCABULARY:
            whole = self._source.weight(name, shape)
            return replace(whole.rows(*self._shard.ids(num_outputs)), split="vocabulary")
        total, spans = self._outputs(role, num_outputs)
        whole = self._source.weight(name, (total, num_inputs))
        return _stacked([whole.rows(*span) for span in spans])

    def vector(self, name: str, length: int) -> Tensor:
        role, suffix = _role(name), name.rsplit(".", 1)[1]
        if suffix != "bias":
            return self._source.vector(name, length)
        if role in _BY_INPUTS:
            bias = self._source.vector(name, length)
            return bias if self._shard.rank == 0 else torch.zeros_like(bias)
        total, spans = self._outputs(role, length)
        whole = self._source.vector(name, total)
        return torch.cat([whole[start:stop] for start, stop in spans])

    def unread(self) -> list[str]:
        return self._source.unread()

    def _outputs(self, role: str, num_local: int) -> tuple[int, list[Span]]:
        """Outputs of the whole matrix, and those of this rank; a fused one has several spans."""
        config, shard = self._config, self._shard
        heads, kv_heads = shard.even(config.num_heads), shard.kv_heads(config.num_kv_heads)
        q = (config.num_heads * config.head_dim, (heads[0] * config.head_dim, heads[1] * config.head_dim))
        kv = (config.num_kv_heads * config.head_dim, (kv_heads[0] * config.head_dim, kv_heads[1] * config.head_dim))
        inner = (config.intermediate_size, shard.even(config.intermediate_size))
        parts = {"attn_q": [q], "attn_k": [kv], "attn_v": [kv], "attn_qkv": [q, kv, kv], "ffn_gate": [inner]}.get(role)
        if parts is None and role == "ffn_up":
            parts = [inner] * (num_local * shard.size // config.intermediate_size)
        if parts is None:
            raise ModelLoadError(
                "tensor parallel does not know how to cut this tensor",
                path=self.path, tensor=role, hint="load the model with tensor_parallel_size=1",
            )  # fmt: skip
        spans, total = [], 0
        for count, (start, stop) in parts:
            spans.append((total + start, total + stop))
            total += count
        return total, spans

    def _columns(self, weight: Weight, start: int, stop: int, name: str) -> Weight:
        """Inputs start .. stop, copied. ModelLoadError where a block or a group of digits would be cut."""
        scales, unit = weight.scales, 1
        if weight.kind in BLOCK_TYPES:
            unit = BLOCK_TYPES[weight.kind].elements
        elif scales is not None and scales.group < weight.shape[1]:
            unit = scales.group
        if start % unit or stop % unit or (scales is not None and scales.group_of is not None):
            why = "its groups are not neighbours" if start % unit == stop % unit == 0 else f"{unit} inputs go together"
            raise ModelLoadError(
                f"inputs {start} .. {stop} cannot be cut out of a {weight.kind} weight: {why}",
                path=self.path, tensor=name, hint="choose a smaller tensor_parallel_size, or load floats",
            )  # fmt: skip
        if scales is not None:
            is_one = scales.scale.shape[1] == 1
            scale = scales.scale if is_one else scales.scale[:, start // unit : stop // unit].contiguous()
            scales = Scales(scale, stop - start if is_one else scales.group)
        elif weight.kind in BLOCK_TYPES:
            block = BLOCK_TYPES[weight.kind]
            start, stop = (at // block.elements * block.block_bytes for at in (start, stop))
        shape = (weight.shape[0], weight.shape[1] // self._shard.size)
        return Weight(weight.kind, shape, weight.data[:, start:stop].contiguous(), None, scales)


def _stacked(parts: list[Weight]) -> Weight:
    """The outputs of several cuts of one weight, one after the other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    scales = [part.scales for part in parts if part.scales is not None]
    joined = replace(scales[0], scale=torch.cat([each.scale for each in scales])) if scales else None
    shape = (sum(part.shape[0] for part in parts), first.shape[1])
    return Weight(first.kind, shape, torch.cat([part.data for part in parts]), None, joined)


def _role(name: str) -> str:
    return name.split(".")[-2]


__all__ = ["Shard", "ShardedWeights"]
