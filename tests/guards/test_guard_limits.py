"""Guards that hang, settings that make no sense, files that are no configuration: bounded time, typed errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from safegen.errors import RequestError
from safegen.events import DeltaEvent
from safegen.guards import PII, Allow, Anonymize, Charset, Custom, Guards, GuardView, Language, Never, Secrets
from safegen.types import JsonSchema
from tests.support.guards import Word
from tests.support.sdk_fakes import ScriptedBackend, make_llm


def test_a_guard_that_hangs_while_a_stream_asks_what_is_certain_times_out() -> None:
    released = threading.Event()

    def hang(view: GuardView) -> list[Any]:
        released.wait(20)
        return []

    guard = Custom(hang, stages=["output"], max_match=3, look_behind=0)
    started = time.monotonic()
    guards = Guards([guard], deadline_s=0.2)
    with make_llm(ScriptedBackend("hello")) as llm, llm.stream("go", guards=guards, max_tokens=20) as events:
        result = events.result()
    released.set()
    assert time.monotonic() - started < 10
    assert (result.status, result.text, result.audit[0].action) == ("blocked", "", "timeout")


class _NoBan:
    stages = ("decoding",)

    def check(self, view: GuardView) -> Allow:
        return Allow()


class _WrongBan(_NoBan):
    def automaton(self, scope: str) -> str:
        return "no ban"


def test_an_automaton_that_is_no_ban_is_refused() -> None:
    with pytest.raises(RequestError, match="str"):
        Guards([_WrongBan()]).bans()


class _NoWatch(Word):
    """Each with its own way to have no answer, or none that can be used, while a stream asks."""

    def __init__(self, **broken: Any) -> None:
        super().__init__(on_fail="redact", stages=["output"])
        self.broken = broken

    def frontier(self, text: str) -> Any:
        return self._answer("frontier", super().frontier(text))

    def find(self, view: GuardView) -> Any:
        return super().find(view)

    def follow(self) -> Any:
        return self._answer("follow", None)

    def _answer(self, name: str, else_: Any) -> Any:
        given = self.broken.get(name, else_)
        if isinstance(given, BaseException):
            raise given
        return given


@pytest.mark.parametrize(
    "broken",
    [{"frontier": 2.5}, {"frontier": SystemExit("the text")}, {"follow": ValueError("the text")}, {"follow": 7}],
)
def test_a_guard_that_cannot_watch_a_stream_has_failed(broken: dict[str, Any]) -> None:
    guard = _NoWatch(**broken)
    with make_llm(ScriptedBackend('"a secret or two"')) as llm:
        with llm.stream("go", guards=guard, max_tokens=40) as events:
            list(events)
        shown = events.result()
        with llm.stream("go", JsonSchema({"type": "string"}), guards=guard, max_tokens=40) as events:
            list(events)
        held = events.result()  # decoding cannot watch, and the whole answer is looked at in the end
    assert (shown.status, shown.text, shown.audit[0].action) == ("blocked", "", "error")
    assert (held.status, held.audit[0].action, "secret" in held.text) == ("ok", "redact", False)
    assert "the text" not in f"{shown.error} {shown.audit}"


class _NoBound:
    hold_bound = property(lambda self: 1 / 0)

    def frontier(self, text: str) -> int:
        return len(text)

    def check(self, view: GuardView) -> Allow:
        return Allow()


def test_a_guard_that_cannot_say_its_bound_holds_a_stream_to_its_end() -> None:
    with make_llm(ScriptedBackend("hello")) as llm, llm.stream("go", guards=[_NoBound()], max_tokens=20) as events:
        deltas = [event for event in events if isinstance(event, DeltaEvent)]
    assert [event.text for event in deltas] == ["hello"]


class _Talkative:
    """Raises with the text in its message, as what it calls does when it takes too long."""

    hold_bound = 5

    def frontier(self, text: str) -> int:
        raise TimeoutError(f"no answer about {text}")

    def check(self, view: GuardView) -> Allow:
        return Allow()


def test_the_message_of_a_guard_that_gives_up_is_told_to_nobody() -> None:
    with make_llm(ScriptedBackend("hello")) as llm, llm.stream("go", guards=[_Talkative()], max_tokens=20) as events:
        result = events.result()
    record = next(record for record in result.audit if record.stage == "output")
    assert (result.status, record.action, record.rule) == ("blocked", "error", "TimeoutError")
    assert "no answer" not in f"{result.error} {record}"


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Guards(deadline_s=float("inf")), "deadline_s"),
        (lambda: Guards(deadline_s=float("nan")), "deadline_s"),
        (lambda: Custom(repr, max_match="x"), "max_match"),  # type: ignore[arg-type]
        (lambda: Custom(repr, max_match=-5), "max_match"),
        (lambda: Custom(repr, max_match=3, look_ahead=-100), "look_ahead"),
        (lambda: Custom(repr, max_match=3, look_ahead=None), "look_ahead"),  # type: ignore[arg-type]
        (lambda: Custom(repr, max_match=3, look_behind=2.5), "look_behind"),  # type: ignore[arg-type]
        (lambda: Custom(repr, inline="no"), "inline"),  # type: ignore[arg-type]
        (lambda: Custom(repr, rule=5), "rule"),  # type: ignore[arg-type]
        (lambda: Never(phrases=None), "phrases"),  # type: ignore[arg-type]
        (lambda: Never(phrases="kill"), "phrases"),
        (lambda: Never(regexes=5), "regexes"),  # type: ignore[arg-type]
        (lambda: Never(regexes=["a{1500,2000}b"]), "regexes"),
        (lambda: Never(regexes=["(?:a{1,500}b){2,500}"]), "regexes"),
        (lambda: Never(phrases=["a"], stages=5), "stages"),
        (lambda: PII(timeout_s=10**400), "timeout_s"),
        (lambda: Guards([PII(where=f"$[{'1' * 5_000}]")]), "where"),
        (lambda: Never(phrases=["a"], where=5), "where"),
        (lambda: Never(phrases=["a"], where={"$.a": 1}), "where"),
        (lambda: PII(types=5), "types"),  # type: ignore[arg-type]
        (lambda: PII(allow=[5]), "allow"),  # type: ignore[list-item]
        (lambda: Secrets(ignore=5), "ignore"),  # type: ignore[arg-type]
        (lambda: Charset(scripts=5), "scripts"),  # type: ignore[arg-type]
        (lambda: Language(allow=5), "allow"),  # type: ignore[arg-type]
        (lambda: Anonymize(5), "detectors"),  # type: ignore[arg-type]
        (lambda: PII(stages=["decoding"]), "stages"),  # there nothing would be checked
        (lambda: Guards([_NoBan()]), "stages"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(make: Callable[[], Any], field: str) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        make()
    assert caught.value.field == field


def test_one_text_stands_for_a_list_of_it_and_an_iterator_is_read_once() -> None:
    assert PII(stages="output").stages == ("output",)
    assert Never(phrases=iter(["a", "b"])).phrases == ("a", "b")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "guards: [{type: Never, phrases: [2024-13-45]}]",
        "!!int 'x'",
        "guards: [{type: Anonymize, detectors: [&x {type: Anonymize, detectors: [*x]}]}]",
        "[" * 1000,
        "guards: [{type: PII, stages: 5}]",
        "deadline_s: .inf\nguards: []",
        "guards: [{type: PII, on_fail: block, on_fail: log}]",
        "guards: [{type: Secrets}]\ndeadline_s: 2\nguards: [{type: PII}]",
        "\n".join(
            f"{'abcdefghij'[at]}: &{'abcdefghij'[at]} [{', '.join([f'*{chr(96 + at)}'] * 10) if at else 'x'}]"
            for at in range(10)
        )
        + "\nguards: *j",
    ],
)
def test_a_file_that_is_no_configuration_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "guards.yaml"
    path.write_text(text)
    with pytest.raises(RequestError, match=r"guards\.yaml"):
        Guards.from_yaml(path)


def test_phrases_within_phrases_are_found_in_linear_time_and_covered() -> None:
    guard = Never(phrases=["a" * size for size in range(1, 200)], stages=["output"])
    found = guard.find(GuardView("a" * 5_000))
    assert len(found) == 5_000
    assert {match.end for match in found} == set(range(1, 5_001))
    assert max(match.end - match.start for match in found) == 199


def test_a_regex_that_takes_quadratic_time_is_given_up() -> None:
    guard = Never(regexes=["a|[ab]*c"], stages=["output"], timeout_s=0.2)
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        guard.find(GuardView("a" * 200_000))
    assert time.monotonic() - started < 20
