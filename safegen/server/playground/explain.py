"""Why a text would be rejected: `safegen.explain` for the type of a request, without its model and its guards.

It runs where output types are compiled, one of a key at a time, within the server's limits of compiling.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import StringConstraints

from safegen.errors import SafegenError
from safegen.explaining import Explanation, explain
from safegen.server.admission import Lease
from safegen.server.answers import Answers
from safegen.server.errors import api_error
from safegen.server.playground.places import telling_places
from safegen.server.replies import Reply
from safegen.server.schemas import ChatRequest
from safegen.server.translate import Call

MAX_TEXT_CHARACTERS = 16_384
_MAX_EXPECTED = 40


class ExplainRequest(ChatRequest):
    """A chat request, whose type is asked about, and the text."""

    text: Annotated[str, StringConstraints(max_length=MAX_TEXT_CHARACTERS)]


class Explaining:
    def __init__(self, answers: Answers, call: Call, text: str, lease: Lease) -> None:
        self._answers = answers
        self._call = call
        self._text = text
        self._lease = lease

    async def send(self, reply: Reply) -> None:
        call, limits = self._call, self._answers.runtime.limits
        if call.spec is None:
            await reply.json(told(Explanation(True), self._text))
            return
        with telling_places():
            try:
                found = await self._answers.on_compiler(
                    self._lease, lambda: explain(call.spec, self._text, limits=limits)
                )
            except SafegenError as error:
                raise api_error(error, call.params) from error
        await reply.json(told(found, self._text))


def told(found: Explanation, text: str) -> dict[str, Any]:
    """character: where the character begins that holds the byte, in UTF-16 units, as a page counts."""
    character = None if found.byte is None else _utf16_offset(text, found.byte)
    return {
        "accepted": found.accepted,
        "reason": found.reason,
        "byte": found.byte,
        "character": character,
        "found": found.found,
        "places": [{"pointer": place.pointer, "keyword": place.keyword} for place in found.places],
        "expected": list(found.expected[:_MAX_EXPECTED]),
        "num_more_expected": max(0, len(found.expected) - _MAX_EXPECTED),
    }


def _utf16_offset(text: str, byte: int) -> int:
    before = text.encode("utf-8", "surrogatepass")[:byte].decode("utf-8", "ignore")
    return len(before.encode("utf-16-le", "surrogatepass")) // 2
