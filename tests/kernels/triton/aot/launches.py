"""Every kernel in the shapes of real models and in every configuration that the launching code can choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from safegen.kernels.api import AttentionPlan, FsmRows, KvLayer, RowSettings
from safegen.kernels.int4 import Int4Weight
from safegen.kernels.triton import attention, elementwise, linear, linear_int4
from safegen.kernels.triton.fsm import fsm_advance, fsm_mask_rows
from safegen.kernels.triton.kv_write import kv_write
from safegen.kernels.triton.mask import apply_mask
from safegen.kernels.triton.sampling import sample
from safegen.kernels.triton.verify import verify

Case = tuple[str, Callable[[], Any]]
HALF, BF16, INT8, FP8 = torch.float16, torch.bfloat16, torch.int8, torch.float8_e4m3fn
BLOCK_SIZE = 16


def zeros(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def ints(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def _cache(kv_heads: int, dim: int, dtype: torch.dtype) -> KvLayer:
    key, value, scale = KvLayer.shapes(2, BLOCK_SIZE, kv_heads, dim)
    scales = [torch.zeros(scale), torch.zeros(scale)] if dtype.itemsize == 1 else [None, None]
    return KvLayer(zeros(*key, dtype=dtype), zeros(*value, dtype=dtype), *scales)


def _plan(tokens: int, max_query_len: int | None) -> AttentionPlan:
    return AttentionPlan(ints(17), ints(16), ints(16, 256), ints(tokens), ints(tokens), BLOCK_SIZE, max_query_len)


def elementwise_cases() -> Iterator[Case]:
    for dtype in (HALF, BF16):
        for dim in (128, 576, 4096, 14336) if dtype == BF16 else (4096,):
            x, weight = zeros(64, dim, dtype=dtype), zeros(dim, dtype=dtype)
            yield f"rms_norm {dtype} {dim}", lambda x=x, weight=weight: elementwise.rms_norm(x, weight, 1e-5)
            yield f"add_rms_norm {dtype} {dim}", lambda x=x, w=weight: elementwise.add_rms_norm(x, x, w, 1e-5)
        wide = zeros(64, 14336, dtype=dtype)
        yield f"silu_mul {dtype}", lambda x=wide: elementwise.silu_mul(x, x)
        yield f"gelu_mul {dtype}", lambda x=wide: elementwise.gelu_mul(x, x)
        for heads, dim, rotary in ((32, 128, 128), (9, 64, 64), (32, 96, 72), (8, 256, 256))[
            : 4 if dtype == BF16 else 1
        ]:
            angles, x = torch.zeros(4096, rotary // 2), zeros(64, heads, dim, dtype=dtype)
            for interleaved in (False, True):
                yield (
                    f"rope {dtype} {heads}x{dim} interleaved={interleaved}",
                    lambda x=x, a=angles, i=interleaved: elementwise.rope(x, a, a, ints(64), i),
                )
    yield "softcap", lambda: elementwise.softcap(torch.zeros(64, 262144), 30.0)


def kv_write_cases() -> Iterator[Case]:
    for dtype in (HALF, BF16, INT8, FP8):
        for kv_heads, dim in ((8, 128), (4, 256), (3, 64), (32, 96))[: 4 if dtype == BF16 else 2]:
            rows, cache = zeros(64, kv_heads, dim, dtype=BF16), _cache(kv_heads, dim, dtype)
            yield (
                f"kv_write {dtype} {kv_heads}x{dim}",
                lambda rows=rows, cache=cache: kv_write(rows, rows, cache, _plan(64, 1)),
            )


def attention_cases() -> Iterator[Case]:
    """Decode, drafts and chunks, with and without splits, for each cache type; windows and caps on some heads."""
    models = ((32, 8, 128), (9, 3, 64), (32, 32, 80), (32, 32, 96), (28, 4, 128), (8, 4, 256))
    for heads, kv_heads, dim in models:
        for q_dtype, kv_dtype in ((HALF, HALF), (BF16, BF16), (BF16, INT8), (BF16, FP8)):
            is_full = (heads, dim) in ((32, 128), (8, 256))  # what other heads share in tile and type is left out there
            if (not is_full and kv_dtype == FP8) or ((heads, dim) != (32, 128) and q_dtype == HALF):
                continue
            for max_query_len, splits in ((1, 8), (5, 8), (None, 8), (None, 1))[: 4 if is_full else 3]:
                options: dict[str, Any] = {"window": 1024, "softcap": 50.0} if dim == 256 else {}
                shape = f"{heads}/{kv_heads}x{dim} queries={max_query_len} splits={splits}"
                name = f"attention q={q_dtype} kv={kv_dtype} {shape}"
                yield name, _attend(heads, kv_heads, dim, q_dtype, kv_dtype, max_query_len, splits, options)


def _attend(
    heads: int, kv_heads: int, dim: int, q_dtype: torch.dtype, kv_dtype: torch.dtype, max_query_len: int | None,
    splits: int, options: dict[str, Any],
) -> Callable[[], Any]:  # fmt: skip
    tokens = 16 * (max_query_len or 64)
    q, cache, plan = (
        zeros(tokens, heads, dim, dtype=q_dtype),
        _cache(kv_heads, dim, kv_dtype),
        _plan(tokens, max_query_len),
    )
    tile = attention.attention_tile(dim, heads // kv_heads, max_query_len, kv_dtype.itemsize == 1)
    tile = replace(tile, num_splits=splits, split_tokens=512)
    return lambda: attention.paged_attention(q, cache, plan, scale=0.1, tile=tile, **options)


def single_cases() -> Iterator[Case]:
    """Launches of one row, sequence or id: Triton makes constants of integers that are 1, which must compile too."""
    cache, q = _cache(1, 64, HALF), zeros(1, 1, 64)
    plan = AttentionPlan(ints(2), ints(1), ints(1, 1), ints(1), ints(1), BLOCK_SIZE, 1)
    yield "single attention", lambda: attention.paged_attention(q, cache, plan, scale=0.1, window=1)
    split = replace(attention.attention_tile(64, 1, 1, False), num_splits=2, split_tokens=512)
    yield "single split attention", lambda: attention.paged_attention(q, cache, plan, scale=0.1, window=1, tile=split)
    yield "single kv_write", lambda: kv_write(q, q, cache, plan)
    row, column, ids = zeros(1, 1), torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    yield "single elementwise", lambda: (elementwise.silu_mul(row, row), elementwise.rms_norm(row, row[0], 1e-5))
    yield "single rope", lambda: elementwise.rope(q, torch.zeros(1, 32), torch.zeros(1, 32), ints(1), True)
    asked = RowSettings(column, ints(1), column, column, ids, ids, ids, ids)
    logits = torch.zeros(1, 1)
    yield "single mask", lambda: apply_mask(logits, ints(1, 1), ints(1), 1)
    yield "single sample", lambda: sample(logits, ints(1, 1), ints(1), asked, 1, with_probs=True)
    yield "single verify", lambda: verify(ints(1), ints(1), ints(2), logits, logits, ints(1), column, column)
    yield "single linear", lambda: linear.int8_linear(row, zeros(1, 1, dtype=INT8), torch.zeros(1))


def sampling_cases() -> Iterator[Case]:
    words, column, rows = ints(64, 4008), torch.zeros(64, dtype=torch.float64), torch.zeros(64, dtype=torch.int64)
    asked = RowSettings(column, ints(64), column, column, rows, rows, rows, rows)
    for dtype in (torch.float32, BF16):
        logits = zeros(64, 128256, dtype=dtype)
        yield f"apply_mask {dtype}", lambda x=logits: apply_mask(x, words, ints(64), 128256)
    logits = torch.zeros(64, 128256)
    for with_probs in (False, True):
        yield (
            f"sample probs={with_probs}",
            lambda p=with_probs: sample(logits, words, ints(64), asked, 128256, with_probs=p),
        )
    yield "verify", lambda: verify(ints(64), ints(64), ints(9), logits, logits, ints(64), column, column)


def fsm_cases() -> Iterator[Case]:
    """Rows that 16 divides, rows that it does not, and a single one."""
    words = ints(1 << 16)
    for count in (64, 33, 1):
        rows = FsmRows(ints(count), ints(count), ints(count), ints(count))
        yield f"fsm_mask_rows rows={count}", lambda n=count, rows=rows: fsm_mask_rows(ints(n), rows, ints(n))
        yield f"fsm_advance rows={count}", lambda n=count, r=rows: fsm_advance(ints(n), ints(n), r, words, words)


def linear_cases() -> Iterator[Case]:
    """For each number of rows that has a tile of its own, Llama-3-8B's down projection, with and without splits."""
    out_features, in_features = 4096, 14336
    scale, bias = torch.zeros(out_features), zeros(out_features, dtype=BF16)
    weights = {dtype: zeros(out_features, in_features, dtype=dtype) for dtype in (INT8, FP8)}
    yield "quantize_rows int8", lambda: linear.quantize_rows(zeros(64, in_features, dtype=BF16), INT8)
    yield "quantize_rows fp8", lambda: linear.quantize_rows(zeros(64, in_features, dtype=BF16), FP8)
    for rows in (1, 32, 64, 256):
        for splits in (1, 4):
            x, tail = zeros(rows, in_features, dtype=BF16), f"rows={rows} splits={splits}"
            for function, dtype, x_bytes in (
                (linear.int8_linear, INT8, 1), (linear.fp8_linear, FP8, 1), (linear.int8_weight_linear, INT8, 2)
            ):  # fmt: skip
                tile = replace(linear.linear_tile(rows, x_bytes), num_splits=splits, split_inputs=in_features // splits)
                yield (
                    f"{function.__name__} {tail}",
                    lambda f=function, x=x, w=weights[dtype], t=tile: f(x, w, scale, bias, tile=t),
                )
            yield f"int4_linear {tail}", _int4(x, out_features, 128, splits)
    for dtype in (HALF, BF16):
        dense, x = zeros(out_features, in_features, dtype=dtype), zeros(64, in_features, dtype=dtype)
        for result in (dtype, torch.float32):
            yield (
                f"dense_linear {dtype} to {result}",
                lambda x=x, w=dense, d=result: linear.dense_linear(x, w, scale, bias, dtype=d),
            )
    yield "int4_linear rows=2 group=32", _int4(zeros(2, in_features), out_features, 32, 4)
    yield "int4_linear rows=1 group=32 fp16", _int4(zeros(1, in_features), out_features, 32, 4)


def _int4(x: Tensor, out_features: int, group: int, splits: int) -> Callable[[], Any]:
    rows, in_features = x.shape
    groups = (in_features // group, out_features)
    weight = Int4Weight(
        (out_features, in_features),
        ints(in_features // 8, out_features),
        zeros(*groups),
        zeros(*groups, dtype=INT8),
        group,
    )
    tile = replace(linear_int4.int4_tile(rows), num_splits=splits, split_inputs=in_features // splits)
    return lambda: linear_int4.int4_linear(x, weight, zeros(out_features, dtype=BF16), tile=tile)


def all_cases() -> list[Case]:
    return [
        *elementwise_cases(),
        *kv_write_cases(),
        *attention_cases(),
        *sampling_cases(),
        *fsm_cases(),
        *linear_cases(),
        *single_cases(),
    ]
