"""Twins of `kernels.triton.fsm`: constraints that are tables, by plain indexing."""

from __future__ import annotations

import torch
from torch import Tensor

from safegen.kernels.api import FsmRows


def fsm_mask_rows(state: Tensor, rows: FsmRows, mask_rows: Tensor) -> Tensor:
    """Which of all words each row is drawn under. state, mask_rows: int32 [rows]; -1 stays what it means."""
    return torch.where(rows.first_row >= 0, rows.first_row + state, mask_rows)


def fsm_advance(state: Tensor, tokens: Tensor, rows: FsmRows, classes: Tensor, targets: Tensor) -> Tensor:
    """The state after each row's token, 0 for a row without a table. state, tokens: int32 [rows]."""
    is_table = rows.first_row >= 0
    token_class = classes.index_select(0, torch.where(is_table, rows.first_class + tokens, 0))
    at = torch.where(is_table, rows.first_target + state * rows.num_classes + token_class, 0)
    return torch.where(is_table, targets.index_select(0, at), 0)


__all__ = ["fsm_advance", "fsm_mask_rows"]
