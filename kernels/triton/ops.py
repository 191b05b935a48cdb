"""The kernels of this package behind the `Ops` protocol: what a model computes with on a GPU.

Activations are of one type (`dtype`: bfloat16 unless told otherwise, fp32 under the interpreter); norms, rotations and
sums are fp32 inside. Logits are fp32: a linear of a vocabulary's weight returns them so. Float weights and GGUF blocks
become dense matrices of that type, at load; `quantization` packs float weights as int8 with a scale an output, or as
int4 with a scale and a zero for 32 inputs (vocabularies as int8). Digits of quantized checkpoints stay what they are:
int4 in groups of a multiple of 16 inputs (AWQ, GPTQ), int8 with a scale an output, and fp8 with one, where the GPU has
fp8, whose activations are quantized too. All others become dense.

Dense products are torch's, which picks the fastest for each number of rows. With `deterministic=True` they are this
package's own, and every launch is fixed by the shapes of the model: then a row's bits do not depend on the rows beside
it. Nothing here reads from the device, so all of it can be captured in a graph.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from safegen.kernels.api import AttentionPlan, FsmRows, KvLayer, Quantization, RowSettings, Weight
from safegen.kernels.int4 import Int4Weight, pack_int4
from safegen.kernels.quant import BLOCK_TYPES, FLOAT_KINDS, dequantize
from safegen.kernels.scaled import as_int4, as_rows, dequantize_scaled
from safegen.kernels.triton import elementwise, linear
from safegen.kernels.triton.attention import paged_attention
from safegen.kernels.triton.fsm import fsm_advance, fsm_mask_rows
from safegen.kernels.triton.kv_write import kv_write
from safegen.kernels.triton.linear_int4 import int4_linear
from safegen.kernels.triton.runtime import INTERPRETING
from safegen.kernels.triton.sampling import sample

_INT4_GROUP = 32


@dataclass(frozen=True, slots=True)
class ScaledWeight:
    """8-bit digits with a scale an output. digits: int8 or fp8 (e4m3) [out, in]. scale: fp32 [out]. quantizes_rows:
    activations are turned into the digits' type too, a row at a time."""

    digits: Tensor
    scale: Tensor
    quantizes_rows: bool = False


@dataclass(frozen=True, slots=True)
class DeviceWeight:
    """What `prepare` makes of a weight. numbers: dense [out, in] of the ops' type, or packed. ones: fp32 [out], of a
    dense one in deterministic mode. is_vocabulary: products with it are logits, fp32."""

    numbers: Tensor | ScaledWeight | Int4Weight
    is_vocabulary: bool
    ones: Tensor | None = None


class TritonOps:
    """`Ops` on a CUDA device, or on CPU tensors under TRITON_INTERPRET=1. device: None is the current CUDA device, or
    the CPU when interpreting. Raises ValueError without either."""

    name = "triton"

    def __init__(
        self,
        quantization: Quantization | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        deterministic: bool = False,
    ) -> None:
        self.device = torch.device(device or ("cpu" if INTERPRETING else "cuda"))
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError("kernels 'triton' need a CUDA device and a torch built for it; use 'cpu' here")
        if self.device.type != "cuda" and not INTERPRETING:
            raise ValueError(f"kernels 'triton' run on CUDA tensors, not on {self.device}; use 'cpu' there")
        self.dtype = dtype or (torch.float32 if INTERPRETING else torch.bfloat16)
        self.deterministic = deterministic
        self._quantization = quantization

    # --- weights ------------------------------------------------------------------------------------------------------

    def prepare(self, weight: Weight, *, vocabulary: bool = False) -> Weight:
        numbers = self._numbers(weight, vocabulary)
        ones = None
        if isinstance(numbers, Tensor) and self.deterministic:
            ones = torch.ones(len(numbers), dtype=torch.float32, device=self.device)
        empty = torch.empty(0, device=self.device)
        return Weight("triton", weight.shape, empty, DeviceWeight(numbers, vocabulary, ones))

    def _numbers(self, weight: Weight, vocabulary: bool) -> Tensor | ScaledWeight | Int4Weight:
        if weight.scales is not None:
            return self._digits(weight, vocabulary)
        if weight.kind not in FLOAT_KINDS and weight.kind not in BLOCK_TYPES:
            raise ValueError(f"weight: the kernels 'triton' know no kind {weight.kind!r}")
        stored = weight.data.to(self.device)
        if weight.kind in BLOCK_TYPES:
            return dequantize(weight.kind, stored).to(self.dtype)
        if self._quantization is None:
            return stored.to(self.dtype)
        if self._quantization == "int8" or vocabulary or weight.shape[1] % _INT4_GROUP:
            return int8_weight(stored.float())
        return int4_weight(stored.float())

    def _digits(self, weight: Weight, vocabulary: bool) -> Tensor | ScaledWeight | Int4Weight:
        """Of a quantized checkpoint: as they are, where a kernel takes them."""
        weight = self._moved(weight)
        if weight.kind == "int4" and not vocabulary:
            with contextlib.suppress(ValueError):  # groups that the kernel has no room for
                return as_int4(weight)
        rows = as_rows(weight) if weight.kind == "int8" or (weight.kind == "fp8" and self._has_fp8()) else None
        if rows is None:
            return dequantize_scaled(weight).to(self.dtype)
        return ScaledWeight(*rows, quantizes_rows=weight.kind == "fp8")

    def _has_fp8(self) -> bool:
        return self.device.type != "cuda" or torch.cuda.get_device_capability(self.device) >= (8, 9)

    def _moved(self, weight: Weight) -> Weight:
        scales = weight.scales
        assert scales is not None
        group_of = None if scales.group_of is None else scales.group_of.to(self.device)
        moved = replace(scales, scale=scales.scale.to(self.device), group_of=group_of)
        return replace(weight, data=weight.data.to(self.device), scales=moved)

    # --- products -----------------------------------------------------------------------------------------------------

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        packed: DeviceWeight = weight.packed
        numbers, fixed = packed.numbers, self.deterministic
        if isinstance(numbers, Int4Weight):
            out = int4_linear(x, numbers, bias, deterministic=fixed)
        elif isinstance(numbers, ScaledWeight):
            out = _scaled_linear(x, numbers, bias, fixed)
        elif packed.ones is not None:
            dtype = torch.float32 if packed.is_vocabulary else x.dtype
            return linear.dense_linear(x, numbers, packed.ones, bias, dtype=dtype)
        else:
            out = F.linear(x, numbers, None if bias is None else bias.to(x.dtype))
        return out.float() if packed.is_vocabulary else out

    def embedding(self, ids: Tensor, weight: Weight) -> Tensor:
        numbers = weight.packed.numbers
        if isinstance(numbers, Tensor):
            return numbers.index_select(0, ids)
        assert isinstance(numbers, ScaledWeight)  # no vocabulary is packed in any other way
        digits, scale = numbers.digits.view(torch.int8).index_select(0, ids), numbers.scale.index_select(0, ids)
        return (digits.view(numbers.digits.dtype).float() * scale.unsqueeze(1)).to(self.dtype)

    # --- the rest of a layer ------------------------------------------------------------------------------------------

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return elementwise.rms_norm(x, weight, eps)

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor, position: Tensor, interleaved: bool) -> Tensor:
        return elementwise.rope(x, cos, sin, position, interleaved)

    def kv_write(self, key: Tensor, value: Tensor, cache: KvLayer, plan: AttentionPlan) -> None:
        kv_write(key, value, cache, plan)

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
        return paged_attention(
            q, cache, plan, scale=scale, window=window, softcap=softcap, deterministic=self.deterministic
        )

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return elementwise.silu_mul(gate, up)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return elementwise.softcap(x, cap)

    def gelu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return elementwise.gelu_mul(gate, up)

    # --- what a graph ends with ---------------------------------------------------------------------------------------

    def sample(
        self, logits: Tensor, words: Tensor, mask_rows: Tensor, settings: RowSettings, vocab_size: int
    ) -> tuple[Tensor, Tensor]:
        tokens, faults, _ = sample(logits, words, mask_rows, settings, vocab_size)
        return tokens, faults

    def fsm_mask_rows(self, state: Tensor, rows: FsmRows, mask_rows: Tensor) -> Tensor:
        return fsm_mask_rows(state, rows, mask_rows)

    def fsm_advance(self, state: Tensor, tokens: Tensor, rows: FsmRows, classes: Tensor, targets: Tensor) -> Tensor:
        return fsm_advance(state, tokens, rows, classes, targets)


def _scaled_linear(x: Tensor, weight: ScaledWeight, bias: Tensor | None, fixed: bool) -> Tensor:
    if not weight.quantizes_rows:
        return linear.int8_weight_linear(x, weight.digits, weight.scale, bias, deterministic=fixed)
    product = linear.int8_linear if weight.digits.dtype == torch.int8 else linear.fp8_linear
    return product(x, weight.digits, weight.scale, bias, deterministic=fixed)


def int8_weight(numbers: Tensor) -> ScaledWeight:
    """numbers: fp32 [out, in], each output by its largest number, to nearest even."""
    scale = (numbers.abs().amax(1) / 127.0).clamp_min(1e-30)
    return ScaledWeight((numbers / scale.unsqueeze(1)).round().clamp(-127, 127).to(torch.int8), scale)


def int4_weight(numbers: Tensor) -> Int4Weight:
    """numbers: fp32 [out, in], in a multiple of 32. Of each 32 inputs the range, zero included, in fifteen steps."""
    groups = numbers.reshape(len(numbers), -1, _INT4_GROUP)
    low, high = groups.amin(2).clamp_max(0.0), groups.amax(2).clamp_min(0.0)
    scale = ((high - low) / 15.0).clamp_min(1e-30)
    zero = (-low / scale).round()
    digits = ((groups / scale.unsqueeze(2)).round() + zero.unsqueeze(2)).clamp(0, 15)
    return pack_int4(digits.reshape(numbers.shape).T.int(), scale.T, zero.T, _INT4_GROUP)


__all__ = ["DeviceWeight", "ScaledWeight", "TritonOps", "int4_weight", "int8_weight"]
