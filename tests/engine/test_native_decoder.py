"""The native step gives the bits of the readable decoder: every family, chunked, in company, in part, masked."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from safegen.engine.backend import AheadDraws, ForwardBatch, RowMasks
from safegen.engine.models.base import LogitMasks, Model
from safegen.engine.models.early_exit import EarlyExit
from safegen.engine.models.layers import Decoder
from safegen.engine.models.loader import load_model
from safegen.engine.models.native import NativeDecoder, fused
from safegen.engine.runner import ModelRunner
from safegen.kernels.api import AttentionPlan, KvLayer, Quantization
from safegen.kernels.cpu import CpuOps
from safegen.kernels.reference import ReferenceOps
from safegen.kernels.sampling import Draw, SampleSettings, draw_tokens
from tests.engine.checkpoints import VARIANTS, VOCAB, random_ids, tiny_model, write_gguf
from tests.engine.paging import PagedRun, all_logits
from tests.kernels.cpu_cases import isa, threads

SEQUENCES = [random_ids(41, 1), random_ids(3, 2), random_ids(17, 3)]


def mixed_kinds(name: str) -> str:
    return "q8_0" if "embd" in name else "q5_1" if "ffn_up" in name or "attn_q" in name else "q4_0"


def pair(path: Path, quantization: Quantization | None = None) -> tuple[Model, Model]:
    readable = load_model(path, CpuOps(quantization))
    assert isinstance(readable, Decoder)
    native = fused(readable)
    assert isinstance(native, NativeDecoder)
    return readable, native


def assert_same(readable: Model, native: Model, chunk: int) -> None:
    expected = all_logits(readable, SEQUENCES, 64)
    for ours, theirs in zip(all_logits(native, SEQUENCES, chunk), expected, strict=True):
        assert theirs.isfinite().all()
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_native_step_equals_the_readable_decoder_bitwise(
    variant: str, quantization: Quantization | None, tmp_path: Path
) -> None:
    tiny_model(variant).save_pretrained(tmp_path)
    readable, native = pair(tmp_path, quantization)
    for chunk in (64, 5):
        assert_same(readable, native, chunk)


@pytest.mark.parametrize("variant", ["llama-biases", "qwen3", "gemma3", "phi3"])
def test_so_it_does_with_the_blocks_of_a_gguf_file_whatever_the_threads(variant: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model(variant), mixed_kinds)
    readable, native = pair(tmp_path / "model.gguf")
    for count in (1, 2, 3):
        with threads(count):
            assert_same(readable, native, 7)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("variant", ["llama-biases", "qwen3", "gemma3", "phi3"])
def test_first_layers_give_the_bits_of_the_readable_decoder_cut_after_them(
    variant: str, num_layers: int, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model(variant), mixed_kinds)
    readable, native = pair(tmp_path / "model.gguf")
    assert isinstance(readable, Decoder)
    cut = replace(readable, layers=readable.layers[:num_layers])
    for model in (readable, native):
        exit_early = EarlyExit(model, num_layers)
        assert_same(cast(Model, _FirstCaches(cut)), exit_early, 7)
        if num_layers < 3:
            with pytest.raises(AssertionError):
                assert_same(readable, exit_early, 64)


class _FirstCaches:
    """A cut decoder over the caches of the whole one."""

    def __init__(self, cut: Decoder) -> None:
        self.config, self._cut = cut.config, cut

    def forward(self, ids: Tensor, plan: AttentionPlan, cache: list[KvLayer], *rest: Any) -> Tensor:
        return self._cut.forward(ids, plan, cache[: len(self._cut.layers)], *rest)


@pytest.mark.parametrize("num_fewer", [0, 1, 2])
def test_logits_that_somebody_holds_are_not_written_over(
    llama: tuple[Model, Model], num_fewer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever of its own references a Python counts: later versions do not count those of variables and arguments."""
    count = sys.getrefcount
    monkeypatch.setattr(sys, "getrefcount", lambda value: count(value) - num_fewer)
    readable = llama[0]
    assert isinstance(readable, Decoder)
    run = PagedRun(fused(readable), [9])
    held = run.step([[11, 12, 13]])
    copies = [each.clone() for each in held]
    for token in (14, 15):
        held += run.step([[token]])
        copies.append(held[-1].clone())
    assert all(torch.equal(*each) for each in zip(held, copies, strict=True))
    del held
    addresses = {run.step([[token]])[0].data_ptr() for token in (16, 17, 18)}
    assert len(addresses) == 1


@pytest.mark.parametrize("num_layers", [1, 2])
def test_what_first_layers_write_is_what_the_whole_model_writes_there(
    llama: tuple[Model, Model], num_layers: int
) -> None:
    _, native = llama
    ids = random_ids(21, 6)
    whole, part = PagedRun(native, [21]), PagedRun(EarlyExit(native, num_layers), [21])
    for start, stop in ((0, 13), (13, 14), (14, 21)):
        whole.step([ids[start:stop]])
        part.step([ids[start:stop]])
    for layer, (ours, theirs) in enumerate(zip(part.cache, whole.cache, strict=True)):
        assert torch.equal(ours.key.nan_to_num(), theirs.key.nan_to_num()) == (layer < num_layers)
        assert torch.equal(ours.value.nan_to_num(), theirs.value.nan_to_num()) == (layer < num_layers)


@pytest.mark.parametrize("num_layers", [0, -1, 4])
def test_a_number_of_layers_that_the_model_has_not_is_refused(llama: tuple[Model, Model], num_layers: int) -> None:
    for model in llama:
        with pytest.raises(ValueError, match="num_layers"):
            EarlyExit(model, num_layers)
    native = llama[1]
    assert isinstance(native, NativeDecoder)
    if num_layers:
        with pytest.raises(ValueError, match="num_layers"):
            PagedRun(cast(Model, _Cut(native, num_layers)), [3]).step([[1, 2, 3]])


class _Cut:
    """Asks the native step for a number of layers, unchecked."""

    def __init__(self, model: NativeDecoder, num_layers: int) -> None:
        self.config, self._model, self._num_layers = replace(model.config, num_layers=3), model, num_layers

    def forward(self, *args: Any) -> Tensor:
        return self._model.forward(*args, None, self._num_layers)


@pytest.mark.parametrize("name", ["scalar", "avx2"])
def test_so_it_does_on_lesser_instruction_sets(name: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), mixed_kinds)
    readable, native = pair(tmp_path / "model.gguf")
    with isa(name):
        assert_same(readable, native, 9)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Model]:
    folder = tmp_path_factory.mktemp("llama")
    write_gguf(folder / "model.gguf", tiny_model("llama"), mixed_kinds)
    return pair(folder / "model.gguf")


@pytest.mark.parametrize("rows", [[8], [2, 8], [8, 2], [0, 1, 2, 3, 4, 5, 6, 7, 8], [5, 5]])
def test_rows_of_any_choice_and_order_are_those_of_the_whole(llama: tuple[Model, Model], rows: list[int]) -> None:
    readable, native = llama
    ids = random_ids(9, 1)
    full = PagedRun(readable, [9]).step([ids])[0]
    assert torch.equal(PagedRun(native, [9]).step([ids], sampled_rows=rows)[0], full[rows])


def test_a_chunk_of_which_nothing_is_sampled_leaves_its_keys_in_the_cache(llama: tuple[Model, Model]) -> None:
    readable, native = llama
    ids = random_ids(30, 4)
    expected = PagedRun(readable, [30]).step([ids])[0][-1]
    run = PagedRun(native, [30])
    assert run.step([ids[:17]], sampled_rows=[])[0].shape == (0, VOCAB)
    assert torch.equal(run.step([ids[17:]])[0][-1], expected)


class Masked:
    """A model that is handed masks with every step."""

    def __init__(self, model: Model, masks: LogitMasks) -> None:
        self.config, self._model, self._masks = model.config, model, masks

    def forward(self, *args: object) -> Tensor:
        return cast(Tensor, self._model.forward(*args, self._masks))  # type: ignore[arg-type]


def words_of(legal: list[list[int]]) -> Tensor:
    words = torch.zeros(len(legal), -(-VOCAB // 32), dtype=torch.int64)
    for row, ids in enumerate(legal):
        for token in ids:
            words[row, token // 32] |= 1 << (token % 32)
    return words.to(torch.int32)


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("variant", ["llama", "gemma3-logit-softcap"])
def test_restricted_rows_have_the_logits_of_their_legal_ids(
    variant: str, quantization: Quantization | None, tmp_path: Path
) -> None:
    """Sparse, dense, forced and unrestricted rows beside each other, with a head of floats and a packed one."""
    tiny_model(variant).save_pretrained(tmp_path)
    readable, native = pair(tmp_path, quantization)
    ids = random_ids(9, 1)
    full = PagedRun(readable, [9]).step([ids])[0]
    legal = [[3, 95], list(range(VOCAB)), [40], [17], [0, 31, 32, 63], list(range(0, VOCAB, 9)), [5, 6], [1], [90]]
    restricted = torch.tensor([True, True, True, False, True, True, True, True, False])
    masked = Masked(native, (words_of(legal), restricted))
    before = PagedRun(native, [9]).step([random_ids(9, 2)], sampled_rows=range(9))[0].clone()
    found = PagedRun(cast(Model, masked), [9]).step([ids], sampled_rows=range(9))[0]
    for row, ids_of_row in enumerate(legal):
        if not restricted[row]:
            assert torch.equal(found[row], full[row])
        elif len(ids_of_row) > 1:
            assert torch.equal(found[row, ids_of_row], full[row, ids_of_row])
            assert not found[row].isnan().any()
        else:
            assert torch.equal(found[row], before[row]), "a forced row costs nothing: the memory is as it was"


def test_a_step_of_forced_rows_alone_leaves_what_the_next_step_needs(llama: tuple[Model, Model]) -> None:
    readable, native = llama
    ids = random_ids(9, 1)
    full = PagedRun(readable, [9]).step([ids])[0]
    run = PagedRun(cast(Model, Masked(native, (words_of([[3]] * 6), torch.tensor([True] * 6)))), [9])
    run.step([ids[:6]], sampled_rows=range(6))
    run.model = native
    assert torch.equal(run.step([ids[6:]], sampled_rows=range(3))[0], full[6:])


def prompt_batch() -> ForwardBatch:
    """Nine tokens of one sequence, all sampled."""
    places = np.arange(9, dtype=np.int32)
    return ForwardBatch(
        step_id=0,
        ids=np.array(random_ids(9, 1), dtype=np.int32),
        position=places,
        slot=places,
        query_start=np.array([0, 9], dtype=np.int32),
        context_len=np.array([9], dtype=np.int32),
        block_table=np.zeros((1, 1), dtype=np.int32),
        sampled_rows=places,
        block_size=16,
    )


@pytest.mark.parametrize("variant", ["llama", "gemma3-logit-softcap"])
def test_the_maxima_of_logits_are_known_until_the_next_forward(variant: str, tmp_path: Path) -> None:
    """Of dense rows and of sparse ones, for each 64 ids, whatever the threads that computed them."""
    write_gguf(tmp_path / "model.gguf", tiny_model(variant), mixed_kinds)
    runner = ModelRunner(pair(tmp_path / "model.gguf")[1], CpuOps())
    runner.allocate(2, 16)
    batch = prompt_batch()
    words = words_of([[3, VOCAB - 1]] * 4 + [list(range(VOCAB))] * 5).numpy()
    for masks in (None, RowMasks(words, np.ones(9, dtype=bool))):
        for count in (1, 2):
            with threads(count):
                logits = runner.forward(batch, masks)
            maxima = runner.maxima_of(logits)
            assert maxima is not None and len(maxima) == 9
            for block, start in enumerate(range(0, VOCAB, 64)):
                assert (maxima[:, block] == logits[:, start : start + 64].max(axis=1)).all()
            assert runner.maxima_of(logits[:]) is None
    runner.forward(batch)
    assert runner.maxima_of(logits) is None


@pytest.mark.parametrize("count", [1, 2])
def test_the_maxima_around_a_logit_that_is_no_number_are_none(count: int, tmp_path: Path) -> None:
    tiny = tiny_model("llama")
    bad = next(token for token in range(64, VOCAB) if token not in random_ids(9, 1))
    tiny.lm_head.weight.data[bad] = torch.nan
    tiny.save_pretrained(tmp_path)
    runner = ModelRunner(pair(tmp_path)[1], CpuOps())
    runner.allocate(2, 16)
    with threads(count):
        logits = runner.forward(prompt_batch())
    maxima = runner.maxima_of(logits)
    assert maxima is not None and np.isnan(logits[:, bad]).all() and np.isnan(maxima[:, 1]).all()


def test_other_kernels_keep_the_readable_decoder(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    model = load_model(tmp_path, ReferenceOps())
    assert fused(model) is model


def ahead(native: Model, run: PagedRun, ids: list[int], uniforms: NDArray[np.float64], /, **fields: Any) -> Any:
    """The sequences of `run`, one token each, computed ahead."""
    rows, blocks = len(ids), max(len(blocks) for blocks in run.blocks)
    table = np.zeros((rows, blocks), dtype=np.int32)
    for row, found in zip(table, run.blocks):
        row[: len(found)] = found
    places = np.arange(rows, dtype=np.int32)
    position = np.array(run.num_computed, dtype=np.int32)
    batch = ForwardBatch(
        step_id=0,
        ids=np.array(ids, dtype=np.int32),
        position=position,
        slot=position,  # not looked at: it follows from the table
        query_start=np.arange(rows + 1, dtype=np.int32),
        context_len=position + 1,
        block_table=table,
        sampled_rows=places,
        block_size=run.block_size,
    )
    settings = fields.pop("settings", [SampleSettings(0.0, 0, 1.0, 0.0)] * rows)
    draws = AheadDraws(fields.pop("vocab_size", VOCAB), settings, uniforms, frozenset(fields.pop("stop_ids", ())))
    assert isinstance(native, NativeDecoder)
    return native.forward_ahead(replace(batch, **fields), run.cache, draws)


MIXED = [SampleSettings(0.0, 0, 1.0, 0.0), SampleSettings(0.8, 0, 1.0, 0.0), SampleSettings(1.3, 20, 0.9, 0.01)]


def one_by_one(model: Model, steps: int, uniforms: NDArray[np.float64]) -> tuple[list[list[int]], list[Tensor]]:
    """Ids drawn after each step, and its logits."""
    run = PagedRun(model, [len(sequence) + steps for sequence in SEQUENCES])
    run.step([sequence[:-1] for sequence in SEQUENCES])
    ids, drawn, rows = [sequence[-1] for sequence in SEQUENCES], [], []
    for step in range(steps):
        logits = torch.cat(run.step([[token] for token in ids]))
        draws = [Draw(each, row, None, float(uniforms[step, row])) for row, each in enumerate(MIXED)]
        ids, faults = draw_tokens(logits.numpy(), VOCAB, None, draws)
        assert not faults
        drawn.append(ids)
        rows.append(logits)
    return drawn, rows


@pytest.mark.parametrize("count", [1, 2])
def test_steps_ahead_are_single_steps_bitwise(llama: tuple[Model, Model], count: int) -> None:
    _, native = llama
    uniforms = np.random.default_rng(3).random((7, 3))
    drawn, logits = one_by_one(native, 7, uniforms)
    with threads(count):
        for steps in (1, 2, 7):
            run = PagedRun(native, [len(sequence) + steps for sequence in SEQUENCES])
            run.step([sequence[:-1] for sequence in SEQUENCES])
            last_ids = [sequence[-1] for sequence in SEQUENCES]
            ids, last = ahead(native, run, last_ids, uniforms[: steps - 1], settings=MIXED)
            assert ids == drawn[: steps - 1]
            assert torch.equal(last, logits[steps - 1])


def test_a_stop_id_makes_its_step_the_last(llama: tuple[Model, Model]) -> None:
    _, native = llama
    uniforms = np.random.default_rng(3).random((7, 3))
    drawn, logits = one_by_one(native, 7, uniforms)
    stop = drawn[3][1]
    first = next(step for step, ids in enumerate(drawn) if stop in ids)
    run = PagedRun(native, [len(sequence) + 7 for sequence in SEQUENCES])
    run.step([sequence[:-1] for sequence in SEQUENCES])
    last_ids = [sequence[-1] for sequence in SEQUENCES]
    ids, last = ahead(native, run, last_ids, uniforms[:6], settings=MIXED, stop_ids=[stop, VOCAB + 5])
    assert ids == drawn[:first]
    assert torch.equal(last, logits[first])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": VOCAB + 1}, "vocab_size"),
        ({"settings": MIXED[:2]}, "settings"),
        ({"settings": [MIXED[0], MIXED[1], (-1.0, 0, 1.0, 0.0)]}, "temperature"),
        ({"position": np.array([40, 2, 60], dtype=np.int32)}, "position"),
        ({"position": np.array([40, -1, 16], dtype=np.int32)}, "position"),
        ({"ids": np.array([0, 1, VOCAB], dtype=np.int32)}, "ids"),
        ({"block_table": np.full((3, 12), 10_000, dtype=np.int32)}, "block_table"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(llama: tuple[Model, Model], fields: Any, message: str) -> None:
    _, native = llama
    run = PagedRun(native, [len(sequence) + 4 for sequence in SEQUENCES])
    run.step([sequence[:-1] for sequence in SEQUENCES])
    with pytest.raises(ValueError, match=message):
        ahead(native, run, [1, 2, 3], np.zeros((3, 3)), **fields)
    with pytest.raises(ValueError, match="uniforms"):
        ahead(native, run, [1, 2, 3], np.ones((3, 3)))
