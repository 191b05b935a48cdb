"""Who still owes an answer. Each index 0..n-1 of each request gets exactly one FinishedEvent, and it is made here.

An index is open from admission until its event; closing it a second time yields nothing. A sequence that stands for
several indexes (before its fork) answers for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from safegen.engine.commit import Ending
from safegen.engine.request import FinishedEvent, FinishReason, Timings, Usage
from safegen.engine.sequence import Sequence
from safegen.engine.stats import SequenceMeter


class Ledger:
    """Open sequences by request id and index. One writer: the engine thread; `in` may be asked from any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[str, dict[int, Sequence]] = {}
        self.num_finished = 0
        self.meter = SequenceMeter()

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._open

    def __bool__(self) -> bool:
        return bool(self._open)

    def open(self, sequence: Sequence) -> None:
        """The sequence answers for its indexes from now on (a fork takes its index over)."""
        answers = self._open.setdefault(sequence.request.request_id, {})
        answers.update(dict.fromkeys(sequence.stands_for, sequence))

    def is_open(self, sequence: Sequence) -> bool:
        return self._open.get(sequence.request.request_id, {}).get(sequence.index) is sequence

    def of_request(self, request_id: str) -> list[Sequence]:
        """The open sequences of a request, each once."""
        return list(dict.fromkeys(self._open.get(request_id, {}).values()))

    def __iter__(self) -> Iterator[Sequence]:
        for request_id in list(self._open):
            yield from self.of_request(request_id)

    def close(
        self, sequence: Sequence, reason: FinishReason, *, ending: Ending | None = None, error: Exception | None = None
    ) -> list[FinishedEvent]:
        """The last events of the indexes that the sequence still answers for."""
        request_id = sequence.request.request_id
        answers = self._open.get(request_id, {})
        indexes = [index for index, owner in answers.items() if owner is sequence]
        for index in indexes:
            del answers[index]
        if not answers:
            self._open.pop(request_id, None)
        self.num_finished += len(indexes)
        usage, timings = _usage(sequence), self._timings(sequence)
        self.meter.ended(indexes, reason, usage, timings)
        return [
            FinishedEvent(
                request_id=request_id,
                index=index,
                finish_reason=reason,
                usage=usage,
                timings=timings,
                text_bytes=sequence.stops.num_bytes if ending is None else ending.text_bytes,
                stop_match=None if ending is None else ending.stop_match,
                forced_close=ending is not None and ending.forced_close,
                error=error,
            )
            for index in indexes
        ]

    def _timings(self, sequence: Sequence) -> Timings:
        submitted_s, now_s = sequence.context.submitted_s, self._clock()

        def since_submit_ms(moment_s: float | None) -> float:
            return ((now_s if moment_s is None else moment_s) - submitted_s) * 1e3

        return Timings(
            queue_ms=since_submit_ms(sequence.first_scheduled_s),
            first_token_ms=since_submit_ms(sequence.first_token_s),
            total_ms=since_submit_ms(now_s),
            mask_ms=sequence.mask_s * 1e3,
        )


def _usage(sequence: Sequence) -> Usage:
    return Usage(
        prompt_tokens=sequence.num_prompt_tokens,
        completion_tokens=sequence.num_output_tokens,
        cached_tokens=sequence.num_cached_tokens or 0,
        drafted=sum(counts.drafted for counts in sequence.draft_counts.values()),
        accepted=sum(counts.accepted for counts in sequence.draft_counts.values()),
        forwards=sequence.num_forwards,
        by_drafter=dict(sequence.draft_counts),
    )
