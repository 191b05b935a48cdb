"""After how many layers to leave the model for a draft: measured on load, on the model and the machine themselves.

The model continues a text of ours greedily. For each candidate depth k, one forward of the first k layers over that
same text tells how often their likeliest token is the next one (a), and single steps tell how long they take (c, as a
share of the model's own step, T); a row to verify takes r of it. With m drafted tokens a forward, tokens per time are

    (1 + a + ... + a^m) / (1 + m * (c + r)) / T

and the depth with the highest value over m = 1 .. 8 is taken, even where that is no gain over drafting nothing, which
is 1 / T: then the speculator's own estimate, of the real requests, turns the drafter off. The share of time depends on
the machine, so the depth may differ from load to load; the output does not (verify.py).
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from safegen.engine.backend import ForwardBatch
from safegen.engine.runner import ModelRunner
from safegen.engine.speculate.draft_cache import Lane, draft_batch

SAMPLE_TEXT = (
    'Extract the order as JSON. "Please send 3 lamps and 12 chairs to Ada Miller, 14 Mill Lane, Leeds, by Friday."\n'
    '{"name": "Ada Miller", "street": "14 Mill Lane", "city": "Leeds", "items": [{"name": "lamp", "count": 3}, '
)
_NUM_TOKENS, _NUM_TIMED, _NUM_VERIFIED, _MAX_DRAFT = 32, 5, 4, 8
_BLOCK_SIZE = 16
_SHARES = (1 / 10, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3)


@dataclass(frozen=True, slots=True)
class Depth:
    """num_layers: how many are computed. acceptance: share of tokens that they guess. step_share: of a whole step's
    time. gain: tokens a second against none drafted, at the best draft length; below 1 it is a loss."""

    num_layers: int
    acceptance: float
    step_share: float
    gain: float


def pick_depth(runner: ModelRunner, ids: list[int], clock: Callable[[], float] = time.perf_counter) -> list[Depth]:
    """Candidate depths, the best first. ids: the tokens of SAMPLE_TEXT. The runner's cache is made anew, and must be
    allocated again before it is used."""
    num_tokens = len(ids) + _NUM_TOKENS
    runner.allocate(-(-num_tokens // _BLOCK_SIZE), _BLOCK_SIZE)
    text, step_s = _continued(runner, ids, clock)
    verified_s = median(_timed(runner.forward, text, _NUM_VERIFIED, clock) for _ in range(_NUM_TIMED))
    row_share = max(0.0, (verified_s / step_s - 1.0) / (_NUM_VERIFIED - 1))
    found = []
    for num_layers in _candidates(runner.num_layers):
        forward = runner.early_exit(num_layers)
        logits = forward(_batch(text, 0, len(text), len(ids) - 1), None)
        guesses = logits[:-1].argmax(axis=1)
        acceptance = float((guesses == np.array(text[len(ids) :])).mean())
        share = median(_timed(forward, text, 1, clock) for _ in range(_NUM_TIMED)) / step_s
        gain = max(expected_gain(acceptance, share, row_share, count) for count in range(1, _MAX_DRAFT + 1))
        found.append(Depth(num_layers, acceptance, share, gain))
    return sorted(found, key=lambda depth: -depth.gain)


def expected_gain(acceptance: float, step_share: float, row_share: float, num_drafted: int) -> float:
    """Tokens per time with drafts of so many tokens, against none; shares are of a whole step's time."""
    num_tokens = sum(acceptance**place for place in range(num_drafted + 1))
    return num_tokens / (1.0 + num_drafted * (step_share + row_share))


def _candidates(num_layers: int) -> Iterable[int]:
    return sorted({max(1, min(num_layers, round(num_layers * share))) for share in _SHARES})


Forward = Callable[[ForwardBatch, None], NDArray[np.float32]]


def _continued(runner: ModelRunner, ids: list[int], clock: Callable[[], float]) -> tuple[list[int], float]:
    """The text with the model's own continuation, and the median time of its steps."""
    text, seconds = list(ids), list[float]()
    logits = runner.forward(_batch(text, 0, len(text), len(text) - 1))
    while True:
        text.append(int(logits[-1].argmax()))
        if len(text) == len(ids) + _NUM_TOKENS:
            return text, median(seconds)
        started_s = clock()
        logits = runner.forward(_batch(text, len(text) - 1, len(text), len(text) - 1))
        seconds.append(clock() - started_s)


def _timed(forward: Forward, text: list[int], num_rows: int, clock: Callable[[], float]) -> float:
    """Seconds of a step over the last num_rows tokens."""
    batch = _batch(text, len(text) - num_rows, len(text), len(text) - num_rows)
    started_s = clock()
    forward(batch, None)
    return clock() - started_s


def _batch(text: list[int], start: int, stop: int, first_sampled: int) -> ForwardBatch:
    """Tokens start .. stop - 1, in blocks 0, 1, ...; the rows from first_sampled on are wanted."""
    table = array("i", range(-(-stop // _BLOCK_SIZE)))
    lane = Lane(table, start, text[start:stop], 1, [])
    batch = draft_batch([lane], [stop - start], _BLOCK_SIZE, is_sampled=True)
    rows = np.arange(first_sampled - start, stop - start, dtype=np.int32)
    return ForwardBatch(
        batch.step_id, batch.ids, batch.position, batch.slot, batch.query_start, batch.context_len, batch.block_table,
        rows, batch.block_size,
    )  # fmt: skip
