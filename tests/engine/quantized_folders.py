"""Quantized checkpoints written from their published layouts, apart from the code that reads them.

`save` writes a transformers model as a quantized folder and puts the numbers that the files now stand for back into the
model, in fp32. Digits, zero points and scales are drawn, not fitted: what a layout can hold, a test should meet.
Packing is by Python integers, one word at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

AUTOAWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble i of a word holds number AUTOAWQ_ORDER[i] of its eight
IN_ORDER = tuple(range(8))


@dataclass(frozen=True)
class Stored:
    """tensors: by the last part of their names. numbers: fp32 [out, in], what they stand for."""

    tensors: dict[str, Tensor]
    numbers: Tensor


Quantize = Callable[[Tensor, torch.Generator], Stored]
Choose = Callable[[str], Quantize | None]


def layers(quantize: Quantize) -> Choose:
    return lambda name: quantize if name.endswith("_proj.weight") else None


def save(model: Any, folder: Path, choose: Choose, settings: dict[str, Any] | None) -> None:
    """choose: how the weight of that name is quantized; None stores fp16. settings: the `quantization_config`."""
    random = torch.Generator().manual_seed(7)
    tensors: dict[str, Tensor] = {}
    state = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    for name, weight in state.items():
        quantize = choose(name) if name.endswith(".weight") else None
        if quantize is not None:
            stored = quantize(weight, random)
            module = name.removesuffix("weight")
            tensors |= {module + part: tensor.contiguous() for part, tensor in stored.tensors.items()}
            numbers = stored.numbers
        else:
            tensors[name] = weight.half().contiguous()
            numbers = tensors[name].float()
        with torch.no_grad():
            weight.copy_(numbers)
    model.config.save_pretrained(folder)
    if settings is not None:
        edit_config(folder, quantization_config=settings)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def words(rows: Tensor, bits: int = 4, order: Sequence[int] = IN_ORDER) -> Tensor:
    """[rows, numbers] -> int32 words along the numbers, the last one filled up with zeros."""
    each = 32 // bits
    packed = []
    for row in rows.tolist():
        row += [0] * (-len(row) % each)
        parts = [row[start : start + each] for start in range(0, len(row), each)]
        values = [sum(part[order[i] if each == 8 else i] << (bits * i) for i in range(each)) for part in parts]
        packed.append([value - 2**32 if value >= 2**31 else value for value in values])
    return torch.tensor(packed, dtype=torch.int32)


def draw(random: torch.Generator, low: int, high: int, *shape: int) -> Tensor:
    """Integers low .. high."""
    return torch.randint(low, high + 1, shape, generator=random)


def draw_scales(random: torch.Generator, *shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return (torch.rand(shape, generator=random) * 0.02 + 0.01).to(dtype)


def _times(digits: Tensor, zeros: Tensor, scales: Tensor, group_of: Tensor) -> Tensor:
    """digits [out, in]; zeros and scales [out, groups]."""
    return (digits - zeros[:, group_of]).float() * scales.float()[:, group_of]


def gptq(group: int, *, bits: int = 4, version: int = 1, act_order: bool = False, symmetric: bool = False) -> Quantize:
    """As AutoGPTQ packs: qweight along the inputs, qzeros (v1: less one) along the outputs, both in order."""

    def quantize(weight: Tensor, random: torch.Generator) -> Stored:
        outputs, inputs = weight.shape
        groups = 1 if group == -1 else inputs // group
        most = (1 << bits) - 1
        digits = draw(random, 0, most, outputs, inputs)
        zeros = draw(random, 1, most, outputs, groups)  # v1 has no room for a zero of 0
        if symmetric:
            zeros = torch.full_like(zeros, (most + 1) // 2)
        scales = draw_scales(random, outputs, groups) * (2.0 ** (4 - bits))
        group_of = torch.arange(inputs) // (inputs if group == -1 else group)
        if act_order:
            group_of = group_of[torch.randperm(inputs, generator=random)]
        stored = {
            "qweight": words(digits, bits).T,
            "qzeros": words((zeros - int(version == 1)).T, bits),
            "scales": scales.T,
            "g_idx": group_of.int(),
        }
        return Stored(stored, _times(digits, zeros, scales, group_of))

    return quantize


def awq(group: int) -> Quantize:
    """As AutoAWQ packs for "gemm": everything along the outputs, interleaved."""

    def quantize(weight: Tensor, random: torch.Generator) -> Stored:
        outputs, inputs = weight.shape
        groups = 1 if group == -1 else inputs // group
        digits, zeros = draw(random, 0, 15, outputs, inputs), draw(random, 0, 15, outputs, groups)
        scales = draw_scales(random, outputs, groups)
        stored = {
            "qweight": words(digits.T, order=AUTOAWQ_ORDER),
            "qzeros": words(zeros.T, order=AUTOAWQ_ORDER),
            "scales": scales.T,
        }
        return Stored(stored, _times(digits, zeros, scales, torch.arange(inputs) // (inputs // groups)))

    return quantize


def fp8(layout: str, block: tuple[int, int] = (16, 32), *, static: bool = False, inverse: bool = False) -> Quantize:
    """layout: "tensor" (a scale without dimensions), "row" ([out, 1]) or "block"."""

    def quantize(weight: Tensor, random: torch.Generator) -> Stored:
        outputs, inputs = weight.shape
        digits = (torch.randn(weight.shape, generator=random) * 60).clamp(-448, 448).to(torch.float8_e4m3fn)
        high, wide = {"tensor": (outputs, inputs), "row": (1, inputs), "block": block}[layout]
        shape = (-(-outputs // high), -(-inputs // wide))
        scales = draw_scales(random, *shape, dtype=torch.float32) * 0.1
        spread = scales.repeat_interleave(high, 0)[:outputs].repeat_interleave(wide, 1)[:, :inputs]
        name = "weight_scale_inv" if inverse else "weight_scale"
        stored = {"weight": digits, name: scales.reshape(()) if layout == "tensor" else scales}
        if static:
            stored["input_scale"] = torch.tensor(0.5)
        return Stored(stored, digits.float() * spread)

    return quantize


def int8(layout: str, group: int = 32, *, symmetric: bool = True, dtype: torch.dtype = torch.bfloat16) -> Quantize:
    """compressed-tensors' int-quantized. layout: "tensor", "row" or "group"."""

    def quantize(weight: Tensor, random: torch.Generator) -> Stored:
        outputs, inputs = weight.shape
        digits = draw(random, -128, 127, outputs, inputs).to(torch.int8)
        shape = {"tensor": (1, 1), "row": (outputs, 1), "group": (outputs, inputs // group)}[layout]
        scales = draw_scales(random, *shape, dtype=dtype) * 0.1
        zeros = draw(random, -20, 20, *shape).to(torch.int8)
        if symmetric:
            zeros.zero_()
        group_of = torch.arange(inputs) // (group if layout == "group" else inputs)
        numbers = _times(digits.int(), zeros.int().expand(outputs, -1), scales.expand(outputs, -1), group_of)
        stored = {"weight": digits, "weight_scale": scales.reshape(1) if layout == "tensor" else scales}
        if not symmetric:
            stored["weight_zero_point"] = zeros.reshape(1) if layout == "tensor" else zeros
        return Stored(stored, numbers)

    return quantize


def packed(group: int, *, bits: int = 4, symmetric: bool = True, act_order: bool = False) -> Quantize:
    """compressed-tensors' pack-quantized: digits about their middle along the inputs, zero points along the outputs."""

    def quantize(weight: Tensor, random: torch.Generator) -> Stored:
        outputs, inputs = weight.shape
        middle, groups = 1 << (bits - 1), 1 if group == -1 else inputs // group
        digits = draw(random, -middle, middle - 1, outputs, inputs)
        zeros = draw(random, -middle, middle - 1, outputs, groups) * int(not symmetric)
        scales = draw_scales(random, outputs, groups, dtype=torch.bfloat16) * (2.0 ** (4 - bits))
        group_of = torch.arange(inputs) // (inputs // groups)
        if act_order:
            group_of = group_of[torch.randperm(inputs, generator=random)]
        stored = {
            "weight_packed": words(digits + middle, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor([outputs, inputs]),
        }
        if not symmetric:
            stored["weight_zero_point"] = words((zeros + middle).T, bits).T
        if act_order:
            stored["weight_g_idx"] = group_of.int()
        return Stored(stored, _times(digits, zeros, scales, group_of))

    return quantize


def compressed(layout: str, weights: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """A `quantization_config` as llm-compressor writes it, with one group of all linears."""
    group = {"targets": ["Linear"], "weights": {"dynamic": False, "observer": "minmax", **weights}}
    return {
        "quant_method": "compressed-tensors", "format": layout, "quantization_status": "compressed",
        "config_groups": {"group_0": {**group, "input_activations": None, "output_activations": None}},
        "ignore": ["lm_head", "re:(a+)+$"], "kv_cache_scheme": None, **settings,
    }  # fmt: skip
