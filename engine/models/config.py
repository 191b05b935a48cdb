"""What a model is, in one shape for every source: `ModelConfig`, and the typed reading of the fields it is made of.

A config comes from a Hugging Face `config.json` (hf_config.py) or GGUF metadata (gguf_config.py); from here on nobody
asks which. It is validated once, at construction: a bad field is a `ModelLoadError` that names the file, the field, the
value and what it may be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np

from safegen.errors import ModelLoadError

MAX_LAYERS = 1024
RopeScaling = Literal["default", "linear", "llama3", "yarn", "factors"]
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding of one kind of layer.

    rotary_dim: leading dimensions of a head that rotate. scaling "factors" divides each frequency by its own factor:
    LongRoPE (short_factors up to original_max_position, long_factors when the model serves more), and Llama 3 as GGUF
    files store it. attention_factor multiplies cos and sin; None derives it as the method's paper does.
    """

    theta: float
    rotary_dim: int
    scaling: RopeScaling = "default"
    factor: float = 1.0
    original_max_position: int | None = None
    attention_factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer's sizes and settings.

    path: the file it was read from, for messages. max_position: context length in tokens. sliding_window: one entry a
    layer, tokens a query sees counting itself, None is all. rope: of full-attention layers, and of sliding ones too
    where local_rope is None. rope_interleaved: pairs (2i, 2i+1) rotate, as in GGUF files of the Llama family.
    eos_token_ids: every id that the model's own files name as an end. tie_embeddings: the output head is the
    embedding.
    """

    path: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope: RopeConfig
    sliding_window: tuple[int | None, ...]
    tie_embeddings: bool
    eos_token_ids: tuple[int, ...]
    attention_scale: float
    local_rope: RopeConfig | None = None
    rope_interleaved: bool = False
    logit_softcap: float | None = None
    embedding_scale: float = 1.0
    activation: Activation = "silu"

    def __post_init__(self) -> None:
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim",
            "max_position", "rms_norm_eps", "attention_scale",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                self._fail(name, getattr(self, name), "a positive number")
        if self.num_heads % self.num_kv_heads:
            self._fail("num_kv_heads", self.num_kv_heads, f"a divisor of num_heads, {self.num_heads}")
        if len(self.sliding_window) != self.num_layers:
            self._fail("sliding_window", len(self.sliding_window), f"one entry for each of {self.num_layers} layers")
        if any(window is not None and window < 1 for window in self.sliding_window):
            self._fail("sliding_window", self.sliding_window, "positive, or None for full attention")
        if any(not 0 <= token < self.vocab_size for token in self.eos_token_ids):
            self._fail("eos_token_ids", self.eos_token_ids, f"token ids below vocab_size, {self.vocab_size}")
        for rope in filter(None, (self.rope, self.local_rope)):
            self._check_rope(rope)

    def _check_rope(self, rope: RopeConfig) -> None:
        if not (rope.theta > 0 and math.isfinite(rope.theta)):
            self._fail("rope.theta", rope.theta, "a positive number")
        if rope.rotary_dim % 2 or not 2 <= rope.rotary_dim <= self.head_dim:
            self._fail("rope.rotary_dim", rope.rotary_dim, f"even, from 2 to head_dim, {self.head_dim}")
        if not rope.factor > 0:
            self._fail("rope.factor", rope.factor, "a positive number")
        if rope.scaling == "factors":
            for name, factors in (("short_factors", rope.short_factors), ("long_factors", rope.long_factors)):
                if len(factors) != rope.rotary_dim // 2 or not all(factor > 0 for factor in factors):
                    self._fail(f"rope.{name}", f"{len(factors)} values", f"{rope.rotary_dim // 2} positive values")

    def _fail(self, field: str, value: object, expected: str) -> NoReturn:
        raise ModelLoadError(
            f"the config's {field} is {value!r}; it must be {expected}",
            path=self.path,
            hint="compare it with the model's published config, or download the model again",
        )


class Fields:
    """Named values of a config file, read with their type; every miss is a ModelLoadError that names the field.

    prefix: put before each name that is asked for (GGUF metadata keys start with the architecture).
    """

    def __init__(self, values: Mapping[str, Any], path: str, prefix: str = "") -> None:
        self.values, self.path, self.prefix = values, path, prefix

    def fail(self, name: str, message: str, hint: str = "use the config that was published with the model") -> NoReturn:
        raise ModelLoadError(f"config field {self.prefix + name!r} {message}", path=self.path, hint=hint)

    def get(self, name: str) -> Any:
        return self.values.get(self.prefix + name)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.optional_integer(name)
        if value is None:
            value = default
        if value is None:
            self.fail(name, "is missing")
        return value

    def optional_integer(self, name: str) -> int | None:
        value = self._one_value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(name, f"must be an integer, found {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.optional_number(name)
        if value is None:
            value = default
        if value is None:
            self.fail(name, "is missing")
        return value

    def optional_number(self, name: str) -> float | None:
        value = self._one_value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.fail(name, f"must be a finite number, found {value!r}")
        return float(value)

    def layer_count(self, name: str) -> int:
        """Checked before anything is made a layer: a corrupt count must not fill the memory."""
        count = self.integer(name)
        if not 1 <= count <= MAX_LAYERS:
            self.fail(name, f"is {count}; it must lie in 1 .. {MAX_LAYERS}")
        return count

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(name, f"must be true or false, found {value!r}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self.get(name)
        if value is None:
            value = default
        if value is None:
            self.fail(name, "is missing")
        if not isinstance(value, str):
            self.fail(name, f"must be a string, found {value!r}")
        return value

    def numbers(self, name: str) -> tuple[float, ...]:
        value = self.get(name)
        if not isinstance(value, list) or not all(type(entry) in (int, float) for entry in value):
            self.fail(name, f"must be a list of numbers, found {value!r}" if value is not None else "is missing")
        return tuple(float(entry) for entry in value)

    def section(self, name: str) -> Fields | None:
        """The fields of a nested object."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.fail(name, f"must be an object, found {value!r}")
        return Fields(value, self.path)

    def _one_value(self, name: str) -> Any:
        """A per-layer array (GGUF) counts as one value where all layers agree."""
        value = self.get(name)
        if not isinstance(value, np.ndarray):
            return value
        if len(set(value.tolist())) != 1:
            self.fail(name, f"differs from layer to layer ({value.tolist()}), which no served family has")
        return value[0].item()


__all__ = ["Activation", "Fields", "ModelConfig", "RopeConfig", "RopeScaling"]
