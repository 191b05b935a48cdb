"""Every limit of the SDK in one place: those of compilation (`safegen.grammars.options`) and those of an LLM."""

from __future__ import annotations

from dataclasses import dataclass

from safegen.grammars.options import Limits as GrammarLimits


@dataclass(frozen=True, slots=True)
class Limits(GrammarLimits):
    """Bounds on what one LLM spends, in addition to those of compilation, which it inherits.

    max_schema_bytes: JSON text of an output type's schema; SchemaError. max_queue: requests waiting for the engine;
    CapacityError. max_retracts: how often one answer may take text back that failed a check made when its part closed;
    status "invalid". max_cached_types: compiled types kept by an LLM; the least recently used is dropped.
    max_choice_nodes: token prefixes visited for Choice(probabilities=True); CapacityError. disk_cache_bytes: bytes of
    files in SAFEGEN_CACHE_DIR, where that is set; the least recently used are removed. grammar_check_deadline_s:
    seconds that judging one answer of a Grammar may take; EngineError. Every field is a positive number; RequestError
    at construction names a wrong one.
    """

    max_schema_bytes: int = 1 << 20
    max_queue: int = 4096
    max_retracts: int = 64
    max_cached_types: int = 256
    max_choice_nodes: int = 4096
    disk_cache_bytes: int = 256 << 20
    grammar_check_deadline_s: float = 10.0
