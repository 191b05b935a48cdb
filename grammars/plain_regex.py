"""A parsed regex in a syntax that no two dialects read differently, for engines of others: every character a code
point, every class written out, every count explicit. Anchors at the ends go, as a match is that of the whole text.
"""

from __future__ import annotations

from safegen.errors import GrammarError
from safegen.grammars.regex_tree import Kind, Pattern
from safegen.grammars.unicode_sets import Ranges, complement, normalise


def unanchored(tree: Pattern) -> Pattern:
    """Without the anchors at its two ends, which a full match implies. Raises GrammarError for other assertions."""
    parts = list(tree.parts) if tree.kind is Kind.SEQUENCE else [tree]
    while parts and parts[0].kind is Kind.START:
        parts.pop(0)
    while parts and parts[-1].kind is Kind.END:
        parts.pop()
    if any(part.asserts for part in parts):
        raise GrammarError("fsm=True supports no look-aheads, word boundaries or inner anchors. Leave fsm out.")
    return Pattern(Kind.SEQUENCE, tuple(parts))


def plain_syntax(tree: Pattern) -> str:
    """The regex in the syntax of Rust's `regex`, with nothing in it that two dialects could read differently."""
    match tree.kind:
        case Kind.TEXT:
            return "".join(f"\\x{{{ord(char):x}}}" for char in tree.text)
        case Kind.CHARS:
            members = (f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in _without_surrogates(tree.ranges))
            listed = "".join(members)
            return f"[{listed}]" if listed else r"[^\x{0}-\x{10ffff}]"
        case Kind.SEQUENCE:
            return "".join(map(plain_syntax, tree.parts))
        case Kind.ALTERNATIVES:
            return f"(?:{'|'.join(map(plain_syntax, tree.parts))})"
        case _:
            return f"(?:{plain_syntax(tree.parts[0])}){{{tree.low},{'' if tree.high is None else tree.high}}}"


def _without_surrogates(ranges: Ranges) -> list[tuple[int, int]]:
    cut = []
    for low, high in ranges:
        cut += [(low, min(high, 0xD7FF)), (max(low, 0xE000), high)]
    return [(low, high) for low, high in cut if low <= high]


def end_mark(tree: Pattern) -> str:
    """A character that the regex never reads. Raises GrammarError when it reads every one."""
    read: list[tuple[int, int]] = []
    pending = [tree]
    while pending:
        node = pending.pop()
        pending += node.parts
        read += [(ord(char), ord(char)) for char in node.text] + list(node.ranges)
    free = _without_surrogates(complement(normalise(read)))
    if not free:
        raise GrammarError(
            "fsm=True needs a character that the regex cannot read, to mark the end with. Exclude one, as in "
            "[^\\u{10FFFF}], or leave fsm out."
        )
    return chr(free[-1][1])
