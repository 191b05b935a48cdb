"""Native CPU kernels behind the `Ops` protocol: weights in fp32, fp16, bf16, GGUF blocks, or quantized at load.

Quantized weights are packed once, by `prepare`, for integer dot products, and multiply activations that are quantized
on the way: each row, each 32 inputs, to int8 with a scale of their own (kernels/cpu/packed.hpp has the layout and the
arithmetic; `kernels.quant.round_trip_activations` and a plain product are the twin). That is llama.cpp's arithmetic,
and about as close to the dequantized model. Float weights are used as they lie in the file and multiply fp32
activations. Weights of AWQ, GPTQ and INT8 checkpoints become GGUF blocks of the same digits, FP8 ones fp16 (kernels.
scaled says which and why); of a GPTQ weight with act-order the inputs are sorted, and x with them in each product.

Bitwise row independence: a row of any result has the same bits alone, in any batch, with any number of threads, however
a prompt was cut into chunks and wherever its keys lie in the cache. Sums run in a fixed order that depends on the row's
length alone (kernels.hpp and packed.hpp state it). AVX2 and AVX-512 agree bitwise; the scalar build may differ from
them in the last place.

The instruction set and the number of threads are settings of the process, chosen at first use: the best instruction
set, and one thread for each physical core that the process may use. Several Python threads may call at once, and a
process may fork.

Tensors cross as DLPack capsules. Arguments must be contiguous CPU tensors of the type stated in `Ops`; anything else is
a ValueError that names the argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import dlpack

from safegen import _native
from safegen.kernels.api import AttentionPlan, KvLayer, Quantization, Weight
from safegen.kernels.scaled import as_blocks, as_half, sort_inputs

# The plain function: Tensor.__dlpack__ takes ten times as long, and a decoding step crosses over a thousand times.
_to_dlpack: Callable[[Tensor], Any] = dlpack.to_dlpack  # type: ignore[attr-defined]

_FLOAT_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def isa() -> str:
    """The instruction set in use: "scalar", "avx2" or "avx512"."""
    return _native.cpu_isa()


def available_isas() -> list[str]:
    """What this processor can run, slowest first."""
    return _native.cpu_isas()


def set_isa(name: str) -> None:
    """Force an instruction set for the whole process. ValueError if this processor lacks it."""
    _native.cpu_set_isa(name)


def num_threads() -> int:
    """Threads that share an operation's work, the caller's included."""
    return _native.cpu_threads()


def set_num_threads(threads: int) -> None:
    """Set it for the whole process, 1 to 256. No result depends on it."""
    _native.cpu_set_threads(threads)


def _array(tensor: Tensor, name: str) -> Any:
    """The tensor as a DLPack capsule; the native side checks type, shape and layout."""
    try:
        return _to_dlpack(tensor.detach() if tensor.requires_grad else tensor)
    except (AttributeError, BufferError, RuntimeError, TypeError) as error:
        raise ValueError(f"{name}: must be a dense CPU tensor, got {type(tensor).__name__} ({error})") from None


def _optional(tensor: Tensor | None, name: str) -> Any:
    return None if tensor is None else _array(tensor, name)


def _typed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


class CpuOps:
    """`Ops` on the CPU. Instances of the same options are interchangeable and safe to share between threads.

    quantization: for float weights, "int8" (symmetric) or "int4" (scale and minimum; embedding and head int8), each in
    groups of 32 inputs; None leaves them as they are. exact: weights stay in file layout and activations in fp32,
    several times slower; the oracle of what quantized activations cost.
    """

    name = "cpu"

    def __init__(self, quantization: Quantization | None = None, *, exact: bool = False) -> None:
        if quantization not in (None, "int8", "int4"):
            raise ValueError(f"quantization: must be 'int8', 'int4' or None, got {quantization!r}")
        self._float_form = quantization or "raw"
        self._block_form = "raw" if exact else "packed"

    def prepare(self, weight: Weight, *, vocabulary: bool = False) -> Weight:
        """Pack the weight, or check it and attach a handle to where it lies (memory-mapped bytes stay there).

        Of a packed weight `data` is left empty: nothing holds the file's bytes any more.
        """
        if weight.scales is not None:
            return self._prepare_scaled(weight, vocabulary)
        return self._prepare(weight, vocabulary, None)

    def _prepare(self, weight: Weight, vocabulary: bool, order: Tensor | None) -> Weight:
        """order: int64 [in], which of the model's inputs comes where; None is as they are."""
        data, dtype = weight.data, _FLOAT_DTYPES.get(weight.kind, torch.uint8)
        if data.dtype != dtype:
            raise ValueError(f"weight.data: kind {weight.kind!r} needs {dtype}, got {data.dtype}")
        if not data.is_contiguous() or data.dim() != 2:
            raise ValueError(f"weight.data: must be contiguous and two-dimensional, got shape {list(data.shape)}")
        out_features, in_features = weight.shape
        form = self._float_form if weight.kind in _FLOAT_DTYPES else self._block_form
        if form == "int4" and vocabulary:
            form = "int8"
        raw = _array(data.view(torch.uint8), "weight.data")
        packed = _native.CpuWeight(weight.kind, raw, out_features, in_features, form, _optional(order, "order"))
        return replace(weight, packed=packed, data=data.new_empty(0) if packed.is_packed else data)

    def _prepare_scaled(self, weight: Weight, vocabulary: bool) -> Weight:
        """As blocks of the same digits where there are such, else as halves, which are quantized like other floats."""
        kept = sort_inputs(weight)
        blocks = None if kept is None else as_blocks(kept.weight)
        if kept is None or blocks is None:
            return self._prepare(as_half(weight), vocabulary, None)
        return self._prepare(blocks, vocabulary, kept.order)

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        out = torch.empty((x.shape[0], weight.shape[0]), dtype=torch.float32)
        _native.cpu_linear(
            _array(x, "x"), self._handle(weight), None if bias is None else _array(bias, "bias"), _to_dlpack(out)
        )
        return out

    def embedding(self, ids: Tensor, weight: Weight) -> Tensor:
        if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
            raise ValueError(f"ids: must be of an integer type, got {ids.dtype}")
        out = torch.empty((ids.shape[0], weight.shape[1]), dtype=torch.float32)
        _native.cpu_embedding(_array(_typed(ids, torch.int64), "ids"), self._handle(weight), _to_dlpack(out))
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if x.dim() == 0:
            raise ValueError("x: must have at least one dimension")
        if not (math.isfinite(eps) and eps >= 0):
            raise ValueError(f"eps: must be finite and not negative, got {eps}")
        if not x.is_contiguous():
            raise ValueError("x: must be contiguous")
        out = torch.empty_like(x)
        rows, dim = math.prod(x.shape[:-1]), x.shape[-1]
        _native.cpu_rms_norm(
            _array(x.view(rows, dim), "x"), _array(weight, "weight"), eps, _array(out.view(rows, dim), "out")
        )
        return out

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor, position: Tensor, interleaved: bool) -> Tensor:
        out = torch.empty_like(x)
        _native.cpu_rope(
            _array(x, "x"),
            _array(cos, "cos"),
            _array(sin, "sin"),
            _array(position, "position"),
            interleaved,
            _array(out, "out"),
        )
        return out

    def kv_write(self, key: Tensor, value: Tensor, cache: KvLayer, plan: AttentionPlan) -> None:
        _native.cpu_kv_write(
            _array(key, "key"),
            _array(value, "value"),
            _array(cache.key, "cache.key"),
            _array(cache.value, "cache.value"),
            _optional(cache.key_scale, "cache.key_scale"),
            _optional(cache.value_scale, "cache.value_scale"),
            _array(plan.slot, "plan.slot"),
        )

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
        if window is not None and window < 1:
            raise ValueError(f"window: must be at least 1, got {window}")
        if softcap is not None and not softcap > 0:
            raise ValueError(f"softcap: must be positive, got {softcap}")
        out = torch.empty_like(q)
        _native.cpu_attention(
            _array(q, "q"),
            _array(cache.key, "cache.key"),
            _array(cache.value, "cache.value"),
            _optional(cache.key_scale, "cache.key_scale"),
            _optional(cache.value_scale, "cache.value_scale"),
            _array(plan.query_start, "plan.query_start"),
            _array(plan.context_len, "plan.context_len"),
            _array(plan.block_table, "plan.block_table"),
            _array(plan.position, "plan.position"),
            scale,
            window or 0,
            softcap or 0.0,
            _array(out, "out"),
        )
        return out

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        out = torch.empty_like(gate)
        _native.cpu_silu_mul(_array(gate, "gate"), _array(up, "up"), _array(out, "out"))
        return out

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        out = torch.empty_like(x)
        _native.cpu_softcap(_array(x, "x"), cap, _array(out, "out"))
        return out

    def gelu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        out = torch.empty_like(gate)
        _native.cpu_gelu_mul(_array(gate, "gate"), _array(up, "up"), _array(out, "out"))
        return out

    def _handle(self, weight: Weight) -> _native.CpuWeight:
        packed = weight.packed
        if packed is None:
            packed = self.prepare(weight).packed
        if not isinstance(packed, _native.CpuWeight):
            raise ValueError(f"weight: was prepared by another backend ({type(packed).__name__})")
        return packed


__all__ = ["CpuOps", "available_isas", "isa", "num_threads", "set_isa", "set_num_threads"]
