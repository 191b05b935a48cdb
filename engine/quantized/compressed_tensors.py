"""Checkpoints in the compressed-tensors layouts (llm-compressor, the FP8, W8A8 and W4A16 models of several hubs).

    int-quantized, float-quantized, naive-quantized
        weight             int8 or float8_e4m3fn [out, in]
        weight_scale       one, or [out, 1], or [out, groups], or one a block [ceil(out / high), ceil(in / wide)]
        weight_zero_point  like the scales, where not symmetric
    pack-quantized, 4 or 8 bits about their middle (digit + 8, or + 128)
        weight_packed      int32 [out, in * bits / 32], neighbouring inputs, the first in the lowest bits
        weight_scale       [out, groups]
        weight_zero_point  int32 [out * bits / 32, groups], packed along the outputs, where not symmetric
        weight_shape       [2]
        weight_g_idx       int32 [in], with act-order

number = (digit - zero point) * scale. A model may mix them: `config_groups` says which occur, and each module's tensors
which of them it is. Quantized activations are a matter of speed elsewhere: they are computed with as they are here, and
their scales, as those of a quantized cache, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from safegen.engine.models.config import Fields
from safegen.engine.quantized.base import FLOATS, StoredTensors, group_of_inputs, read_grid, signed
from safegen.engine.quantized.fp8 import ACTIVATION_SCALES
from safegen.kernels.api import Scales, Weight
from safegen.kernels.int4 import unpack_words

_LAYOUTS = ("int-quantized", "float-quantized", "naive-quantized", "pack-quantized")
_STRATEGIES = ("tensor", "channel", "group", "block")
_DTYPES = {"I8": "int", "F8_E4M3": "float"}
_ANY_ZERO = ("I8", "F8_E4M3", "F16", "BF16", "F32")  # of fp8 weights, which older versions store though it is zero
_OTHER_MODEL = "config and weights are of different models; download both again"


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """What one of the config's groups says of its weights. block: (outputs, inputs) of a scale, for that strategy."""

    layout: str
    kind: str
    bits: int
    is_symmetric: bool
    group: int | None
    block: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    schemes: tuple[WeightScheme, ...]
    method: str = "compressed-tensors"

    @property
    def stored_bits(self) -> int:
        return self.schemes[0].bits

    @property
    def block_kind(self) -> str:
        first = self.schemes[0]
        if first.kind == "float":
            return "f16"
        return "q8_0" if first.bits == 8 else "q4_0" if first.is_symmetric else "q5_0"

    def read(self, tensors: StoredTensors, module: str, shape: tuple[int, int]) -> Weight | None:
        name = f"{module}.weight"
        if tensors.holds(name):
            return self._read_digits(tensors, module, shape) if tensors.dtype(name) in _DTYPES else None
        if not any(scheme.layout == "pack-quantized" for scheme in self.schemes):
            return self._read_digits(tensors, module, shape)  # which names the missing tensor
        return self._read_packed(tensors, module, shape)

    def is_unused(self, name: str) -> bool:
        return ACTIVATION_SCALES.search(name) is not None

    def _read_digits(self, tensors: StoredTensors, module: str, shape: tuple[int, int]) -> Weight:
        plain = [scheme for scheme in self.schemes if scheme.layout != "pack-quantized"]
        served = [dtype for dtype, kind in _DTYPES.items() if any(scheme.kind == kind for scheme in plain)]
        digits = tensors.tensor(f"{module}.weight", served or list(_DTYPES), [shape])
        kind = "float" if digits.dtype == torch.float8_e4m3fn else "int"
        if not served:
            tensors.refuse(f"{module}.weight", f"no config group has weights of 8-bit {kind} digits", _OTHER_MODEL)
        blocks = [b for scheme in plain if scheme.kind == kind for b in _blocks(scheme, shape)]
        scale, group = read_grid(tensors, f"{module}.weight_scale", FLOATS, shape, blocks)
        name = f"{module}.weight_zero_point"
        if tensors.holds(name):
            zeros, zeros_group = read_grid(tensors, name, ("I8",) if kind == "int" else _ANY_ZERO, shape, blocks)
            if zeros.shape != scale.shape or zeros_group != group:
                tensors.refuse(name, "is of another shape than weight_scale", _OTHER_MODEL)
            if kind == "int":
                digits = signed(digits, zeros.to(torch.int16), group, None)
            elif bool(zeros.float().any()):
                tensors.refuse(name, "is not zero, which fp8 weights have no use for", _OTHER_MODEL)
        return Weight("fp8" if kind == "float" else "int8", shape, digits, None, Scales(scale, group))

    def _read_packed(self, tensors: StoredTensors, module: str, shape: tuple[int, int]) -> Weight:
        schemes = [scheme for scheme in self.schemes if scheme.layout == "pack-quantized"]
        num_outputs, num_inputs = shape
        widths = {(num_outputs, -(-num_inputs * scheme.bits // 32)): scheme.bits for scheme in schemes}
        words = tensors.tensor(f"{module}.weight_packed", ("I32",), list(widths))
        bits = widths[words.shape[0], words.shape[1]]
        self._check_shape(tensors, f"{module}.weight_shape", shape)
        groups = {
            (num_outputs, num_inputs // (scheme.group or num_inputs)): scheme.group or num_inputs
            for scheme in schemes
            if scheme.bits == bits and num_inputs % (scheme.group or num_inputs) == 0
        }
        if not groups:
            sizes = sorted({scheme.group or num_inputs for scheme in schemes})
            tensors.refuse(
                f"{module}.weight_scale", f"a group_size of {sizes} does not divide {num_inputs} inputs", _OTHER_MODEL
            )
        scale = tensors.tensor(f"{module}.weight_scale", FLOATS, list(groups))
        group = groups[scale.shape[0], scale.shape[1]]
        zeros = self._packed_zeros(tensors, module, bits, schemes, scale)
        group_of = None
        if tensors.holds(f"{module}.weight_g_idx"):
            group_of = group_of_inputs(tensors, f"{module}.weight_g_idx", num_inputs, scale.shape[1], group)
        digits = signed(unpack_words(words, bits)[:, :num_inputs], zeros, group, group_of)
        return Weight("int4" if bits == 4 else "int8", shape, digits, None, Scales(scale, group, group_of))

    def _packed_zeros(
        self, tensors: StoredTensors, module: str, bits: int, schemes: list[WeightScheme], scale: Tensor
    ) -> Tensor:
        """Zero points as the digits are stored, about their middle: int16 [out, groups]."""
        name = f"{module}.weight_zero_point"
        if not tensors.holds(name) and any(scheme.is_symmetric and scheme.bits == bits for scheme in schemes):
            return torch.full(scale.shape, 1 << (bits - 1), dtype=torch.int16)
        num_outputs, groups = scale.shape
        packed = (-(-num_outputs * bits // 32), groups)
        if tensors.holds(name) and tensors.dtype(name) == "I8":  # before they were packed, in versions of 2024
            return tensors.tensor(name, ("I8",), [(num_outputs, groups)]).to(torch.int16) + (1 << (bits - 1))
        return unpack_words(tensors.tensor(name, ("I32",), [packed]).T, bits)[:, :num_outputs].T.to(torch.int16)

    def _check_shape(self, tensors: StoredTensors, name: str, shape: tuple[int, int]) -> None:
        stored = tuple(tensors.tensor(name, ("I64", "I32"), [(2,)]).tolist())
        if stored != shape:
            tensors.refuse(name, f"says {list(stored)}, but the config needs {list(shape)}", _OTHER_MODEL)


def _blocks(scheme: WeightScheme, shape: tuple[int, int]) -> list[tuple[int, int]]:
    """Rectangles that share a scale, beside whole rows and the whole."""
    if scheme.block is not None:
        return [scheme.block]
    return [(1, scheme.group)] if scheme.group is not None and shape[1] % scheme.group == 0 else []


def compressed_format(fields: Fields) -> CompressedTensors:
    sparsity = fields.section("sparsity_config")
    if sparsity is not None and sparsity.text("format", "dense") != "dense":
        fields.fail(
            "sparsity_config", f"has the format {sparsity.text('format')!r}; served is 'dense'", "use a dense one"
        )
    if fields.get("transform_config"):
        fields.fail("transform_config", "is set: rotations are not served", "use a checkpoint without transforms")
    groups = _nested(fields, "config_groups")
    names = [name.removeprefix(groups.prefix) for name in groups.values]
    if not names:
        fields.fail("config_groups", "is empty")
    return CompressedTensors(tuple(_scheme(fields, _nested(groups, name)) for name in names))


def _nested(fields: Fields, name: str) -> Fields:
    """An object that must be there, its fields by their full names, so that a bad one is named in full."""
    section = fields.section(name)
    if section is None:
        fields.fail(name, "is missing", "use a checkpoint whose weights are quantized")
    prefix = f"{fields.prefix}{name}."
    return Fields({prefix + key: value for key, value in section.values.items()}, fields.path, prefix)


def _scheme(fields: Fields, group: Fields) -> WeightScheme:
    layout = group.text("format", fields.text("format", "naive-quantized"))
    if layout not in _LAYOUTS:
        where = group if group.get("format") is not None else fields
        where.fail("format", f"is {layout!r}; served are {', '.join(_LAYOUTS)}", "use a checkpoint in one of these")
    weights = _nested(group, "weights")
    kind, bits = weights.text("type", "int"), weights.integer("num_bits", 8)
    if kind not in ("int", "float"):
        weights.fail("type", f"is {kind!r}; served are 'int' and 'float'", "use a checkpoint with one of these")
    if bits != 8 and not (bits == 4 and kind == "int"):
        weights.fail("num_bits", f"is {bits} ({kind}); served are int 4 and 8, and float 8", "use one of these")
    strategy = weights.text("strategy", "tensor")
    if strategy not in _STRATEGIES:
        weights.fail("strategy", f"is {strategy!r}; served are {', '.join(_STRATEGIES)}", "use one of these")
    group_size = weights.optional_integer("group_size") if strategy == "group" else None
    if strategy == "group" and (group_size is None or group_size < 1):
        weights.fail("group_size", f"is {group_size}; the strategy 'group' needs a positive one")
    block = _block(weights) if strategy == "block" else None
    return WeightScheme(layout, kind, bits, weights.flag("symmetric", True), group_size, block)


def _block(weights: Fields) -> tuple[int, int]:
    block = weights.get("block_structure")
    if not isinstance(block, list) or len(block) != 2 or not all(type(size) is int and size > 0 for size in block):
        weights.fail("block_structure", f"must be two positive integers, found {block!r}")
    return block[0], block[1]


__all__ = ["CompressedTensors", "WeightScheme", "compressed_format"]
