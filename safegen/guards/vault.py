"""`Anonymize` on the way in, `Deanonymize` on the way out, and the `Vault` of one request between them.

Anonymize replaces what its detectors find in the prompt by numbered placeholders, such as `<EMAIL_1>`: equal texts get
equal placeholders, so that the model can still tell people apart. Deanonymize puts the originals back into the answer,
in the fields that `where` names. The vault belongs to one request, never leaves the process, is not part of any record
or repr, and is wiped when the request ends.

A placeholder that stands in the prompt already is never given out: the model could not tell it from ours.
"""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from safegen.errors import RequestError
from safegen.guards.base import Edit, Guard, GuardView, Match

_PLACEHOLDER = re.compile(r"<[A-Z][A-Z0-9_]{0,39}_[1-9][0-9]{0,5}>")
_LONGEST = 50


class Vault:
    """Originals by placeholder, of one request. Thread-safe: guards that may wait work side by side."""

    def __init__(self) -> None:
        self._originals: dict[str, str] = {}
        self._placeholders: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        self._taken: set[str] = set()
        self._lock = threading.Lock()

    def reserve(self, text: str) -> None:
        """Placeholders that stand in the caller's own text are not given out."""
        self._taken.update(_PLACEHOLDER.findall(text))

    def placeholder(self, rule: str, original: str) -> str:
        key = (rule, original)
        with self._lock:
            if key not in self._placeholders:
                label = re.sub(r"[^A-Z0-9]+", "_", rule.upper()).strip("_")[:40] or "VALUE"
                label = label if label[0].isalpha() else f"V{label}"[:40]
                made = self._next(label)
                while made in self._taken:
                    made = self._next(label)
                self._placeholders[key] = made
                self._originals[made] = original
            return self._placeholders[key]

    def original(self, placeholder: str) -> str | None:
        return self._originals.get(placeholder)

    def wipe(self) -> None:
        for kept in (self._originals, self._placeholders, self._counts, self._taken):
            kept.clear()

    def _next(self, label: str) -> str:
        self._counts[label] = self._counts.get(label, 0) + 1
        return f"<{label}_{self._counts[label]}>"

    def __len__(self) -> int:
        return len(self._originals)

    def __repr__(self) -> str:
        return f"Vault({len(self)} entries)"


class Anonymize(Guard):
    """detectors: the guards whose matches are replaced, such as PII(). They find; what they would do is not asked."""

    default_stages = ("input",)

    def __init__(self, detectors: Guard | Iterable[Guard], *, on_fail: Any = "redact", **common: Any) -> None:
        if on_fail not in ("redact", "log"):
            raise RequestError(f"Anonymize replaces: on_fail='redact', or 'log'; got {on_fail!r}", field="on_fail")
        super().__init__(on_fail=on_fail, **common)
        listed = detectors if isinstance(detectors, Iterable) else (detectors,)
        self.detectors = tuple(listed)
        if not self.detectors or not all(isinstance(each, Guard) for each in self.detectors):
            wrong = f"Anonymize: detectors={detectors!r:.80}; it takes guards, such as Anonymize([PII()])"
            raise RequestError(wrong, field="detectors", value=detectors)
        if self.stages != ("input",):
            raise RequestError(f"Anonymize works on input, got stages={self.stages!r}", field="stages")
        self.inline = all(detector.inline for detector in self.detectors)  # type: ignore[misc]
        self._vault: Vault | None = None

    def find(self, view: GuardView) -> Sequence[Match]:
        return [match for detector in self.detectors for match in detector.find(view)]

    def edits(self, view: GuardView, matches: Sequence[Match]) -> tuple[Edit, ...]:
        """Overlapping matches are one: the whole that they cover gets the placeholder of the first."""
        if self._vault is None:
            return super().edits(view, matches)
        edits: list[Edit] = []
        for start, end, match in merged(matches):
            text = self._vault.placeholder(match.rule, view.text[start:end])
            edits.append(Edit(start, end, text, match.rule, match.score))
        return tuple(edits)

    def for_request(self, vault: Vault) -> Guard:
        bound = copy.copy(self)
        bound._vault = vault
        return bound

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"detectors": [detector.to_dict() for detector in self.detectors]}

    @classmethod
    def from_dict(cls, given: Any) -> Anonymize:
        from safegen.guards.registry import guard_from_dict

        listed = given.get("detectors")
        if not isinstance(listed, list | tuple):
            raise RequestError(f"Anonymize: detectors={listed!r}; it takes a list of guards", field="detectors")
        return super().from_dict({**given, "detectors": [guard_from_dict(each) for each in listed]})


class Deanonymize(Guard):
    """Puts the originals of an Anonymize of the same request back, after all other guards have passed the answer."""

    default_stages = ("output",)
    inline = True
    max_match = _LONGEST
    look_behind = 0

    def __init__(self, *, on_fail: Any = "redact", **common: Any) -> None:
        if on_fail not in ("redact", "log"):
            raise RequestError(f"Deanonymize replaces: on_fail='redact', or 'log'; got {on_fail!r}", field="on_fail")
        super().__init__(on_fail=on_fail, **common)
        if self.stages != ("output",):
            raise RequestError(f"Deanonymize works on output, got stages={self.stages!r}", field="stages")
        self._vault: Vault | None = None

    @property
    def hold_bound(self) -> int | None:
        return _LONGEST - 1

    def frontier(self, text: str) -> int:
        """The last "<" that may still become a placeholder."""
        start = text.rfind("<", max(0, len(text) - _LONGEST + 1))
        return start if start >= 0 and ">" not in text[start:] else len(text)

    def find(self, view: GuardView) -> Sequence[Match]:
        known = _PLACEHOLDER.finditer(view.text)
        vault = self._vault
        return [
            Match(m.start(), m.end(), "placeholder")
            for m in known
            if vault is not None and vault.original(m[0]) is not None
        ]

    def edits(self, view: GuardView, matches: Sequence[Match]) -> tuple[Edit, ...]:
        vault = self._vault
        if vault is None:
            return ()
        originals = [(m, vault.original(view.text[m.start : m.end])) for m in matches]
        return tuple(Edit(m.start, m.end, text, m.rule, m.score) for m, text in originals if text is not None)

    def for_request(self, vault: Vault) -> Guard:
        bound = copy.copy(self)
        bound._vault = vault
        return bound


def merged(matches: Sequence[Match]) -> list[tuple[int, int, Match]]:
    """Overlapping matches as one: (start, end, the match that begins first, the longest of those)."""
    clusters: list[tuple[int, int, Match]] = []
    for match in sorted(matches, key=lambda m: (m.start, -m.end)):
        if clusters and match.start < clusters[-1][1]:
            start, end, first = clusters[-1]
            clusters[-1] = (start, max(end, match.end), first)
        else:
            clusters.append((match.start, match.end, match))
    return clusters
