"""The seam between the engine's bookkeeping and whatever computes logits.

The engine above this line counts tokens and blocks in plain integers; the backend below it holds weights and KV
tensors. `ModelRunner` (engine/runner.py) is the real one, a fake of a few lines serves the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from safegen.grammars.constraint import TokenTable
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


@runtime_checkable
class KnowsMaxima(Protocol):
    """A backend that has looked at its logits already, while they were in a near cache."""

    def maxima_of(self, logits: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """logits: the array that `forward` gave last; None for any other. The highest of each 64 logits, [sampled rows,
        >= ceil(vocab_size / 64)], all NaN around one that is; of a row that was not needed anything."""
        ...


class DrawnRow(NamedTuple):
    """One row of a step and what its token is drawn by. seed, sample, position, attempt: the counter of its random
    number (engine/rng.py; sample is the index of the request's sequence). mask_row: of the step's words, None where
    nothing is forbidden there. table: in place of a mask, with the state that the row is drawn in; state is None where
    the row `carried` of the latest draw led to it."""

    settings: SampleSettings
    seed: int
    sample: int
    position: int
    attempt: int
    mask_row: int | None = None
    table: TokenTable | None = None
    state: int | None = 0
    carried: int = -1


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """All draws of a step. rows: one a sampled row, in their order; None for one that the host draws from its logits.
    words: the step's mask rows, packed, those that are used first; None where no row has a mask."""

    rows: tuple[DrawnRow | None, ...]
    words: NDArray[np.int32] | None


@dataclass(frozen=True, slots=True)
class Drawn:
    """ids, faults: [sampled rows] int32; a fault is one of kernels/sampling.py, 0 is none. logits: float32 of the rows
    that the host draws, in their order."""

    ids: NDArray[np.int32]
    faults: NDArray[np.int32]
    logits: NDArray[np.float32]


class PendingDraw(Protocol):
    def wait(self) -> Drawn:
        """Raises what the device raised meanwhile; called once."""
        ...


@runtime_checkable
class DeviceBackend(Protocol):
    """A backend whose logits stay on a device (engine/device_steps.py), beside the methods of `Backend`. What is
    started runs in order while the host goes on; the tokens of a step come back in one copy.

    In place of `forward` the engine calls `launch`, then `draw`; it may launch a further step before it has waited for
    the draw, with the tokens of that draw where they are.
    """

    def prepare_draws(self, vocab_size: int, max_rows: int) -> None:
        """Once, before `allocate`. vocab_size: ids that may be drawn. max_rows: sampled rows of a step, at most."""
        ...

    def launch(self, batch: ForwardBatch, carried: NDArray[np.int32] | None = None) -> None:
        """Start a forward. carried: [tokens], the row of the latest draw whose token this token is, -1 where batch.ids
        has it."""
        ...

    def draw(self, rows: DeviceRows) -> PendingDraw:
        """Start the draws from the logits of the latest launch."""
        ...

    def holds(self, table: TokenTable) -> bool:
        """Whether rows can be drawn by this table: it is put on the device if there is room."""
        ...


@runtime_checkable
class ProfiledBackend(Protocol):
    """A backend that knows how much memory its pool may take."""

    def kv_cache_bytes(self, block_size: int, utilization: float) -> int:
        """utilization: share of the device's memory that the engine may take. Raises CapacityError."""
        ...
