"""Token tables that lie on the device: one arena for all of them, filled up and never moved.

Rows of masks lie behind the host's in the words that draws read; classes and targets in arrays of their own. A table
stays until a new one finds no room: then all that no recent draw has used are given up together, if none is left to
keep; else the new one is refused, and its rows get their masks from the host. Offsets are 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safegen.engine.gpu.device import Device
from safegen.grammars.constraint import TokenTable

_RECENT_DRAWS = 4


@dataclass(slots=True)
class Place:
    """Where a table begins. first_row: among all words. last_draw: number of the latest one that used it."""

    table: TokenTable
    first_row: int
    first_class: int
    first_target: int
    last_draw: int


class TableArena:
    """words: int32 [rows, words a row], whose rows from first_row on are the tables'. max_bytes: of classes and targets
    together; classes of a vocabulary take a good part."""

    def __init__(self, device: Device, words: Tensor, first_row: int, vocab_size: int, max_bytes: int) -> None:
        self._device = device
        self._words, self._first_row = words, first_row
        classes = max(1, max_bytes // 8 // vocab_size) * vocab_size
        self.classes = torch.zeros(classes, dtype=torch.int32, device=words.device)
        self.targets = torch.zeros(max(1, max_bytes // 8), dtype=torch.int32, device=words.device)
        self._places: dict[int, Place] = {}
        self._num_rows = self._num_classes = self._num_targets = 0
        self._num_draws = 0

    def drawing(self) -> None:
        """A draw is made: what it finds is recent."""
        self._num_draws += 1

    def find(self, table: TokenTable) -> Place | None:
        """Where the table lies, now if not before. None without room for it."""
        place = self._places.get(id(table))
        if place is None:
            if not self._has_room(table):
                self._give_up()
            if not self._has_room(table):
                return None
            place = self._put(table)
        place.last_draw = self._num_draws
        return place

    def _has_room(self, table: TokenTable) -> bool:
        rows = len(self._words) - self._first_row - self._num_rows
        return (
            len(table.masks) <= rows
            and table.classes.size <= len(self.classes) - self._num_classes
            and table.targets.size <= len(self.targets) - self._num_targets
        )

    def _give_up(self) -> None:
        if all(place.last_draw + _RECENT_DRAWS < self._num_draws for place in self._places.values()):
            self._places.clear()
            self._num_rows = self._num_classes = self._num_targets = 0

    def _put(self, table: TokenTable) -> Place:
        place = Place(table, self._first_row + self._num_rows, self._num_classes, self._num_targets, 0)
        self._copy(table.masks, self._words[place.first_row : place.first_row + len(table.masks)])
        self._copy(table.classes, self.classes[place.first_class : place.first_class + table.classes.size])
        self._copy(table.targets.ravel(), self.targets[place.first_target : place.first_target + table.targets.size])
        self._num_rows += len(table.masks)
        self._num_classes += table.classes.size
        self._num_targets += table.targets.size
        self._places[id(table)] = place  # the place holds the table, so the id stays its own
        return place

    def _copy(self, numbers: NDArray[np.int32], target: Tensor) -> None:
        """Once a table: the staging is its own, and waited for."""
        staging = self._device.staging(numbers.nbytes).view(torch.int32).view(target.shape)
        staging.copy_(torch.from_numpy(np.ascontiguousarray(numbers)))
        self._device.upload(staging, target)
        self._device.wait(self._device.mark())


__all__ = ["Place", "TableArena"]
