"""The text of a `Tools` answer, read back: free text and calls. Knows the wire format and nothing of the machine.

`json`'s own scanner finds where a call's arguments end; the text in between is judged by the tool's validator.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from safegen.errors import InvalidOutput
from safegen.grammars.tool_formats import ToolFormat
from safegen.tools import ToolCall, ToolCalls

_SPACE = "[ \\t\\n\\r]*"
_SCANNER = json.JSONDecoder(parse_int=str, parse_float=str)  # the extent counts, so digits need not be a number


class CallScanner:
    """Reads one call at a place of a text."""

    def __init__(self, form: ToolFormat) -> None:
        key = re.escape(json.dumps(form.arguments_key, ensure_ascii=False))
        self._open = re.compile(f'{{{_SPACE}"name"{_SPACE}:{_SPACE}')
        self._middle = re.compile(f"{_SPACE},{_SPACE}{key}{_SPACE}:{_SPACE}")
        self._close = re.compile(f"{_SPACE}}}")

    def scan(self, text: str, at: int) -> tuple[str, str, int] | None:
        """(tool name, JSON text of the arguments, where the call ends), or None where no whole call stands."""
        try:
            opened = self._open.match(text, at)
            name, at = _SCANNER.raw_decode(text, opened.end() if opened else len(text))
            middle = self._middle.match(text, at)
            begin = middle.end() if middle else len(text)
            _, end = _SCANNER.raw_decode(text, begin)
        except (ValueError, RecursionError):
            return None
        closed = self._close.match(text, end)
        return (name, text[begin:end], closed.end()) if closed and isinstance(name, str) else None


@dataclass(frozen=True, slots=True)
class ToolReader:
    """readers: tool name -> what parses and validates the arguments' text. Raises InvalidOutput."""

    form: ToolFormat
    allow_text: bool
    min_calls: int
    max_calls: int | None
    readers: Mapping[str, Callable[[str], Any]]

    def read(self, text: str) -> ToolCalls:
        before, found, rest = text.partition(self.form.begin)
        if before and not self.allow_text:
            raise InvalidOutput("text stands where only tool calls are allowed")
        calls = tuple(self._calls(rest)) if found else ()
        most = len(calls) if self.max_calls is None else self.max_calls
        least = self.min_calls if self.allow_text else max(1, self.min_calls)
        if not least <= len(calls) <= most:
            raise InvalidOutput(f"{len(calls)} tool calls; from {least} to {most} are allowed")
        return ToolCalls(before, calls)

    def _calls(self, text: str) -> list[ToolCall]:
        scanner, between, calls = CallScanner(self.form), self.form.between, list[ToolCall]()
        if not text.startswith(self.form.lead):
            raise InvalidOutput(f"{self.form.lead!r} is missing after {self.form.begin!r}")
        at = len(self.form.lead)
        while True:
            scanned = scanner.scan(text, at)
            if scanned is None:
                raise InvalidOutput(f"no tool call stands where number {len(calls) + 1} should")
            name, raw, at = scanned
            calls.append(self._call(name, raw))
            if text[at:] == self.form.end:
                return calls
            if not text.startswith(between, at):
                raise InvalidOutput(f"{self.form.end!r} is missing after tool call number {len(calls)}")
            at += len(between)

    def _call(self, name: str, raw: str) -> ToolCall:
        reader = self.readers.get(name)
        if reader is None:
            raise InvalidOutput(f"there is no tool {name!r}")
        try:
            return ToolCall(name, reader(raw), raw)
        except InvalidOutput as error:
            raise InvalidOutput(f"arguments of the tool {name!r}: {error}") from error


class PartialTools:
    """The calls so far, each as soon as it is closed: {"text": ..., "calls": [{"name": ..., "arguments": ...}]}."""

    def __init__(self, form: ToolFormat) -> None:
        self._form = form
        self._scanner = CallScanner(form)
        self._read = ""
        self._at: int | None = None  # where the next call begins
        self._text = ""
        self._calls: list[dict[str, Any]] = []

    def feed(self, text: str) -> bool:
        self._read += text
        if self._at is None:
            begin = self._read.find(self._form.begin, max(0, len(self._read) - len(text) - len(self._form.begin)))
            if begin < 0:
                return False
            self._text = self._read[:begin]
            self._at = begin + len(self._form.begin) + len(self._form.lead)
        num_before = len(self._calls)
        while "}" in text and (scanned := self._scanner.scan(self._read, self._at)) is not None:
            name, raw, end = scanned
            self._calls.append({"name": name, "arguments": _parsed(raw)})
            self._at = end + len(self._form.between)
        return len(self._calls) > num_before

    def snapshot(self) -> Any:
        return {"text": self._text, "calls": list(self._calls)}


def _parsed(raw: str) -> Any:
    try:
        return json.loads(raw)
    except ValueError:  # an integer of more digits than Python converts
        return raw
