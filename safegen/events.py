"""What a stream yields: `DeltaEvent`, `SnapshotEvent` and, last and exactly once, `FinalEvent`.

`index` tells the samples of n > 1 apart. The deltas of index 0, joined, are the text of the final Result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from safegen.origins import TokenSpan
from safegen.result import Result

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeltaEvent:
    """New text. Never half a code point, never a piece that a stop string may still claim.

    thinking: it belongs to the reasoning of a Think type, whose markers count as such. spans: where it came from, token
    by token, if that was asked for; their lengths add up to the text's.
    """

    text: str
    index: int = 0
    thinking: bool = False
    type: Literal["delta"] = "delta"
    spans: tuple[TokenSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotEvent:
    """The JSON value so far, as plain Python: closed nodes only, so nothing in it will change, only be added to.

    Not validated as the Python type: that happens once, at the end. Treat the value as read-only.
    """

    value: Any
    index: int = 0
    type: Literal["snapshot"] = "snapshot"


@dataclass(frozen=True, slots=True)
class FinalEvent(Generic[T]):
    """The end of the stream, with the validated Result."""

    result: Result[T]
    type: Literal["final"] = "final"


StreamEvent = DeltaEvent | SnapshotEvent | FinalEvent[Any]
