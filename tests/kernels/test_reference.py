"""The oracle against independent formulas: torch's own modules, dense attention, and complex rotation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from safegen.kernels.api import AttentionPlan, KvLayer, Weight, ops
from safegen.kernels.reference import ReferenceOps

BLOCK_SIZE = 4
OPS = ReferenceOps()


def paged(contexts: list[int], queries: list[int]) -> tuple[AttentionPlan, int]:
    """A plan whose last queries[i] tokens of sequence i are computed now, in shuffled blocks; and the block count."""
    counts = [-(-context // BLOCK_SIZE) for context in contexts]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(3)).tolist()
    table = torch.zeros(len(contexts), max(counts), dtype=torch.int32)
    position, slot = [], []
    for index, (context, count, num_queries) in enumerate(zip(contexts, counts, queries)):
        blocks, order = order[:count], order[count:]
        table[index, :count] = torch.tensor(blocks)
        for p in range(context - num_queries, context):
            position.append(p)
            slot.append(blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE)
    start = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
    as_tensors = [torch.tensor(values, dtype=torch.int32) for values in (slot, position)]
    context_len = torch.tensor(contexts, dtype=torch.int32)
    return AttentionPlan(start, context_len, table, *as_tensors, BLOCK_SIZE), sum(counts)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None) -> Tensor:
    """One sequence, all positions, score by score. q: [n, heads, d]; k, v: [n, kv_heads, d]."""
    output = torch.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    for p in range(len(q)):
        first = 0 if window is None else max(0, p - window + 1)
        for head in range(q.shape[1]):
            scores = k[first : p + 1, head // group] @ q[p, head] * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            output[p, head] = torch.softmax(scores, 0) @ v[first : p + 1, head // group]
    return output


@pytest.mark.parametrize("window", [None, 1, 3, 6])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_paged_attention_equals_dense_attention(window: int | None, softcap: float | None) -> None:
    torch.manual_seed(0)
    contexts, queries, heads, kv_heads, dim = [9, 1, 13], [3, 1, 13], 4, 2, 8
    full = [
        (torch.randn(n, heads, dim), torch.randn(n, kv_heads, dim), torch.randn(n, kv_heads, dim)) for n in contexts
    ]
    everything, num_blocks = paged(contexts, contexts)
    plan, _ = paged(contexts, queries)
    shapes = KvLayer.shapes(num_blocks, BLOCK_SIZE, kv_heads, dim)[:2]
    cache = KvLayer(*(torch.full(shape, float("nan")) for shape in shapes))
    OPS.kv_write(torch.cat([k for _, k, _ in full]), torch.cat([v for _, _, v in full]), cache, everything)
    q = torch.cat([q[n - m :] for (q, _, _), n, m in zip(full, contexts, queries)])
    got = OPS.paged_attention(q, cache, plan, scale=0.3, window=window, softcap=softcap)
    expected = torch.cat(
        [dense_attention(*triple, 0.3, window, softcap)[n - m :] for triple, n, m in zip(full, contexts, queries)]
    )
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_kv_write_touches_only_its_slots() -> None:
    plan, num_blocks = paged([6], [2])
    cache = KvLayer(*(torch.zeros(shape) for shape in KvLayer.shapes(num_blocks, BLOCK_SIZE, 1, 2)[:2]))
    OPS.kv_write(torch.ones(2, 1, 2), torch.full((2, 1, 2), 5.0), cache, plan)
    assert cache.key.sum() == 4 and cache.value.sum() == 20
    for (kept, _), written in zip(cache.by_token(), (1.0, 5.0)):
        assert torch.equal(kept.flatten(0, 1)[plan.slot.long()], torch.full((2, 1, 2), written))


def rotation(dim: int, positions: int) -> tuple[Tensor, Tensor]:
    angle = torch.outer(torch.arange(positions).float(), 1.0 / 100.0 ** (torch.arange(0, dim, 2) / dim))
    return angle.cos(), angle.sin()


def test_interleaved_rope_is_complex_rotation_and_passes_the_rest_through() -> None:
    x, position = torch.randn(5, 3, 12), torch.tensor([0, 4, 2, 9, 9], dtype=torch.int32)
    cos, sin = rotation(8, 10)
    turned = torch.view_as_complex(x[..., :8].reshape(5, 3, 4, 2)) * torch.complex(cos, sin)[position.long()][:, None]
    expected = torch.cat((torch.view_as_real(turned).flatten(-2), x[..., 8:]), -1)
    torch.testing.assert_close(OPS.rope(x, cos, sin, position, True), expected)


def test_split_rope_is_interleaved_rope_of_permuted_dimensions() -> None:
    x, position = torch.randn(5, 3, 8), torch.arange(5, dtype=torch.int32)
    cos, sin = rotation(8, 5)
    paired = x.reshape(5, 3, 2, 4).transpose(-1, -2).flatten(-2)
    expected = OPS.rope(paired, cos, sin, position, True).reshape(5, 3, 4, 2).transpose(-1, -2).flatten(-2)
    torch.testing.assert_close(OPS.rope(x, cos, sin, position, False), expected)


def test_norm_and_activations_equal_torch() -> None:
    x, y, weight = torch.randn(4, 16), torch.randn(4, 16), torch.rand(16)
    torch.testing.assert_close(OPS.rms_norm(x, weight, 1e-5), F.rms_norm(x, (16,), weight, 1e-5))
    torch.testing.assert_close(OPS.silu_mul(x, y), x * torch.sigmoid(x) * y)
    tanh = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    torch.testing.assert_close(OPS.gelu_mul(x, y), tanh * y)


def test_quantized_weights_give_the_same_prepared_or_not() -> None:
    torch.manual_seed(1)
    quants = torch.randint(0, 256, (6, 2, 18), dtype=torch.uint8)
    quants[..., :2] = torch.full((6, 2, 1), 0.05, dtype=torch.float16).view(torch.uint8)
    raw = Weight("q4_0", (6, 64), quants.reshape(6, 36))
    dense = OPS.prepare(raw)
    x, bias, ids = torch.randn(3, 64), torch.randn(6), torch.tensor([5, 0, 5], dtype=torch.int32)
    assert dense.kind == "f32" and dense.data.shape == (6, 64)
    assert torch.equal(OPS.linear(x, raw, bias), OPS.linear(x, dense, bias))
    torch.testing.assert_close(OPS.linear(x, dense, bias), x @ dense.data.T + bias)
    assert torch.equal(OPS.embedding(ids, raw), dense.data[ids.long()])


def test_backends_are_found_by_name_and_others_refused() -> None:
    assert ops("reference").name == "reference"
    with pytest.raises(ValueError, match="no kernels named 'fast'"):
        ops("fast")
