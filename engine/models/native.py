"""A decoder's whole step in one native call (kernels/cpu/decoder.hpp), in place of some five hundred operations.

`layers.Decoder` stays the readable reference: both compute the same bits, which a test holds them to. `fused` hands the
weights of a loaded decoder over; they are not copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safegen.engine.backend import AheadDraws, ForwardBatch, RowMasks
from safegen.engine.models.base import LogitMasks, Model
from safegen.engine.models.config import ModelConfig
from safegen.engine.models.layers import Decoder, DecoderLayer, Linear, Norm
from safegen.engine.models.rope import RopeTable
from safegen.kernels.api import AttentionPlan, KvLayer
from safegen.kernels.cpu.decoder import CpuDecoder, LayerSpec, LinearSpec, NormSpec


class NativeDecoder:
    """`Model` over the native step."""

    def __init__(self, decoder: Decoder) -> None:
        self.config: ModelConfig = decoder.config
        self._ropes: list[RopeTable] = []
        config, attention = decoder.config, decoder.layers[0].attention
        self._native = CpuDecoder(
            embedding=decoder.embedding,
            head=_linear(decoder.head),
            norm=_norm(decoder.norm),
            layers=[self._layer(layer) for layer in decoder.layers],
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=attention.head_dim,
            embedding_scale=config.embedding_scale,
            logit_softcap=config.logit_softcap,
        )

    def forward(
        self,
        ids: Tensor,
        plan: AttentionPlan,
        cache: Sequence[KvLayer],
        sampled_rows: Tensor,
        masks: LogitMasks | None = None,
        num_layers: int | None = None,
    ) -> Tensor:
        """As `Model` has it. num_layers: stop after so many (models/early_exit.py); None is all."""
        tables = self._tables(plan.block_table.shape[1] * plan.block_size)
        return self._native.forward(ids, plan, cache, sampled_rows, tables, masks, num_layers)

    def forward_batch(
        self, batch: ForwardBatch, cache: Sequence[KvLayer], masks: RowMasks | None
    ) -> NDArray[np.float32]:
        """`forward` of a batch as it is."""
        return self._native.forward_arrays(
            batch.ids.astype(np.int64),
            batch.position,
            batch.slot,
            batch.query_start,
            batch.context_len,
            batch.block_table,
            cache,
            batch.sampled_rows,
            self._tables(batch.block_table.shape[1] * batch.block_size),
            None if masks is None else (masks.words, masks.restricted),
        )

    def maxima_of(self, logits: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """As `engine.backend.KnowsMaxima` has it."""
        return self._native.maxima_of(logits)

    def forward_ahead(
        self, batch: ForwardBatch, cache: Sequence[KvLayer], draws: AheadDraws
    ) -> tuple[list[list[int]], Tensor]:
        """Several steps, as `engine.backend.ForwardAhead` has it."""
        return self._native.forward_ahead(
            torch.from_numpy(batch.ids),
            torch.from_numpy(batch.position),
            torch.from_numpy(batch.block_table),
            cache,
            self._tables(batch.block_table.shape[1] * batch.block_size),
            draws.vocab_size,
            draws.settings,
            torch.from_numpy(draws.uniforms),
            tuple(draws.stop_ids),
        )

    def _tables(self, num_positions: int) -> list[tuple[Tensor, Tensor]]:
        for rope in self._ropes:
            rope.cover(num_positions)
        return [(rope.cos, rope.sin) for rope in self._ropes]

    def _layer(self, layer: DecoderLayer) -> LayerSpec:
        attention, mlp = layer.attention, layer.mlp
        if attention.rope not in self._ropes:
            self._ropes.append(attention.rope)
        return LayerSpec(
            attention_norm=_norm(layer.attention_norm),
            post_attention_norm=_optional(layer.post_attention_norm),
            mlp_norm=_norm(layer.mlp_norm),
            post_mlp_norm=_optional(layer.post_mlp_norm),
            q_norm=_optional(attention.q_norm),
            k_norm=_optional(attention.k_norm),
            q=_linear(attention.q),
            k=_linear(attention.k),
            v=_linear(attention.v),
            output=_linear(attention.output),
            gate=_linear(mlp.gate),
            up=_linear(mlp.up),
            down=_linear(mlp.down),
            rope=self._ropes.index(attention.rope),
            rope_interleaved=attention.rope_interleaved,
            scale=attention.scale,
            window=attention.window,
            activation=mlp.activation,
        )


def fused(model: Model) -> Model:
    """The model with its step in one native call, where it is a decoder on the CPU kernels; else the model itself."""
    if isinstance(model, Decoder) and model.ops.name == "cpu":
        return NativeDecoder(model)
    return model


def _norm(norm: Norm) -> NormSpec:
    return NormSpec(norm.weight, norm.eps)


def _optional(norm: Norm | None) -> NormSpec | None:
    return None if norm is None else _norm(norm)


def _linear(linear: Linear) -> LinearSpec:
    return LinearSpec(linear.weight, linear.bias)


__all__ = ["NativeDecoder", "fused"]
