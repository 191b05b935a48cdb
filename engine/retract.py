"""Taking output back: what a sequence does when its constraint retracts (DESIGN section 6).

A verified node has failed when it closed. The constraint has gone back by itself: its next masks spell the bytes of
`forced_prefix` and leave out the text that failed. The sequence follows, to `kept_tokens` output tokens:

- output ids, their counts (penalties), log-probabilities and the stop matcher are those of the kept tokens alone;
  the token just drawn is dropped with the others, a draft too;
- the budget grows back: it counts committed tokens. What bounds the work is `max_retracts`: a sequence draws at most
  (max_retracts + 1) * max_tokens tokens, then it ends with RetractsExhausted, and nothing of the text that failed is
  in its output;
- further draws take the number of retracts as their attempt, so that position by position they are fresh;
- blocks follow in `Scheduler.retracted`: the cache keeps what was computed of the kept tokens but for the last, which
  is computed again because its row is needed.

So after attempts that failed with the texts f1 .. fr an answer has the law of sequential sampling from the locally
renormalised masks of the language without f1 .. fr: rejection without replacement.

The budget-aware close holds across a retract (engine/closing.py).

Tokens that were handed to the caller are settled: a Retract that reaches behind them breaks the constraint's promise
and is an EngineError.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids

from safegen.engine import closing
from safegen.engine.sequence import Sequence
from safegen.errors import EngineError, RetractsExhausted
from safegen.grammars.constraint import Constraint, Retract


def advance(sequence: Sequence, constraint: Constraint, token_id: int, token_bytes: Ids[bytes | None]) -> int:
    """Move the constraint by a drawn token, and follow it where it goes back instead.

    Returns how many drawn tokens were taken back, this one included; 0 if the constraint moved on. Raises EngineError
    for a cut outside the tokens that may be taken back, RetractsExhausted past `max_retracts` or when the constraint
    has nothing left to try (the sequence is cut then too), and what the constraint raises.
    """
    try:
        retract = constraint.advance((token_id,))
    except RetractsExhausted:
        cut(sequence, sequence.num_emitted_tokens, token_bytes)
        raise
    if retract is None:
        return 0
    kept, num_committed = retract.kept_tokens, sequence.num_output_tokens
    if not sequence.num_emitted_tokens <= kept <= num_committed:
        raise EngineError(
            f"the constraint (at #{retract.pointer}) takes output back to {kept} tokens; "
            f"{num_committed} are committed and {sequence.num_emitted_tokens} of them were settled"
        )
    dropped = cut(sequence, kept, token_bytes)
    sequence.num_retracts += 1
    _check_attempts(sequence, retract)
    known = None if sequence.closing is None else sequence.closing.back_to(kept, dropped)
    latest = closing.ask(constraint, kept) if sequence.is_closable else None
    if latest is None and known is not None and known.num_kept < constraint.settled():
        known = None
    keep_known = latest is None or closing.is_worse(latest, known, sequence.context.max_tokens)
    sequence.closing = known if keep_known else latest
    return num_committed + 1 - kept


def cut(sequence: Sequence, kept_tokens: int, token_bytes: Ids[bytes | None]) -> tuple[int, ...]:
    """Take back the tokens past kept_tokens, and the bytes that stop strings were looked for in; returns the tokens."""
    dropped = sequence.cut(kept_tokens)
    sequence.stops.rewind(b"".join(token_bytes[token_id] or b"" for token_id in sequence.output_ids(0, kept_tokens)))
    return dropped


def _check_attempts(sequence: Sequence, retract: Retract) -> None:
    max_retracts = sequence.context.max_retracts
    if sequence.num_retracts > max_retracts:
        raise RetractsExhausted(
            f"no text that passes #{retract.pointer} was found: output was taken back {max_retracts} times, which is "
            f"max_retracts. Fix: raise it, or loosen that part of the schema.",
            pointer=retract.pointer,
        )
