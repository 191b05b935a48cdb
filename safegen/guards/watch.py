"""One unit of text under the eyes of several guards: what of it is final, what it becomes, and whether it may go on.

`UnitWatch` is given decoded characters as they come and releases the raw text that no match can claim any more. It
decides every match once, when the frontier has passed its start: then the match is final, whatever follows (the stream
law in `safegen.guards.base`). So what is released, joined, is the same for every way in which the text was cut, and is
what one look at the whole text gives.

Matches of different guards may overlap. Overlapping edits are one: all that they cover is replaced by the text of the
edit that begins first (the longest of those, then the first guard of the set). A block, a retry or a failure ends the
unit at its place: nothing from there on is released.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from safegen.guards.base import Allow, Block, Edit, GuardView, Match, Replace, Retry
from safegen.guards.running import Entry, Finding
from safegen.guards.scopes import Place
from safegen.guards.units import UnitKind, spelled

Outcome = Literal["block", "redact", "retry", "log", "error", "timeout"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What one guard decided about one match. replacement: of an edit. matched: the text, kept for its digest alone."""

    entry: Entry
    outcome: Outcome
    start: int
    end: int
    rule: str
    score: float
    place: Place
    replacement: str = field(default="", repr=False)
    matched: str = field(default="", repr=False)
    hint: str = ""
    during_decoding: bool = False

    @property
    def stops(self) -> bool:
        """It ends the answer."""
        failed = self.outcome in ("error", "timeout") and not self.entry.only_logs
        return failed or self.outcome in ("block", "retry")


Look = Callable[[Sequence[Entry], GuardView], list[Finding]]


class UnitWatch:
    """entries: the guards that look at this unit; those of a property name are set when it has ended, like its place.
    look: runs them. protected: texts that must not be repeated. is_exempt: whether a span of decoded characters is a
    placeholder that was put there on purpose.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        place: Place,
        kind: UnitKind,
        look: Look,
        protected: Sequence[str] = (),
        is_exempt: Callable[[UnitWatch, int, int], bool] = lambda unit, start, end: False,
    ) -> None:
        self.entries = entries
        self.place = place
        self.kind = kind
        self._look = look
        self._protected = protected
        self._is_exempt = is_exempt
        self._chars: list[str] = []
        self._raws: list[str] = []
        self.num_decided = 0  # characters whose matches are decided; all of them are released or replaced
        self._covered = 0  # end of the last replaced span
        self._num_seen = 0
        acting = [entry for entry in entries if not entry.only_logs]
        self._withholds = kind == "key" or any(entry.guard.hold_bound is None for entry in acting)
        behinds = [entry.guard.look_behind for entry in acting]
        known = [behind for behind in behinds if behind is not None]
        self._look_behind = max(known, default=0) if len(known) == len(behinds) else None
        self.decisions: list[Decision] = []
        self.stopped: Decision | None = None

    @property
    def text(self) -> str:
        return "".join(self._chars)

    def copy_lists(self) -> None:
        """What a shallow copy shares with its original, made its own."""
        self._chars, self._raws, self.decisions = list(self._chars), list(self._raws), list(self.decisions)

    def raw(self, first: int, last: int) -> str:
        return "".join(self._raws[first:last])

    def add(self, decoded: str, raw: str) -> None:
        self._chars.append(decoded)
        self._raws.append(raw)

    def release(self, *, final: bool) -> str:
        """The raw text that has become certain; final: no more will come."""
        if self.stopped is not None:
            return ""
        acting = [entry for entry in self.entries if not entry.only_logs]
        released = self._release(acting, final=final)
        if final or self.stopped is not None:
            self._log([entry for entry in self.entries if entry.only_logs])
        return released

    def _release(self, entries: Sequence[Entry], *, final: bool) -> str:
        if not entries and (final or not self._withholds):
            taken = "".join(self._raws[self.num_decided :])
            self.num_decided = len(self._raws)
            return taken
        if not final and (self._withholds or len(self._chars) == self._num_seen):
            return ""
        self._num_seen = len(self._chars)
        begin = 0 if self._look_behind is None else max(0, self.num_decided - self._look_behind)
        seen = "".join(self._chars[begin:])
        try:
            frontier = len(self._chars) if final else begin + _frontier(entries, seen)
        except Exception as error:  # a guard that cannot say what is certain
            self._stop(Decision(entries[0], "error", *self._here(), type(error).__name__, 1.0, self.place))
            return ""
        if frontier <= self.num_decided and not final:
            return ""
        view = GuardView(seen, str(self.place), "output", final, protected=self._protected)
        decisions = self._decide(self._look(entries, view), begin, frontier, final)
        return self._apply(decisions, max(frontier, self.num_decided))

    def _log(self, entries: Sequence[Entry]) -> None:
        """Guards that only log hold nothing back: they see the unit when it has ended, as far as it came."""
        if not entries:
            return
        seen = "".join(self._chars[: self.num_decided])
        view = GuardView(seen, str(self.place), "output", True, protected=self._protected)
        decisions = [each for finding in self._look(entries, view) for each in self._of(finding, 0)]
        self.decisions += decisions
        self.decisions.sort(key=_text_order)

    def _here(self) -> tuple[int, int]:
        return self.num_decided, self.num_decided

    def _stop(self, decision: Decision) -> None:
        self.stopped = decision
        self.decisions.append(decision)

    def _decide(self, findings: Sequence[Finding], begin: int, frontier: int, final: bool) -> list[Decision]:
        """Decisions about matches that begin where nothing was decided yet, in the order of the text."""
        made: list[Decision] = []
        for finding in findings:
            for decision in self._of(finding, begin):
                known = decision.start < self.num_decided
                open_yet = decision.start >= frontier and not final
                fails = decision.outcome in ("error", "timeout")
                if fails or not (known or open_yet or self._is_exempt(self, decision.start, decision.end)):
                    made.append(decision)
        return sorted(made, key=_text_order)

    def _of(self, finding: Finding, begin: int) -> list[Decision]:
        verdict, entry = finding.verdict, finding.entry
        if finding.failure is not None or verdict is None:
            return [Decision(entry, finding.failure or "error", *self._here(), finding.reason, 1.0, self.place)]
        if isinstance(verdict, Replace):
            # A placeholder is no number: decoding may have found one that fits (see redact.py), here it is too late.
            outcome: Outcome = "block" if self.kind == "number" else "redact"
            return [self._decision(entry, outcome, begin, edit, replacement=edit.text) for edit in verdict.edits]
        hint = verdict.hint if isinstance(verdict, Retry) else ""
        return [self._decision(entry, _OUTCOMES[type(verdict)], begin, m, hint=hint) for m in verdict.matches]

    def _decision(
        self, entry: Entry, outcome: Outcome, begin: int, span: Match | Edit, *, replacement: str = "", hint: str = ""
    ) -> Decision:
        start, end = begin + span.start, begin + span.end
        matched = "".join(self._chars[start:end])
        return Decision(entry, outcome, start, end, span.rule, span.score, self.place, replacement, matched, hint)

    def _apply(self, decisions: Sequence[Decision], frontier: int) -> str:
        released: list[str] = []
        place = self.num_decided
        for decision in decisions:
            if decision.stops:
                self._stop(decision)
                frontier = min(frontier, max(place, decision.start))
                break
            self.decisions.append(decision)
            if decision.outcome != "redact":
                continue
            if decision.start >= self._covered:
                released.extend(self._raws[max(place, self._covered) : decision.start])
                released.append(spelled(decision.replacement, self.kind))
                place = max(place, decision.start)
            self._covered = max(self._covered, decision.end)
        released.extend(self._raws[max(place, self._covered) : frontier])
        self.num_decided = max(self.num_decided, frontier)
        return "".join(released)


def _frontier(entries: Sequence[Entry], seen: str) -> int:
    return min(min(len(seen), entry.guard.frontier(seen)) for entry in entries)


def _text_order(decision: Decision) -> tuple[int, int, int]:
    return decision.start, -decision.end, decision.entry.number


_OUTCOMES: dict[type, Outcome] = {Allow: "log", Block: "block", Retry: "retry"}
