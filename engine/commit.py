"""What a drawn token does to its sequence: stop checks, the constraint's move, the budget-aware close.

In this order: a stop id ends the sequence and is not part of the output; a constraint moves on; if the answer could
then no longer be closed within the budget, the token is put aside and the shortest completion known before it is
committed instead, which ends the sequence as "length" with `forced_close`; the token is committed; then a complete
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

from safegen.engine.request import TokenLogprobs
from safegen.engine.sequence import Sequence
from safegen.engine.stops import StopMatch
from safegen.errors import EngineError
from safegen.grammars.constraint import Constraint


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sequence is over. text_bytes: bytes of the output that belong to the answer."""

    reason: Literal["stop", "length"]
    text_bytes: int
    stop_match: str | None = None
    forced_close: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """What was committed. logprobs: one for each token if asked for, none for the tokens of a forced close."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    ending: Ending | None = None


def begin(sequence: Sequence) -> Ending | None:
    """Before the first token: note how the answer could be closed; a constraint complete from the start ends here."""
    constraint = sequence.constraint
    if constraint is None:
        return None
    sequence.closing = tuple(constraint.shortest_completion())
    return Ending("stop", 0) if constraint.is_complete() else None


def accept(
    sequence: Sequence, token_id: int, logprobs: TokenLogprobs | None, token_bytes: Ids[bytes | None]
) -> Accepted:
    """Commit one drawn token, or what takes its place. Raises what the constraint raises; nothing is committed then."""
    constraint = sequence.constraint
    if token_id in sequence.request.stop_ids:
        if constraint is not None and not constraint.can_end():
            raise EngineError(f"stop id {token_id} was drawn where the constraint cannot end")
        return Accepted((), ending=Ending("stop", sequence.stops.num_bytes))
    if constraint is not None and not _advance(sequence, constraint, token_id):
        return _close(sequence, token_bytes)
    is_complete = constraint is not None and constraint.is_complete()
    match = _append(sequence, token_id, token_bytes)
    return Accepted(
        (token_id,), () if logprobs is None else (logprobs,), _ending_after(sequence, constraint, is_complete, match)
    )


def _advance(sequence: Sequence, constraint: Constraint, token_id: int) -> bool:
    """Move the constraint; False when the answer would then no longer fit, but does so now."""
    retract = constraint.advance((token_id,))
    if retract is not None:
        raise EngineError(f"the constraint takes back output (at #{retract.pointer}), which this engine does not serve")
    before, num_left = sequence.closing, sequence.num_tokens_left
    fits = before is not None and len(before) <= num_left
    if before and fits and before[0] == token_id:
        sequence.closing = before[1:]
        return True
    after = tuple(constraint.shortest_completion())
    if fits and len(after) > num_left - 1:
        return False
    sequence.closing = after
    return True


def _close(sequence: Sequence, token_bytes: Ids[bytes | None]) -> Accepted:
    """Commit the shortest completion known before the token that was put aside."""
    completion = sequence.closing or ()
    for token_id in completion:
        _append(sequence, token_id, token_bytes)
    return Accepted(completion, ending=Ending("length", sequence.stops.num_bytes, forced_close=True))


def _append(sequence: Sequence, token_id: int, token_bytes: Ids[bytes | None]) -> StopMatch | None:
    sequence.commit((token_id,))
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
