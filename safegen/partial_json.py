"""An incremental reader of JSON text: the value so far, built from closed nodes only.

A scalar counts once its last character is certain (a number only when something follows it); an object or array is
there from its opening bracket, and grows. So a snapshot never shows a value that a later character changes. The text
comes from the constrained decoder; text that is not JSON makes the reader stop for good (`broken`), it never raises:
judging the text is the validator's work. Each snapshot copies the open path alone and shares closed nodes.
"""

from __future__ import annotations

import json
import re
from typing import Any

_STRING_STOP = re.compile(r'["\\]')
_SCALAR_STOP = re.compile(r"[\s,\]}]")
_UNSET = object()


class PartialJson:
    """Feed it text piece by piece; `snapshot` is the value so far."""

    def __init__(self) -> None:
        self.broken = False
        self._root: Any = _UNSET
        self._open: list[dict[str, Any] | list[Any]] = []
        self._key: str | None = None  # the key whose value comes next, in the innermost object
        self._scalar = ""  # text of the scalar being read
        self._escaped = False

    def feed(self, text: str) -> bool:
        """Read on. True when the value grew."""
        grew = False
        at = 0
        while at < len(text) and not self.broken:
            if self._scalar.startswith('"'):
                at, closed = self._read_string(text, at)
            elif self._scalar:
                at, closed = self._read_bare(text, at)
            else:
                at, closed = self._read_structure(text, at)
            grew = grew or closed
        return grew and not self.broken

    def snapshot(self) -> Any:
        """The value so far; None before anything is there. Open containers are copies."""
        if self._root is _UNSET:
            return None
        copies: Any = self._root
        inner: Any = None
        for container in reversed(self._open):
            copy: Any = dict(container) if isinstance(container, dict) else list(container)
            if inner is not None:
                copy[next(reversed(copy)) if isinstance(copy, dict) else -1] = inner
            inner = copies = copy
        return copies

    def _read_string(self, text: str, at: int) -> tuple[int, bool]:
        if self._escaped:
            self._escaped = False
            self._scalar += text[at]
            return at + 1, False
        stop = _STRING_STOP.search(text, at)
        if stop is None:
            self._scalar += text[at:]
            return len(text), False
        self._scalar += text[at : stop.end()]
        if stop.group() == "\\":
            self._escaped = True
            return stop.end(), False
        return stop.end(), self._close_scalar()

    def _read_bare(self, text: str, at: int) -> tuple[int, bool]:
        stop = _SCALAR_STOP.search(text, at)
        if stop is None:
            self._scalar += text[at:]
            return len(text), False
        self._scalar += text[at : stop.start()]
        return stop.start(), self._close_scalar()

    def _read_structure(self, text: str, at: int) -> tuple[int, bool]:
        char = text[at]
        if char in "{[":
            container: dict[str, Any] | list[Any] = {} if char == "{" else []
            self._place(container)
            self._open.append(container)
            self._key = None
            return at + 1, True
        if char in "}]":
            if self._open:
                self._open.pop()
            else:
                self.broken = True
        elif not char.isspace() and char not in ",:":
            self._scalar = char
        return at + 1, False

    def _close_scalar(self) -> bool:
        text, self._scalar = self._scalar, ""
        try:
            value = json.loads(text)
        except ValueError:
            self.broken = True
            return False
        if self._open and isinstance(self._open[-1], dict) and self._key is None:
            self.broken = not isinstance(value, str)
            self._key = value
            return False
        self._place(value)
        return True

    def _place(self, value: Any) -> None:
        if not self._open:
            self.broken = self.broken or self._root is not _UNSET
            self._root = value
            return
        container = self._open[-1]
        if isinstance(container, list):
            container.append(value)
        elif self._key is None:
            self.broken = True
        else:
            container[self._key] = value
            self._key = None
