"""The oracle of retracts: one sequence, a list of tokens, no cache, no batch, no events, everything from the start.

What is taken back is simply not in the list any more, so counts, stop strings and log-probabilities, which are
computed from the list each time, cannot remember it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from safegen.engine.logits import History, LogitsPipeline, RowBuffers
from safegen.engine.request import Request, TokenLogprobs
from safegen.engine.rng import uniform
from safegen.engine.sampler import draw, token_logprobs
from safegen.errors import RetractsExhausted
from safegen.grammars.constraint import Constraint, MaskRows, NoCompletion
from tests.support.engine_driver import TOKEN_BYTES
from tests.support.fake_backend import FAKE_VOCAB, prefix_logits


@dataclass
class Reference:
    """What a sequence must come to. states: its output after each step, for one that is cut off by a cancel."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    reason: str = "length"
    forced_close: bool = False
    stop_match: str | None = None
    num_retracts: int = 0
    states: set[tuple[int, ...]] = field(default_factory=set)


def stop_found(pieces: list[bytes], stops: Sequence[str], min_tokens: int) -> str | None:
    """The stop string that ends among the bytes of the last token, for a reader who goes byte by byte."""
    text = b"".join(pieces)
    for end in range(len(text) - len(pieces[-1]) + 1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop.encode())]
        if hits and len(pieces) >= min_tokens:
            return max(hits, key=lambda stop: len(stop.encode()))
    return None


def completion_of(constraint: Constraint) -> tuple[int, ...] | None:
    try:
        return constraint.shortest_completion()
    except NoCompletion:
        return None


def reference(
    of: Request, index: int = 0, token_bytes: Sequence[bytes | None] = TOKEN_BYTES, max_retracts: int = 64
) -> Reference:
    params, prompt, made = of.params, list(of.prompt_ids), Reference()
    max_tokens = params.max_tokens or 0
    pipeline = LogitsPipeline(params, of.prompt_ids, of.stop_ids, RowBuffers(FAKE_VOCAB))
    assert of.constraint is not None
    constraint = of.constraint.fork()
    output = made.token_ids
    answer = completion_of(constraint)  # a whole answer that is known: it is closed as that if need be

    def forced_close(answer: tuple[int, ...]) -> Reference:
        agreeing = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(output, answer)))
        del made.logprobs[agreeing:]
        output[:] = answer
        made.forced_close = True
        return made

    def completed() -> tuple[int, ...] | None:
        completion = completion_of(constraint)
        return None if completion is None else (*output, *completion)

    while True:
        made.states.add(tuple(output))
        rows = MaskRows.allocate(1, FAKE_VOCAB)
        constraint.fill((), rows)
        row = prefix_logits(prompt + output)
        target = pipeline.target(row, History(len(output), Counter(output)), rows.words[0])
        token_id = draw(target.law, uniform(params.seed or 0, index, len(output), made.num_retracts))
        if token_id in of.stop_ids:
            made.reason = "stop"
            return made
        fitted = answer is not None and len(answer) <= max_tokens
        try:
            retract = constraint.advance([token_id])
        except RetractsExhausted:
            made.reason = "error"
            del output[constraint.settled() :], made.logprobs[constraint.settled() :]
            return made
        if retract is not None:
            made.num_retracts += 1
            del output[retract.kept_tokens :], made.logprobs[retract.kept_tokens :]
            if made.num_retracts > max_retracts or constraint.is_complete():
                made.reason = "error" if made.num_retracts > max_retracts else "stop"
                return made
            latest = completed()
            if latest is not None and not (fitted and len(latest) > max_tokens):
                answer = latest
            continue
        if params.logprobs is not None:
            made.logprobs.append(token_logprobs(row, target, token_id, params.logprobs))
        output.append(token_id)
        if not (fitted and answer is not None and answer[: len(output)] == tuple(output)):
            latest = completed()
            if fitted and answer is not None and latest is not None and len(latest) > max_tokens:
                return forced_close(answer)
            answer = latest or answer
        if constraint.is_complete():
            made.reason = "stop"
            return made
        made.stop_match = stop_found([token_bytes[one] or b"" for one in output], params.stop, params.min_tokens)
        if made.stop_match is not None:
            made.reason = "stop"
            return made
        if len(output) >= max_tokens:
            if completion_of(constraint) is None and answer is not None and len(answer) <= max_tokens:
                return forced_close(answer)
            made.forced_close = constraint.can_end()
            return made
