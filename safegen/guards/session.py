"""`GuardSession`: the guards of one request, from its prompt to its records.

It holds what belongs to that request alone: guards bound to its vault, the protected texts (its system messages), the
decisions so far and the time each guard took. Used by one thread at a time. `conclude` ends it: the records go into the
Result and to the sink, and the vault is wiped.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from safegen.errors import Cancelled, GuardBlocked
from safegen.guards.audit import Action, AuditRecord
from safegen.guards.bans import banning
from safegen.guards.base import GuardView, Stage
from safegen.guards.guards import Guards
from safegen.guards.refusal import Refusal
from safegen.guards.running import Entry, Finding, run_guards
from safegen.guards.sample import SampleGuard, in_steps
from safegen.guards.scopes import Place
from safegen.guards.stream import AnswerShape, Claims
from safegen.guards.vault import Deanonymize, Vault
from safegen.guards.watch import Decision, UnitWatch
from safegen.result import Result, failed

Message = dict[str, str]
T = TypeVar("T")


class GuardSession:
    """guards: the set. request_id: of the records."""

    def __init__(self, guards: Guards, request_id: str) -> None:
        self.guards = guards
        self._request_id = request_id
        self._vault = Vault()
        self._entries = [
            dataclasses.replace(entry, guard=entry.guard.for_request(self._vault)) for entry in guards.entries
        ]
        self._protected: tuple[str, ...] = ()
        self._declared: frozenset[str] = frozenset()
        self._milliseconds: dict[tuple[int, Stage, int], float] = {}
        self._decisions: list[tuple[Stage, int, Decision]] = []
        self._ran: set[tuple[Stage, int]] = set()
        self._is_concluded = False

    # --- input --------------------------------------------------------------------------------------------------------

    def check_input(self, messages: Sequence[Message]) -> tuple[list[Message], GuardBlocked | None]:
        """The messages as the model may see them, or why it may see none."""
        self._protected = tuple(message["content"] for message in messages if message["role"] == "system")
        self._entries = [
            dataclasses.replace(entry, guard=entry.guard.protecting(self._protected)) for entry in self._entries
        ]
        for message in messages:
            self._vault.reserve(message["content"])
        self._ran.add(("input", 0))
        passed: list[Message] = []
        ends = time.perf_counter() + self.guards.deadline_s
        for number, message in enumerate(messages):
            text, stopped = self._check_message(number, message, ends)
            if stopped is not None:
                return [], self.blocked(stopped, "input")
            passed.append({**message, "content": text})
        return passed, None

    def _check_message(self, number: int, message: Message, ends: float) -> tuple[str, Decision | None]:
        entries = [
            entry for entry in self._entries if "input" in entry.guard.stages and message["role"] in entry.guard.roles
        ]
        place, role = Place((number,)), message["role"]

        def look(entries: Sequence[Entry], view: GuardView) -> list[Finding]:
            seen = GuardView(view.text, view.path, "input", True, role, self._protected)
            return self._look(entries, seen, max(0.001, ends - time.perf_counter()), 0)

        text = message["content"]
        for together in in_steps(entries):
            unit = UnitWatch(together, place, "text", look)
            unit.add(text, text)
            text = unit.release(final=True)
            self._decisions += [("input", 0, decision) for decision in unit.decisions]
            if unit.stopped is not None:
                return "", unit.stopped
        return text, None

    # --- output -------------------------------------------------------------------------------------------------------

    def expect(self, declared: frozenset[str]) -> None:
        """Names that the type of the answer declares, which paths may show."""
        self._declared = declared

    def output(self, shape: AnswerShape, sample: int, claims: Claims | None = None) -> SampleGuard:
        """What stands between one sample's text and its reader."""
        self._ran.add(("output", sample))
        entries = [entry for entry in self._entries if "output" in entry.guard.stages]
        return SampleGuard(self, entries, shape, sample, claims)

    @property
    def redacting(self) -> list[Entry]:
        """Guards that can have their matches replaced while the answer is decoded."""
        return [
            entry
            for entry in self._entries
            if entry.guard.on_fail == "redact"
            and entry.guard.inline
            and "output" in entry.guard.stages
            and not isinstance(entry.guard, Deanonymize)
        ]

    @property
    def protected(self) -> tuple[str, ...]:
        return self._protected

    @property
    def has_output(self) -> bool:
        return any("output" in entry.guard.stages for entry in self._entries)

    @property
    def banning(self) -> list[Entry]:
        """Guards that decoding is held to."""
        return banning(self._entries)

    def look_for(self, sample: int, entries: Sequence[Entry], view: GuardView) -> list[Finding]:
        return self._look(entries, view, self.guards.deadline_s, sample)

    def decided(self, sample: int, decisions: Sequence[Decision]) -> None:
        self._decisions += [("output", sample, decision) for decision in decisions]

    def took(self, sample: int, number: int, milliseconds: float) -> None:
        """Time of a guard beside its looks."""
        key: tuple[int, Stage, int] = (number, "output", sample)
        self._milliseconds[key] = self._milliseconds.get(key, 0.0) + milliseconds

    def _look(self, entries: Sequence[Entry], view: GuardView, deadline_s: float, sample: int) -> list[Finding]:
        findings = run_guards(entries, view, deadline_s)
        for finding in findings:
            key = (finding.entry.number, view.stage, sample)
            self._milliseconds[key] = self._milliseconds.get(key, 0.0) + finding.milliseconds
        return findings

    # --- what comes of it ---------------------------------------------------------------------------------------------

    def blocked(self, decision: Decision, stage: Stage) -> GuardBlocked:
        path = self._path(decision.place)
        failed = decision.outcome in ("error", "timeout")
        why = (
            f"failed ({decision.rule}), and what is not checked does not pass" if failed else f"found {decision.rule!r}"
        )
        where = "the prompt" if stage == "input" else "the answer"
        rule = decision.outcome if failed else decision.rule
        return GuardBlocked(
            f"guard {decision.entry.name!r} {why} in {where} at {path}",
            guard=decision.entry.name, rule=rule, path=path, stage=stage,
        )  # fmt: skip

    def records(self, sample: int = 0) -> tuple[AuditRecord, ...]:
        """Of the input and of one sample's output."""
        records: list[AuditRecord] = []
        for stage, index, decision in self._decisions:
            if stage == "input" or index == sample:
                records.append(self._record(len(records), stage, index, decision))
        told = {(record.guard, record.stage) for record in records}
        for stage in ("input", "output"):
            for entry in self._entries:
                if (
                    (stage, 0 if stage == "input" else sample) in self._ran
                    and stage in entry.guard.stages
                    and (entry.name, stage) not in told
                ):
                    place = "allow", "$", 0 if stage == "input" else sample
                    records.append(self._base(len(records), entry, stage, *place))
        return tuple(records)

    def _record(self, number: int, stage: Stage, sample: int, decision: Decision) -> AuditRecord:
        digests, failed = self.guards.digests, decision.outcome in ("error", "timeout")
        action: Action = "restore" if isinstance(decision.entry.guard, Deanonymize) else decision.outcome
        stage = "decoding" if decision.during_decoding else stage
        base = self._base(number, decision.entry, stage, action, self._path(decision.place), sample)
        if failed:
            return dataclasses.replace(base, rule=decision.rule)
        return dataclasses.replace(
            base,
            rule=decision.rule,
            start=decision.start,
            end=decision.end,
            score=decision.score,
            digest=digests.of(decision.matched),
        )

    def _path(self, place: Place) -> str:
        """As records and errors show it: without names that the model made, or in which a guard has found something."""
        found = {each.place.steps[-1] for _, _, each in self._decisions if each.place.is_key and each.place.steps}
        return self.guards.digests.path(place, self._declared, found)

    def _base(self, number: int, entry: Entry, stage: Stage, action: Any, path: str, sample: int) -> AuditRecord:
        return AuditRecord(
            self._request_id, number, entry.name, type(entry.guard).__name__, entry.guard.version, stage, path, action,
            milliseconds=self._milliseconds.get((entry.number, stage, sample), 0.0),
            config=self.guards.config, sample=sample,
        )  # fmt: skip

    def conclude(self, result: Result[T]) -> Result[T]:
        """The Result with its records; the sink has them and the vault is empty. Call it once, at the end."""
        self._is_concluded = True
        samples = [result, *result.alternatives]
        told = [
            dataclasses.replace(self._refused(each), audit=self.records(number), alternatives=())
            for number, each in enumerate(samples)
        ]
        self._vault.wipe()
        if self.guards.sink is not None:
            try:
                seen = told[0].audit
                later = [r for each in told[1:] for r in each.audit if r.stage != "input"]
                self.guards.sink((*seen, *later))
            except Exception as error:  # a decision that cannot be kept is none
                told = [
                    dataclasses.replace(each, status="error", value=None, text="", error=error, logprobs=None)
                    for each in told
                ]
        return dataclasses.replace(told[0], alternatives=tuple(told[1:]))

    def leave(self) -> None:
        """The request ends without a Result that anybody sees: what was decided so far is recorded all the same."""
        if not self._is_concluded:
            self.conclude(failed("cancelled", Cancelled("the request was left before its end")))

    def _refused(self, result: Result[T]) -> Result[T]:
        error = result.error
        if self.guards.on_block is None or result.status != "blocked" or not isinstance(error, GuardBlocked):
            return result
        code: Literal["input", "output"] = "input" if error.stage == "input" else "output"
        refusal: Any = Refusal(code, error.guard or "", error.rule or "", error.path or "$", str(error))
        return dataclasses.replace(result, value=refusal)
