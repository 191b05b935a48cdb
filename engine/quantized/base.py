"""What a reader of quantized checkpoints sees, and what all of them need.

The config says which layouts may occur; which modules are quantized the tensors say: a module with the layout's own
tensors is, one with a plain `weight` of floats is not. Lists of ignored modules, whose entries may be regular
expressions of whoever wrote the file, are therefore never evaluated. What is left over or missing is refused by the
name of its tensor, so config and tensors cannot disagree in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from safegen.kernels.api import Weight

FLOATS = ("F32", "F16", "BF16")
_ROWS_AT_ONCE = 1024


class StoredTensors(Protocol):
    """Tensors of a folder by the names that its files have for them."""

    def holds(self, name: str) -> bool: ...

    def dtype(self, name: str) -> str:
        """As safetensors spell it: "F16", "I32", "F8_E4M3"."""
        ...

    def tensor(self, name: str, dtypes: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Tensor:
        """Raises ModelLoadError if it is missing, or of another type or shape than those."""
        ...

    def refuse(self, name: str, message: str, hint: str) -> NoReturn:
        """A ModelLoadError about that tensor."""
        ...


class QuantizedFormat(Protocol):
    """One checkpoint's layout, made from its config."""

    @property
    def method(self) -> str: ...

    @property
    def stored_bits(self) -> int:
        """Of a weight of the layers, scales left out."""
        ...

    @property
    def block_kind(self) -> str:
        """What the native kernels keep most weights of the layers as: a kind of `Weight`."""
        ...

    def read(self, tensors: StoredTensors, module: str, shape: tuple[int, int]) -> Weight | None:
        """The module's weight, None where it is not quantized. shape: (out_features, in_features)."""
        ...

    def is_unused(self, name: str) -> bool:
        """True of tensors that belong to the layout and are of no use here, such as scales of activations."""
        ...


def is_plain(tensors: StoredTensors, module: str, own: str) -> bool:
    """Whether the module has floats under `weight` in place of the layout's own tensor."""
    return tensors.holds(f"{module}.weight") and not tensors.holds(f"{module}.{own}")


def group_count(tensors: StoredTensors, name: str, num_inputs: int, group: int) -> tuple[int, int]:
    """Groups of a row, and inputs of one; a group_size of -1 is the whole row. name: of the scales, for the message."""
    size = num_inputs if group == -1 else group
    if num_inputs % size:
        hint = "the config's group_size is of another model; download config and weights again"
        tensors.refuse(name, f"a group_size of {size} does not divide {num_inputs} inputs", hint)
    return num_inputs // size, size


def signed(digits: Tensor, zeros: Tensor, group: int, group_of: Tensor | None) -> Tensor:
    """Digits less their zero points. digits: uint8 or int8 [out, in]; zeros: int16 [out, groups]. int8, or int16 where
    that does not hold them."""
    numbers = torch.empty(digits.shape, dtype=torch.int8)
    for start in range(0, len(digits), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        part = zeros[rows][:, group_of] if group_of is not None else zeros[rows].repeat_interleave(group, dim=1)
        differences = digits[rows].to(torch.int16).sub_(part[:, : digits.shape[1]])
        least, most = torch.aminmax(differences)
        if numbers.dtype == torch.int8 and (int(least) < -128 or int(most) > 127):
            numbers = numbers.to(torch.int16)
        numbers[rows] = differences
    return numbers


def group_of_inputs(tensors: StoredTensors, name: str, num_inputs: int, num_groups: int, group: int) -> Tensor | None:
    """Act-order's g_idx: int64 [in], None where groups are neighbours anyway."""
    stored = tensors.tensor(name, ("I32", "I64"), [(num_inputs,)]).long()
    if bool(((stored < 0) | (stored >= num_groups)).any()):
        least, most = int(stored.min()), int(stored.max())
        hint = "the file is corrupt; download it again"
        tensors.refuse(name, f"names groups {least} .. {most}, but the scales have {num_groups}", hint)
    return None if torch.equal(stored, torch.arange(num_inputs) // group) else stored


def read_grid(
    tensors: StoredTensors,
    name: str,
    dtypes: Sequence[str],
    shape: tuple[int, int],
    blocks: Sequence[tuple[int, int]] = (),
) -> tuple[Tensor, int]:
    """A number for each output and group of inputs, [out, groups], and how many inputs a group has.

    What is stored tells by its shape: one for all, one an output, or one a block of (outputs, inputs) of those given.
    """
    num_outputs, num_inputs = shape
    grids = {
        (-(-num_outputs // high), -(-num_inputs // wide)): (min(high, num_outputs), min(wide, num_inputs))
        for high, wide in blocks
    }
    plain: list[tuple[int, ...]] = [(), (1,), (1, 1), (num_outputs,), (num_outputs, 1)]
    stored = tensors.tensor(name, dtypes, [*plain, *grids])
    if stored.numel() == 1:
        return stored.reshape(1, 1).expand(num_outputs, 1), num_inputs
    if tuple(stored.shape) in plain:
        return stored.reshape(num_outputs, 1), num_inputs
    high, wide = grids[stored.shape[0], stored.shape[1]]
    return stored.repeat_interleave(high, dim=0)[:num_outputs], wide


__all__ = [
    "FLOATS", "QuantizedFormat", "StoredTensors", "group_count", "group_of_inputs", "is_plain", "read_grid", "signed",
]  # fmt: skip
