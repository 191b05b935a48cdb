"""Every launch compiles for sm_80, sm_89 and sm_90, keeps its numbers in registers, and fits into shared memory."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from tests.kernels.triton.aot.compiled import SHARED_LIMIT, Launch, compiled, recorded
from tests.kernels.triton.aot.launches import Case, all_cases, attention_cases

ROOT = Path(__file__).parents[4]
QUICK = (
    "rms_norm torch.bfloat16 4096",
    "kv_write torch.int8 8x128",
    "attention q=torch.bfloat16 kv=torch.bfloat16 32/8x128 queries=1 splits=8",
)
CASES = [
    # sm_80 has no fp8 numbers: such caches and weights are refused there by name.
    pytest.param(
        case, capability, id=f"{case[0]} sm_{capability}", marks=[] if case[0] in QUICK else [pytest.mark.wide]
    )
    for case in all_cases()
    for capability in sorted(SHARED_LIMIT)
    if capability >= 89 or not ("fp8" in case[0] or "float8" in case[0])
]


@pytest.mark.parametrize(("case", "capability"), CASES)
def test_compiles_without_spills_and_within_shared_memory(case: Case, capability: int) -> None:
    launches = recorded(case[1])
    assert launches
    for launch in launches:
        usage = compiled(launch, capability)
        assert usage.stack_bytes == 0 and usage.local_bytes == 0, usage
        assert usage.shared_bytes <= SHARED_LIMIT[capability], usage


def launched_kernels(tree: ast.AST) -> set[str]:
    """Names of what the code launches: `kernel[grid](...)`, by whatever module it was reached."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    values = (call.value for call in calls if isinstance(call, ast.Subscript))
    return {ast.unparse(value).split(".")[-1] for value in values}


def test_every_kernel_that_is_launched_is_among_the_cases() -> None:
    jitted: set[str] = set()
    launched: set[str] = set()
    for path in (path for folder in ("kernels/triton", "engine") for path in (ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        launched |= launched_kernels(tree)
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        jitted |= {f.name for f in functions if any("triton.jit" in ast.unparse(d) for d in f.decorator_list)}
    listed = {launch.kernel.__name__ for _, case in all_cases() for launch in recorded(case)}
    named = {name for name in jitted if name.endswith("_kernel")}
    assert {"fsm_advance_kernel", "attention_kernel"} <= jitted & launched
    assert not ((jitted & launched) | named) - listed


@pytest.mark.wide
def test_random_numbers_are_of_unsigned_64_bit_words() -> None:
    """The interpreter proves the numbers, and these instructions that the compiled kernel makes the same ones."""
    ptx = compiled(recorded(dict(all_cases())["sample probs=False"])[0], 90).ptx
    assert ptx.count("mul.hi.u64") >= 18 and "mul.hi.s64" not in ptx and "shr.u64" in ptx


@triton.jit
def spilling_kernel(x, out, num_rounds, WIDTH: tl.constexpr):
    """Holds 512 numbers a thread through a loop that none of them can leave."""
    at = tl.arange(0, WIDTH)
    numbers = tl.load(x + at)
    for turn in range(num_rounds):
        numbers = numbers * numbers + turn
    tl.store(out + at, numbers)


def test_a_kernel_that_spills_is_seen() -> None:
    x = torch.zeros(16384)
    launch = Launch(spilling_kernel, {"x": x, "out": x, "num_rounds": 5, "WIDTH": 16384}, {"num_warps": 1})
    usage = compiled(launch, 90)
    assert usage.stack_bytes > 0 or usage.local_bytes > 0


@pytest.mark.wide
def test_decode_reads_keys_and_values_in_wide_asynchronous_copies() -> None:
    """Sixteen bytes a copy: else the masks or the block table would have cut the loads into single numbers. Two tiles
    of 16 KiB take 16 copies of each of 128 threads, before the loop at least once and once inside it."""
    name = "attention q=torch.bfloat16 kv=torch.bfloat16 32/8x128 queries=1 splits=8"
    launch = recorded(dict(attention_cases())[name])[0]
    for capability in (80, 90):
        ptx = compiled(launch, capability).ptx
        sizes = re.findall(r"cp\.async\.c[ag]\.shared\.global \[.*?\], \[.*?\], (0x\w+)", ptx)
        assert sizes.count("0x10") >= 32 and set(sizes) <= {"0x10", "0x4"}, sizes
