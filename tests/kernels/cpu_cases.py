"""Cases shared by the tests of the CPU kernels: random weights of every kind, paged caches, and torch formulas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from torch import Tensor

from safegen.kernels import cpu
from safegen.kernels.api import AttentionPlan, KvLayer, Weight
from safegen.kernels.reference import ReferenceOps

FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
GGUF_TYPES = {
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q5_0": gguf.GGMLQuantizationType.Q5_0,
    "q5_1": gguf.GGMLQuantizationType.Q5_1,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_k": gguf.GGMLQuantizationType.Q4_K,
    "q5_k": gguf.GGMLQuantizationType.Q5_K,
    "q6_k": gguf.GGMLQuantizationType.Q6_K,
}
KV_DTYPES = [torch.float32, torch.float16, torch.int8]
KINDS = [*FLOATS, *GGUF_TYPES]
# Byte offsets of a block's fp16 fields; all other bytes may take any value.
HALF_FIELDS = {kind: [0, 2] for kind in ("q4_1", "q5_1", "q4_k", "q5_k")} | {"q6_k": [208]}


def make_weight(kind: str, out_features: int, in_features: int, seed: int = 0) -> tuple[Weight, Tensor]:
    """A random weight and its dequantized values, the latter by the gguf package."""
    shape = (out_features, in_features)
    if kind in FLOATS:
        data = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(FLOATS[kind])
        return Weight(kind, shape, data), data.float()
    rng = np.random.default_rng(seed)
    block, block_bytes = gguf.GGML_QUANT_SIZES[GGUF_TYPES[kind]]
    raw = rng.integers(0, 256, (out_features, in_features // block, block_bytes), dtype=np.uint8)
    for offset in HALF_FIELDS.get(kind, [0]):
        halves = (rng.standard_normal(raw.shape[:2]) * 0.02).astype(np.float16)
        raw[..., offset : offset + 2] = halves[..., None].view(np.uint8)
    raw = raw.reshape(out_features, -1)
    return Weight(kind, shape, torch.from_numpy(raw)), torch.from_numpy(dequantize(raw, GGUF_TYPES[kind]).copy())


def randn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def int32(values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def empty_cache(blocks: int, block_size: int, kv_heads: int, dim: int, dtype: torch.dtype = torch.float32) -> KvLayer:
    """A cache in which every number reads as NaN: reading a slot that was not written shows."""
    key_shape, value_shape, scale_shape = KvLayer.shapes(blocks, block_size, kv_heads, dim)
    key, value = torch.zeros(key_shape, dtype=dtype), torch.zeros(value_shape, dtype=dtype)
    if dtype != torch.int8:
        return KvLayer(key.fill_(torch.nan), value.fill_(torch.nan))
    scale = torch.full(scale_shape, torch.nan)
    return KvLayer(key, value, scale, scale.clone())


def cached(cache: KvLayer) -> tuple[Tensor, Tensor]:
    """What the cache's digits mean, fp32 [slots, kv_heads, head_dim]: the definition, apart from either backend."""
    numbers = []
    for digits, scale in cache.by_token():
        numbers.append((digits.float() if scale is None else digits.float() * scale[..., None]).flatten(0, 1))
    return numbers[0], numbers[1]


def paged_cache(
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    query_lens: Sequence[int],
    *,
    block_size: int,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[KvLayer, AttentionPlan]:
    """A cache that holds whole sequences (keys[s]: [context, kv_heads, head_dim]) in shuffled blocks, and the plan of a
    step in which the last query_lens[s] tokens of each ask. Unused slots read as NaN. The reference backend writes."""
    needed = [-(-len(key) // block_size) for key in keys]
    blocks = sum(needed) + 2
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(seed)).tolist()
    cache = empty_cache(blocks, block_size, *keys[0].shape[1:], dtype)
    table = torch.full((len(keys), max(needed)), -1, dtype=torch.int32)
    starts: list[int] = [0]
    positions: list[int] = []
    all_slots: list[int] = []
    slots: list[int] = []
    for s, (key, count) in enumerate(zip(keys, query_lens, strict=True)):
        mine = [order.pop() for _ in range(needed[s])]
        table[s, : needed[s]] = int32(mine)
        slot = [mine[p // block_size] * block_size + p % block_size for p in range(len(key))]
        starts.append(starts[-1] + count)
        positions += range(len(key) - count, len(key))
        all_slots += slot
        slots += slot[len(key) - count :]
    plan = AttentionPlan(
        int32(starts), int32([len(key) for key in keys]), table, int32(slots), int32(positions), block_size
    )
    ReferenceOps().kv_write(torch.cat(list(keys)), torch.cat(list(values)), cache, replace(plan, slot=int32(all_slots)))
    return cache, plan


def torch_attention(
    q: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None = None, softcap: float | None = None
) -> Tensor:
    """One sequence in float64. q: [queries, heads, dim], the last ones of key, value: [context, kv_heads, dim]."""
    group = q.shape[1] // key.shape[1]
    k, v = (t.double().repeat_interleave(group, dim=1) for t in (key, value))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(len(key) - len(q), len(key))[:, None]
    seen = torch.arange(len(key))[None, :]
    hidden = seen > at
    if window is not None:
        hidden |= seen <= at - window
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v).float()


@contextmanager
def isa(name: str) -> Iterator[None]:
    before = cpu.isa()
    cpu.set_isa(name)
    try:
        yield
    finally:
        cpu.set_isa(before)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = cpu.num_threads()
    cpu.set_num_threads(count)
    try:
        yield
    finally:
        cpu.set_num_threads(before)
