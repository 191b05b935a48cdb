"""What fits: weights, activations and blocks in a device's memory, as the engine itself counts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from safegen.capacity.devices import PUBLISHED, Device
from safegen.engine import capacity

if TYPE_CHECKING:
    from safegen.capacity.planning import Limit
    from safegen.capacity.target import Options, Target
    from safegen.engine.model_size import ModelSize
    from safegen.engine.slice_times import SliceTimes

_DEFAULT_MAX_NUM_SEQS = 64


@dataclass(frozen=True, slots=True)
class Fit:
    """limit, knob: why nothing can be served; None where something can. cache_knob: what makes the cache hold more."""

    device: Device
    kv_bytes_per_token: int
    block_bytes: int
    num_blocks: int
    blocks_per_request: int
    max_concurrency: int
    activation_bytes: int
    problems: tuple[str, ...]
    limit: Limit | None
    knob: str
    cache_knob: str


def fit(size: ModelSize, target: Target, options: Options, device_name: str, times: SliceTimes | None) -> Fit:
    config = size.config
    device = PUBLISHED[device_name] if times is None else _this_machine(size, times)
    token_bytes = capacity.bytes_per_token(
        config.num_layers, config.num_kv_heads, config.head_dim, options.kv_dtype_bytes,
        per_head_scales=options.kv_cache_dtype == "int8",
    )  # fmt: skip
    block_bytes = options.block_size * token_bytes
    activation_bytes = size.activation_bytes * options.max_num_batched_tokens
    left = device.usable_memory_bytes - size.weight_bytes - activation_bytes
    needed = capacity.blocks_needed(target.longest_tokens, 0, options.block_size)
    num_blocks = max(0, _cache_bytes(size, options, block_bytes, left, is_gpu=times is None) // block_bytes)
    max_concurrency = num_blocks // needed
    problems, limit, knob = _refusal(size, target, device, left, needed, num_blocks, options)
    asked = target.concurrency
    if limit is None and asked is not None and asked > max_concurrency:
        problems = (
            *problems,
            f"{asked} requests of {target.longest_tokens} tokens need {asked * needed:,} blocks, the cache has "
            f"{num_blocks:,}: it holds {max_concurrency}",
        )
    return Fit(
        device, token_bytes, block_bytes, num_blocks, needed, max_concurrency, activation_bytes, problems, limit, knob,
        _cache_knob(target, options, needed * block_bytes, left, num_blocks * block_bytes),
    )  # fmt: skip


def _this_machine(size: ModelSize, times: SliceTimes) -> Device:
    """Its rates on this model: layers of one row read all of their weights, those of many rows multiply."""
    most = max(times.layers)
    return Device(
        "this CPU",
        read_bytes_per_s=size.layer_bytes / times.layers[1],
        products_per_s=2 * size.layer_parameters * most / times.layers[most],
        memory_bytes=capacity.available_memory_bytes(),
        attained_bandwidth=1.0,
        attained_products=1.0,
        step_overhead_s=0.0,
        measured=True,
    )


def _cache_bytes(size: ModelSize, options: Options, block_bytes: int, left: int, *, is_gpu: bool) -> int:
    if options.kv_cache_memory is not None:
        return options.kv_cache_memory
    if is_gpu or left <= 0:
        return left
    return capacity.default_kv_cache_bytes(
        block_bytes, options.block_size, _DEFAULT_MAX_NUM_SEQS, size.config.max_position, left
    )


def _refusal(
    size: ModelSize, target: Target, device: Device, left: int, needed: int, num_blocks: int, options: Options
) -> tuple[tuple[str, ...], Limit | None, str]:
    gb = 1e9
    if target.longest_tokens > size.config.max_position:
        text = f"a request has up to {target.longest_tokens:,} tokens, the model's context {size.config.max_position:,}"
        return (text,), "context", "shorter prompts and answers, or a model with a longer context"
    if left < needed * options.block_size:
        text = (
            f"weights take {size.weight_bytes / gb:.1f} GB, {device.name} has {device.usable_memory_bytes / gb:.1f} GB "
            "to use"
        )
        return (text,), "memory", "smaller weights (quantization, a GGUF of fewer bits) or a device with more memory"
    if num_blocks < needed:
        text = f"one request of {target.longest_tokens:,} tokens needs {needed:,} blocks, the cache has {num_blocks:,}"
        return (text,), "kv cache", "raise kv_cache_memory, or plan for a shorter context"
    if options.kv_cache_memory is not None and options.kv_cache_memory > left:
        text = f"kv_cache_memory={options.kv_cache_memory:,} bytes, but weights and activations leave {left:,}"
        return (text,), None, ""
    return (), None, ""


def _cache_knob(target: Target, options: Options, request_bytes: int, left: int, cache_bytes: int) -> str:
    knobs = []
    wanted = request_bytes * (target.concurrency or 0)
    if cache_bytes < wanted <= left:
        knobs.append(f"kv_cache_memory={wanted} holds {target.concurrency} requests")
    elif target.concurrency is None and left - cache_bytes > request_bytes:
        knobs.append(
            f"raise kv_cache_memory (a request takes {request_bytes:,} bytes, {left - cache_bytes:,} are free)"
        )
    if options.kv_cache_dtype != "int8":
        knobs.append("kv_cache_dtype='int8' nearly halves it")
    knobs.append("plan for shorter requests" if target.context is None else "plan for a shorter context")
    return "the cache is the limit: " + ", or ".join(knobs)


__all__ = ["Fit", "fit"]
