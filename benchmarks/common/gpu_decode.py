"""Tokens a second of the engine on a GPU: free text, masks filled by the host, and tables on the device.

A process of its own for each model: it prints one JSON object. Constrained text is held to `[a-z ]+`, once by the
native matcher, whose rows the host uploads each step, and once by its table; the two are the same language.

    python -m benchmarks.common.gpu_decode --model llama-3-8b --batches 1,64
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.common.gpu_models import random_model, vocabulary_bytes
from safegen.engine.config import EngineConfig
from safegen.engine.core import EngineCore
from safegen.engine.gpu.device import CudaDevice
from safegen.engine.gpu.runner import GpuRunner
from safegen.engine.request import Request, SamplingParams
from safegen.grammars.fsm import compile_fsm
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.options import Limits
from safegen.grammars.regex import compile_regex
from safegen.grammars.vocabulary import Vocabulary

MODES = ("free", "host_mask", "fsm")
PATTERN = "[a-z ]+"
PROMPT_TOKENS, OUTPUT_TOKENS = 32, 128


class Constraints:
    """One language, as the matcher and as a table."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._program = compile_regex(PATTERN)
        self._fsm = compile_fsm(PATTERN, self._program, Limits())

    def fresh(self, mode: str) -> Any:
        if mode == "free":
            return None
        if mode == "fsm":
            return self._fsm.constraint(self._vocabulary)
        return NativeConstraint(self._program, self._vocabulary)


def requests(mode: str, count: int, constraints: Constraints, output_tokens: int, vocab_size: int) -> list[Request]:
    params = SamplingParams(max_tokens=output_tokens)
    return [
        Request(
            request_id=f"{mode}-{number}",
            prompt_ids=tuple((number * 131 + place * 17) % (vocab_size - 300) + 257 for place in range(PROMPT_TOKENS)),
            constraint=constraints.fresh(mode),
            cache_salt=None,
            params=params,
            stop_ids=frozenset(),
        )
        for number in range(count)
    ]


def decode_rate(core: EngineCore, asked: list[Request]) -> float:
    """Tokens a second from the moment that every sequence has its first token."""
    before = core.stats().output_tokens
    for each in asked:
        core.add(each)
    while core.has_work and core.stats().output_tokens - before < len(asked):
        core.step()
    started_s, first = time.perf_counter(), core.stats().output_tokens
    while core.has_work:
        core.step()
    return (core.stats().output_tokens - first) / (time.perf_counter() - started_s)


def measure(
    core: EngineCore, batches: Sequence[int], constraints: Constraints, *, output_tokens: int, rounds: int
) -> dict[str, float]:
    """`b<N>.<mode>`: the median of the rounds, modes in turns; one round before them is not counted."""
    figures: dict[str, float] = {}
    vocab_size = core.door.vocab_size
    for batch in batches:
        rates: dict[str, list[float]] = {mode: [] for mode in MODES}
        for number in range(rounds + 1):
            for mode in MODES if number % 2 else reversed(MODES):
                rate = decode_rate(core, requests(mode, batch, constraints, output_tokens, vocab_size))
                if number:
                    rates[mode].append(rate)
        figures |= {f"b{batch}.{mode}": statistics.median(found) for mode, found in rates.items()}
    return figures


def cuda_core(name: str, most: int, *, deterministic: bool = False) -> tuple[EngineCore, Vocabulary]:
    from safegen.kernels.triton.ops import TritonOps

    kernels = TritonOps(device="cuda", deterministic=deterministic)
    model = random_model(name, kernels, torch.device("cuda"))
    runner = GpuRunner(model, kernels, CudaDevice(), torch.bfloat16, max_num_batched_tokens=max(8192, most))
    texts = vocabulary_bytes(model.config.vocab_size)
    config = EngineConfig(max_num_seqs=most, max_num_batched_tokens=max(8192, most), enable_prefix_caching=False)
    return EngineCore(runner, texts, config), Vocabulary(texts, [len(texts) - 1])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--batches", default="1,8,64,256")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    batches = [int(batch) for batch in options.batches.split(",")]
    core, vocabulary = cuda_core(options.model, max(batches))
    found = measure(core, batches, Constraints(vocabulary), output_tokens=OUTPUT_TOKENS, rounds=options.rounds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
