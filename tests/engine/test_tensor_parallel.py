"""Tensor parallel over gloo on the CPU: logits of every family, and an LLM of two processes that answers as one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from safegen import LLM, CapacityError, EngineError, ModelLoadError, Regex, RequestError, Speculation
from safegen.engine.backend import ForwardBatch
from safegen.engine.models.loader import load_model, read_config
from safegen.engine.parallel.group import Group
from safegen.engine.parallel.ranks import Ranks
from safegen.engine.parallel.runner import ParallelRunner, load_rank
from safegen.engine.parallel.shard import Shard, ShardedWeights
from safegen.engine.runner import ModelRunner
from safegen.engine.weights import SafetensorsWeights
from safegen.kernels.api import Scales, Weight, ops
from tests.engine import quantized_folders as folders
from tests.engine.checkpoints import VARIANTS, random_ids, tiny_model, write_gguf
from tests.engine.paging import all_logits
from tests.support.hf_folders import save_byte_level

TOLERANCE = 1e-4
SEQUENCES = [random_ids(41, 1), random_ids(3, 2), random_ids(17, 3)]
PROMPT = "The quick brown fox jumps over the lazy dog, 1234 times."


def rank_logits(path: Path, folder: Path, size: int, kernels: str = "reference") -> list[list[Tensor]]:
    """Of every rank, each in a thread of its own: what the processes do, over the same sockets."""

    def run(rank: int) -> list[Tensor]:
        model, _, group = load_rank(path, kernels, None, Shard(rank, size))
        group.connect(str(folder / "meeting"))
        return all_logits(model, SEQUENCES, chunk=16)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def assert_parallel_parity(path: Path, folder: Path, size: int, kernels: str = "reference") -> None:
    expected = all_logits(load_model(path, ops(kernels)), SEQUENCES, chunk=16)
    for found in rank_logits(path, folder, size, kernels):
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.shape == theirs.shape and theirs.std() > 0.1
            assert (ours - theirs).abs().max() < TOLERANCE


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_logits_of_every_family_equal_those_of_one_process(variant: str, tmp_path: Path) -> None:
    tiny_model(variant).save_pretrained(tmp_path / "model")
    assert_parallel_parity(tmp_path / "model", tmp_path, 2)


@pytest.mark.parametrize("variant", ["llama-biases", "phi3"])
def test_four_ranks_share_two_kv_heads_and_an_odd_vocabulary(variant: str, tmp_path: Path) -> None:
    tiny_model(variant, vocab_size=101).save_pretrained(tmp_path / "model")
    assert_parallel_parity(tmp_path / "model", tmp_path, 4)


def test_native_kernels_and_blocks_of_gguf_files(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    model = tiny_model("llama", intermediate_size=128)
    write_gguf(path, model, lambda name: "q8_0" if "ffn" in name or "attn" in name else "f32")
    assert_parallel_parity(path, tmp_path, 2, "cpu")


@pytest.mark.parametrize("layout", ["awq", "int8"])
def test_digits_of_quantized_checkpoints(layout: str, tmp_path: Path) -> None:
    quantize = {"awq": folders.awq(32), "int8": folders.int8("row")}[layout]
    settings = {
        "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"},
        "int8": folders.compressed("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    }[layout]
    (tmp_path / "model").mkdir()
    folders.save(tiny_model("llama", intermediate_size=128), tmp_path / "model", folders.layers(quantize), settings)
    assert_parallel_parity(tmp_path / "model", tmp_path, 2)


def test_blocks_and_groups_that_would_be_cut_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), lambda name: "q8_0" if "ffn_down" in name else "f32")
    with pytest.raises(ModelLoadError, match=r"ffn_down.*32 inputs go together"):  # 96 / 2 = 48
        load_rank(tmp_path / "model.gguf", "reference", None, Shard(0, 2))
    with pytest.raises(RequestError, match="group of 32 inputs: a rank has 48"):
        load_rank(tmp_path / "model.gguf", "cpu", "int8", Shard(0, 2))


def test_groups_that_are_not_neighbours_are_refused() -> None:
    class Source:
        path = "model"

        def weight(self, name: str, shape: tuple[int, int]) -> Weight:
            scales = Scales(torch.ones(shape[0], 2), shape[1] // 2, torch.arange(shape[1]) % 2)
            return Weight("int4", shape, torch.zeros(shape, dtype=torch.int8), None, scales)

    source: Any = ShardedWeights(Source(), None, Shard(0, 2))  # type: ignore[arg-type]
    with pytest.raises(ModelLoadError, match="its groups are not neighbours"):
        source.weight("blk.0.ffn_down.weight", (8, 32))


def test_a_rank_keeps_its_part_alone(tmp_path: Path) -> None:
    """Outputs and ids are views of the mapped file; what is cut by inputs is a copy of the part."""
    tiny_model("llama").save_pretrained(tmp_path)
    config = read_config(tmp_path)
    model: Any = load_rank(tmp_path, "reference", None, Shard(1, 2))[0]
    whole: Any = load_model(tmp_path, ops("reference"))
    ours, theirs = model.layers[0], whole.layers[0]
    assert torch.equal(ours.attention.q.weight.data, theirs.attention.q.weight.data[32:])
    assert torch.equal(ours.attention.k.weight.data, theirs.attention.k.weight.data[16:])
    assert torch.equal(ours.mlp.down.weight.data, theirs.mlp.down.weight.data[:, 48:])
    assert torch.equal(model.head.weight.data, whole.head.weight.data[48:])
    assert model.config == replace(config, num_heads=2, num_kv_heads=1, intermediate_size=48)
    source = SafetensorsWeights(tmp_path, lambda name, names: name)
    q = "model.layers.0.self_attn.q_proj.weight"
    assert source.weight(q, (64, 64)).rows(32, 64).data.untyped_storage().nbytes() >= 64 * 64 * 4  # a view


@pytest.mark.parametrize(
    ("size", "settings", "told"),
    [(3, {}, "num_heads, 4"), (4, {"intermediate_size": 90}, "intermediate_size, 90"),
     (6, {"num_attention_heads": 12, "num_key_value_heads": 4, "hidden_size": 96}, "num_kv_heads, 4"),
     (4, {"vocab_size": 9}, "any of 9 token ids")],
)  # fmt: skip
def test_sizes_that_do_not_divide_are_refused(size: int, settings: dict[str, Any], told: str, tmp_path: Path) -> None:
    tiny_model("llama", **settings).config.save_pretrained(tmp_path)
    with pytest.raises(RequestError, match=f"tensor_parallel_size={size} .*{told}") as caught:
        ParallelRunner.spread(tmp_path, "reference", "auto", None, size)
    assert caught.value.field == "tensor_parallel_size"


@pytest.mark.parametrize("size", [0, -1, True, 2.0, "2"])
def test_values_that_are_no_size_are_refused(size: Any) -> None:
    with pytest.raises(RequestError, match="positive integer"):
        LLM("nowhere", tensor_parallel_size=size)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("parallel")
    save_byte_level(path)
    vocab_size = Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab_size()
    tiny_model("qwen3", vocab_size=vocab_size, max_position_embeddings=256).save_pretrained(path)
    return path


def loaded(folder: Path, size: int, **settings: Any) -> LLM:
    return LLM(folder, kernels="reference", kv_cache_memory=1 << 22, tensor_parallel_size=size, **settings)


@pytest.fixture(scope="module")
def llms(folder: Path) -> Iterator[tuple[LLM, LLM]]:
    drafts = Speculation(drafters=("forced", "ngram"))
    with loaded(folder, 1) as one, loaded(folder, 2, speculation=drafts) as two:
        yield one, two


def ranks_of(llm: LLM) -> Ranks:
    ranks: Ranks = llm._runtime._engine._loop.core._backend.ranks  # type: ignore[attr-defined]
    return ranks


def is_running(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def is_gone_within(process_id: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while is_running(process_id) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_running(process_id)


def answers(llm: LLM) -> list[Any]:
    free = llm.generate(PROMPT, max_tokens=24).text
    again = llm.generate(PROMPT, max_tokens=24).text  # out of the prefix cache
    constrained = llm.generate(PROMPT, Regex(r'\{"[a-z]{2,8}": \d{1,3}\}'), max_tokens=40)
    drawn = llm.generate(PROMPT, max_tokens=8, temperature=1.0, seed=3).text
    with llm.stream(PROMPT, Regex("[a-z ]{8,20}"), max_tokens=30) as events:
        streamed = "".join(event.text for event in events if type(event).__name__ == "DeltaEvent")
    batch = [result.text for result in llm.batch([PROMPT, "Hello", PROMPT + " Ada"], max_tokens=12)]
    several = llm.generate("Hello world", max_tokens=8, n=2, temperature=1.0, seed=5).text
    return [free, again, constrained.status, constrained.text, drawn, streamed, batch, several]


def test_an_llm_of_two_processes_answers_as_one(llms: tuple[LLM, LLM]) -> None:
    one, two = llms
    assert len(ranks_of(two).process_ids) == 1 and is_running(ranks_of(two).process_ids[0])
    assert answers(two) == answers(one)
    assert two.stats() is not None


def test_a_rank_that_dies_ends_every_request_at_once(folder: Path) -> None:
    with loaded(folder, 2) as llm:
        process_id = ranks_of(llm).process_ids[0]
        results: list[Any] = []
        calls = [
            threading.Thread(target=lambda: results.append(llm.generate(PROMPT, max_tokens=180, min_tokens=180)))
            for _ in range(3)
        ]
        for call in calls:
            call.start()
        time.sleep(0.1)
        os.kill(process_id, signal.SIGKILL)
        start = time.monotonic()
        for call in calls:
            call.join(20)
        assert time.monotonic() - start < 10 and len(results) == 3
        for result in [*results, llm.generate("Hello", max_tokens=2)]:
            assert result.status == "error"
            with pytest.raises(EngineError, match=r"rank 1 ended with code -9"):
                result.unwrap()


def batch_of(ids: list[int], start: int, blocks: list[int]) -> ForwardBatch:
    """Tokens of one sequence, the last one's logits wanted; blocks of 4."""
    positions = range(start, start + len(ids))
    slot = [blocks[position // 4] * 4 + position % 4 for position in positions]
    arrays = (ids, positions, slot, [0, len(ids)], [start + len(ids)], [blocks], [len(ids) - 1])
    return ForwardBatch(1, *(np.array(values, np.int32) for values in arrays), 4)  # type: ignore[misc]


def test_first_layers_and_copied_blocks_are_those_of_all_ranks_and_close_leaves_none(folder: Path) -> None:
    one = ModelRunner.load(folder, "reference")
    two = ParallelRunner.spread(folder, "reference", "auto", None, 2)
    found = []
    for runner in (one, two):
        runner.allocate(4, 4)
        logits = [runner.forward(batch_of(random_ids(6, 1), 0, [2, 0]), None)]
        runner.copy_block(2, 3)
        logits.append(runner.early_exit(2)(batch_of(random_ids(3, 2), 6, [3, 0, 1]), None))
        logits.append(runner.forward(batch_of(random_ids(3, 2), 6, [3, 0, 1]), None))
        found.append(np.concatenate(logits))
    assert np.abs(found[0] - found[1]).max() < TOLERANCE and found[0].std() > 0.1
    assert np.abs(found[0][1] - found[0][2]).max() > 0.1
    process_id = two.ranks.process_ids[0]
    two.close()
    assert not is_running(process_id)
    with pytest.raises(EngineError, match="ended"):
        two.forward(batch_of([7], 9, [3, 0, 1]), None)


def test_close_of_an_llm_leaves_no_process(folder: Path) -> None:
    llm = loaded(folder, 2)
    process_id = ranks_of(llm).process_ids[0]
    llm.close()
    assert not is_running(process_id)


def test_a_cache_that_cannot_be_had_leaves_no_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    start = Ranks._start

    def noted(environment: Any, worker: str) -> Any:
        process = start(environment, worker)
        started.append(process.pid)
        return process

    monkeypatch.setattr(Ranks, "_start", staticmethod(noted))
    with pytest.raises(CapacityError):
        LLM(folder, kernels="reference", kv_cache_memory=16, tensor_parallel_size=2)
    assert len(started) == 1 and not is_running(started[0])


def test_ranks_end_with_a_parent_that_is_killed(folder: Path) -> None:
    code = (
        "import sys, time; from safegen import LLM\n"
        f"llm = LLM({str(folder)!r}, kernels='reference', kv_cache_memory=1 << 22, tensor_parallel_size=2)\n"
        "print(*llm._runtime._engine._loop.core._backend.ranks.process_ids, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        process_id = int(parent.stdout.readline())
        assert is_running(process_id)
        parent.kill()
    gone = is_gone_within(process_id, 5)
    if not gone:
        with contextlib.suppress(OSError):
            os.kill(process_id, signal.SIGKILL)
    assert gone


def test_an_error_of_a_rank_keeps_its_type(folder: Path) -> None:
    ranks = Ranks(2, {"path": str(folder / "nothing"), "kernels": "reference", "quantization": None})
    with pytest.raises(ModelLoadError, match=r"tensor-parallel rank 1: .*nothing"):
        ranks.wait()
    assert not is_running(ranks.process_ids[0])


def test_a_sum_is_taken_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    """So that no row's sum depends on where it lies among the others."""
    values = [1e8, 1.0, -1e8]

    def run(rank: int) -> Tensor:
        group = Group(Shard(rank, 3))
        group.connect(str(tmp_path / "meeting"))
        return group.sum(torch.full((7, 5), values[rank]))

    with ThreadPoolExecutor(3) as pool:
        expected = torch.tensor(values[0]) + values[1] + values[2]
        assert all(bool((found == expected).all()) for found in pool.map(run, range(3)))
