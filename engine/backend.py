"""The seam between the engine's bookkeeping and whatever computes logits.

The engine above this line counts tokens and blocks in plain integers; the backend below it holds weights and KV
tensors. `ModelRunner` (engine/runner.py) is the real one, a fake of a few lines serves the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


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


class Backend(Protocol):
    """Weights and KV tensors. All methods are called by the engine thread only.

    The logits of a row must be a function of that sequence's tokens alone: not of the other sequences in the batch, of
    how its prompt was cut into chunks, nor of which blocks hold its keys.
    """

    vocab_size: int
    max_context: int

    def bytes_per_block(self, block_size: int) -> int:
        """KV bytes of one block, all layers."""
        ...

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Make the KV tensors. Called once, before the first forward."""
        ...

    def forward(self, batch: ForwardBatch) -> NDArray[np.float32]:
        """Write the keys and values of all tokens, return logits [sampled rows, >= vocab_size] float32.

        The array is read before the next call and never written to. An exception ends the sequences of the batch.
        """
        ...

    def copy_block(self, source: int, destination: int) -> None:
        """Copy one block's keys and values, all layers, before the forward of the same step."""
        ...
