"""Control tokens in text: where a string such as "<|im_end|>" stands for a control id, and where it is only text.

`tokenizers` can match control tokens itself, but only for a whole text at once. A chat prompt mixes the template's
control tokens with people's words, so the splitting is done here: the pieces between control tokens are encoded as
plain text, and people's words cannot become control ids.

Provenance of words. A template is a program; it may trim, cut and join what it is given. Each message character that
could start a control token is therefore replaced by a private-use stand-in before rendering (`shield`), the rendered
text is split at the control tokens left in it, all of them the template's own, and the stand-ins are turned back
(`unshield`). Stand-ins map one character to one, so cutting and joining in the template cannot forge a token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from safegen.errors import RequestError

# What `tokenizers` takes for whitespace beside a token with lstrip or rstrip (Unicode White_Space).
_WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_SPACE_AFTER = re.compile(f"[{_WHITESPACE}]*")
_FIRST_STAND_IN = 0xF0000  # supplementary private use area A
_LAST_STAND_IN = 0xFFFFD


@dataclass(frozen=True, slots=True)
class ControlToken:
    """content: its string. lstrip, rstrip: it swallows the whitespace beside it (Phi-3's end-of-turn tokens do)."""

    id: int
    content: str
    lstrip: bool = False
    rstrip: bool = False


class ControlTokens:
    """All control tokens of a tokenizer, with matching: leftmost, and of those the longest."""

    __slots__ = ("_by_content", "_lengths", "_starts", "first_characters", "ids")

    def __init__(self, tokens: Iterable[ControlToken]) -> None:
        self._by_content: Mapping[str, ControlToken] = {token.content: token for token in tokens if token.content}
        self.ids = frozenset(token.id for token in self._by_content.values())
        lengths: dict[str, set[int]] = {}
        for content in self._by_content:
            lengths.setdefault(content[0], set()).add(len(content))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self.first_characters = "".join(sorted(lengths))
        self._starts = re.compile(f"[{re.escape(self.first_characters)}]") if lengths else re.compile("(?!)")

    def by_content(self) -> dict[str, int]:
        return {content: token.id for content, token in self._by_content.items()}

    def below(self, vocab_size: int) -> ControlTokens:
        """Those with an id that the model has."""
        return ControlTokens(token for token in self._by_content.values() if token.id < vocab_size)

    def may_start_in(self, text: str) -> bool:
        """Whether `text` has a character that a control token begins with."""
        return self._starts.search(text) is not None

    def find(self, text: str, position: int = 0) -> tuple[int, ControlToken] | None:
        """The first control token at or after `position`: where it starts, and which."""
        while (start := self._starts.search(text, position)) is not None:
            position = start.start()
            for length in self._lengths[text[position]]:
                token = self._by_content.get(text[position : position + length])
                if token is not None:
                    return position, token
            position += 1
        return None

    def cut(self, text: str) -> list[str]:
        """`text` in parts, cut after the first character of every control token in it, overlapping ones too."""
        parts: list[str] = []
        begin, position = 0, 0
        while (found := self.find(text, position)) is not None:
            position = found[0] + 1
            parts.append(text[begin:position])
            begin = position
        return [*parts, text[begin:]]

    def split(self, text: str) -> list[str | ControlToken]:
        """`text` as plain pieces and control tokens, in order, without empty pieces."""
        pieces: list[str | ControlToken] = []
        begin = 0
        while (found := self.find(text, begin)) is not None:
            start, token = found
            end = start + len(token.content)
            plain = text[begin:start]
            if token.lstrip:
                plain = plain.rstrip(_WHITESPACE)
            if token.rstrip and (space := _SPACE_AFTER.match(text, end)) is not None:
                end = space.end()
            if plain:
                pieces.append(plain)
            pieces.append(token)
            begin = end
        if begin < len(text):
            pieces.append(text[begin:])
        return pieces


class Shield:
    """The stand-ins of one rendering: chosen among private-use characters that occur in none of its strings."""

    __slots__ = ("_control", "_from", "_to")

    def __init__(self, control: ControlTokens, strings: Iterable[str]) -> None:
        used = {ord(char) for text in strings for char in text if ord(char) >= _FIRST_STAND_IN}
        free = (code for code in range(_FIRST_STAND_IN, _LAST_STAND_IN + 1) if code not in used)
        pairs = list(zip((ord(char) for char in control.first_characters), free))
        if len(pairs) < len(control.first_characters):
            raise RequestError("the messages use every private-use character; remove some", field="messages")
        self._control = control
        self._to = dict(pairs)
        self._from = {stand_in: char for char, stand_in in pairs}

    def shield_all(self, text: str) -> str:
        """Every character that could start a control token becomes its stand-in."""
        return text.translate(self._to)

    def shield_literals(self, text: str) -> str:
        """Only the first character of each control token that stands whole in `text` becomes its stand-in."""
        *opened, rest = self._control.cut(text)
        return "".join(part[:-1] + chr(self._to[ord(part[-1])]) for part in opened) + rest

    def unshield(self, text: str) -> str:
        return text.translate(self._from)
