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

import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from safegen.guards.bans import EditedText
from safegen.guards.base import Allow, Block, Edit, GuardView, Match, Replace, Retry
from safegen.guards.running import Entry, Finding, Late, frontier_in_time
from safegen.guards.scopes import Place
from safegen.guards.units import UnitKind, spelled
from safegen.guards.watched import Watched, watch_too

Outcome = Literal["block", "redact", "retry", "log", "error", "timeout"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What one guard decided about one match. replacement: of an edit. matched: the text, kept for its digest alone.
    at: its offset in the edited text."""

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
    at: int = 0

    @property
    def stops(self) -> bool:
        """It ends the answer."""
        failed = self.outcome in ("error", "timeout") and not self.entry.only_logs
        return failed or self.outcome in ("block", "retry")


Look = Callable[[Sequence[Entry], GuardView], list[Finding]]


class UnitWatch:
    """entries: the guards that look at this unit; those of a property name are set when it has ended, like its place.
    look: runs them. protected: texts that must not be repeated. is_exempt: whether a span of decoded characters is a
    placeholder that was put there on purpose. deadline_s: for one answer of a guard about what is certain. bans: what
    edits must not bring about.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        place: Place,
        kind: UnitKind,
        look: Look,
        protected: Sequence[str] = (),
        is_exempt: Callable[[UnitWatch, int, int], bool] = lambda unit, start, end: False,
        deadline_s: float = 5.0,
        bans: EditedText | None = None,
    ) -> None:
        self.entries = entries
        self.place = place
        self.kind = kind
        self._look = look
        self._protected = protected
        self._is_exempt = is_exempt
        self._deadline_s = deadline_s
        self.bans = bans
        self._chars: list[str] = []
        self._raws: list[str] = []
        self.num_decided = 0  # characters whose matches are decided; all of them are released or replaced
        self._covered = 0  # end of the last replaced span
        self._num_out = 0  # decoded characters that are released or held
        self._held = ""  # released but for a ban that the next character may complete
        self._num_seen = 0
        acting = [entry for entry in entries if not entry.only_logs]
        self._withholds = kind == "key" or any(map(_is_unbounded, acting))
        self._watched: list[Watched] | None = None  # made when something may be released before the end
        self.decisions: list[Decision] = []
        self.stopped: Decision | None = None

    @property
    def text(self) -> str:
        return "".join(self._chars)

    def copy_lists(self) -> None:
        """What a shallow copy shares with its original, made its own."""
        self._chars, self._raws, self.decisions = list(self._chars), list(self._raws), list(self.decisions)
        if self._watched is not None:
            self._watched = [each.copy() for each in self._watched]

    def raw(self, first: int, last: int) -> str:
        return "".join(self._raws[first:last])

    def add(self, decoded: str, raw: str) -> None:
        """One decoded character, or several that spell themselves."""
        if decoded == raw:
            self._chars += decoded
            self._raws += decoded
        else:
            self._chars.append(decoded)
            self._raws.append(raw)

    def release(self, *, final: bool) -> str:
        """The raw text that has become certain; final: no more will come."""
        if self.stopped is not None:
            return ""
        if not final:
            released = self._release_some()
            if self.stopped is None:
                return released
        else:
            released = self._release_all()
        self._log([entry for entry in self.entries if entry.only_logs])
        return released

    def spent(self) -> dict[int, float]:
        """Milliseconds that guards took beside their looks, by the number of their entry."""
        return {
            entry.number: watched.seconds * 1e3 / len(watched.entries)
            for watched in self._watched or ()
            for entry in watched.entries
        }

    def _release_some(self) -> str:
        if self._withholds or len(self._chars) == self._num_seen:
            return ""
        if self._watched is None:
            self._watched = self._watch()
        frontier = self.num_decided if self.stopped is not None else self._follow(self._watched)
        if frontier <= self.num_decided or self.stopped is not None:
            return ""
        return self._decide_to(frontier, self._not_quiet(self._watched, frontier), final=False)

    def _release_all(self) -> str:
        if self._watched is None:
            asked = [entry for entry in self.entries if not entry.only_logs]
        else:
            if len(self._chars) > self._num_seen:
                self._follow(self._watched)
            if self.stopped is not None:
                return ""
            asked = self._not_quiet(self._watched, len(self._chars))
        return self._decide_to(len(self._chars), asked, final=True)

    def _not_quiet(self, all_watched: Sequence[Watched], end: int) -> list[Entry]:
        """Guards that may have found something between what is decided and `end`, in their order."""
        asked = [
            entry for watched in all_watched if not watched.is_quiet(self.num_decided, end) for entry in watched.entries
        ]
        return sorted(asked, key=_number)

    def _watch(self) -> list[Watched]:
        made: list[Watched] = []
        for entry in self.entries:
            try:
                if not entry.only_logs:
                    watch_too(made, entry)
            except Exception as error:  # a guard that cannot watch
                self._stop(Decision(entry, "error", *self._here(), type(error).__name__, 1.0, self.place))
                break
        return made

    def _follow(self, all_watched: Sequence[Watched]) -> int:
        """What is new is shown to all followers; returns how far all agree that it is certain."""
        added, self._num_seen = "".join(self._chars[self._num_seen :]), len(self._chars)
        frontier, started = self._num_seen, time.perf_counter()
        for watched in all_watched:
            try:
                if watched.follower is not None:
                    certain = operator.index(watched.follower.feed(added, self.num_decided))
                else:
                    begin = self._window_begin(watched.entries)
                    text = "".join(self._chars[begin:])
                    certain = begin + frontier_in_time(watched.entries[0], text, self._deadline_s)
            except Late as error:
                self._stop(Decision(watched.entries[0], "timeout", *self._here(), str(error), 1.0, self.place))
                return self.num_decided
            except Exception as error:  # a guard that cannot say what is certain
                self._stop(Decision(watched.entries[0], "error", *self._here(), type(error).__name__, 1.0, self.place))
                return self.num_decided
            frontier = min(frontier, certain)
            now = time.perf_counter()
            watched.seconds += now - started
            started = now
        return frontier

    def _decide_to(self, frontier: int, entries: Sequence[Entry], *, final: bool) -> str:
        """entries: guards that may have found something up to the frontier."""
        if not entries:
            return self._apply((), frontier, final)
        begin = self._window_begin(entries)
        view = GuardView("".join(self._chars[begin:]), str(self.place), "output", final, protected=self._protected)
        return self._apply(self._decide(self._look(entries, view), begin, frontier, final), frontier, final)

    def _window_begin(self, entries: Sequence[Entry]) -> int:
        """Where a look may begin that finds all that is not decided yet."""
        behinds = [entry.guard.look_behind for entry in entries]
        known = [behind for behind in behinds if behind is not None]
        return max(0, self.num_decided - max(known, default=0)) if len(known) == len(behinds) else 0

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
        if not verdict.matches and not isinstance(verdict, Allow):  # of the text as a whole
            return [Decision(entry, _OUTCOMES[type(verdict)], *self._here(), "text", 1.0, self.place, hint=hint)]
        return [self._decision(entry, _OUTCOMES[type(verdict)], begin, m, hint=hint) for m in verdict.matches]

    def _decision(
        self, entry: Entry, outcome: Outcome, begin: int, span: Match | Edit, *, replacement: str = "", hint: str = ""
    ) -> Decision:
        start, end = begin + span.start, begin + span.end
        matched = "".join(self._chars[start:end])
        return Decision(entry, outcome, start, end, span.rule, span.score, self.place, replacement, matched, hint)

    def _apply(self, decisions: Sequence[Decision], frontier: int, final: bool) -> str:
        released: list[str] = [self._held]
        place = self.num_decided
        for found in decisions:
            kept = max(0, found.start - max(place, self._covered))
            decision = replace(found, at=self._num_out + kept)
            if decision.stops:
                self._stop(decision)
                frontier = min(frontier, max(place, decision.start))
                break
            self.decisions.append(decision)
            if decision.outcome != "redact":
                continue
            if decision.start >= self._covered:
                released.extend(self._kept(max(place, self._covered), decision.start))
                released.append(spelled(self._edited(decision), self.kind))
                place = max(place, decision.start)
            self._covered = max(self._covered, decision.end)
        released.extend(self._kept(max(place, self._covered), frontier))
        self.num_decided = max(self.num_decided, frontier)
        self._held = ""
        banned = None if self.bans is None else self.bans.found()
        if banned is None:
            return "".join(released)
        if banned.is_open and not final and self.stopped is None:
            self._held = "".join(released)
        else:
            span, end = banned.source, banned.end
            self.decisions = [each for each in self.decisions if each.at < end or (each.start, each.end) == span]
            self._stop(
                Decision(banned.entry, "block", *span, banned.rule, 1.0, self.place, matched=banned.text, at=end)
            )
        return ""

    def _kept(self, first: int, last: int) -> list[str]:
        """Raw text that stays as it is."""
        self._num_out += max(0, last - first)
        if self.bans is not None and first < last:
            self.bans.keep("".join(self._chars[first:last]))
        return self._raws[first:last]

    def _edited(self, decision: Decision) -> str:
        """What takes the place of a match."""
        text = decision.replacement
        if self.bans is not None:
            text = self.bans.replace(decision.rule, text, (decision.start, decision.end))
        self._num_out += len(text)
        return text


def _is_unbounded(entry: Entry) -> bool:
    try:
        return entry.guard.hold_bound is None
    except Exception:  # a guard that cannot say how much it claims claims all
        return True


def _number(entry: Entry) -> int:
    return entry.number


def _text_order(decision: Decision) -> tuple[int, int, int]:
    return decision.start, -decision.end, decision.entry.number


_OUTCOMES: dict[type, Outcome] = {Allow: "log", Block: "block", Retry: "retry"}
