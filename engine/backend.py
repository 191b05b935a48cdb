"""The seam between the engine's bookkeeping and whatever computes logits.

The engine above this line counts tokens and blocks in plain integers; the backend below it holds weights and KV
tensors. `ModelRunner` (engine/runner.py) is the real one, a fake of a few lines serves the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from safegen.kernels.sampling import SampleSettings


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The tokens of one step, all sequences packed one after the other. Arrays are int32.

    step_id: number of the step. ids, position, slot: [tokens], token id, absolute position, and
    `block * block_size + offset` of its key. query_start: [sequences + 1], cumulative tokens. context_len: [sequences],
    cached tokens including this step's. block_table: [sequences, max_blocks], rows filled up with zeros past what
    context_len reaches. sampled_rows: [rows], places in `ids` whose logits are wanted.
    """

    step_id: int
    ids: NDArray[np.int32]
    position: NDArray[np.int32]
    slot: NDArray[np.int32]
    query_start: NDArray[np.int32]
    context_len: NDArray[np.int32]
    block_table: NDArray[np.int32]
    sampled_rows: NDArray[np.int32]
    block_size: int


@dataclass(frozen=True, slots=True)
class RowMasks:
    """Which logits a forward is asked for. words: [sampled rows, ceil(vocabulary / 32)] int32, packed as in `MaskRows`;
    meaningful where restricted. restricted: [sampled rows] bool.

    Of a restricted row only the logits of its legal ids are needed, and where a single id is legal not even that one:
    the others may be left at -inf. All other rows are needed whole.
    """

    words: NDArray[np.int32]
    restricted: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class AheadDraws:
    """The draws between the steps of one call. vocab_size: ids that may be drawn. settings: of each row. uniforms:
    [steps - 1, rows] float64, in [0, 1). stop_ids: a draw of one makes its step the last."""

    vocab_size: int
    settings: list[SampleSettings]
    uniforms: NDArray[np.float64]
    stop_ids: frozenset[int]


class ForwardAhead(Protocol):
    """What a backend that can compute several steps in a row has as `forward_ahead`.

    batch: one token of each sequence, its block tables as far as the last step reaches. Returns the ids drawn after
    each step but the last that was computed, [steps - 1][rows], and the logits of that last one, which `forward` would
    have returned for it. A draw that fails, and one of a stop id, is left to the caller: its step is the last.
    """

    def __call__(self, batch: ForwardBatch, draws: AheadDraws) -> tuple[list[list[int]], NDArray[np.float32]]: ...


class Backend(Protocol):
    """Weights and KV tensors. All methods are called by the engine thread only.

    takes_masks: the masks are filled before the forward and handed to it, because it computes less for them; else they
    are filled after it was launched.

    The logits of a row must be a function of that sequence's tokens alone: not of the other sequences in the batch, of
    how its prompt was cut into chunks, nor of which blocks hold its keys.
    """

    vocab_size: int
    max_context: int
    takes_masks: bool

    def bytes_per_block(self, block_size: int) -> int:
        """KV bytes of one block, all layers."""
        ...

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Make the KV tensors. Called once, before the first forward."""
        ...

    def forward(self, batch: ForwardBatch, masks: RowMasks | None) -> NDArray[np.float32]:
        """Write the keys and values of all tokens, return logits [sampled rows, >= vocab_size] float32.

        masks: None if not takes_masks, or if no row is restricted.

        The array is read before the next call and never written to. An exception ends the sequences of the batch.
        """
        ...

    def copy_block(self, source: int, destination: int) -> None:
        """Copy one block's keys and values, all layers, before the forward of the same step."""
        ...
