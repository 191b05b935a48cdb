"""The engine on the device, in real graphs: the tokens of the plain runner, alone or in company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from safegen import LLM, Choice, JsonSchema, Regex
from safegen.engine.gpu.device import CudaDevice
from safegen.engine.gpu.runner import GpuRunner
from safegen.engine.models.layers import Decoder
from safegen.engine.models.loader import load_model
from safegen.engine.request import Request
from safegen.engine.runner import ModelRunner
from safegen.errors import CapacityError
from tests.engine.gpu.test_gpu_runner import SETTINGS, core_over, decoding
from tests.engine.test_core import mixed_requests, tokens
from tests.engine.test_device_steps import tabled
from tests.support.drafters import cheating_speculator
from tests.support.engine_driver import drive
from tests.support.engine_driver import make_request as request


def gpu_runner(folder: Path, *, dtype: torch.dtype = torch.float32, **options: Any) -> GpuRunner:
    from safegen.kernels.triton.ops import TritonOps

    kernels = TritonOps(dtype=dtype, **options)
    model = load_model(folder, kernels, device="cuda")
    assert isinstance(model, Decoder)
    return GpuRunner(model, kernels, CudaDevice(), dtype, max_num_batched_tokens=64)


@pytest.mark.parametrize("with_tables", [False, True], ids=["masks", "tables"])
@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_of_the_plain_runner(folder: Path, plain: ModelRunner, name: str, with_tables: bool) -> None:
    wanted = tokens(drive(core_over(plain, **SETTINGS[name]), mixed_requests(7, 12)))
    asked = [tabled(each) if with_tables else each for each in mixed_requests(7, 12)]
    assert tokens(drive(core_over(gpu_runner(folder), **SETTINGS[name]), asked)) == wanted


def test_forwards_launched_ahead_give_the_same_tokens(folder: Path, plain: ModelRunner) -> None:
    def asked() -> list[Request]:
        held = [request(f"c{n}", [n + 1], constrained=True, max_tokens=24, seed=n, temperature=2.0) for n in range(4)]
        return [*decoding(4, stop_ids=range(8)), *map(tabled, held)]

    wanted = tokens(drive(core_over(plain), asked()))
    core = core_over(gpu_runner(folder))
    assert tokens(drive(core, asked())) == wanted
    assert core._on_device is not None and core._on_device.num_drawn_ahead > 4


def test_drafts_are_verified_in_graphs(folder: Path, plain: ModelRunner) -> None:
    def drafted(backend: Any) -> Any:
        return core_over(backend, num_blocks=200, speculator=cheating_speculator(3))

    got = tokens(drive(drafted(gpu_runner(folder)), mixed_requests(3, 8)))
    assert got == tokens(drive(drafted(plain), mixed_requests(3, 8)))


def test_deterministic_rows_have_the_same_bits_in_any_company(folder: Path) -> None:
    def run(**settings: Any) -> tuple[Any, Any]:
        runner = gpu_runner(folder, dtype=torch.bfloat16, deterministic=True)
        outcomes = drive(core_over(runner, num_blocks=200, **settings), decoding(8, logprobs=0))
        return tokens(outcomes), {key: [each.raw for each in got.logprobs] for key, got in outcomes.items()}

    alone = run(max_num_seqs=1)
    assert run() == alone
    assert run(max_num_seqs=3, max_num_batched_tokens=4, enable_prefix_caching=False) == alone


def test_the_default_model_answers_by_its_types() -> None:
    with LLM(device="cuda", gpu_memory_utilization=0.2) as llm:
        asked: list[tuple[str, Any]] = [
            ("Is water wet?", Choice(["yes", "no"])),
            ("A year?", Regex(r"\d{4}")),
            ("A person?", JsonSchema({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}},
                                      "required": ["name"], "additionalProperties": False})),
            ("Say something.", None),
        ] * 4  # fmt: skip
        results = llm.batch(asked, max_tokens=40)
    assert [result.status for result in results if result.status not in ("ok", "truncated")] == []


def test_a_device_too_full_is_a_capacity_error() -> None:
    with pytest.raises(CapacityError, match=r"gpu_memory_utilization=0\.001"):
        LLM(device="cuda", gpu_memory_utilization=0.001)
