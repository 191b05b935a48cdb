"""What a drawn token does to its sequence: stop checks, the constraint's move, a retract, the budget-aware close.

In this order: a stop id ends the sequence and is not part of the output; a constraint moves on, or takes output back
(engine/retract.py), and then the token is gone with that output, and with any stop string that it completed; if the
answer could no longer be closed within the budget, the token is put aside and the known closing is committed instead
(engine/closing.py), which ends the sequence as "length" with `forced_close`; the token is committed; then a complete
constraint, a stop string and the token limit end the sequence, whichever is first in that list. At the limit output
without a known end is closed in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass
from typing import Literal, NamedTuple

from safegen.engine import closing, retract
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


class Accepted(NamedTuple):
    """What a token did. num_settled: output tokens that nothing can take back any more (when the sequence ends, all
    of them are). num_retracted: drawn tokens that were taken back."""

    num_settled: int
    ending: Ending | None = None
    num_retracted: int = 0


def begin(sequence: Sequence, token_bytes: Ids[bytes | None], longest_token: int) -> Ending | None:
    """Before the first token: note how the answer could be closed; a constraint complete from the start ends here.

    longest_token: bytes of the longest token.
    """
    constraint = sequence.constraint
    if constraint is None:
        return None
    first, max_bytes = closing.ask(constraint, 0), sequence.context.max_tokens * longest_token
    sequence.is_closable = not closing.is_out_of_reach(first, token_bytes, max_bytes)
    sequence.closing = first if sequence.is_closable else None
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
    if match is None and sequence.num_tokens_left <= 0 and _is_behind(sequence):
        return _close(sequence, token_bytes)
    return Accepted(num_settled, _ending_after(sequence, constraint, is_complete, match))


def _still_fits(sequence: Sequence, constraint: Constraint, token_id: int) -> bool:
    """After the constraint moved by a token: False when the answer would no longer fit with it, but does without."""
    if not sequence.is_closable:
        return True
    known, num_output_tokens, max_tokens = sequence.closing, sequence.num_output_tokens, sequence.context.max_tokens
    if known is not None and closing.fits(known, max_tokens):
        followed = known.follow(token_id, num_output_tokens)
        if followed is not None:
            sequence.closing = followed
            return True
    ask = sequence.patience.ask if known is None else closing.ask
    latest = ask(constraint, num_output_tokens + 1)
    if closing.is_worse(latest, known, max_tokens):
        return False
    if latest is None and known is not None and known.num_kept < constraint.settled():
        if closing.fits(known, max_tokens) and closing.is_near(known, num_output_tokens, max_tokens):
            return False
        known = None
    sequence.closing = known if latest is None else latest
    return True


def _is_behind(sequence: Sequence) -> bool:
    """No end of the output is known, but of less of it one that fits is."""
    known = sequence.closing
    fits = closing.fits(known, sequence.context.max_tokens)
    return fits and known is not None and known.num_kept < sequence.num_output_tokens


def _close(sequence: Sequence, token_bytes: Ids[bytes | None]) -> Accepted:
    """Commit the known closing, which fits: take back what is not part of it, and append its completion."""
    known = sequence.closing
    if known is None or known.num_kept < sequence.num_emitted_tokens:
        raise EngineError(
            f"the constraint settled {sequence.num_emitted_tokens} tokens that no answer within the budget begins with"
        )
    if known.num_kept < sequence.num_output_tokens:
        retract.cut(sequence, known.num_kept, token_bytes)
    for token_id in known.completion:
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
