"""A whole decoder step as one call: what a model hands to kernels/cpu/decoder.hpp.

The specs name a model's parts in the terms of `Ops`; weights must have been packed by `CpuOps.prepare`. All promises of
the backend hold: a sequence's logits depend on its tokens alone, to the last bit.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safegen import _native
from safegen.kernels.api import AttentionPlan, KvLayer, Weight
from safegen.kernels.cpu import _array, _optional


@dataclass(frozen=True, slots=True)
class NormSpec:
    """RMS norm. weight: fp32 [dim]."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """weight: prepared, [out, in]. bias: fp32 [out]."""

    weight: Weight
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer. rope: index of its table among those that `forward` is given. window: tokens a query sees,
    None is all. q_norm, k_norm: over each head, before the rotation. Post norms come before the residual."""

    attention_norm: NormSpec
    mlp_norm: NormSpec
    q: LinearSpec
    k: LinearSpec
    v: LinearSpec
    output: LinearSpec
    gate: LinearSpec
    up: LinearSpec
    down: LinearSpec
    rope: int
    rope_interleaved: bool
    scale: float
    activation: Literal["silu", "gelu_tanh"]
    window: int | None = None
    post_attention_norm: NormSpec | None = None
    post_mlp_norm: NormSpec | None = None
    q_norm: NormSpec | None = None
    k_norm: NormSpec | None = None


_MOST_SPARE_ROWS = 64  # of logits that are kept for the next step
_MAXIMUM_OF = 64  # logits: kSampleBlock of sampling.hpp


class _Rows:
    """Memory for rows: that of the step before, whose pages are there already, if nobody holds it any more."""

    def __init__(self, width: int) -> None:
        self._rows = np.empty((0, width), dtype=np.float32)
        self._num_own = self._num_references()

    def take(self, count: int) -> NDArray[np.float32]:
        if len(self._rows) >= count and self._num_references() <= self._num_own:
            return self._rows[:count]
        rows = np.empty((count, self._rows.shape[1]), dtype=np.float32)
        self._rows = rows if count <= _MOST_SPARE_ROWS else rows[:0].copy()
        return rows[:count]

    def _num_references(self) -> int:
        """While they are looked at. How many of them this look takes depends on the version of Python."""
        return sys.getrefcount(self._rows)


class CpuDecoder:
    """Holds the weights and the scratch memory of a model's step; one call at a time."""

    def __init__(
        self,
        *,
        embedding: Weight,
        head: LinearSpec,
        norm: NormSpec,
        layers: Sequence[LayerSpec],
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        embedding_scale: float = 1.0,
        logit_softcap: float | None = None,
    ) -> None:
        self._cache: Sequence[KvLayer] | None = None
        self._logits = _Rows(head.weight.shape[0])
        self._maxima = _Rows(-(-head.weight.shape[0] // _MAXIMUM_OF))
        self._latest: tuple[weakref.ref[NDArray[np.float32]], NDArray[np.float32]] | None = None
        self._native = _native.CpuDecoder(
            _handle(embedding), *_linear(head), *_norm(norm), num_heads, num_kv_heads, head_dim, embedding_scale,
            logit_softcap or 0.0,
        )  # fmt: skip
        for layer in layers:
            norms = (
                layer.attention_norm,
                layer.post_attention_norm,
                layer.mlp_norm,
                layer.post_mlp_norm,
                layer.q_norm,
                layer.k_norm,
            )
            linears = (layer.q, layer.k, layer.v, layer.output, layer.gate, layer.up, layer.down)
            self._native.add_layer(
                [_norm(each) for each in norms],
                [_linear(each) for each in linears],
                layer.rope,
                layer.rope_interleaved,
                layer.scale,
                layer.window or 0,
                layer.activation == "silu",
            )

    def forward(
        self,
        ids: Tensor,
        plan: AttentionPlan,
        cache: Sequence[KvLayer],
        sampled_rows: Tensor,
        ropes: Sequence[tuple[Tensor, Tensor]],
        masks: tuple[Tensor, Tensor] | None = None,
        num_layers: int | None = None,
    ) -> Tensor:
        """One step over the packed tokens of all sequences; writes their keys and values into the cache.

        ids: int [tokens]. cache: one entry a layer. sampled_rows: int [rows], places in ids. ropes: cos and sin,
        [positions, rotary_dim / 2]. masks: words, int32 [rows, ceil(vocabulary / 32)], and restricted, bool [rows]: of
        a restricted row only legal ids are wanted, and of one that has a single legal id nothing: the others may be
        anything, and such a row is what the memory held. num_layers: stop after the first so many layers and take norm
        and head from there; None is all. Returns fp32 logits [rows, vocabulary].
        """
        arrays = (
            _array(ids.to(torch.int64), "ids"),
            _array(plan.position, "plan.position"),
            _array(plan.slot, "plan.slot"),
            _array(plan.query_start, "plan.query_start"),
            _array(plan.context_len, "plan.context_len"),
            _array(plan.block_table, "plan.block_table"),
            _array(sampled_rows.to(torch.int32), "sampled_rows"),
        )
        wanted = (None, None) if masks is None else (_array(masks[0], "masks"), _array(masks[1], "restricted"))
        return torch.from_numpy(self._step(arrays, len(sampled_rows), cache, ropes, wanted, num_layers))

    def forward_arrays(
        self,
        ids: NDArray[np.int64],
        position: NDArray[np.int32],
        slot: NDArray[np.int32],
        query_start: NDArray[np.int32],
        context_len: NDArray[np.int32],
        block_table: NDArray[np.int32],
        cache: Sequence[KvLayer],
        sampled_rows: NDArray[np.int32],
        ropes: Sequence[tuple[Tensor, Tensor]],
        masks: tuple[NDArray[np.int32], NDArray[np.bool_]] | None = None,
    ) -> NDArray[np.float32]:
        """`forward` of all layers without tensors, each of which costs more than a microsecond."""
        arrays = (ids, position, slot, query_start, context_len, block_table, sampled_rows)
        wanted = (None, None) if masks is None else masks
        return self._step(arrays, len(sampled_rows), cache, ropes, wanted, None)

    def _step(
        self,
        arrays: tuple[Any, Any, Any, Any, Any, Any, Any],
        num_rows: int,
        cache: Sequence[KvLayer],
        ropes: Sequence[tuple[Tensor, Tensor]],
        masks: tuple[Any, Any],
        num_layers: int | None,
    ) -> NDArray[np.float32]:
        self._use(cache)
        self._latest = None
        logits, maxima = self._logits.take(num_rows), self._maxima.take(num_rows)
        tables = [(_array(cos, "cos"), _array(sin, "sin")) for cos, sin in ropes]
        self._native.forward(*arrays, tables, *masks, logits, maxima, num_layers or 0)
        self._latest = weakref.ref(logits), maxima
        return logits

    def maxima_of(self, logits: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """[rows, ceil(vocabulary / 64)], for `draw_tokens`, if these are the logits that `forward_arrays` gave last."""
        return self._latest[1] if self._latest is not None and self._latest[0]() is logits else None

    def forward_ahead(
        self,
        ids: Tensor,
        position: Tensor,
        block_table: Tensor,
        cache: Sequence[KvLayer],
        ropes: Sequence[tuple[Tensor, Tensor]],
        vocab_size: int,
        settings: Sequence[tuple[float, int, float, float]],
        uniforms: Tensor,
        stop_ids: Sequence[int],
    ) -> tuple[list[list[int]], Tensor]:
        """Several steps of one token a sequence, each from the tokens drawn after the one before.

        ids, position: int [rows]. block_table: int32 [rows, blocks], as far as the last step reaches. cache, ropes: as
        in `forward`. vocab_size: ids that may be drawn. settings: (temperature, top_k, top_p, min_p) of each row.
        uniforms: float64 [steps - 1, rows]. A draw of a stop id, and one that fails, makes its step the last. Returns
        the ids drawn, [steps done - 1][rows], and the last step's fp32 logits [rows, vocabulary].
        """
        self._use(cache)
        self._latest = None
        logits = self._logits.take(len(ids))
        drawn = self._native.forward_ahead(
            _array(ids.to(torch.int64), "ids"),
            _array(position, "position"),
            _array(block_table, "block_table"),
            [(_array(cos, "cos"), _array(sin, "sin")) for cos, sin in ropes],
            vocab_size,
            list(settings),
            _array(uniforms, "uniforms"),
            list(stop_ids),
            logits,
        )
        return drawn, torch.from_numpy(logits)

    def _use(self, cache: Sequence[KvLayer]) -> None:
        if cache is self._cache:
            return
        self._native.set_cache(
            [
                (
                    _array(c.key, "cache.key"),
                    _array(c.value, "cache.value"),
                    _optional(c.key_scale, "cache.key_scale"),
                    _optional(c.value_scale, "cache.value_scale"),
                )
                for c in cache
            ]
        )
        self._cache = cache


def _handle(weight: Weight) -> _native.CpuWeight:
    if not isinstance(weight.packed, _native.CpuWeight):
        raise ValueError(f"weight {list(weight.shape)}: was not prepared by the CPU kernels")
    return weight.packed


def _linear(spec: LinearSpec) -> tuple[_native.CpuWeight, Any]:
    return _handle(spec.weight), _optional(spec.bias, "bias")


def _norm(spec: NormSpec | None) -> tuple[Any, float]:
    return (None, 0.0) if spec is None else (_array(spec.weight, "norm"), spec.eps)


__all__ = ["CpuDecoder", "LayerSpec", "LinearSpec", "NormSpec"]
