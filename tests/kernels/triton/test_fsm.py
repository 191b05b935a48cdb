"""Token tables on the device, interpreted, against their twins."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from safegen.kernels.api import FsmRows
from safegen.kernels.reference import fsm as reference
from safegen.kernels.triton.fsm import fsm_advance, fsm_mask_rows

VOCAB = 50


def ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def case(num_rows: int, seed: int) -> tuple[FsmRows, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Rows of three tables of different sizes, and rows without one, whose places are out of all bounds."""
    random = torch.Generator().manual_seed(seed)
    tables = [(3, 2), (5, 7), (1, 1)]  # states, classes
    first_row, first_class, first_target, width, states = [], [], [], [], []
    classes = [torch.randint(0, count, (VOCAB,), generator=random) for _, count in tables]
    targets = [torch.randint(0, states, (states * count,), generator=random) for states, count in tables]
    starts = [sum(s * c for s, c in tables[:place]) for place in range(len(tables))]
    for _ in range(num_rows):
        which = int(torch.randint(-1, len(tables), (1,), generator=random))
        far = 1 << 30
        first_row.append(-1 if which < 0 else 100 + 10 * which)
        first_class.append(far if which < 0 else VOCAB * which)
        first_target.append(far if which < 0 else starts[which])
        width.append(far if which < 0 else tables[which][1])
        states.append(7 if which < 0 else int(torch.randint(0, tables[which][0], (1,), generator=random)))
    rows = FsmRows(ints(first_row), ints(first_class), ints(first_target), ints(width))
    tokens = torch.randint(0, VOCAB, (num_rows,), generator=random).int()
    mask_rows = torch.randint(-1, 9, (num_rows,), generator=random).int()
    return rows, ints(states), tokens, mask_rows, torch.cat(classes).int(), torch.cat(targets).int()


@pytest.mark.parametrize("num_rows", [1, 7, 128, 131])
def test_masks_and_states_are_those_of_the_twin(num_rows: int) -> None:
    rows, state, tokens, mask_rows, classes, targets = case(num_rows, num_rows)
    found = fsm_mask_rows(state, rows, mask_rows)
    assert torch.equal(found, reference.fsm_mask_rows(state, rows, mask_rows))
    assert torch.equal(found[rows.first_row < 0], mask_rows[rows.first_row < 0])
    after = fsm_advance(state, tokens, rows, classes, targets)
    assert torch.equal(after, reference.fsm_advance(state, tokens, rows, classes, targets))
    assert num_rows < 100 or len(set(after.tolist())) > 2


def test_no_rows_are_no_launch() -> None:
    rows, state, tokens, mask_rows, classes, targets = case(0, 1)
    assert not len(fsm_mask_rows(state, rows, mask_rows)) and not len(
        fsm_advance(state, tokens, rows, classes, targets)
    )
