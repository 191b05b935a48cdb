"""GPTQ checkpoints (arXiv 2210.17323), as AutoGPTQ and GPTQModel write them: 4 or 8 bits along the inputs.

    qweight  int32 [in * bits / 32, out]      digits of neighbouring inputs, the first in the lowest bits
    qzeros   int32 [groups, out * bits / 32]  zero points of neighbouring outputs; v1 stores the zero less one
    scales   [groups, out]
    g_idx    int32 [in]                       the group of each input; with act-order not in order

number = (digit - zero) * scale. Whether a file is v1 or v2 is in its config, which is wrong at times; a symmetric
checkpoint tells by itself, since its zero is the middle: stored 7 (8 bits: 127) is v1, 8 (128) is v2. A v1 zero of 15
stands for 16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from safegen.engine.models.config import Fields
from safegen.engine.quantized.base import FLOATS, StoredTensors, group_count, group_of_inputs, is_plain, signed
from safegen.kernels.api import Scales, Weight
from safegen.kernels.int4 import unpack_words

_VERSIONS = {"gptq": 1, "gptq_v2": 2}


@dataclass(frozen=True, slots=True)
class Gptq:
    """version: what the config says. group: inputs of a group, -1 is all."""

    bits: int
    group: int
    version: int
    is_symmetric: bool
    needs_order: bool
    method: str = "gptq"

    @property
    def stored_bits(self) -> int:
        return self.bits

    @property
    def block_kind(self) -> str:
        if self.bits == 8:
            return "q8_0" if self.is_symmetric else "f16"
        return "q4_0" if self.is_symmetric else "q5_0"

    def read(self, tensors: StoredTensors, module: str, shape: tuple[int, int]) -> Weight | None:
        if is_plain(tensors, module, "qweight"):
            return None
        (num_outputs, num_inputs), per_word = shape, 32 // self.bits
        for count, what in ((num_outputs, "outputs"), (num_inputs, "inputs")):
            if count % per_word:
                hint = "the config is of another model; download config and weights again"
                tensors.refuse(f"{module}.qweight", f"{count} {what} are no whole number of words of {per_word}", hint)
        groups, group = group_count(tensors, f"{module}.scales", num_inputs, self.group)
        words = tensors.tensor(f"{module}.qweight", ("I32",), [(num_inputs // per_word, num_outputs)])
        stored_zeros = tensors.tensor(f"{module}.qzeros", ("I32",), [(groups, num_outputs // per_word)])
        scale = tensors.tensor(f"{module}.scales", FLOATS, [(groups, num_outputs)])
        group_of = None
        if tensors.holds(f"{module}.g_idx") or self.needs_order:
            group_of = group_of_inputs(tensors, f"{module}.g_idx", num_inputs, groups, group)
        zeros = unpack_words(stored_zeros, self.bits).to(torch.int16)
        zeros += 1 if self._version(zeros) == 1 else 0
        digits = signed(unpack_words(words.T, self.bits), zeros.T, group, group_of)
        kind = "int4" if self.bits == 4 else "int8"
        return Weight(kind, shape, digits, None, Scales(scale.T.contiguous(), group, group_of))

    def is_unused(self, name: str) -> bool:
        return False

    def _version(self, stored_zeros: Tensor) -> int:
        middle = 1 << (self.bits - 1)
        if self.is_symmetric and bool((stored_zeros == stored_zeros.flatten()[0]).all()):
            found = int(stored_zeros.flatten()[0])
            if found in (middle - 1, middle):
                return 1 if found == middle - 1 else 2
        return self.version


def gptq_format(fields: Fields) -> Gptq:
    """From the config's `quantization_config`, or an old quantize_config.json."""
    bits, group = fields.integer("bits"), fields.integer("group_size", 128)
    if bits not in (4, 8):
        fields.fail("bits", f"is {bits}; served are 4 and 8", "use a checkpoint of 4 or 8 bits")
    if group != -1 and group < 1:
        fields.fail("group_size", f"is {group}; it must be positive, or -1 for one group a row")
    _refuse_other_layouts(fields)
    name = "checkpoint_format" if fields.get("checkpoint_format") is not None else "format"
    layout = fields.text(name, "gptq")
    if layout not in _VERSIONS:
        _other_layout(fields, name, layout)
    needs_order = fields.flag("desc_act", False) and not fields.flag("static_groups", False) and group != -1
    return Gptq(bits, group, _VERSIONS[layout], fields.flag("sym", True), needs_order)


def _refuse_other_layouts(fields: Fields) -> None:
    if fields.flag("is_marlin_format", False):
        _other_layout(fields, "is_marlin_format", True)
    pack_dtype = fields.text("pack_dtype", "int32")
    if pack_dtype != "int32":
        _other_layout(fields, "pack_dtype", pack_dtype)
    overrides = fields.section("dynamic")
    added = [] if overrides is None else [rule for rule in overrides.values if not rule.startswith("-:")]
    if added:
        fields.fail("dynamic", f"gives some modules bits of their own ({added[0]!r})", "use a checkpoint without it")


def _other_layout(fields: Fields, name: str, value: object) -> NoReturn:
    served = "served is the layout of AutoGPTQ and GPTQModel, 'gptq' or 'gptq_v2' in int32 words"
    fields.fail(name, f"is {value!r}; {served}", "use the checkpoint before it was repacked for one GPU kernel")


__all__ = ["Gptq", "gptq_format"]
