"""How long a step of the engine takes, by what it computes: two ways to know it, one shape.

    published figures   the roofline: max(bytes read / bandwidth, products / product rate) + overhead
    measured            the time of that many rows, measured on a slice of the model (engine/slice_times.py)

Reading and multiplying are the roofline's two sides, for either: where they meet is the batch at the roofline.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from safegen.capacity.devices import Device

if TYPE_CHECKING:
    from safegen.engine.model_size import ModelSize
    from safegen.engine.slice_times import SliceTimes

Bound = Literal["weights", "cache", "products"]  # reading the weights, reading the cache, multiplying

# What the engine, and a client that streams in the same process, do outside the forward: a step, and each of its rows.
# Estimates of one run on a busy machine; benchmarks/capacity.py shows how far plans are off.
_ENGINE_STEP_S, _ENGINE_ROW_S = 4e-4, 6e-5


@dataclass(frozen=True, slots=True)
class Load:
    """What a step computes. rows: tokens. sampled: those whose logits are wanted. context_tokens: cached tokens that
    the decoded rows look at, all together. prompt_pairs: pairs of a prompt's tokens, half its length squared."""

    rows: float
    sampled: float
    context_tokens: float = 0.0
    prompt_pairs: float = 0.0


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds. total_s: of the step. weights_s, context_s: to read the weights once, and the cached contexts.
    compute_s: to multiply."""

    total_s: float
    weights_s: float
    context_s: float
    compute_s: float

    @property
    def bound(self) -> Bound:
        if self.compute_s >= self.weights_s + self.context_s:
            return "products"
        return "weights" if self.weights_s >= self.context_s else "cache"


class StepTimes(Protocol):
    def cost(self, load: Load) -> StepCost: ...


class RooflineSteps:
    """By the device's figures and the model's size."""

    def __init__(self, device: Device, size: ModelSize, kv_bytes_per_token: int) -> None:
        self._bytes_per_s = device.read_bytes_per_s * device.attained_bandwidth
        self._products_per_s = device.products_per_s * device.attained_products
        self._overhead_s = device.step_overhead_s
        self._size, self._kv_bytes = size, kv_bytes_per_token
        self._attention = 4 * size.config.num_layers * size.config.num_heads * size.config.head_dim

    def cost(self, load: Load) -> StepCost:
        size = self._size
        weights_s = (size.layer_bytes + (size.head_bytes if load.sampled else 0)) / self._bytes_per_s
        context_s = load.context_tokens * self._kv_bytes / self._bytes_per_s
        products = 2 * (size.layer_parameters * load.rows + size.head_parameters * load.sampled)
        products += self._attention * (load.context_tokens + load.prompt_pairs)
        compute_s = products / self._products_per_s
        return StepCost(max(weights_s + context_s, compute_s) + self._overhead_s, weights_s, context_s, compute_s)


class MeasuredSteps:
    """By times of this machine."""

    def __init__(self, times: SliceTimes) -> None:
        self._times = times
        self._layer_row_s = _row_seconds(times.layers)
        self._head_row_s = _row_seconds(times.head)

    def cost(self, load: Load) -> StepCost:
        times = self._times
        context_s = load.context_tokens * times.context_token_s
        pairs_s = load.prompt_pairs * times.prompt_pair_s
        total_s = _at(times.layers, load.rows) + _at(times.head, load.sampled) + context_s + pairs_s
        weights_s = times.layers[1] + (times.head[1] if load.sampled else 0.0)
        compute_s = self._layer_row_s * load.rows + self._head_row_s * load.sampled + pairs_s
        return StepCost(total_s + _ENGINE_STEP_S + _ENGINE_ROW_S * load.sampled, weights_s, context_s, compute_s)


def _row_seconds(seconds: Mapping[int, float]) -> float:
    """Of one row among as many as were measured."""
    most = max(seconds)
    return seconds[most] / most


def _at(seconds: Mapping[int, float], rows: float) -> float:
    """By straight lines between what was measured; beyond it, each row as one among the most."""
    if rows <= 0:
        return 0.0
    counts = sorted(seconds)
    if rows <= counts[0]:
        return seconds[counts[0]]
    if rows >= counts[-1]:
        return seconds[counts[-1]] * rows / counts[-1]
    place = bisect_left(counts, rows)
    low, high = counts[place - 1], counts[place]
    share = (rows - low) / (high - low)
    return seconds[low] + share * (seconds[high] - seconds[low])


__all__ = ["Bound", "Load", "MeasuredSteps", "RooflineSteps", "StepCost", "StepTimes"]
