"""Server-sent events, as bytes: where one ends, so that a client is sent whole ones alone.

Events are not read, but for the last one: a stream is over when it has said `[DONE]` or an error. What comes without an
end of an event is kept until that comes.
"""

from __future__ import annotations

import json
import re
from typing import Any

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n")
_DATA = re.compile(rb"(?:\A|[\r\n])data:[ ]?([^\r\n]*)")
_DONE = b"[DONE]"


class EventTooLong(Exception):
    """An event without an end."""


class Framer:
    """max_event_bytes: of what is kept."""

    def __init__(self, max_event_bytes: int) -> None:
        self._max_event_bytes = max_event_bytes
        self._kept = b""
        self._last_data: bytes | None = None

    def feed(self, piece: bytes) -> bytes:
        """The events that are whole by now, as they came. Raises EventTooLong."""
        held = self._kept + piece
        end = _last_end(held, max(0, len(self._kept) - 3))
        self._kept = held[end:]
        if len(self._kept) > self._max_event_bytes:
            raise EventTooLong
        whole = held[:end]
        found = _DATA.findall(whole)
        if found:
            self._last_data = found[-1]
        return whole

    @property
    def is_over(self) -> bool:
        """Whether the last event was the end of a stream, good or bad."""
        last = self._last_data
        return last is not None and (last.strip() == _DONE or error_of(last) is not None)


def _last_end(held: bytes, at_least: int) -> int:
    """Where the last whole event ends; 0 where none does. at_least: no event ends before."""
    end = 0
    for found in _END.finditer(held, at_least):
        end = found.end()
    return end


def first_data(events: bytes) -> bytes | None:
    """What the first event says that is no comment."""
    found = _DATA.search(events)
    return None if found is None else found[1]


def error_of(data: bytes) -> dict[str, Any] | None:
    """The error that an event tells, in OpenAI's shape."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    error = document.get("error") if isinstance(document, dict) else None
    return error if isinstance(error, dict) else None
