"""What the launching code asks of the device and of tensors."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from safegen.kernels.triton import runtime


def test_fp8_on_a_gpu_without_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(ValueError, match=r"cache\.key: fp8 needs a GPU of sm_89 or newer, this one is sm_86"):
        runtime.check_fp8(torch.float8_e4m3fn, gpu, "cache.key")
    runtime.check_fp8(torch.int8, gpu, "cache.key")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    runtime.check_fp8(torch.float8_e4m3fn, gpu, "cache.key")


def test_tiles_are_powers_of_two() -> None:
    assert [runtime.power_of_two(n) for n in (0, 1, 2, 3, 80, 128, 129)] == [1, 1, 2, 4, 128, 128, 256]
    assert runtime.power_of_two(3, 16) == 16


def test_the_kernels_and_their_twins_import_without_the_native_extension() -> None:
    code = (
        "import sys; sys.modules['safegen._native'] = None\n"
        "import safegen.kernels.triton.attention, safegen.kernels.triton.linear_int4, safegen.kernels.triton.verify\n"
        "from safegen.kernels.reference import fused, linears, sampling\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
