"""FP8 checkpoints with `quant_method: "fp8"`: e4m3 weights beside the scales that they are multiplied with.

    weight            float8_e4m3fn [out, in]
    weight_scale_inv  [ceil(out / 128), ceil(in / 128)], scales of blocks (DeepSeek, Qwen; its name to the contrary)
    weight_scale      one scale, or one an output ([out] or [out, 1]), where there are no blocks

Scales of activations (`input_scale`, `activation_scale`), of keys and of values are left out: activations are computed
with as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from safegen.engine.models.config import Fields
from safegen.engine.quantized.base import FLOATS, StoredTensors, read_grid
from safegen.kernels.api import Scales, Weight

ACTIVATION_SCALES = re.compile(r"\.(input|activation|output|q|k|v|kv)_(scale|zero_point)$")


@dataclass(frozen=True, slots=True)
class Fp8:
    """block: (outputs, inputs) of a scale, None: one scale of all, or one an output."""

    block: tuple[int, int] | None
    method: str = "fp8"
    stored_bits: int = 8
    block_kind: str = "f16"

    def read(self, tensors: StoredTensors, module: str, shape: tuple[int, int]) -> Weight | None:
        name = f"{module}.weight"
        if tensors.holds(name) and tensors.dtype(name) != "F8_E4M3":
            return None
        digits = tensors.tensor(name, ("F8_E4M3",), [shape])
        inverse = f"{module}.weight_scale_inv"
        scale = inverse if self.block or tensors.holds(inverse) else f"{module}.weight_scale"
        grid = read_grid(tensors, scale, FLOATS, shape, [self.block] if self.block else ())
        return Weight("fp8", shape, digits, None, Scales(*grid))

    def is_unused(self, name: str) -> bool:
        return ACTIVATION_SCALES.search(name) is not None


def fp8_format(fields: Fields) -> Fp8:
    number_format = fields.text("fmt", "e4m3")
    if number_format not in ("e4m3", "float8_e4m3fn"):
        fields.fail("fmt", f"is {number_format!r}; served is 'e4m3'", "use an e4m3 checkpoint")
    scheme = fields.text("activation_scheme", "dynamic")
    if scheme not in ("dynamic", "static"):
        fields.fail("activation_scheme", f"is {scheme!r}; it must be 'dynamic' or 'static'")
    block = fields.get("weight_block_size")
    if block is None:
        return Fp8(None)
    if not isinstance(block, list) or len(block) != 2 or not all(type(size) is int and size > 0 for size in block):
        fields.fail("weight_block_size", f"must be two positive integers, found {block!r}")
    return Fp8((block[0], block[1]))


__all__ = ["ACTIVATION_SCALES", "Fp8", "fp8_format"]
