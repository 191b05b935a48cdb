"""What an engine counts about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from safegen.engine.request import DraftCounts


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts of one moment (running to cached_blocks) and since the start (the others).

    running, waiting: sequences. cached_blocks: blocks that the prefix cache can find. prefix_hit_tokens: tokens taken
    from it instead of being computed. computed_tokens: tokens that went through a forward. output_tokens: tokens handed
    to callers. retracts: how often a sequence went back and on; retracted_tokens: drawn tokens that this cost.
    drafted_tokens: tokens of drafts that a forward verified; accepted_tokens: those that were drawn; by_drafter: both,
    drafter by drafter.
    """

    running: int
    waiting: int
    num_blocks: int
    free_blocks: int
    cached_blocks: int
    prefix_hit_tokens: int
    preemptions: int
    steps: int
    computed_tokens: int
    output_tokens: int
    finished_sequences: int
    retracts: int
    retracted_tokens: int
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    by_drafter: Mapping[str, DraftCounts] = field(default_factory=dict)
