"""What a request comes to, for every way an engine can end it."""

from __future__ import annotations

from typing import Any

import pytest

from safegen.engine.request import FinishedEvent, Request, SamplingParams, Timings, TokenLogprobs, TokensEvent, Usage
from safegen.errors import (
    Cancelled,
    EngineClosed,
    EngineError,
    GuardBlocked,
    InvalidOutput,
    Refused,
    RetractsExhausted,
    SafegenError,
    Truncated,
)
from safegen.events import DeltaEvent, FinalEvent, SnapshotEvent
from safegen.output_type import OutputType
from safegen.partial_json import PartialJson
from safegen.result import Result
from safegen.run import Run

BYTES: list[bytes | None] = [bytes([value]) for value in range(256)]


def read_number(text: str) -> int:
    if text == "crash":
        raise ZeroDivisionError("validator bug")
    if not text.isdigit():
        raise InvalidOutput(f"{text!r} is no number")
    return int(text)


NUMBER: OutputType[int] = OutputType("json", None, None, (), 0.0, read_number, partial=PartialJson)
TEXT: OutputType[str] = OutputType("text", None, None, (), 0.0, str)


def make_run(output_type: OutputType[Any], *, snapshots: bool = False, **params: Any) -> Run:
    request = Request("r", (1,), SamplingParams(**params), frozenset({0}))
    return Run(request, output_type, BYTES, snapshots=snapshots)


def tokens(text: str, index: int = 0) -> TokensEvent:
    return TokensEvent("r", index, tuple(text.encode()))


def finished(reason: Any, text: str, index: int = 0, **more: Any) -> FinishedEvent:
    num_bytes = len(text.encode())
    return FinishedEvent("r", index, reason, Usage(1, num_bytes), Timings(0, 0, 0), text_bytes=num_bytes, **more)


def result_of(output_type: OutputType[Any], text: str, reason: str, **more: Any) -> Result[Any]:
    run = make_run(output_type)
    run.feed(tokens(text))
    run.feed(finished(reason, text, **more))
    return run.result


def test_ok_carries_the_value_and_no_error() -> None:
    result = result_of(NUMBER, "42", "stop")
    assert (result.status, result.value, result.text, result.error) == ("ok", 42, "42", None)
    assert result.unwrap() == 42


def test_text_that_the_independent_reader_refuses_is_invalid() -> None:
    result = result_of(NUMBER, "4x", "stop")
    assert (result.status, result.value) == ("invalid", None)
    with pytest.raises(InvalidOutput, match="4x"):
        result.unwrap()


def test_reader_that_crashes_is_an_error_never_ok() -> None:
    result = result_of(NUMBER, "crash", "stop")
    assert (result.status, result.value) == ("error", None)
    assert isinstance(result.error, ZeroDivisionError)
    with pytest.raises(EngineError):
        result.unwrap()


def test_cut_answer_of_a_type_is_truncated_without_a_value() -> None:
    result = result_of(NUMBER, "4", "length")
    assert (result.status, result.value, result.text) == ("truncated", None, "4")
    with pytest.raises(Truncated) as caught:
        result.unwrap()
    assert caught.value.result is result


def test_cut_free_text_is_truncated_with_what_there_is() -> None:
    result = result_of(TEXT, "so far", "length")
    assert (result.status, result.value) == ("truncated", "so far")


def test_forced_close_is_truncated_with_a_value() -> None:
    result = result_of(NUMBER, "40", "length", forced_close=True)
    assert (result.status, result.value) == ("truncated", 40)


def test_forced_close_that_does_not_validate_is_invalid() -> None:
    assert result_of(NUMBER, "4x", "length", forced_close=True).status == "invalid"


def test_cancelled_keeps_the_text_so_far() -> None:
    result = result_of(NUMBER, "4", "cancelled")
    assert (result.status, result.text, result.value) == ("cancelled", "4", None)
    with pytest.raises(Cancelled):
        result.unwrap()


def test_closed_engine_is_cancelled_with_that_reason() -> None:
    for reason in ("cancelled", "error"):
        result = result_of(NUMBER, "", reason, error=EngineClosed("closed"))
        assert result.status == "cancelled"
        assert isinstance(result.error, EngineClosed)


def test_engine_fault_is_an_error() -> None:
    fault = EngineError("boom")
    result = result_of(NUMBER, "4", "error", error=fault)
    assert (result.status, result.error) == ("error", fault)


def test_exhausted_retracts_are_an_invalid_answer() -> None:
    fault = RetractsExhausted("taken back 64 times", pointer="/tags")
    result = result_of(NUMBER, "4", "error", error=fault)
    assert (result.status, result.value, result.error) == ("invalid", None, fault)
    with pytest.raises(InvalidOutput, match="64 times"):
        result.unwrap()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("truncated", Truncated),
        ("refused", Refused),
        ("blocked", GuardBlocked),
        ("invalid", InvalidOutput),
        ("cancelled", Cancelled),
        ("error", EngineError),
    ],
)
def test_unwrap_raises_the_class_of_the_status(status: Any, kind: type[SafegenError]) -> None:
    result: Result[Any] = Result(None, "", status, None, error=ValueError("the reason"))
    with pytest.raises(kind, match="the reason") as caught:
        result.unwrap()
    assert caught.value.result is result
    assert isinstance(caught.value.__cause__, ValueError)


def test_deltas_join_to_the_text_and_the_final_event_comes_last() -> None:
    run = make_run(TEXT, stop=("END",))
    events = [*run.feed(tokens("Hé")), *run.feed(tokens("llo EN")), *run.feed(tokens("D"))]
    events += run.feed(FinishedEvent("r", 0, "stop", Usage(1, 9), Timings(0, 0, 0), text_bytes=7, stop_match="END"))
    assert "".join(event.text for event in events if isinstance(event, DeltaEvent)) == "Héllo " == run.result.text
    assert isinstance(events[-1], FinalEvent)
    assert events[-1].result is run.result


def test_snapshots_come_for_json_only_when_asked_for() -> None:
    plain, streamed = make_run(NUMBER), make_run(NUMBER, snapshots=True)
    assert [type(event) for event in plain.feed(tokens("[1,"))] == [DeltaEvent]
    assert SnapshotEvent([1]) in streamed.feed(tokens("[1,"))


def test_further_samples_are_alternatives_in_order() -> None:
    run = make_run(NUMBER, n=3)
    run.feed(tokens("2", 1))
    run.feed(finished("stop", "2", 1))
    run.feed(tokens("1", 0))
    run.feed(finished("stop", "1", 0))
    assert not run.done
    run.feed(tokens("3x", 2))
    run.feed(finished("stop", "3x", 2))
    assert run.result.value == 1
    assert [(other.value, other.status) for other in run.result.alternatives] == [(2, "ok"), (None, "invalid")]


def test_logprobs_are_there_when_asked_for() -> None:
    entry = TokenLogprobs(52, -0.5, 0.0)
    run = make_run(NUMBER, logprobs=0)
    run.feed(TokensEvent("r", 0, (52,), (entry,)))
    run.feed(finished("stop", "4"))
    assert run.result.logprobs == (entry,)
    assert result_of(NUMBER, "4", "stop").logprobs is None
