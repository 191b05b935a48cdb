"""Settings, threads and forks of the CPU kernels."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from safegen.kernels import cpu
from safegen.kernels.api import ops
from safegen.kernels.cpu import CpuOps
from tests.kernels.cpu_cases import make_weight, randn, threads

OPS = CpuOps()


def test_ops_finds_the_backend_by_name() -> None:
    assert isinstance(ops("cpu"), CpuOps)


def test_the_default_is_at_most_one_thread_for_each_usable_cpu() -> None:
    assert 1 <= cpu.num_threads() <= len(os.sched_getaffinity(0))


def test_settings_are_read_back_and_wrong_ones_refused() -> None:
    with threads(5):
        assert cpu.num_threads() == 5
    for wrong in (0, -1, 257):
        with pytest.raises(ValueError, match=r"threads: must be in \[1, 256\]"):
            cpu.set_num_threads(wrong)
    with pytest.raises(ValueError, match='"sse9" is not an instruction set of this processor'):
        cpu.set_isa("sse9")


def test_four_python_threads_get_the_right_bits_at_once() -> None:
    weights = [OPS.prepare(make_weight("q4_1", 300, 576, seed=s)[0]) for s in range(4)]
    x = randn(9, 576)
    expected = [OPS.linear(x, weight) for weight in weights]

    def work(which: int) -> bool:
        return all(torch.equal(OPS.linear(x, weights[which]), expected[which]) for _ in range(200))

    with threads(3), ThreadPoolExecutor(4) as executor:
        assert all(executor.map(work, range(4)))


def test_results_do_not_depend_on_the_callers_denormal_mode() -> None:
    weight = make_weight("f32", 400, 64)[0]
    x = randn(8, 64) * 1e-38
    expected = OPS.linear(x, weight)
    try:
        supported = torch.set_flush_denormal(True)
        assert torch.equal(OPS.linear(x, weight), expected)
    finally:
        torch.set_flush_denormal(False)
    assert not supported or expected.count_nonzero() > 0


def test_a_forked_child_computes_with_threads_of_its_own() -> None:
    script = textwrap.dedent("""
        import os, torch
        from safegen.kernels import cpu
        from tests.kernels.cpu_cases import make_weight, randn
        cpu.set_num_threads(2)
        ops, x, weight = cpu.CpuOps(), randn(40, 512), make_weight("q4_k", 300, 512)[0]
        expected = ops.linear(x, weight)
        for _ in range(3):
            child = os.fork()
            if child == 0:
                same = all(torch.equal(ops.linear(x, weight), expected) for _ in range(20))
                tasks = len(os.listdir("/proc/self/task"))
                os._exit(0 if same and tasks == 2 else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert torch.equal(ops.linear(x, weight), expected)
        print("forked")
    """)
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("counts threads by /proc")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=environment)
    assert run.stdout == "forked\n", run.stderr
