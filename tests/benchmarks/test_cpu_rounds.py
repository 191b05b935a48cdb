"""What the benchmark makes of its values: names, best settings, medians, ratios, divergence, bandwidth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.bandwidth import BandwidthReader, last_level_cache_bytes
from benchmarks.common.cpu_rounds import (
    EngineRounds,
    bandwidth_fraction,
    measure_names,
    ratio_figures,
    speed_figures,
    wanted,
)
from benchmarks.common.cpu_workload import Prompt, Workload, decode_texts, exact_prompt, json_texts
from benchmarks.common.divergence import mean_kl, perplexity


def test_the_measures_are_those_that_the_figures_are_named_after() -> None:
    assert measure_names(quick=False) == [
        "prefill512", "decode.b1", "decode.b8", "decode.b16", "decode.b32", "json.b1", "json.b16", "ttft_ms",
    ]  # fmt: skip
    assert measure_names(quick=True) == ["prefill512", "decode.b1", "decode.b16", "json.b1", "json.b16", "ttft_ms"]


def test_an_engine_counts_with_the_median_of_its_best_setting() -> None:
    rounds = EngineRounds(["t2", "t1"])
    assert rounds.next_settings("decode.b1") == ["t2", "t1"]
    rounds.add(
        {"decode.b1": {"t2": [80.0, 90.0], "t1": [70.0, 200.0, 60.0]}, "ttft_ms": {"t2": [9.0], "t1": [7.0]}}, {}
    )
    assert rounds.best_setting("decode.b1") == "t2"
    assert rounds.best_setting("ttft_ms") == "t1"  # less is better
    assert rounds.next_settings("decode.b1") == ["t2"]
    assert rounds.next_settings("json.b1") == []  # it gave nothing in the first round: it cannot do it
    rounds.add({"decode.b1": {"t2": [70.0]}}, {})
    assert speed_figures("peer", rounds, ["decode.b1", "ttft_ms", "json.b1"]) == {
        "decode.b1.peer": 80.0,
        "ttft_ms.peer": 7.0,
    }


def test_memory_and_load_are_medians_of_the_rounds() -> None:
    rounds = EngineRounds(["cpu"], rss_mb=[260.0, 300.0, 270.0], load_s=[0.5, 0.25])
    assert speed_figures("safegen", rounds, []) == {"rss_mb.safegen": 270.0, "load_s.safegen": 0.375}


def test_ratios_are_ours_over_theirs_and_left_out_where_one_is_missing() -> None:
    figures = {
        "decode.b1.safegen": 180.0, "decode.b1.llamacpp_q4_1": 90.0, "decode.b16.safegen": 800.0,
        "json.b16.safegen": 880.0, "kl.safegen": 0.002, "kl.llamacpp_q4_1": 0.004, "json.b1.llamacpp_q4_1": 50.0,
    }  # fmt: skip
    assert ratio_figures(figures, ["llamacpp_q4_1", "transformers"]) == {
        "ratio.decode.b1.llamacpp_q4_1": 2.0,
        "ratio.kl.llamacpp_q4_1": 0.5,
        "ratio.json_over_decode.b16": 1.1,
    }


def test_a_target_says_what_is_wanted_and_whether_it_is_met() -> None:
    assert wanted("ratio.decode.b1.llamacpp_q4_1", 1.8) == ">= 1.8 ok"
    assert wanted("ratio.decode.b1.llamacpp_q4_1", 1.79) == ">= 1.8 MISSED"
    assert wanted("ratio.kl.llamacpp_q4_1", 1.2) == "<= 1.1 MISSED"
    assert wanted("rss_mb.safegen", 280.0) == "<= 300 ok"
    assert wanted("ratio.decode.b1.transformers", 1.0) == ""


def test_the_bandwidth_fraction_counts_every_weight_once_a_step() -> None:
    assert bandwidth_fraction(98_000_000, 150.0, 19.6e9) == pytest.approx(0.75)


def test_kl_and_perplexity_of_laws_that_are_known() -> None:
    half, quarter = np.log(np.array([[0.5, 0.5]])), np.log(np.array([[0.25, 0.75]]))
    reference = np.repeat(half, 130, axis=0).astype(np.float32) + 3  # logits: any constant may be added
    other = np.repeat(quarter, 130, axis=0).astype(np.float32)
    divergence, same = mean_kl(reference, other)
    assert divergence == pytest.approx(0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75), abs=1e-6)
    assert same == 0.0  # a tie goes to the first id, the other law prefers the second
    assert mean_kl(reference, reference) == (0.0, 1.0)
    with pytest.raises(ValueError, match="different shapes"):
        mean_kl(reference, other[:1])
    assert perplexity(other, [[0, 1] * 40, [1] * 50]) == pytest.approx(
        np.exp(-(40 * np.log(0.75) + 39 * np.log(0.25) + 49 * np.log(0.75)) / 128), rel=1e-6
    )


def test_a_prompt_is_filled_up_to_the_exact_number_of_tokens() -> None:
    def encode(text: str) -> list[int]:
        return [len(text)] + [len(word) for word in text.split() for _ in range(1 if len(word) < 4 else 3)]

    prompt = exact_prompt(["longer"] * 50, 10, encode)
    assert len(prompt.ids) == 10 and prompt.ids == encode(prompt.text) and prompt.text.count("longer") == 3
    with pytest.raises(ValueError, match="exactly 10"):
        exact_prompt(["longer"], 10, lambda text: [0] * (2 * len(text)))


def test_every_sequence_has_a_prompt_of_its_own_and_a_workload_survives_its_file(tmp_path: Path) -> None:
    assert len(set(decode_texts())) == 32 and len(set(json_texts())) == 16
    prompt = Prompt("hi", [1, 2])
    workload = Workload(prompt, [prompt], [prompt], {"type": "object"}, 4, 8, [[1, 2]], [0], ["", "68"])
    workload.save(tmp_path / "workload.json")
    assert Workload.load(tmp_path / "workload.json") == workload


def test_the_caches_are_read_as_the_system_writes_them(tmp_path: Path) -> None:
    for index, text in enumerate(("64K", "2048K", "32M")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{text}\n")
    assert last_level_cache_bytes(tmp_path) == 32 << 20
    assert last_level_cache_bytes(tmp_path / "absent") == 0


def test_the_bandwidth_is_that_of_real_memory() -> None:
    with BandwidthReader(threads=1) as reader:
        assert all(1e8 < bytes_per_s < 1e13 for bytes_per_s in reader.by_reader(seconds=0.05).values())
        assert 1e8 < reader.best(seconds=0.05) < 1e13
