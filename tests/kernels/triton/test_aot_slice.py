"""A few launches compile for GPUs, in a process of their own: this one interprets. `make test-kernels` compiles all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(os.environ.get("SAFEGEN_KERNELS") == "1", reason="`make test-kernels` compiles all launches")
def test_some_launches_compile_for_sm_80_89_and_90() -> None:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "SAFEGEN_KERNELS")
    }
    command = [sys.executable, "-m", "pytest", "tests/kernels/triton/aot", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        command, cwd=ROOT, env=environment | {"SAFEGEN_TRITON_AOT": "1"}, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert "11 passed" in ran.stdout, ran.stdout[-2000:]
