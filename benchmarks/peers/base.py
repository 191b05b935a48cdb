"""What an engine must offer to be measured by `cpu_decode.py`, and how its figures are counted, alike for all.

Decoding is timed from the moment that every sequence has its first token to the end of the last one; first tokens are
not counted. So the prompts' own time is in no decode figure. Only tokens of the answer count: not the stop token.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Generated:
    """tokens: output tokens of all sequences after the first of each. seconds: what they took. num_valid: answers that
    are JSON. notes: further figures of the same run, by name."""

    tokens: int
    seconds: float
    num_valid: int = 0
    notes: dict[str, float] = field(default_factory=dict)


def usable_cpus() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CpuEngine(Protocol):
    """One engine in this process. `load` may be called again with another setting, after `close`."""

    def settings(self) -> list[str]:
        """What can be chosen, such as threads; each measure is taken with all of them and the best one counts."""
        ...

    def versions(self) -> dict[str, Any]: ...
    def imports(self) -> None:
        """Import all that loading and generating import."""
        ...

    def load(self, setting: str, kv_bytes: int | None) -> None:
        """kv_bytes: of the whole KV cache, where the engine has a say in it; None: as much as is of use."""
        ...

    def prefill(self) -> float:
        """Seconds from a prompt of PREFILL_TOKENS to its first token."""
        ...

    def decode(self, num_sequences: int) -> Generated:
        """Greedy, `workload.steps` tokens a sequence after the first."""
        ...

    def json(self, num_sequences: int) -> Generated:
        """Greedy under `workload.schema`, until each answer is complete."""
        ...

    def ttft(self) -> float | None:
        """Seconds to the first token of the prefill prompt while LOADED_SEQUENCES others decode; None where the engine
        cannot take a request in while others run."""
        ...

    def logits(self, setting: str) -> Iterator[NDArray[np.float32]]:
        """[tokens, vocabulary] of each quality window; loads by itself."""
        ...

    def close(self) -> None: ...
