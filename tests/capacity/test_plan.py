"""`safegen.plan`: what fits, what is chosen, what limits it, and the same as a command."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import safegen
from safegen.capacity.planning import Plan, plan_of
from safegen.capacity.target import Options, Target
from safegen.cli import NOT_OK, OK, USER_MISTAKE, main
from safegen.engine import capacity
from safegen.engine.model_size import ModelSize, measure_model
from safegen.errors import ModelLoadError, RequestError
from tests.capacity.models import LLAMA_8B, TIMES, TINY, folder, tiny_size

GIB = 1 << 30


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ModelSize:
    return measure_model(folder(tmp_path_factory.mktemp("llama")), packed=False)


def planned(size: ModelSize, device: str = "h100", options: Options = Options(), **target: Any) -> Plan:  # noqa: B008
    return plan_of(size, Target(**target), options, device=device, times=TIMES if device == "cpu" else None)


def test_cache_bytes_and_blocks_are_those_of_the_published_arithmetic(llama: ModelSize) -> None:
    made = planned(llama, options=Options(kv_cache_memory=8 * GIB), prompt_tokens=1000, output_tokens=200)
    assert made.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2 == 131_072
    assert made.block_bytes == 16 * 131_072
    assert made.num_blocks == 8 * GIB // (16 * 131_072) == 4096
    assert made.blocks_per_request == -(-1201 // 16) == 76
    assert made.max_concurrency == 4096 // 76 == 53
    assert made.kv_cache_bytes == 8 * GIB
    int8 = planned(llama, options=Options(kv_cache_memory=8 * GIB, kv_cache_dtype="int8"))
    assert int8.kv_bytes_per_token == 65_536 + 2 * 32 * 8 * 4


def test_without_a_given_size_a_gpus_cache_is_what_weights_and_activations_leave(llama: ModelSize) -> None:
    made = planned(llama)
    left = int(80e9 * 0.9) - llama.weight_bytes - made.activation_bytes
    assert made.num_blocks == left // made.block_bytes
    assert made.activation_bytes == 2048 * llama.activation_bytes


def test_on_this_machine_it_is_what_llm_would_take(llama: ModelSize, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "available_memory_bytes", lambda: 64 * GIB)
    made = planned(llama, "cpu")
    expected = capacity.default_kv_cache_bytes(
        made.block_bytes, 16, 64, 8192, 64 * GIB - llama.weight_bytes - made.activation_bytes
    )
    assert made.num_blocks == expected // made.block_bytes
    assert made.device.measured and made.device.memory_bytes == 64 * GIB


def test_the_chosen_point_is_the_targets_or_the_least_that_gives_nearly_the_most(llama: ModelSize) -> None:
    assert planned(llama, concurrency=7).chosen.concurrency == 7  # type: ignore[union-attr]
    made = planned(llama, "h200")
    assert made.chosen is not None and made.fits
    most = max(point.tokens_per_s for point in made.points)
    assert made.chosen.tokens_per_s >= 0.9 * most
    assert all(point.tokens_per_s < 0.9 * most for point in made.points if point.concurrency < made.chosen.concurrency)


def test_more_requests_than_the_table_goes_to_are_planned_for_as_asked(llama: ModelSize) -> None:
    made = planned(llama, "h200", prompt_tokens=16, output_tokens=8, concurrency=3000)
    assert made.max_concurrency > 3000 and made.chosen is not None and made.chosen.concurrency == 3000
    assert [point.concurrency for point in made.points][-2:] == [1024, 3000]


def test_latency_targets_keep_the_choice_smaller(llama: ModelSize) -> None:
    free, held = planned(llama), planned(llama, tpot_ms=10.0)
    assert free.chosen is not None and held.chosen is not None
    assert held.chosen.tpot_ms <= 10.0 < free.chosen.tpot_ms
    assert held.fits and held.chosen.concurrency < free.chosen.concurrency
    assert [point.meets for point in held.points] == [point.tpot_ms <= 10.0 for point in held.points]


def test_targets_that_cannot_be_had_are_problems_by_name(llama: ModelSize) -> None:
    slow = planned(llama, "l4", concurrency=8, ttft_ms=1.0, tpot_ms=2.0)
    assert not slow.fits
    assert [problem.split()[0] for problem in slow.problems] == ["TTFT", "TPOT"]
    crowded = planned(llama, options=Options(kv_cache_memory=GIB), concurrency=100)
    assert crowded.limit == "kv cache" and "100 requests of 640 tokens need 4,100 blocks" in crowded.problems[0]
    assert f"kv_cache_memory={100 * 41 * crowded.block_bytes}" in crowded.knob
    assert crowded.chosen is not None and crowded.chosen.concurrency == crowded.max_concurrency == 12


@pytest.mark.parametrize(
    ("device", "options", "target", "limit", "said"),
    [
        ("l4", Options(), {}, "memory bandwidth", "reading"),
        ("rtx4090", Options(kv_cache_memory=16 * 131_072 * 10), {}, "kv cache", "needs 41 blocks, the cache has 10"),
        ("h100", Options(), {"prompt_tokens": 9000}, "context", "9,128 tokens, the model's context 8,192"),
    ],
)
def test_what_limits_is_named(
    llama: ModelSize, device: str, options: Options, target: dict[str, Any], limit: str, said: str
) -> None:
    made = planned(llama, device, options, concurrency=1, **target)
    assert made.limit == limit
    assert said in made.knob + " ".join(made.problems)
    assert made.fits == (limit == "memory bandwidth")


def test_weights_that_are_too_large_are_the_limit(llama: ModelSize) -> None:
    large = dataclasses.replace(llama, weight_bytes=140 * 10**9)
    made = planned(large, "h100")
    assert made.limit == "memory" and made.chosen is None and made.points == () and made.settings == {}
    assert "weights take 140.0 GB, H100 SXM has 72.0 GB" in made.problems[0]
    assert "problem" in made.table() and made.table().endswith("no")


def test_compute_is_the_limit_of_long_prompts_on_a_cpu(llama: ModelSize, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "available_memory_bytes", lambda: 64 * GIB)
    made = planned(tiny_size(), "cpu", concurrency=4)
    assert made.limit == "compute" and made.chosen is not None and made.chosen.bound == "products"
    assert made.roofline_batch == 9  # 10 ms of reading, 1 ms a layer row and 0.16 ms a head row


def test_costs_follow_from_the_hour(llama: ModelSize) -> None:
    made = planned(llama, concurrency=16, cost_per_hour=3.6)
    assert made.chosen is not None and made.chosen.cost_per_million_tokens is not None
    assert made.chosen.cost_per_million_tokens == pytest.approx(3.6 / 3600 / made.chosen.tokens_per_s * 1e6)
    assert planned(llama, concurrency=16).chosen.cost_per_million_tokens is None  # type: ignore[union-attr]
    assert "per M tokens" in made.table()


def test_its_settings_are_arguments_of_llm(llama: ModelSize) -> None:
    made = planned(llama, concurrency=16, options=Options("int8", "int8"))
    assert made.settings == {
        "max_num_seqs": 16, "max_num_batched_tokens": 2048, "kv_cache_memory": 16 * 41 * made.block_bytes,
        "block_size": 16, "kv_cache_dtype": "int8", "quantization": "int8",
    }  # fmt: skip
    assert set(made.settings) <= set(safegen.LLM.__init__.__annotations__)


@pytest.mark.parametrize(
    ("target", "field"),
    [
        ({"prompt_tokens": 0}, "prompt_tokens"),
        ({"output_tokens": 1.5}, "output_tokens"),
        ({"concurrency": True}, "concurrency"),
        ({"tpot_ms": -1.0}, "tpot_ms"),
        ({"tpot_ms": float("nan")}, "tpot_ms"),
        ({"context": 100}, "context"),
        ({"cached_tokens": 512}, "cached_tokens"),
        ({"tokens_per_forward": 0.5}, "tokens_per_forward"),
        ({"device": "abacus"}, "device"),
        ({"block_size": 0}, "block_size"),
        ({"quantization": "int3"}, "quantization"),
        ({"kv_cache_dtype": "int3"}, "kv_cache_dtype"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(tmp_path: Path, target: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        safegen.plan(folder(tmp_path, TINY), **{"device": "h100", **target})
    assert caught.value.field == field


def test_a_folder_with_a_config_alone_can_be_planned_for_here(tmp_path: Path) -> None:
    made = safegen.plan(folder(tmp_path, TINY), prompt_tokens=32, output_tokens=8)
    assert made.device.measured and made.chosen is not None and made.chosen.tokens_per_s > 0
    with pytest.raises(ModelLoadError):
        safegen.plan(tmp_path / "nothing", device="h100")


def test_the_command_prints_a_table_or_json_and_tells_by_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(folder(tmp_path, LLAMA_8B))
    assert main(["plan", path, "--device", "h100", "--concurrency", "32", "--cost-per-hour", "2.5"]) == OK
    shown = capsys.readouterr().out
    assert "H100 SXM: 3,350.0 GB/s" in shown and "published figures" in shown and "fits            yes" in shown
    assert main(["plan", path, "--device", "l4", "--tpot-ms", "1", "--json"]) == NOT_OK
    told = json.loads(capsys.readouterr().out)
    assert told["fits"] is False and told["problems"] and told["device"]["name"] == "L4"
    assert told["points"][0]["concurrency"] == 1 and told["target"]["tpot_ms"] == 1.0
    assert main(["plan", path, "--device", "h100", "--context", "5"]) == USER_MISTAKE
    assert "context" in capsys.readouterr().err


def test_the_example_that_the_page_works_through_comes_out_as_it_says(llama: ModelSize) -> None:
    page = (Path(__file__).parents[2] / "docs" / "capacity.md").read_text()
    target = {"prompt_tokens": 1000, "output_tokens": 250, "context": 4096, "cost_per_hour": 2.5}
    made = planned(llama, **target, concurrency=16)
    point = made.chosen
    assert point is not None and point.cost_per_million_tokens is not None
    reading_ms = (llama.layer_bytes + llama.head_bytes) / (0.8 * 3.35e12) * 1e3
    for text in (
        f"{llama.num_parameters / 1e6:,.0f} M parameters, {llama.weight_bytes / 1e9:.2f} GB",
        f"{made.kv_bytes_per_token:,} bytes, a block of 16\ntokens {made.block_bytes >> 20} MiB",
        f"activations of 2,048 rows {made.activation_bytes / 1e9:.1f}: {made.kv_cache_bytes / 1e9:.1f} GB are left, "
        f"{made.num_blocks:,} blocks",
        f"= {made.blocks_per_request} of them, so {made.max_concurrency} fit at once",
        f"{(llama.layer_bytes + llama.head_bytes) / 1e9:.1f} GB, and each request's context: {reading_ms:.1f} ms",
        f"They meet at {made.roofline_batch} rows",
        f"With B = 16: {point.tokens_per_s:,.0f} tokens a second, TPOT {point.tpot_ms:.1f} ms, "
        f"TTFT {point.ttft_ms:.0f} ms.",
        f"{point.tokens_per_s:,.0f} tokens a second {point.cost_per_million_tokens:.2f} for a million",
    ):
        assert text in page, text
