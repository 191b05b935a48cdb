"""The seam between models and tensor operations: one `Ops` protocol, several backends of the same signatures.

`kernels.reference` is plain torch and the oracle; `kernels.cpu` is native SIMD; `kernels.triton` is the GPU. A backend
must give each row of a result a value that depends on that row's inputs alone: never on how many other rows the call
holds, on how a prompt was cut into chunks, or on which blocks hold the keys (the CPU backend bitwise).

Shapes: tokens of all sequences of a step lie packed one after the other ("ragged"), no padding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from torch import Tensor

Quantization = Literal["int8", "int4"]
Split = Literal["inputs", "vocabulary"]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scales:
    """What the digits [out, in] of a quantized checkpoint are multiplied with: number = digit * scale.

    scale: floats [out, groups]. group: neighbouring inputs that share a scale. group_of: int64 [in], the group of each
    input where groups are not neighbours (GPTQ's act-order), else None.
    """

    scale: Tensor
    group: int
    group_of: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Weight:
    """A two-dimensional weight as it lies in the file, or packed by a backend.

    kind: "f32" | "f16" | "bf16", a GGUF block type ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"),
    "int4" | "int8" | "fp8" of a quantized checkpoint, or a name private to the backend that packed it. shape:
    (out_features, in_features). data: floats [out, in], or the raw uint8 blocks [out, bytes per row] in file layout (a
    view of the memory-mapped file where possible), or the digits [out, in] less their zero points beside `scales`: int8
    (int16 where 8 bits and a zero point do not fit) or float8_e4m3fn. packed: whatever a backend's `prepare` made of
    it. split: how several processes share the weight, where what this one computes with it is not the whole result.
    """

    kind: str
    shape: tuple[int, int]
    data: Tensor
    packed: Any = None
    scales: Scales | None = None
    split: Split | None = None

    def rows(self, start: int, stop: int) -> Weight:
        """The outputs start .. stop of a weight that is not packed, as a view."""
        scales = None if self.scales is None else replace(self.scales, scale=self.scales.scale[start:stop])
        shape = (stop - start, self.shape[1])
        return Weight(self.kind, shape, self.data[start:stop], None, scales, self.split)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Where the rows of a step lie in the paged cache. All tensors int32 on the model's device.

    query_start: [sequences + 1], cumulative query tokens. context_len: [sequences], cached tokens including this
    step's. block_table: [sequences, max_blocks]. slot: [tokens], block * block_size + offset of each token's key.
    position: [tokens], absolute position of each token. slot and position are -1 for padding, which Triton alone takes.
    max_query_len: the most query tokens of a sequence, where the caller has it on the host; backends that choose a
    kernel by it read nothing back from the device.
    """

    query_start: Tensor
    context_len: Tensor
    block_table: Tensor
    slot: Tensor
    position: Tensor
    block_size: int
    max_query_len: int | None = None


@dataclass(frozen=True, slots=True)
class KvLayer:
    """One layer's paged cache, float32, float16 or int8, on a GPU also bfloat16 or fp8 (e4m3).

    key: [blocks, kv_heads, head_dim, block_size], so that a query meets neighbouring keys side by side; value: [blocks,
    kv_heads, block_size, head_dim].

    key_scale, value_scale: [blocks, kv_heads, block_size] float32 beside int8 and fp8, else None: a number is its digit
    times the scale of its token's head, max|x| / 127 (fp8: / 448).
    """

    key: Tensor
    value: Tensor
    key_scale: Tensor | None = None
    value_scale: Tensor | None = None

    @staticmethod
    def shapes(blocks: int, block_size: int, kv_heads: int, head_dim: int) -> tuple[Shape, Shape, Shape]:
        """Of key, value, and each of the scales."""
        heads = (blocks, kv_heads)
        return (*heads, head_dim, block_size), (*heads, block_size, head_dim), (*heads, block_size)

    def by_token(self) -> tuple[tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]:
        """Keys and their scales, values and theirs: views [blocks, block_size, kv_heads, head_dim], scales without the
        last."""
        scales = [None if each is None else each.transpose(1, 2) for each in (self.key_scale, self.value_scale)]
        return (self.key.permute(0, 3, 1, 2), scales[0]), (self.value.transpose(1, 2), scales[1])


@dataclass(frozen=True, slots=True)
class RowSettings:
    """What each row is drawn by; all on the device. temperature, top_p, min_p: float64 [rows]; temperature 0 is greedy,
    top_p 1 and min_p 0 are off. top_k: int32 [rows], 0 is off. seed, index, position, attempt: int64 [rows], the
    counter of the row's random number (engine/rng.py; seeds beyond 2^63 by their bits, the stream in the attempt)."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    index: Tensor
    position: Tensor
    attempt: Tensor


@dataclass(frozen=True, slots=True)
class FsmRows:
    """Where each row's token table begins in the arrays that hold all of them; int32 [rows], on the device. first_row:
    its first mask row among all words, -1 for a row without a table. first_class: the class of its token 0.
    first_target: the state after (state 0, class 0). num_classes: of the table."""

    first_row: Tensor
    first_class: Tensor
    first_target: Tensor
    num_classes: Tensor


class Ops(Protocol):
    name: str

    def prepare(self, weight: Weight, *, vocabulary: bool = False) -> Weight:
        """Pack a weight once, at load time, for `linear` and `embedding`; may return it unchanged.

        vocabulary: it is an embedding or a head, which a coarse on-load quantization would cost more.
        """
        ...

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        """x: [rows, in] fp32 -> [rows, out] fp32."""
        ...

    def embedding(self, ids: Tensor, weight: Weight) -> Tensor:
        """ids: [tokens] int -> [tokens, hidden] fp32, dequantized rows of the weight."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x: [..., dim] -> same shape; x / sqrt(mean(x^2) + eps) * weight. (Gemma's +1 is folded in at load.)"""
        ...

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor, position: Tensor, interleaved: bool) -> Tensor:
        """x: [tokens, heads, head_dim]; cos, sin: [max_position, rotary_dim / 2].

        interleaved False rotates (i, i + rotary_dim/2), the Hugging Face layout; True rotates (2i, 2i + 1), as in
        GGUF files of the Llama family. Dimensions past rotary_dim pass through.
        """
        ...

    def kv_write(self, key: Tensor, value: Tensor, cache: KvLayer, plan: AttentionPlan) -> None:
        """key, value: [tokens, kv_heads, head_dim] fp32 into cache at plan.slot.

        float16 rounds to nearest even; what is larger becomes +-65504, never infinity; NaN stays. int8 rounds x *
        (127 / max|x|) to nearest even; a head without a number of at least 1e-30 is kept as zeros, one that holds NaN
        or infinity reads back as NaN.
        """
        ...

    def paged_attention(
        self,
        q: Tensor,
        cache: KvLayer,
        plan: AttentionPlan,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """Causal attention. q: [tokens, heads, head_dim] -> same shape.

        Token at position p sees positions max(0, p - window + 1) .. p. softcap: scores become cap * tanh(s / cap).
        """
        ...

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) * up, [tokens, intermediate]."""
        ...

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        """cap * tanh(x / cap), [rows, width]; cap is positive."""
        ...

    def gelu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """gelu_tanh(gate) * up, [tokens, intermediate]."""
        ...


class DeviceOps(Ops, Protocol):
    """The operations of a backend whose results stay on the device: what a step ends with there. Like all others of
    it they read nothing back, so that a graph can hold them."""

    def sample(
        self, logits: Tensor, words: Tensor, mask_rows: Tensor, settings: RowSettings, vocab_size: int
    ) -> tuple[Tensor, Tensor]:
        """logits: fp32 [rows, >= vocab_size]; words: int32 [mask rows, ceil(vocab_size / 32)]; mask_rows: int32 [rows],
        -1 for a row without a mask. -> token ids, and faults (0 is none; kernels/sampling.py), int32 [rows]."""
        ...

    def fsm_mask_rows(self, state: Tensor, rows: FsmRows, mask_rows: Tensor) -> Tensor:
        """int32 [rows]: mask_rows, and for rows with a table that of their state."""
        ...

    def fsm_advance(self, state: Tensor, tokens: Tensor, rows: FsmRows, classes: Tensor, targets: Tensor) -> Tensor:
        """int32 [rows]: the state of its table that each row's token leads to."""
        ...


def ops(name: str, quantization: Quantization | None = None) -> Ops:
    """The backend of that name: "reference", "cpu" or "triton" (on the current CUDA device, with its defaults).

    quantization: what `prepare` makes of float weights (not "reference"). Raises ValueError.
    """
    if name == "reference" and quantization is not None:
        raise ValueError(f"quantization={quantization!r} needs the kernels 'cpu'; 'reference' computes in fp32")
    if name == "reference":
        from safegen.kernels.reference import ReferenceOps

        return ReferenceOps()
    if name == "cpu":
        from safegen.kernels.cpu import CpuOps

        return CpuOps(quantization)
    if name == "triton":
        from safegen.kernels.triton.ops import TritonOps

        return TritonOps(quantization)
    raise ValueError(f"no kernels named {name!r}; choose 'reference', 'cpu' or 'triton'")


__all__ = [
    "AttentionPlan",
    "DeviceOps",
    "FsmRows",
    "KvLayer",
    "Ops",
    "Quantization",
    "RowSettings",
    "Scales",
    "Shape",
    "Split",
    "Weight",
    "ops",
]
