"""Guards at work on one view: in parallel where they may wait, each within its time, all within one deadline.

It fails closed. A guard that raises, that returns what is no finding of the view, or that is not done in time has
failed, and its failure stands where its verdict would. Inline guards run on the caller's thread, one after the other;
the others get a thread each, which is left behind if it does not end: Python cannot stop it.
"""

from __future__ import annotations

import math
import operator
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Literal

from safegen.guards.base import Allow, Block, Edit, Guard, GuardView, Match, Replace, Retry, Stage, Verdict
from safegen.guards.scopes import Place, Scopes

Failure = Literal["error", "timeout"]


class Late(Exception):
    """A guard was not done in time. No TimeoutError: guards raise those, with messages that may hold the text."""

    def __init__(self) -> None:
        super().__init__("it was not done in time")


@dataclass(frozen=True, slots=True)
class Entry:
    """A guard in a set. number: its place there, which orders decisions. name: unique in the set."""

    number: int
    name: str
    guard: Guard
    scopes: Scopes

    @property
    def only_logs(self) -> bool:
        return self.guard.on_fail == "log"

    def looks_at(self, place: Place, stage: Stage) -> bool:
        return stage in self.guard.stages and (stage == "input" or self.scopes.covers(place))


@dataclass(frozen=True, slots=True)
class Finding:
    """What one guard made of one view: a verdict or a failure."""

    entry: Entry
    verdict: Verdict | None
    failure: Failure | None
    milliseconds: float
    reason: str = ""


def run_guards(entries: Sequence[Entry], view: GuardView, deadline_s: float) -> list[Finding]:
    """One finding an entry, in their order. deadline_s: for all of them together."""
    ends = time.perf_counter() + deadline_s
    done: SimpleQueue[Finding] = SimpleQueue()
    waiting = [entry for entry in entries if not entry.guard.inline]
    for entry in waiting:
        threading.Thread(
            target=lambda e=entry: done.put(_run(e, view)), daemon=True, name=f"guard-{entry.name}"
        ).start()
    found = {entry.number: _in_time(_run(entry, view), ends) for entry in entries if entry.guard.inline}
    started = time.perf_counter()
    limits = {entry.number: min(ends, started + (entry.guard.timeout_s or deadline_s)) for entry in waiting}
    while pending := [entry for entry in waiting if entry.number not in found]:
        try:
            finding = done.get(timeout=max(0.0, min(limits[entry.number] for entry in pending) - time.perf_counter()))
            found[finding.entry.number] = _in_time(finding, ends)
        except Empty:
            now = time.perf_counter()
            for entry in pending:
                if limits[entry.number] <= now:
                    found[entry.number] = Finding(
                        entry, None, "timeout", (now - started) * 1e3, "it was not done in time"
                    )
    return [found[entry.number] for entry in entries]


def frontier_in_time(entry: Entry, text: str, deadline_s: float) -> int:
    """What the guard calls certain of a text. Raises what the guard raises, as an Exception, and Late when it is not
    done in time: a guard that may wait gets a thread here, too."""
    if entry.guard.inline:
        try:
            return operator.index(entry.guard.frontier(text))
        except BaseException as error:
            if isinstance(error, Exception) or _is_interrupt(error):
                raise
            raise RuntimeError(type(error).__name__) from None
    done: SimpleQueue[int | Exception] = SimpleQueue()

    def ask() -> None:
        try:
            done.put(operator.index(entry.guard.frontier(text)))
        except BaseException as error:
            done.put(error if isinstance(error, Exception) else RuntimeError(type(error).__name__))

    threading.Thread(target=ask, daemon=True, name=f"guard-{entry.name}").start()
    try:
        answer = done.get(timeout=min(deadline_s, entry.guard.timeout_s or deadline_s))
    except Empty:
        raise Late from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _run(entry: Entry, view: GuardView) -> Finding:
    started = time.perf_counter()
    try:
        verdict: Verdict | None = entry.guard.check(view)
        problem = _problem(verdict, len(view.text))
    except BaseException as error:  # whatever it is, the guard has not passed the text
        if _is_interrupt(error):
            raise
        verdict, problem = None, type(error).__name__  # its message may hold the text
    elapsed = (time.perf_counter() - started) * 1e3
    return Finding(entry, verdict, None, elapsed) if not problem else Finding(entry, None, "error", elapsed, problem)


def _is_interrupt(error: BaseException) -> bool:
    """Whether it is the user's wish to stop, and none of the guard's failures."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def _in_time(finding: Finding, ends: float) -> Finding:
    limit = finding.entry.guard.timeout_s
    late = time.perf_counter() > ends or (limit is not None and finding.milliseconds > limit * 1e3)
    if not late or finding.failure is not None:
        return finding
    return Finding(finding.entry, None, "timeout", finding.milliseconds, "it was not done in time")


def _is_text(given: object) -> bool:
    """Whether it is a text that can be written; a lone surrogate cannot."""
    return isinstance(given, str) and (given.isascii() or not any("\ud800" <= char <= "\udfff" for char in given))


def _problem(verdict: object, num_characters: int) -> str:
    """Why a verdict is none of a text of that length; empty for one that is."""
    told: list[str] = []
    if isinstance(verdict, Replace):
        found: Sequence[Match | Edit] = verdict.edits
        told = [edit.text for edit in verdict.edits]
    elif isinstance(verdict, Allow | Block | Retry):
        found = verdict.matches
        told = [verdict.hint] if isinstance(verdict, Retry) else []
    else:
        return f"it returned {type(verdict).__name__}"
    if not isinstance(found, tuple | list) or not all(map(_is_text, told)):
        return "it returned what is no verdict"
    for each in found:
        if not _is_text(each.rule) or not isinstance(each.score, int | float) or not math.isfinite(each.score):
            return "it returned a match without a rule or a score"
        span = each.start, each.end
        if not all(type(offset) is int for offset in span) or not 0 <= span[0] <= span[1] <= num_characters:
            return "it returned a match outside of the text"
    return ""
