"""What a drawn token does to its sequence: stop checks, the constraint's move, a retract, the budget-aware close.

In this order: a stop id ends the sequence and is not part of the output; a constraint moves on, or takes output back
(engine/retract.py), and then the token is gone with that output, and with any stop string that it completed; if the
answer could no longer be closed within the budget, the token is put aside and the shortest completion known before it
is committed instead, which ends the sequence as "length" with `forced_close`; the token is committed; then a complete
constraint, a stop string and the token limit end the sequence, whichever is first in that list.

The close rests on one invariant. Let r be the tokens that remain and c a completion, the shortest when it was asked
for. If len(c) <= r before a token, then either len(c') <= r - 1 after it, or c is committed now: so once it holds, it
holds to the end, and the output is a complete answer. A single token may open a structure of any length, so c' is
needed after every token; it is c without its first token where that is the token drawn, and asked for otherwise. That
takes no fork: when a token is put aside its sequence ends, and the constraint's state is not used again. If c does not
fit even at the start, the sequence is cut at the limit.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass
from typing import Literal

from safegen.engine import retract
from safegen.engine.request import TokenLogprobs
from safegen.engine.sequence import Sequence
from safegen.engine.stops import StopMatch
from safegen.errors import EngineError
from safegen.grammars.constraint import Constraint, NoCompletion


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sequence is over. text_bytes: bytes of the output that belong to the answer."""

    reason: Literal["stop", "length"]
    text_bytes: int
    stop_match: str | None = None
    forced_close: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a token did. num_settled: output tokens that nothing can take back any more (when the sequence ends, all
    of them are). num_retracted: drawn tokens that were taken back."""

    num_settled: int
    ending: Ending | None = None
    num_retracted: int = 0


def completion_of(constraint: Constraint) -> tuple[int, ...] | None:
    """The shortest completion, None where none is known."""
    try:
        return tuple(constraint.shortest_completion())
    except NoCompletion:
        return None


def begin(sequence: Sequence) -> Ending | None:
    """Before the first token: note how the answer could be closed; a constraint complete from the start ends here."""
    constraint = sequence.constraint
    if constraint is None:
        return None
    sequence.closing = completion_of(constraint)
    return Ending("stop", 0) if constraint.is_complete() else None


def accept(
    sequence: Sequence, token_id: int, logprobs: TokenLogprobs | None, token_bytes: Ids[bytes | None]
) -> Accepted:
    """Commit one drawn token, or what takes its place. Raises what the constraint raises; nothing is committed then."""
    constraint = sequence.constraint
    if token_id in sequence.request.stop_ids:
        if constraint is not None and not constraint.can_end():
            raise EngineError(f"stop id {token_id} was drawn where the constraint cannot end")
        return Accepted(sequence.num_output_tokens, Ending("stop", sequence.stops.num_bytes))
    if constraint is None:
        match = _append(sequence, token_id, token_bytes, logprobs)
        return Accepted(sequence.num_output_tokens, _ending_after(sequence, None, False, match))
    num_retracted = retract.advance(sequence, constraint, token_id, token_bytes)
    if num_retracted:
        ending = Ending("stop", sequence.stops.num_bytes) if constraint.is_complete() else None
        return Accepted(constraint.settled(), ending, num_retracted)
    if not _still_fits(sequence, constraint, token_id):
        return _close(sequence, token_bytes)
    is_complete, num_settled = constraint.is_complete(), constraint.settled()
    match = _append(sequence, token_id, token_bytes, logprobs)
    return Accepted(num_settled, _ending_after(sequence, constraint, is_complete, match))


def _still_fits(sequence: Sequence, constraint: Constraint, token_id: int) -> bool:
    """After the constraint moved by a token: False when the answer would no longer fit with it, but does without."""
    before, num_left = sequence.closing, sequence.num_tokens_left
    fits = before is not None and len(before) <= num_left
    if before and fits and before[0] == token_id:
        sequence.closing = before[1:]
        return True
    after = completion_of(constraint)
    if after is None:
        # An open verified node without a value at hand: go on while the budget is ample, else close with what is known.
        if fits and before is not None and num_left <= 2 * len(before) + 16:
            return False
        sequence.closing = None
        return True
    if fits and len(after) > num_left - 1:
        return False
    sequence.closing = after
    return True


def _close(sequence: Sequence, token_bytes: Ids[bytes | None]) -> Accepted:
    """Commit the shortest completion known before the token that was put aside."""
    completion = sequence.closing or ()
    for token_id in completion:
        _append(sequence, token_id, token_bytes)
    return Accepted(sequence.num_output_tokens, Ending("length", sequence.stops.num_bytes, forced_close=True))


def _append(
    sequence: Sequence, token_id: int, token_bytes: Ids[bytes | None], logprobs: TokenLogprobs | None = None
) -> StopMatch | None:
    sequence.commit((token_id,), logprobs)
    honoured = sequence.num_output_tokens >= sequence.request.params.min_tokens
    return sequence.stops.feed(token_bytes[token_id] or b"", honoured=honoured)


def _ending_after(
    sequence: Sequence, constraint: Constraint | None, is_complete: bool, match: StopMatch | None
) -> Ending | None:
    num_bytes = sequence.stops.num_bytes
    if is_complete:
        return Ending("stop", num_bytes)
    if match is not None:
        return Ending("stop", match.start_byte, stop_match=match.stop)
    if sequence.num_tokens_left <= 0:
        return Ending("length", num_bytes, forced_close=constraint is not None and constraint.can_end())
    return None
