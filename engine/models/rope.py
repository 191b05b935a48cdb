"""Rotary position tables: cos and sin of the positions that a model serves.

Frequencies follow the methods' papers as `transformers` computes them: linear interpolation, Llama 3's smooth blend,
YaRN (arXiv 2309.00071) and LongRoPE (arXiv 2402.13753). LongRoPE has two sets of factors, one for contexts up to the
original length and one for longer ones. `transformers` chooses by the length so far and rotates the cache of a
sequence with a mixture when it grows past the border; here the choice is made once, from the context length the model
is loaded for, so that a token's key never depends on what follows it (prefix cache, chunked prefill).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from safegen.engine.models.config import RopeConfig

CHUNK_POSITIONS = 4096


class RopeTable:
    """cos, sin: fp32 [positions so far, rotary_dim / 2], grown as sequences grow; only the engine thread calls `cover`.

    A model may claim a context of a million tokens, so the table starts small. It grows by chunks of a fixed size,
    each computed alone, so a row has the same bits whenever it was added.
    """

    def __init__(self, rope: RopeConfig, max_position: int, device: torch.device) -> None:
        self._frequency, self._attention_factor = frequencies(rope, max_position)
        self._max_position, self._device = max_position, device
        self.cos, self.sin = self._chunk(0)

    def cover(self, num_positions: int) -> None:
        """Make sure that positions below num_positions (or the model's last) are there."""
        while len(self.cos) < min(num_positions, self._max_position):
            cos, sin = self._chunk(len(self.cos))
            self.cos, self.sin = torch.cat((self.cos, cos)), torch.cat((self.sin, sin))

    def _chunk(self, start: int) -> tuple[Tensor, Tensor]:
        position = torch.arange(start, start + CHUNK_POSITIONS, dtype=torch.float32)
        angle = torch.outer(position, self._frequency)
        cos, sin = angle.cos() * self._attention_factor, angle.sin() * self._attention_factor
        return cos.to(self._device), sin.to(self._device)


def frequencies(rope: RopeConfig, max_position: int) -> tuple[Tensor, float]:
    """Angle a position of each rotating pair, fp32 [rotary_dim / 2], and the factor on cos and sin."""
    exponent = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float32) / rope.rotary_dim
    wavelength = rope.theta**exponent
    if rope.scaling == "linear":
        return 1.0 / wavelength / rope.factor, 1.0
    if rope.scaling == "llama3":
        return _llama3(1.0 / wavelength, rope, max_position), 1.0
    if rope.scaling == "yarn":
        return _yarn(wavelength, rope, max_position)
    if rope.scaling == "factors":
        return _factors(wavelength, rope, max_position)
    return 1.0 / wavelength, 1.0


def _llama3(frequency: Tensor, rope: RopeConfig, max_position: int) -> Tensor:
    original = rope.original_max_position or max_position
    turns = original * frequency / (2 * math.pi)  # in the original context
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * frequency / rope.factor + smooth * frequency


def _yarn(wavelength: Tensor, rope: RopeConfig, max_position: int) -> tuple[Tensor, float]:
    original = rope.original_max_position or max_position

    def dimension(turns: float) -> float:
        """Index of the pair that turns so often in the original context."""
        return rope.rotary_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    ramp = (torch.arange(rope.rotary_dim // 2, dtype=torch.float32) - low) / (high - low or 0.001)
    keep = 1 - ramp.clamp(0, 1)
    frequency = 1.0 / (rope.factor * wavelength) * (1 - keep) + 1.0 / wavelength * keep
    if rope.attention_factor is not None:
        return frequency, rope.attention_factor
    return frequency, 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0


def _factors(wavelength: Tensor, rope: RopeConfig, max_position: int) -> tuple[Tensor, float]:
    original = rope.original_max_position or max_position
    factors = rope.long_factors if max_position > original else rope.short_factors
    frequency = 1.0 / (torch.tensor(factors, dtype=torch.float32) * wavelength)
    if rope.attention_factor is not None:
        return frequency, rope.attention_factor
    return frequency, math.sqrt(1 + math.log(rope.factor) / math.log(original)) if rope.factor > 1 else 1.0


__all__ = ["CHUNK_POSITIONS", "RopeTable", "frequencies"]
