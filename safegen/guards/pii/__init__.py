"""Personal data: what has a shape by rules of our own, names and places through an optional recognizer.

Types and what decides each: see the modules of this package. All rules read through disguises
(`safegen.guards.reading`) and take time linear in the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from safegen.errors import RequestError
from safegen.guards.base import GuardView, Match, texts
from safegen.guards.candidates import pieces
from safegen.guards.following import Follower
from safegen.guards.pattern_guard import PatternGuard
from safegen.guards.pattern_rules import Rule
from safegen.guards.pii import crypto, dates, email, national, network, numbers, phone

_NATIONAL = "NATIONAL_ID"
_RULES: tuple[Rule, ...] = (
    numbers.CARD,
    numbers.IBAN,
    numbers.SSN,
    *national.RULES,
    network.MAC,
    network.IPV4,
    network.IPV6,
    email.RULE,
    network.CREDENTIALS,
    crypto.RULE,
    dates.RULE,
    phone.RULE,
)
NATIONAL_TYPES = tuple(dict.fromkeys(rule.name for rule in national.RULES))
PATTERN_TYPES = tuple(dict.fromkeys(rule.name for rule in _RULES))
NAME_TYPES = ("PERSON", "LOCATION")


class PII(PatternGuard):
    """Personal data.

    types: which, of PATTERN_TYPES and NAME_TYPES; "NATIONAL_ID" stands for all national identity numbers. Default: all
    of PATTERN_TYPES. PERSON and LOCATION need the extra `pii` (Presidio with a spaCy model, on the CPU, offline), are
    statistical, and have no bound: a stream is then held to its end.
    allow: texts that are no findings, such as the company's own address; compared as a whole, case ignored.
    """

    version = "2"

    def __init__(self, *, types: Sequence[str] | None = None, allow: Sequence[str] = (), **common: Any) -> None:
        super().__init__(**common)
        self.types = None if types is None else texts(self, "types", types)
        self.allow = texts(self, "allow", allow)
        wanted = self._wanted()
        self._allowed = frozenset(text.casefold() for text in self.allow)
        self._names: Any = None
        self._use([rule for rule in _RULES if rule.name in wanted] or [email.RULE])
        if not any(rule.name in wanted for rule in _RULES):
            self._gates = []
        names = [name for name in NAME_TYPES if name in wanted]
        if names:
            from safegen.guards.pii.names import NameRecognizer

            self._names = NameRecognizer(names)
            self.max_match, self.look_behind = None, None

    def _wanted(self) -> set[str]:
        known = {*PATTERN_TYPES, *NAME_TYPES, _NATIONAL}
        wanted = set(PATTERN_TYPES if self.types is None else self.types)
        for name in wanted - known:
            raise RequestError(
                f"PII: types holds {name!r}; known are {', '.join([*PATTERN_TYPES, *NAME_TYPES, _NATIONAL])}",
                field="types",
                value=name,
            )
        if not wanted:
            raise RequestError("PII: types is empty; leave it out for all of them", field="types", value=self.types)
        return wanted | set(NATIONAL_TYPES if _NATIONAL in wanted else ())

    def find(self, view: GuardView) -> list[Match]:
        found = self._find(view.text)
        if self._names is not None:
            rank = {**self.rank, **{name: len(self.rank) + at for at, name in enumerate(NAME_TYPES)}}
            found = [piece for piece, _ in pieces([*found, *self._names.find(view.text)], rank)]
        if not self._allowed:
            return found
        return [match for match in found if view.text[match.start : match.end].casefold() not in self._allowed]

    def follow(self) -> Follower | None:
        """What `find` leaves out of the rules' findings makes nothing less quiet."""
        return super().follow()
