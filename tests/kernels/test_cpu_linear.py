"""Linear and embedding of the CPU kernels: every weight kind, every instruction set, against torch and bit by bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from safegen.kernels import cpu
from safegen.kernels.api import Weight
from safegen.kernels.cpu import CpuOps
from safegen.kernels.reference import ReferenceOps
from tests.kernels.cpu_cases import FLOATS, KINDS, isa, make_weight, randn, threads

OPS = CpuOps(exact=True)
FORMS = pytest.mark.parametrize("ops", [OPS, CpuOps()], ids=["exact", "packed"])
ISAS = cpu.available_isas()


def test_the_best_instruction_set_is_the_default() -> None:
    assert cpu.isa() == ISAS[-1]


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_embedding_dequantizes_exactly(name: str, kind: str) -> None:
    weight, values = make_weight(kind, 29, 512)
    ids = torch.tensor([28, 0, 5, 5, 17])
    with isa(name):
        assert torch.equal(OPS.embedding(ids, OPS.prepare(weight)), values[ids])
        assert torch.equal(OPS.embedding(ids.int(), weight), values[ids])


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "out_features", "in_features"), [(1, 37, 512), (3, 64, 256), (5, 1, 768), (33, 50, 256)]
)
def test_linear_equals_torch(name: str, kind: str, rows: int, out_features: int, in_features: int) -> None:
    weight, values = make_weight(kind, out_features, in_features)
    x, bias = randn(rows, in_features), randn(out_features, seed=2)
    expected = x.double() @ values.double().T
    scale = (x.double().abs() @ values.double().abs().T).max()
    with isa(name):
        plain, biased = OPS.linear(x, OPS.prepare(weight)), OPS.linear(x, weight, bias)
    assert (plain - expected).abs().max() <= 1e-6 * scale
    assert torch.equal(biased, plain + bias)


@pytest.mark.parametrize("kind", KINDS)
def test_linear_and_embedding_equal_the_reference_backend(kind: str) -> None:
    weight, _ = make_weight(kind, 40, 256)
    x, ids, reference = randn(6, 256), torch.tensor([3, 39, 0]), ReferenceOps()
    torch.testing.assert_close(OPS.linear(x, weight), reference.linear(x, weight), rtol=1e-4, atol=1e-4)
    assert torch.equal(OPS.embedding(ids, weight), reference.embedding(ids, weight))


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("in_features", [1, 7, 15, 17, 33, 100])
def test_linear_takes_float_rows_of_any_length(name: str, kind: str, in_features: int) -> None:
    weight, values = make_weight(kind, 11, in_features)
    x = randn(9, in_features)
    with isa(name):
        batch = OPS.linear(x, weight)
        assert torch.equal(torch.cat([OPS.linear(row[None], weight) for row in x]), batch)
        assert torch.equal(OPS.embedding(torch.arange(11), weight), values)
    torch.testing.assert_close(batch, (x.double() @ values.double().T).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@FORMS
def test_a_row_has_the_same_bits_alone_and_in_any_batch(ops: CpuOps, name: str, kind: str) -> None:
    weight = ops.prepare(make_weight(kind, 43, 512)[0])
    x = randn(33, 512)
    with isa(name):
        alone = torch.cat([ops.linear(row[None], weight) for row in x])
        for rows in range(2, 34):
            assert torch.equal(ops.linear(x[33 - rows :], weight), alone[33 - rows :]), rows


@pytest.mark.parametrize("kind", ["f32", "q4_1", "q6_k", "q8_0"])
@FORMS
def test_bits_do_not_depend_on_row_blocks_or_threads(ops: CpuOps, kind: str) -> None:
    weight = ops.prepare(make_weight(kind, 200, 512)[0])
    x = randn(500, 512)
    results = []
    for count in (1, 2, 3, 7):
        with threads(count):
            results.append(ops.linear(x, weight))
    alone = torch.cat([ops.linear(x[i : i + 1], weight) for i in range(0, 500, 71)])
    assert all(torch.equal(result, results[0]) for result in results)
    assert torch.equal(results[0][::71], alone)


@pytest.mark.parametrize("kind", KINDS)
@FORMS
def test_avx2_and_avx512_agree_bitwise(ops: CpuOps, kind: str) -> None:
    if "avx512" not in ISAS:
        pytest.skip("this processor has no AVX-512")
    weight = ops.prepare(make_weight(kind, 21, 512)[0])
    results = []
    for name in ("avx2", "avx512"):
        with isa(name):
            results.append(ops.linear(randn(13, 512), weight))
    assert torch.equal(*results)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("rows", [1, 13])
def test_nan_and_infinity_stay_in_their_row(name: str, rows: int) -> None:
    weight = make_weight("q4_1", 20, 64)[0]
    x = randn(rows, 64)
    with isa(name):
        clean = OPS.linear(x, weight)
        for bad in (torch.nan, torch.inf):
            dirty = x.clone()
            dirty[-1, 3] = bad
            out = OPS.linear(dirty, weight)
            assert torch.equal(out[:-1], clean[:-1])
            assert not out[-1].isfinite().any()


def test_weights_are_used_where_they_lie(tmp_path: Path) -> None:
    weight, values = make_weight("q8_0", 8, 64)
    path = tmp_path / "weight.bin"
    path.write_bytes(weight.data.numpy().tobytes())
    mapped = torch.from_file(str(path), shared=True, size=weight.data.numel(), dtype=torch.uint8).view(
        weight.data.shape
    )
    prepared = OPS.prepare(replace(weight, data=mapped))
    mapped[0, :2] = 0  # the first block's scale
    assert torch.equal(
        OPS.embedding(torch.tensor([0, 1]), prepared)[:, :32], torch.stack([torch.zeros(32), values[1, :32]])
    )


def test_a_prepared_weight_keeps_its_memory_alive() -> None:
    weight, values = make_weight("q4_0", 64, 4096)
    packed = OPS.prepare(weight).packed
    del weight
    orphan = Weight("q4_0", (64, 4096), torch.empty(0), packed)
    torch.full((64, 4096), 7.0)  # would take the freed memory
    assert torch.equal(OPS.embedding(torch.arange(64), orphan), values)


def test_empty_batches_give_empty_results() -> None:
    weight = make_weight("q4_0", 8, 64)[0]
    assert OPS.linear(torch.zeros(0, 64), weight).shape == (0, 8)
    assert OPS.embedding(torch.zeros(0, dtype=torch.int64), weight).shape == (0, 64)


WEIGHT = make_weight("q4_0", 8, 64)[0]


@pytest.mark.parametrize(
    ("x", "bias", "message"),
    [
        (torch.zeros(2, 63), None, r"x: must have shape \[any, 64\], got \[2, 63\]"),
        (torch.zeros(2, 1, 64), None, "x: must have shape"),
        (torch.zeros(2, 64, dtype=torch.float64), None, "x: must be of type float32"),
        (torch.zeros(64, 2).T, None, "x: must be contiguous"),
        (torch.zeros(2, 64, device="meta"), None, "x: "),
        (torch.zeros(2, 64).to_sparse(), None, "x: "),
        (torch.zeros(2, 64), torch.zeros(7), r"bias: must have shape \[8\]"),
    ],
)
def test_wrong_arguments_of_linear_are_refused_by_name(
    x: torch.Tensor, bias: torch.Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        OPS.linear(x, WEIGHT, bias)


@pytest.mark.parametrize("bad_id", [-1, 8, 2**40])
def test_ids_outside_the_vocabulary_are_refused(bad_id: int) -> None:
    with pytest.raises(ValueError, match=rf"ids: element 1 is {bad_id}, must be in \[0, 8\)"):
        OPS.embedding(torch.tensor([0, bad_id]), WEIGHT)
    with pytest.raises(ValueError, match="ids: must be of an integer type"):
        OPS.embedding(torch.tensor([0.5]), WEIGHT)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (replace(WEIGHT, kind="q9_9"), "q9_9"),
        (replace(WEIGHT, shape=(8, 96)), "data: must have shape"),
        (replace(WEIGHT, shape=(8, 65)), "multiple of 32"),
        (replace(WEIGHT, kind="f16"), r"weight\.data: kind 'f16' needs torch\.float16"),
        (replace(WEIGHT, data=WEIGHT.data.T), r"weight\.data: must be contiguous"),
        (replace(WEIGHT, data=WEIGHT.data.view(-1)), r"weight\.data: .*two-dimensional"),
        (replace(WEIGHT, packed=object()), "another backend"),
    ],
)
def test_wrong_weights_are_refused_by_name(weight: Weight, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OPS.linear(torch.zeros(1, 64), weight)
