"""Times of single kernels on a GPU, and what they must take at least: bytes over bandwidth, or products over peak.

Both floors are measured in the same run: a copy of 1 GiB (its bytes read and written), and torch's own bf16 product of
8192 x 8192 matrices. Times are medians with a cold cache (triton.testing.do_bench).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from safegen.kernels.api import AttentionPlan, KvLayer, RowSettings
from safegen.kernels.int4 import Int4Weight

BLOCK_SIZE = 16
Work = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Floors:
    """Measured. bytes_a_second: of a copy, read and written. products_a_second: multiply-adds, bf16."""

    bytes_a_second: float
    products_a_second: float


@dataclass(frozen=True, slots=True)
class KernelCase:
    """name: <op>.<shape>. num_bytes: that must be moved. num_products: multiply-adds."""

    name: str
    work: Work
    num_bytes: int
    num_products: int = 0


def milliseconds(work: Work) -> float:
    from triton.testing import do_bench

    return float(do_bench(work, warmup=50, rep=150, return_mode="median"))


def measure_floors() -> Floors:
    source = torch.empty(1 << 29, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    copy_s = milliseconds(lambda: target.copy_(source)) / 1e3
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    product_s = milliseconds(lambda: a @ a) / 1e3
    return Floors(2 * source.numel() * 2 / copy_s, 8192**3 / product_s)


def cases() -> Iterator[KernelCase]:
    yield from _attention_cases()
    yield from _linear_cases()
    yield from _row_cases()


def _ints(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32, device="cuda")


def _paged(batch: int, context: int, queries: int, kv_dtype: torch.dtype) -> tuple[KvLayer, AttentionPlan]:
    blocks = context // BLOCK_SIZE
    shapes = KvLayer.shapes(batch * blocks, BLOCK_SIZE, 8, 128)
    scales = [torch.ones(shapes[2], device="cuda") for _ in range(2)] if kv_dtype.itemsize == 1 else [None, None]
    cache = KvLayer(*(torch.zeros(shape, dtype=kv_dtype, device="cuda") for shape in shapes[:2]), *scales)
    table = torch.randperm(batch * blocks, device="cuda").int().view(batch, blocks)
    position = (torch.arange(queries, device="cuda") + context - queries).int().repeat(batch)
    starts = (torch.arange(batch + 1, device="cuda") * queries).int()
    lengths = torch.full((batch,), context, dtype=torch.int32, device="cuda")
    return cache, AttentionPlan(starts, lengths, table, _ints(batch * queries), position, BLOCK_SIZE, queries)


def _attention_cases() -> Iterator[KernelCase]:
    """Llama-3-8B's heads."""
    from safegen.kernels.triton.attention import paged_attention

    for kv_dtype, name in ((torch.bfloat16, "bf16"), (torch.int8, "int8")):
        for batch, context, queries in ((64, 4096, 1), (1, 8192, 1), (64, 4096, 4), (1, 8192, 2048)):
            cache, plan = _paged(batch, context, queries, kv_dtype)
            q = torch.randn(batch * queries, 32, 128, dtype=torch.bfloat16, device="cuda")
            kv_bytes = 2 * batch * context * 8 * (128 * kv_dtype.itemsize + (4 if kv_dtype.itemsize == 1 else 0))
            seen = batch * queries * (context - queries / 2)
            yield KernelCase(
                f"attention_{name}.b{batch}_context{context}_queries{queries}",
                lambda q=q, cache=cache, plan=plan: paged_attention(q, cache, plan, scale=0.088),
                kv_bytes + 2 * q.nbytes,
                int(2 * seen * 32 * 128) if queries > 16 else 0,
            )


def _linear_cases() -> Iterator[KernelCase]:
    """Llama-3-8B's down projection."""
    from safegen.kernels.triton import linear, linear_int4

    outs, ins = 4096, 14336
    scale = torch.ones(outs, device="cuda")
    int4 = Int4Weight(
        (outs, ins), _ints(ins // 8, outs), torch.ones(ins // 128, outs, dtype=torch.float16, device="cuda"),
        torch.zeros(ins // 128, outs, dtype=torch.int8, device="cuda"), 128,
    )  # fmt: skip
    int4_bytes = int4.words.nbytes + int4.scale.nbytes + int4.zero.nbytes
    digits = torch.ones(outs, ins, dtype=torch.int8, device="cuda")
    dense = torch.randn(outs, ins, dtype=torch.bfloat16, device="cuda")
    for rows in (1, 16, 64, 256):
        x = torch.randn(rows, ins, dtype=torch.bfloat16, device="cuda")
        moved, products = x.nbytes + rows * outs * 2, rows * outs * ins
        half = products // 2  # the tensor cores' 8-bit peak is twice their bf16 one
        yield KernelCase(
            f"int4_linear.m{rows}", lambda x=x: linear_int4.int4_linear(x, int4), int4_bytes + moved, products
        )
        yield KernelCase(
            f"int8_linear.m{rows}", lambda x=x: linear.int8_linear(x, digits, scale), digits.nbytes + moved, half
        )
        yield KernelCase(
            f"dense_linear.m{rows}", lambda x=x: linear.dense_linear(x, dense, scale), dense.nbytes + moved, products
        )
        if torch.cuda.get_device_capability() >= (8, 9):
            eight = digits.to(torch.float8_e4m3fn)
            yield KernelCase(
                f"fp8_linear.m{rows}", lambda x=x, w=eight: linear.fp8_linear(x, w, scale), eight.nbytes + moved, half
            )


def _row_cases() -> Iterator[KernelCase]:
    from safegen.kernels.triton import elementwise
    from safegen.kernels.triton.mask import apply_mask
    from safegen.kernels.triton.sampling import sample

    x = torch.randn(2048, 4096, dtype=torch.bfloat16, device="cuda")
    weight = torch.ones(4096, device="cuda")
    yield KernelCase("rms_norm.2048x4096", lambda: elementwise.rms_norm(x, weight, 1e-5), 2 * x.nbytes)
    gate = torch.randn(2048, 14336, dtype=torch.bfloat16, device="cuda")
    yield KernelCase("silu_mul.2048x14336", lambda: elementwise.silu_mul(gate, gate), 3 * gate.nbytes)
    logits = torch.randn(64, 128256, device="cuda")
    words = torch.full((64, 4008), 0x55555555, dtype=torch.int32, device="cuda")
    rows = torch.arange(64, dtype=torch.int32, device="cuda")
    yield KernelCase(
        "apply_mask.64x128256", lambda: apply_mask(logits, words, rows, 128256), words.nbytes + logits.nbytes // 2
    )
    column = torch.ones(64, dtype=torch.float64, device="cuda")
    counters = [torch.arange(64, device="cuda") for _ in range(4)]
    for name, heat in (("greedy", 0.0), ("drawn", 1.0)):
        asked = RowSettings(column * heat, _ints(64), column, column * 0, *counters)
        yield KernelCase(
            f"sample_{name}.64x128256", lambda asked=asked: sample(logits, words, rows, asked, 128256),
            logits.nbytes // 2 + words.nbytes,
        )  # fmt: skip


def measure(floors: Floors) -> list[dict[str, Any]]:
    """Of each case its time, its floor and the share of the time that the floor is."""
    found = []
    for case in cases():
        took_ms = milliseconds(case.work)
        floor_ms = 1e3 * max(case.num_bytes / floors.bytes_a_second, case.num_products / floors.products_a_second)
        found.append({"kernel": case.name, "ms": took_ms, "floor_ms": floor_ms, "floor_fraction": floor_ms / took_ms})
    return found


__all__ = ["Floors", "KernelCase", "cases", "measure", "measure_floors", "milliseconds"]
