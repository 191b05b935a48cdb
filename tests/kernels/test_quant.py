"""Dequantization equals ggml's, bit for bit, on every byte pattern that random blocks produce."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from safegen.kernels.quant import BLOCK_TYPES, dequantize, row_bytes


def random_blocks(kind: str, rows: int, blocks_a_row: int) -> np.ndarray:
    """Random bytes with the fp16 fields made finite: NaN scales would hide every other difference."""
    rng = np.random.default_rng(len(kind) + rows)
    block_bytes = BLOCK_TYPES[kind].block_bytes
    raw = rng.integers(0, 256, (rows * blocks_a_row, block_bytes), dtype=np.uint8)
    starts = {"q4_1": (0, 2), "q5_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}.get(kind, (0,))
    for start in starts:
        raw[:, start : start + 2] = rng.normal(0, 0.1, (len(raw), 1)).astype(np.float16).view(np.uint8)
    return raw.reshape(rows, blocks_a_row * block_bytes)


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_dequantization_equals_ggml_bit_for_bit(kind: str) -> None:
    raw = random_blocks(kind, rows=7, blocks_a_row=64)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind.upper()])
    got = dequantize(kind, torch.from_numpy(raw)).numpy()
    assert got.shape == expected.shape == (7, 64 * BLOCK_TYPES[kind].elements)
    assert np.array_equal(got.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_block_sizes_are_those_of_the_format(kind: str) -> None:
    elements, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.upper()]]
    assert row_bytes(kind, 3 * elements) == 3 * block_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_float_kinds_widen_exactly(dtype: torch.dtype) -> None:
    kind = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    rows = torch.randn(3, 40).to(dtype)
    assert torch.equal(dequantize(kind, rows), rows.to(torch.float32))
    assert row_bytes(kind, 40) == 40 * dtype.itemsize


def test_a_row_that_cuts_a_block_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"row of 48 values .* q4_1 blocks of 32"):
        row_bytes("q4_1", 48)
