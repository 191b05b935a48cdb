"""Compiles a launch for a GPU that is not here, and reads what it takes from the binary.

`recorded` runs the launching code with CPU tensors while Triton's launch is replaced by a note of its arguments, so
what is compiled is what would have been launched: types, constants, and what Triton specialises on (pointers and
integers that 16 divides, integers that are 1). Registers, stack and spills are read from the binary by cuobjdump.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

SHARED_LIMIT = {80: 166_912, 89: 101_376, 90: 232_448}  # bytes a program may have (CUDA C++ Programming Guide)
_TYPES = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float64: "*fp64",
    torch.int8: "*i8", torch.uint8: "*u8", torch.int32: "*i32", torch.int64: "*i64", torch.bool: "*i1",
    torch.float8_e4m3fn: "*fp8e4nv",
}  # fmt: skip
_OPTIONS = ("num_warps", "num_stages")


@dataclass
class Launch:
    """A kernel with its arguments by name, constants included, and its options."""

    kernel: JITFunction
    arguments: dict[str, Any]
    options: dict[str, int]


@dataclass(frozen=True)
class Usage:
    registers: int
    stack_bytes: int
    local_bytes: int
    shared_bytes: int
    ptx: str = field(repr=False)


def recorded(launch: Callable[[], Any]) -> list[Launch]:
    """The launches that the call makes."""
    launches: list[Launch] = []

    def note(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
        launches.append(Launch(self, dict(zip(self.arg_names, args)) | kwargs, options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", note)
        launch()
    return launches


def compiled(launch: Launch, capability: int) -> Usage:
    kernel = triton.compile(_source(launch), target=GPUTarget("cuda", capability, 32), options=launch.options)
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(kernel.asm["cubin"])
        tool = triton.knobs.nvidia.cuobjdump.path
        text = subprocess.run([tool, "-res-usage", str(binary)], capture_output=True, text=True, check=True)
    return _usage(text.stdout + text.stderr, kernel.metadata.shared, kernel.asm["ptx"])


def _usage(text: str, shared_bytes: int, ptx: str) -> Usage:
    numbers = [int(re.search(rf"{name}:(\d+)", text)[1]) for name in ("REG", "STACK", "LOCAL")]  # type: ignore[index]
    return Usage(*numbers, shared_bytes, ptx)


def _source(launch: Launch) -> ASTSource:
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[tuple[str, int]]] = {}
    for place, (name, parameter) in enumerate(zip(launch.kernel.arg_names, launch.kernel.params)):
        value = launch.arguments[name]
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):
            signature[name], constants[(place,)] = "constexpr", value
        elif torch.is_tensor(value):
            signature[name] = _TYPES[value.dtype]
            attributes[(place,)] = [("tt.divisibility", 16)]  # as allocations on a GPU have it
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
            if isinstance(value, int) and value % 16 == 0:
                attributes[(place,)] = [("tt.divisibility", 16)]
    return ASTSource(launch.kernel, signature, constants, attributes)
