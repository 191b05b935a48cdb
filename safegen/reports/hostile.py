"""Text that others wrote, such as the ids of rows, on a page: shown as what it is, and with no power over the page.

Markup is escaped. Characters that are not seen or that reorder their neighbours (controls, marks of direction, zero
widths, lone surrogates) are written as escapes, and what is left is isolated in a <bdi>, so that an id in a script that
runs from right to left moves nothing but itself. Long text is cut.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from html import escape

KEPT_CHARACTERS = 160
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning of a text. num_more: characters that were cut off."""

    text: str
    num_more: int = 0


def excerpt(text: object, limit: int = KEPT_CHARACTERS) -> Excerpt:
    """Of str(text); holds no more of it than is shown."""
    whole = str(text)
    return Excerpt(whole[:limit], max(0, len(whole) - limit))


def plain(given: Excerpt | str) -> str:
    """Without markup, for a place that takes none but text, such as a title: escaped, cut, visible."""
    cut = given if isinstance(given, Excerpt) else excerpt(given)
    shown = escape("".join(_visible(character) for character in cut.text), quote=True)
    return shown + (f"… (and {cut.num_more:,} more characters)" if cut.num_more else "")


def isolated(given: Excerpt | str, css_class: str = "id") -> str:
    """As an element that no direction of writing reaches out of."""
    cut = given if isinstance(given, Excerpt) else excerpt(given)
    shown = escape("".join(_visible(character) for character in cut.text), quote=True)
    more = f'<small class="more">… and {cut.num_more:,} more characters</small>' if cut.num_more else ""
    return f'<bdi class="{css_class}">{shown or "<i>empty</i>"}</bdi>{more}'


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _UNSEEN:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
