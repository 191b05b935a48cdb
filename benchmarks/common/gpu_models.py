"""Models of real shapes with random weights, and a vocabulary to go with them: no checkpoint is needed.

Speed does not depend on the numbers, only on their types and shapes. Words of the vocabulary are single bytes first,
then all words of small letters, so a regex over letters leaves most of it open.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, product
from string import ascii_lowercase

import torch
from torch import Tensor

from safegen.engine.models.config import ModelConfig, RopeConfig
from safegen.engine.models.layers import Decoder
from safegen.engine.models.loader import FAMILIES, Checkpoint, build_model
from safegen.kernels.api import Ops, Weight

_LLAMA = ModelConfig(
    path="random", architecture="llama", vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_layers=32,
    num_heads=32, num_kv_heads=8, head_dim=128, max_position=8192, rms_norm_eps=1e-5, rope=RopeConfig(500000.0, 128),
    sliding_window=(None,) * 32, tie_embeddings=False, eos_token_ids=(128001,), attention_scale=128**-0.5,
)  # fmt: skip
_QWEN = replace(
    _LLAMA, architecture="qwen3", vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_layers=36,
    rope=RopeConfig(1000000.0, 128), sliding_window=(None,) * 36, tie_embeddings=True, eos_token_ids=(151645,),
)  # fmt: skip
_TINY = replace(
    _LLAMA, vocab_size=512, hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4, num_kv_heads=2,
    head_dim=16, max_position=256, rope=RopeConfig(10000.0, 16), sliding_window=(None, None), eos_token_ids=(511,),
)  # fmt: skip
CONFIGS = {"llama-3-8b": _LLAMA, "qwen3-4b": _QWEN, "tiny": _TINY}


class RandomWeights:
    """`WeightSource` of normal numbers on a device; norms are ones, and there are no biases."""

    path = "random"

    def __init__(self, device: torch.device, seed: int = 0) -> None:
        self._device = device
        self._random = torch.Generator(device).manual_seed(seed)

    def __contains__(self, name: str) -> bool:
        return not name.endswith(".bias")

    def weight(self, name: str, shape: tuple[int, int]) -> Weight:
        numbers = torch.empty(shape, dtype=torch.bfloat16, device=self._device)
        return Weight("bf16", shape, numbers.normal_(0.0, shape[1] ** -0.5, generator=self._random))

    def vector(self, name: str, length: int) -> Tensor:
        return torch.ones(length, device=self._device)

    def unread(self) -> list[str]:
        return []


def random_model(name: str, kernels: Ops, device: torch.device) -> Decoder:
    config = CONFIGS[name]
    family = next(each for each in FAMILIES if each.architecture == config.architecture)
    return build_model(Checkpoint(family, config, None), config, RandomWeights(device), kernels, device)


def vocabulary_bytes(size: int) -> list[bytes | None]:
    """The last id is the stop id, and stands for no text."""
    words = ("".join(letters) for length in range(2, 6) for letters in product(ascii_lowercase, repeat=length))
    texts: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    texts += [word.encode() for word in islice(words, size - 257)]
    return [*texts, None]


__all__ = ["CONFIGS", "RandomWeights", "random_model", "vocabulary_bytes"]
