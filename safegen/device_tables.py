"""Which output types a device runs as tables: regexes, and types with few possible answers (choices, flat schemas).

A table moves with the tokens on the device, so that the next step need not wait for the host. It is made at the first
use of a type, bounded in states, texts and time; a type that has none is masked by the host as ever, to the same
answers. Tables of recent types are kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from safegen.errors import GrammarError

if TYPE_CHECKING:
    from safegen.grammars.constraint import Constraint, TokenTable
    from safegen.grammars.disk_cache import DiskCache
    from safegen.grammars.fsm import FsmProgram
    from safegen.grammars.vocabulary import Vocabulary
    from safegen.limits import Limits
    from safegen.output_type import OutputType

_MOST_KEPT = 256


class DeviceTables:
    """Thread-safe."""

    def __init__(self, limits: Limits, cache: DiskCache | None) -> None:
        self._limits, self._cache = limits, cache
        self._lock = threading.Lock()
        # By program and vocabulary: the program, which keeps its id its own, and what was found.
        self._found: OrderedDict[tuple[int, str], tuple[Any, FsmProgram | TokenTable | None]] = OrderedDict()

    def constraint(self, output_type: OutputType[Any], vocabulary: Vocabulary) -> Constraint | None:
        """None for a type without a table."""
        program = output_type.program
        if program is None or output_type.text_program is not None or output_type.think is not None:
            return None
        from safegen.grammars.fsm import FsmProgram
        from safegen.grammars.token_table import TabledConstraint

        found = self._find(output_type, program, vocabulary)
        if isinstance(found, FsmProgram):
            return found.constraint(vocabulary, self._cache)
        return None if found is None else TabledConstraint(program, vocabulary, found)

    def _find(
        self, output_type: OutputType[Any], program: Any, vocabulary: Vocabulary
    ) -> FsmProgram | TokenTable | None:
        key = (id(program), vocabulary.fingerprint)
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key][1]
        made = self._make(output_type, program, vocabulary)
        with self._lock:
            self._found[key] = (program, made)
            while len(self._found) > _MOST_KEPT:
                self._found.popitem(last=False)
        return made

    def _make(
        self, output_type: OutputType[Any], program: Any, vocabulary: Vocabulary
    ) -> FsmProgram | TokenTable | None:
        from safegen.grammars.fsm import compile_fsm
        from safegen.grammars.token_table import explored

        table = explored(program, vocabulary)
        if table is not None or output_type.pattern is None:
            return table
        try:
            fsm = compile_fsm(output_type.pattern, program, self._limits)
            fsm.table(vocabulary, self._cache)
        except GrammarError:
            return None  # too large, or with looks around
        return fsm


__all__ = ["DeviceTables"]
