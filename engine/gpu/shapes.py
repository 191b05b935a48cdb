"""The shapes that forwards are captured in: graph keys, and how a batch is padded to one.

A graph is of one number of tokens, of sequences, of query tokens a sequence at most, and of blocks that a table row
has. Batches in which every token is sampled (decode, and drafts that are verified) are padded to the next such shape:
padded tokens belong to no sequence and are written nowhere. All others, which have prompts in them, run without a graph
in their own shape.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from safegen.engine.backend import ForwardBatch
from safegen.engine.gpu.layout import Layout

_LEAST_BLOCKS = 64
_BLOCK_STEP = 4  # a table's width grows by this factor
_LONGEST_QUERY = 32  # drafts of more tokens run without a graph


class GraphKey(NamedTuple):
    """tokens, sequences: padded. max_query_len: of one sequence. blocks: width of the block table. rows: sampled."""

    tokens: int
    sequences: int
    max_query_len: int
    blocks: int
    rows: int

    def layout(self) -> Layout:
        """Where the inputs of a forward lie."""
        kind = torch.int32
        return Layout(
            {
                "ids": ((self.tokens,), kind),
                "carried": ((self.tokens,), kind),
                "position": ((self.tokens,), kind),
                "slot": ((self.tokens,), kind),
                "query_start": ((self.sequences + 1,), kind),
                "context_len": ((self.sequences,), kind),
                "sampled_rows": ((self.rows,), kind),
                "block_table": ((self.sequences, self.blocks), kind),
            }
        )


def widths(most: int) -> tuple[int, ...]:
    """1, 2, 4, 8, and then in steps of 8 to 64, of 16 to 256, of 64; the last is `most`."""
    found = [width for width in (1, 2, 4, 8) if width < most]
    width = 16
    while width < most:
        found.append(width)
        width += 8 if width < 64 else 16 if width < 256 else 64
    return (*found, most)


def padded(count: int, choices: tuple[int, ...]) -> int:
    """The first of the ascending choices that is at least `count`."""
    return next(choice for choice in choices if choice >= count)


def graph_key(batch: ForwardBatch, choices: tuple[int, ...], max_blocks: int) -> GraphKey | None:
    """The graph of a batch; None for one that runs without."""
    num_tokens, num_sequences = len(batch.ids), len(batch.context_len)
    longest = int(np.diff(batch.query_start).max(initial=0))
    if len(batch.sampled_rows) != num_tokens or not 0 < num_tokens <= choices[-1] or longest > _LONGEST_QUERY:
        return None
    tokens, blocks = padded(num_tokens, choices), _LEAST_BLOCKS
    while blocks < batch.block_table.shape[1]:
        blocks *= _BLOCK_STEP
    longest = 1 << (longest - 1).bit_length()
    sequences = tokens if longest == 1 else padded(num_sequences, choices)
    return GraphKey(tokens, sequences, longest, min(blocks, max_blocks), tokens)


def own_key(batch: ForwardBatch) -> GraphKey:
    """The shape that a batch has."""
    longest = int(np.diff(batch.query_start).max(initial=0))
    blocks, rows = batch.block_table.shape[1], len(batch.sampled_rows)
    return GraphKey(len(batch.ids), len(batch.context_len), longest, blocks, rows)


__all__ = ["GraphKey", "graph_key", "own_key", "padded", "widths"]
