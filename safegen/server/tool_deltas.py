"""The text of a `Tools` answer, piece by piece, as OpenAI's deltas: content, then calls, whose arguments grow.

Knows the wire format (`ToolFormat`) and judges nothing: that the text is well formed is the constraint's promise, and
the Result says whether it was kept. What may yet be the marker of the calls is held back; the arguments of a call are
passed on as they come, character for character, so that joined they are the very text that was validated. A call that
is cut before its name is complete leaves nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

from safegen.grammars.tool_formats import ToolFormat

_SPACE = "[ \\t\\n\\r]*"
_STRING = r'"(?:[^"\\]|\\.)*"'
_STRUCTURE = re.compile(r'[{}\[\]"]')
_IN_STRING = re.compile(r'["\\]')
Delta = dict[str, Any]


class ToolDeltas:
    """call_id: the beginning of every call's id; its number follows."""

    def __init__(self, form: ToolFormat, call_id: str) -> None:
        self._form = form
        self._call_id = call_id
        key = re.escape(json.dumps(form.arguments_key, ensure_ascii=False))
        lead = f"(?:{re.escape(form.lead)})?"
        self._head = re.compile(
            f'{lead}{{{_SPACE}"name"{_SPACE}:{_SPACE}({_STRING}){_SPACE},{_SPACE}{key}{_SPACE}:{_SPACE}(?={{)'
        )
        self._tail = re.compile(f"{_SPACE}}}{re.escape(form.between)}")
        self._state: Literal["text", "head", "arguments", "tail"] = "text"
        self._held = ""
        self._depth = 0
        self._in_string = False
        self.num_calls = 0

    def feed(self, text: str) -> Iterator[Delta]:
        self._held += text
        progress = True
        while progress and self._held:
            before = (self._state, len(self._held))
            yield from self._STEPS[self._state](self)
            progress = before != (self._state, len(self._held))

    def finish(self) -> Iterator[Delta]:
        """The answer has ended: text that was held back as a possible marker is text."""
        if self._state == "text" and self._held:
            yield {"content": self._held}
        self._held = ""

    def _text(self) -> Iterator[Delta]:
        begin = self._form.begin
        found = self._held.find(begin)
        if found >= 0:
            shown, self._held, self._state = self._held[:found], self._held[found + len(begin) :], "head"
        else:
            certain = len(self._held) - _overlap(self._held, begin)
            shown, self._held = self._held[:certain], self._held[certain:]
        if shown:
            yield {"content": shown}

    def _call_head(self) -> Iterator[Delta]:
        head = self._head.match(self._held)
        if head is None:
            return
        self._held, self._state, self._depth, self._in_string = self._held[head.end() :], "arguments", 0, False
        number, self.num_calls = self.num_calls, self.num_calls + 1
        function = {"name": json.loads(head[1]), "arguments": ""}
        yield {
            "tool_calls": [
                {"index": number, "id": f"{self._call_id}{number}", "type": "function", "function": function}
            ]
        }

    def _arguments(self) -> Iterator[Delta]:
        end = self._end_of_arguments()
        shown, self._held = self._held[:end], self._held[end:]
        if shown:
            yield {"tool_calls": [{"index": self.num_calls - 1, "function": {"arguments": shown}}]}

    def _end_of_arguments(self) -> int:
        """How much of what is held belongs to the arguments; the state moves on where they close. A backslash waits
        for what it escapes."""
        at = 0
        while True:
            found = (_IN_STRING if self._in_string else _STRUCTURE).search(self._held, at)
            if found is None:
                return len(self._held)
            at = found.end()
            if found[0] == "\\":
                if at == len(self._held):
                    return at - 1
                at += 1
            elif found[0] == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if found[0] in "{[" else -1
                if self._depth == 0:
                    self._state = "tail"
                    return at

    def _call_tail(self) -> Iterator[Delta]:
        tail = self._tail.match(self._held)
        if tail is not None:
            self._held, self._state = self._held[tail.end() :], "head"
        yield from ()

    _STEPS = {"text": _text, "head": _call_head, "arguments": _arguments, "tail": _call_tail}  # noqa: RUF012


def _overlap(text: str, marker: str) -> int:
    """Characters at the end of the text that may begin the marker."""
    return next((n for n in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:n])), 0)
