"""Real (tiny, random) models on the native kernels and on the reference: answers with a second checkpoint or the first
layers as drafter are bitwise those without, and what is measured of the depths is what it says."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from safegen.engine.config import EngineConfig
from safegen.engine.core import EngineCore
from safegen.engine.runner import ModelRunner
from safegen.engine.speculate.depth import expected_gain, pick_depth
from safegen.engine.speculate.draft_backend import WithDraftModel
from safegen.engine.speculate.draft_cache import OwnCache, SharedCache
from safegen.engine.speculate.model import ModelDrafter
from safegen.engine.speculate.speculator import Speculator
from safegen.errors import EngineError
from tests.engine.checkpoints import VOCAB, random_ids, tiny_model, write_gguf
from tests.support.engine_driver import drive, make_request

STOP = 5
TOKEN_BYTES: list[bytes | None] = [None if number < 8 else bytes([number + 20]) for number in range(VOCAB)]
Load = Callable[[str], ModelRunner]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    return loader(tmp_path_factory.mktemp("tiny"), "cpu")


def loader(folder: Path, kernels: str) -> Load:
    def loaded(variant: str) -> ModelRunner:
        path = folder / f"{variant}.gguf"
        if not path.exists():
            write_gguf(path, tiny_model(variant), lambda name: "q8_0")
        return ModelRunner.load(path, kernels)

    return loaded


def requests(count: int, temperature: float, max_tokens: int = 30) -> list[Any]:
    lengths = itertools.cycle([3, 21, 9, 1, 14])
    return [
        make_request(
            f"r{number}",
            random_ids(length, number),
            constrained=number % 2 == 1,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=number,
            stop_ids=(STOP,),
            logit_bias={40: 1.0, 41: -0.5} if number % 4 == 1 else {},
        )
        for number, length in zip(range(count), lengths)
    ]


def core_of(load: Load, kind: str | None, num_layers: int = 2, **settings: Any) -> EngineCore:
    runner = load("llama")
    config = EngineConfig(**{"kv_cache_memory": 1 << 21, "block_size": 4, "max_num_seqs": 8, **settings})
    if kind is None:
        return EngineCore(runner, TOKEN_BYTES, config)
    if kind == "self":
        drafter = ModelDrafter("self", runner.early_exit(num_layers), SharedCache(), VOCAB, least_reach=0.0)
        return EngineCore(runner, TOKEN_BYTES, config, speculator=Speculator([drafter], adaptive=False))
    small = load("llama" if kind == "equal" else "qwen3")
    cache = OwnCache(small.max_context)
    drafter = ModelDrafter("model", small.forward, cache, VOCAB, least_reach=0.0)
    speculator = Speculator([drafter], max_tokens_a_draft=5, adaptive=False)
    return EngineCore(WithDraftModel(runner, small, cache), TOKEN_BYTES, config, speculator=speculator)


@pytest.mark.parametrize("num_together", [1, 4, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("kind", ["model", "equal", "self"])
def test_answers_are_bitwise_those_without_drafts(load: Load, kind: str, temperature: float, num_together: int) -> None:
    asked = requests(8, temperature)
    core, plain = core_of(load, kind), core_of(load, None)
    wanted = drive(plain, requests(8, temperature))
    found = {}
    for start in range(0, 8, num_together):
        found.update(drive(core, asked[start : start + num_together]))
    assert {key: one.token_ids for key, one in found.items()} == {key: one.token_ids for key, one in wanted.items()}
    stats = core.stats()
    assert stats.drafted_tokens > 40
    if kind == "equal":
        assert stats.drafted_tokens - stats.accepted_tokens <= 8  # past an answer's end


@pytest.mark.parametrize("kind", ["model", "self"])
def test_so_they_are_on_the_reference_kernels(kind: str, tmp_path: Path) -> None:
    load = loader(tmp_path, "reference")
    wanted, found = (drive(core_of(load, each), requests(3, 0.9, 9)) for each in (None, kind))
    assert {key: one.token_ids for key, one in found.items()} == {key: one.token_ids for key, one in wanted.items()}


@pytest.mark.parametrize("kind", ["model", "self"])
def test_so_they_are_where_blocks_are_short(load: Load, kind: str) -> None:
    asked = [
        make_request(f"r{n}", random_ids(9, n), max_tokens=40, seed=n, temperature=0.9, stop_ids=()) for n in range(6)
    ]
    wanted = drive(core_of(load, None), asked)
    block_bytes = load("llama").bytes_per_block(4) + (load("qwen3").bytes_per_block(4) if kind == "model" else 0)
    core = core_of(load, kind, kv_cache_memory=30 * block_bytes)
    found = drive(core, asked)
    assert core.stats().preemptions
    assert {key: one.token_ids for key, one in found.items()} == {key: one.token_ids for key, one in wanted.items()}


def test_all_layers_are_the_model_itself_and_never_rejected(load: Load) -> None:
    core = core_of(load, "self", num_layers=3)
    asked = [make_request(f"r{n}", random_ids(9, n), max_tokens=30, stop_ids=()) for n in range(4)]
    drive(core, asked)
    stats = core.stats()
    assert stats.drafted_tokens == stats.accepted_tokens > 60


def test_depths_are_measured_and_the_best_comes_first(load: Load) -> None:
    times = itertools.count()
    depths = pick_depth(load("llama"), random_ids(20, 3), clock=lambda: float(next(times)))  # each step takes a second
    assert {depth.num_layers for depth in depths} == {1, 2}
    assert [depth.gain for depth in depths] == sorted((depth.gain for depth in depths), reverse=True)
    for depth in depths:
        assert 0.0 <= depth.acceptance <= 1.0
        assert depth.step_share == 1.0
        assert depth.gain == max(expected_gain(depth.acceptance, 1.0, 0.0, count) for count in range(1, 9))


def test_gain_is_tokens_per_time() -> None:
    assert expected_gain(0.0, 0.5, 0.0, 1) == 1 / 1.5
    assert expected_gain(1.0, 0.25, 0.0, 4) == 5 / 2
    assert expected_gain(0.5, 0.1, 0.1, 2) == pytest.approx(1.75 / 1.4)


def test_early_exit_before_the_cache_is_made_is_an_error_of_its_own(load: Load) -> None:
    runner = load("qwen3")
    with pytest.raises(ValueError, match="num_layers=4"):
        runner.early_exit(4)
    with pytest.raises(EngineError, match="before allocate"):
        runner.early_exit(1)(None, None)  # type: ignore[arg-type]
