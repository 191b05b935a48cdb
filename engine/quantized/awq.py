"""AWQ checkpoints (arXiv 2306.00978), as AutoAWQ writes them for its "gemm" kernels: 4 bits along the outputs.

    qweight  int32 [in, out / 8]      digits of neighbouring outputs, numbers 0 .. 7 at nibbles 0, 4, 1, 5, 2, 6, 3, 7
    qzeros   int32 [groups, out / 8]  zero points, likewise
    scales   [groups, out]

number = (digit - zero) * scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from safegen.engine.models.config import Fields
from safegen.engine.quantized.base import FLOATS, StoredTensors, group_count, is_plain, signed
from safegen.kernels.api import Scales, Weight
from safegen.kernels.int4 import AWQ_NIBBLES, unpack_words

_PER_WORD = 8


@dataclass(frozen=True, slots=True)
class Awq:
    """group: inputs of a group, -1 is all."""

    group: int
    method: str = "awq"
    stored_bits: int = 4
    block_kind: str = "q5_0"

    def read(self, tensors: StoredTensors, module: str, shape: tuple[int, int]) -> Weight | None:
        if is_plain(tensors, module, "qweight"):
            return None
        num_outputs, num_inputs = shape
        if num_outputs % _PER_WORD:
            hint = "the config is of another model; download config and weights again"
            tensors.refuse(f"{module}.qweight", f"{num_outputs} outputs are no whole number of words of 8", hint)
        groups, group = group_count(tensors, f"{module}.scales", num_inputs, self.group)
        words = tensors.tensor(f"{module}.qweight", ("I32",), [(num_inputs, num_outputs // _PER_WORD)])
        zeros = tensors.tensor(f"{module}.qzeros", ("I32",), [(groups, num_outputs // _PER_WORD)])
        scale = tensors.tensor(f"{module}.scales", FLOATS, [(groups, num_outputs)])
        digits = unpack_words(words, places=AWQ_NIBBLES).T.contiguous()
        spread = unpack_words(zeros, places=AWQ_NIBBLES).to(torch.int16).T
        scales = Scales(scale.T.contiguous(), group)
        return Weight("int4", shape, signed(digits, spread, group, None), None, scales)

    def is_unused(self, name: str) -> bool:
        return False


def awq_format(fields: Fields) -> Awq:
    """From the config's `quantization_config`, or an old quant_config.json with its own names."""
    bits = fields.integer("bits", fields.optional_integer("w_bit"))
    if bits != 4:
        fields.fail("bits", f"is {bits}; served is 4", "use a checkpoint of 4 bits")
    group = fields.integer("group_size", fields.integer("q_group_size", 128))
    if group != -1 and group < 1:
        fields.fail("group_size", f"is {group}; it must be positive, or -1 for one group a row")
    for name in ("version", "format", "checkpoint_format"):
        layout = fields.text(name, "gemm")
        if layout.lower() != "gemm":
            fields.fail(name, f"is {layout!r}; served is 'gemm'", "use a checkpoint in the 'gemm' layout, or GGUF")
    if fields.text("backend", "autoawq") == "llm-awq":
        fields.fail("backend", "is 'llm-awq'; served is the layout of AutoAWQ", "use a checkpoint written by AutoAWQ")
    return Awq(group)


__all__ = ["Awq", "awq_format"]
