"""Runs a model the way the engine does, through a paged cache: chunked, several sequences a step, shuffled blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from safegen.engine.models.base import Model
from safegen.kernels.api import AttentionPlan, KvLayer


class PagedRun:
    """A cache and the sequences in it. The cache starts as NaN: a read outside a sequence's own slots shows."""

    def __init__(self, model: Model, lengths: Sequence[int], block_size: int = 4) -> None:
        config, self.model, self.block_size = model.config, model, block_size
        counts = [-(-length // block_size) for length in lengths]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(11)).tolist()
        self.blocks = [[order.pop() for _ in range(count)] for count in counts]
        shapes = KvLayer.shapes(sum(counts), block_size, config.num_kv_heads, config.head_dim)[:2]
        self.cache = [KvLayer(*(torch.full(shape, float("nan")) for shape in shapes)) for _ in range(config.num_layers)]
        self.num_computed = [0] * len(lengths)

    def step(self, chunks: Sequence[Sequence[int]], sampled_rows: Sequence[int] | None = None) -> list[Tensor]:
        """The next tokens of each sequence (perhaps none) -> logits [tokens, vocab] of each.

        sampled_rows: of one sequence alone, logits of these rows only.
        """
        active = [index for index, chunk in enumerate(chunks) if chunk]
        position = [range(self.num_computed[index], self.num_computed[index] + len(chunks[index])) for index in active]
        slot = [self._slot(index, p) for index, span in zip(active, position) for p in span]
        for index in active:
            self.num_computed[index] += len(chunks[index])
        table = torch.zeros(len(active), max(len(self.blocks[index]) for index in active), dtype=torch.int32)
        for row, index in enumerate(active):
            table[row, : len(self.blocks[index])] = torch.tensor(self.blocks[index])
        plan = AttentionPlan(
            query_start=_int32([0, *torch.tensor([len(chunks[i]) for i in active]).cumsum(0).tolist()]),
            context_len=_int32([self.num_computed[index] for index in active]),
            block_table=table,
            slot=_int32(slot),
            position=_int32([p for span in position for p in span]),
            block_size=self.block_size,
        )
        ids = _int32([token for index in active for token in chunks[index]])
        rows = torch.arange(len(ids)) if sampled_rows is None else torch.tensor(sampled_rows)
        logits = self.model.forward(ids, plan, self.cache, rows)
        if sampled_rows is not None:
            return [logits]
        parts = iter(logits.split([len(chunks[index]) for index in active]))
        return [next(parts) if chunk else logits[:0] for chunk in chunks]

    def _slot(self, index: int, position: int) -> int:
        return self.blocks[index][position // self.block_size] * self.block_size + position % self.block_size


def all_logits(model: Model, sequences: Sequence[Sequence[int]], chunk: int) -> list[Tensor]:
    """Every sequence prefilled `chunk` tokens a step, all of them in each step: logits [tokens, vocab] of each."""
    run = PagedRun(model, [len(sequence) for sequence in sequences])
    parts: list[list[Tensor]] = [[] for _ in sequences]
    for start in range(0, max(map(len, sequences)), chunk):
        for found, logits in zip(parts, run.step([sequence[start : start + chunk] for sequence in sequences])):
            found.append(logits)
    return [torch.cat(found) for found in parts]


def greedy(model: Model, prompt: Sequence[int], num_tokens: int) -> list[int]:
    run = PagedRun(model, [len(prompt) + num_tokens], block_size=16)
    output = [int(run.step([list(prompt)])[0][-1].argmax())]
    while len(output) < num_tokens:
        output.append(int(run.step([output[-1:]])[0][-1].argmax()))
    return output


def _int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)
