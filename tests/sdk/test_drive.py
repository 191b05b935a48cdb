"""What the thread that waits for answers is woken by."""

from __future__ import annotations

from safegen.drive import _Joined
from safegen.engine.request import Event, FinishedEvent, Timings, TokenLogprobs, TokensEvent, Usage


def finished(index: int) -> FinishedEvent:
    return FinishedEvent("r", index, "stop", Usage(1, 3), Timings(0, 0, 0), text_bytes=3)


def test_tokens_nobody_watches_come_as_one_event_before_their_end() -> None:
    seen: list[Event] = []
    joined = _Joined(seen.append)
    logprob = TokenLogprobs(7, -1.0, -0.5, (), ())
    for event in (TokensEvent("r", 0, (5,)), TokensEvent("r", 1, (6,)), TokensEvent("r", 0, (7, 8), (logprob,))):
        joined(event)
    assert seen == []
    for index in (1, 2, 0):
        joined(finished(index))
    assert seen == [
        TokensEvent("r", 1, (6,)),
        finished(1),
        finished(2),
        TokensEvent("r", 0, (5, 7, 8), (logprob,)),
        finished(0),
    ]
