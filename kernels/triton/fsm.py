"""Constraints that are tables, on the device: which mask a row is drawn under, and the state its token leads to.

All tables lie in three arrays, one after the other: mask rows beside the host's in `words`, the class of each token in
`classes`, and the state after each (state, class) in `targets`. A row says by `FsmRows` where its table begins; so rows
of different tables, and rows without one, share a launch, and neither tokens nor masks pass through the host.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from safegen.kernels.api import FsmRows

_BLOCK = 128


@triton.jit
def fsm_mask_rows_kernel(state, first_row, mask_rows, out, num_rows, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rows
    first = tl.load(first_row + row, mask=inside, other=-1)
    own = first + tl.load(state + row, mask=inside, other=0)
    tl.store(out + row, tl.where(first >= 0, own, tl.load(mask_rows + row, mask=inside, other=-1)), mask=inside)


@triton.jit
def fsm_advance_kernel(
    state, tokens, first_row, first_class, first_target, num_classes, classes, targets, out, num_rows,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rows
    is_table = inside & (tl.load(first_row + row, mask=inside, other=-1) >= 0)
    before = tl.load(state + row, mask=inside, other=0)
    token = tl.load(tokens + row, mask=is_table, other=0)
    token_class = tl.load(classes + tl.load(first_class + row, mask=is_table, other=0) + token, mask=is_table, other=0)
    width = tl.load(num_classes + row, mask=is_table, other=0)
    at = tl.load(first_target + row, mask=is_table, other=0) + before * width + token_class
    tl.store(out + row, tl.load(targets + at, mask=is_table, other=0), mask=inside)


def fsm_mask_rows(state: Tensor, rows: FsmRows, mask_rows: Tensor) -> Tensor:
    """Which of all words each row is drawn under. state, mask_rows: int32 [rows]; -1 stays what it means."""
    out = torch.empty_like(mask_rows)
    if len(state):
        grid = (triton.cdiv(len(state), _BLOCK),)
        fsm_mask_rows_kernel[grid](state, rows.first_row, mask_rows, out, len(state), BLOCK=_BLOCK, num_warps=1)
    return out


def fsm_advance(state: Tensor, tokens: Tensor, rows: FsmRows, classes: Tensor, targets: Tensor) -> Tensor:
    """The state after each row's token, 0 for a row without a table. state, tokens: int32 [rows]."""
    out = torch.empty_like(state)
    if len(state):
        grid = (triton.cdiv(len(state), _BLOCK),)
        fsm_advance_kernel[grid](
            state, tokens, rows.first_row, rows.first_class, rows.first_target, rows.num_classes, classes, targets,
            out, len(state), BLOCK=_BLOCK, num_warps=1,
        )  # fmt: skip
    return out


__all__ = ["fsm_advance", "fsm_mask_rows"]
