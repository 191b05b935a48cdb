"""`SampleGuard`: what stands between the text of one sample and its reader."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from safegen.errors import GuardBlocked, RetractsExhausted
from safegen.guards.base import GuardView
from safegen.guards.invisible import InvisibleText
from safegen.guards.redact import NoPlaceholder
from safegen.guards.running import Entry, Finding
from safegen.guards.stream import AnswerShape, Claims, GuardStream
from safegen.guards.vault import Deanonymize
from safegen.guards.watch import Decision

if TYPE_CHECKING:
    from safegen.guards.session import GuardSession


def in_steps(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Guards that look together. Those that take hidden characters out go first: what they leave is what the others
    look at, or else a match that hidden characters had broken up would be put together again unseen."""
    first = [entry for entry in entries if isinstance(entry.guard, InvisibleText) and entry.guard.on_fail == "redact"]
    rest = [entry for entry in entries if entry not in first]
    return [first, rest] if first and rest else [list(entries)]


class SampleGuard:
    """Streams, one behind the other: guards that take characters out, the other guards, and what they have passed with
    its originals put back."""

    def __init__(
        self, session: GuardSession, entries: Sequence[Entry], shape: AnswerShape, sample: int, claims: Claims | None
    ) -> None:
        self._session, self._sample, self._claims = session, sample, claims
        checks = [entry for entry in entries if not isinstance(entry.guard, Deanonymize)]
        restores = [entry for entry in entries if isinstance(entry.guard, Deanonymize)]

        def look(entries: Sequence[Entry], view: GuardView) -> list[Finding]:
            return session.look_for(sample, entries, view)

        self.is_inline = all(entry.guard.inline for entry in entries)
        deadline_s = session.guards.deadline_s
        self._streams: list[GuardStream] = []
        for step in in_steps(checks):
            before = self._streams[-1] if self._streams else None
            self._streams.append(
                GuardStream(step, shape, look, session.protected, claims, deadline_s, session.banning, before)
            )
        if restores:
            self._streams.append(GuardStream(restores, shape, look))
        self._told = False

    def feed(self, text: str) -> str:
        for stream in self._streams:
            text = stream.feed(text)
        self._tell()
        return text

    def finish(self) -> str:
        """The answer has ended. After a stop nothing more is released, not even what was certain."""
        rest = ""
        for stream in self._streams:  # those behind one that has stopped see what it released
            rest = stream.feed(rest) + (stream.finish() if self.stopped is None else "")
        self._tell(final=True)
        return rest if self.stopped is None else ""

    def leave(self) -> None:
        """The reader has gone: the records hold what was decided up to here."""
        for stream in self._streams:
            stream.leave()
        self._tell(final=True)

    @property
    def stopped(self) -> Decision | None:
        stopper = self._stopper()
        return None if stopper is None else self._streams[stopper].stopped

    def _stopper(self) -> int | None:
        """The place of the stream that has stopped the answer, of several the last one: what it has seen lies before
        what stopped the others."""
        stopped = (place for place, stream in enumerate(self._streams) if stream.stopped is not None)
        return max(stopped, default=None)

    @property
    def changed(self) -> bool:
        """Something was replaced."""
        return any(decision.outcome == "redact" for stream in self._streams for decision in stream.decisions)

    @property
    def is_edited(self) -> bool:
        """Text was replaced after it was decoded, so that what is shown is not what the tokens spell."""
        return any(stream.has_edited for stream in self._streams)

    def blocked(self) -> GuardBlocked | None:
        return None if self.stopped is None else self._session.blocked(self.stopped, "output")

    def unreplaced(self, error: Exception | None) -> GuardBlocked | None:
        """For an answer that ended because decoding could not replace a match, or not often enough."""
        if isinstance(error, NoPlaceholder):
            decision: Decision | None = error.decision
        elif isinstance(error, RetractsExhausted) and self._claims is not None:
            forced = [each.decision for each in self._claims.forced.values()]
            decision = next((each for each in reversed(forced) if str(each.place) == error.pointer), None)
        else:
            return None
        if decision is None:
            return None
        decision = dataclasses.replace(decision, outcome="block", during_decoding=True)
        self._session.decided(self._sample, [decision])
        return self._session.blocked(decision, "output")

    def blame(self) -> GuardBlocked:
        """For an edited answer that its type refuses: no placeholder fits there."""
        edits = [each for stream in self._streams for each in stream.decisions if each.outcome == "redact"]
        return self._session.blocked(edits[0], "output")

    def _tell(self, *, final: bool = False) -> None:
        if self._told or not (final or self.stopped is not None):
            return
        self._told = True
        stopper = self._stopper()
        for place, stream in enumerate(self._streams):
            decisions = stream.decisions
            if stopper is not None:
                stream.leave()
                if place < stopper:
                    decisions = stream.decided_before(self._streams[stopper])
            self._session.decided(self._sample, decisions)
            for number, spent in stream.milliseconds.items():
                self._session.took(self._sample, number, spent)
