"""Bans: what must not stand in decoded text, and the types that are held to that.

A `Ban` is plain data: phrases or one regex over *folded* text, and the letters of the fold. `language` makes of it the
expr of all texts that hold no match, over UTF-8, by inverse image: phrases are one automaton of Aho and Corasick whose
states the machine visits as it goes, a regex is the complement of its search. Laid over a type (`restrict`), it is an
intersection like any other, so masks stay live: an allowed token leads to a whole text without a match.

Scope. In JSON a ban holds in each string value and each key by itself, on what they decode to: no match runs across two
of them. A lexeme of text (free text, reasoning, a regex, a choice) is one value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from safegen._native import Builder, LetterMap
from safegen.errors import GrammarError, UnsatisfiableSchema
from safegen.grammars.regex_lowering import RegexLowering
from safegen.grammars.regex_tree import Pattern

Wrap = Callable[[Builder, int], int]
"""What to make of a node: called with its builder, before the program is built."""

Letters = Sequence[Sequence[int]]
LetterRange = tuple[int, int, int]


class Step(NamedTuple):
    """One step of a path. name: of an object's member. item: number of an array's item. below: any number of steps."""

    kind: Literal["name", "index", "any", "below"]
    name: bytes = b""
    item: int = 0


class BanPath(NamedTuple):
    """Where a ban holds: at the end of the steps. of_keys: for the names of the members there instead of their values.
    leaves_out: there it does not hold after all."""

    steps: tuple[Step, ...]
    of_keys: bool = False
    leaves_out: bool = False


@dataclass(frozen=True, slots=True)
class LetterTable:
    """The letters of a fold, see LetterMap in grammars/native/bans.hpp. letters: what each folds to, as code points.
    ranges: (low, high, letter), ascending; every other code point is of letter `other`."""

    letters: tuple[tuple[int, ...], ...]
    ranges: tuple[LetterRange, ...]
    other: int

    def native(self) -> LetterMap:
        return LetterMap(self.letters, self.ranges, self.other)


@dataclass(frozen=True, slots=True)
class Phrases:
    """Texts that must not stand in folded text. word: counts only between characters of no word. word_ranges: those of
    words, among the code points that letters fold to."""

    table: LetterTable = field(repr=False)
    phrases: tuple[tuple[int, ...], ...] = field(repr=False)
    word: bool = False
    word_ranges: tuple[tuple[int, int], ...] = field(default=(), repr=False)

    def language(self, builder: Builder) -> int:
        return builder.without_phrases(self.table.native(), self.phrases, word=self.word, word_ranges=self.word_ranges)


@dataclass(frozen=True, slots=True)
class Search:
    """A regex that must not match anywhere in folded text. tree: over the code points that letters fold to."""

    table: LetterTable = field(repr=False)
    tree: Pattern = field(repr=False)

    def language(self, builder: Builder) -> int:
        found = RegexLowering(builder).search(self.tree)
        return builder.folded(self.table.native(), builder.intersect([builder.any_text(), builder.complement(found)]))


@dataclass(frozen=True, eq=False)
class Ban:
    """Compared by identity. name: of the guard, for messages. parts: all of them hold. paths: where; everywhere but for
    what is left out, when none says."""

    name: str
    parts: tuple[Phrases | Search, ...]
    paths: tuple[BanPath, ...] = ()

    def language(self, builder: Builder) -> int:
        return builder.intersect([part.language(builder) for part in self.parts])

    def below(self, *steps: Step) -> Ban | None:
        """What is left of it for a value that these steps lead to; None where it cannot hold there. An index step
        stands for any item."""
        paths = list(self.paths)
        for step in steps:
            paths = [rest for path in paths for rest in _after(path, step)]
        if self.paths and any(not path.leaves_out for path in self.paths) and all(path.leaves_out for path in paths):
            return None
        return Ban(self.name, self.parts, tuple(dict.fromkeys(paths)))

    @property
    def holds_at_root(self) -> bool:
        """Whether the value at "$" is in its scope."""
        here = [path for path in self.paths if not path.of_keys and all(step.kind == "below" for step in path.steps)]
        included = all(path.leaves_out for path in self.paths) or any(not path.leaves_out for path in here)
        return included and not any(path.leaves_out for path in here)


@dataclass(frozen=True, slots=True)
class Bans:
    """All bans of a type."""

    bans: tuple[Ban, ...]

    @classmethod
    def of(cls, bans: Iterable[Ban]) -> Bans | None:
        listed = tuple(bans)
        return cls(listed) if listed else None

    def plus(self, more: Bans) -> Bans:
        return Bans(tuple(dict.fromkeys((*self.bans, *more.bans))))

    def at_root(self) -> Bans | None:
        """Those whose scope is the whole answer."""
        return Bans.of(ban for ban in self.bans if ban.holds_at_root)

    def below(self, *steps: Step) -> Bans | None:
        return Bans.of(rest for ban in self.bans if (rest := ban.below(*steps)) is not None)

    def on_json(self, prefix: str = "") -> Wrap:
        """Holds a JSON value's node to the bans. prefix: of the pointers in messages.

        The wrap raises UnsatisfiableSchema where a declared name holds a ban, or where no value is left.
        """
        return lambda builder, node: self._restricted_json(builder, node, prefix)

    def on_text(self) -> Wrap:
        """Holds a node of text to the bans whose scope is the whole answer. The wrap raises GrammarError where no text
        is left."""
        return self._restricted_text

    def language(self, builder: Builder) -> int:
        """Text in the scope "$" that holds none of the bans."""
        return builder.intersect(
            [builder.any_text(), *(ban.language(builder) for ban in self.bans if ban.holds_at_root)]
        )

    def _restricted_json(self, builder: Builder, node: int, prefix: str) -> int:
        for paths, bans in self._by_paths().items():
            language = builder.intersect([ban.language(builder) for ban in bans])
            names = ", ".join(repr(ban.name) for ban in bans)
            was_empty = builder.node_is_empty(node)
            node, refused, emptied = builder.restricted(node, language, paths, json=True)
            if refused:
                raise UnsatisfiableSchema(
                    f"the name of {refused[0]} holds what guard {names} forbids",
                    pointer=prefix + pointer_of(refused[0]),
                    hint="rename it, or narrow the guard with where=",
                )
            if not was_empty and builder.node_is_empty(node):
                where = emptied[0] if emptied else "$"
                raise UnsatisfiableSchema(
                    f"guard {names} leaves no value for {where}",
                    pointer=prefix + pointer_of(where),
                    hint="allow other values there, or narrow the guard with where=",
                )
        return node

    def _restricted_text(self, builder: Builder, node: int) -> int:
        for ban in self.bans:
            if not ban.holds_at_root:
                continue
            node, _, _ = builder.restricted(node, ban.language(builder), (), json=False)
            if builder.node_is_empty(node):
                raise GrammarError(
                    f"Guard {ban.name!r} leaves no text for the answer: every text of the type holds a ban."
                )
        return node

    def _by_paths(self) -> dict[tuple[BanPath, ...], list[Ban]]:
        grouped: dict[tuple[BanPath, ...], list[Ban]] = {}
        for ban in self.bans:
            grouped.setdefault(ban.paths, []).append(ban)
        return grouped


def _after(path: BanPath, step: Step) -> list[BanPath]:
    """What is left of a path after a step."""
    if not path.steps:
        return []
    first, rest = path.steps[0], path._replace(steps=path.steps[1:])
    if first.kind == "below":
        return [path, *_after(rest, step)]
    agrees = first.kind == "any" or first.kind == step.kind == "index" or first == step
    return [rest] if agrees else []


def pointer_of(path: str) -> str:
    """The JSON Pointer of a path as the native machine writes it, as far as it names one place: "$.a['b c'][2][*]"."""
    pointer, at = "", 1
    while at < len(path):
        if path.startswith("['", at):
            name, at = _quoted(path, at + 2)
        elif path[at] == "[":
            end = path.index("]", at)
            name, at = path[at + 1 : end], end + 1
        else:
            end = min(
                (place for place in (path.find(".", at + 1), path.find("[", at + 1)) if place > 0), default=len(path)
            )
            name, at = path[at + 1 : end], end
        pointer += "/" + name.replace("~", "~0").replace("/", "~1")
    return pointer


def _quoted(path: str, at: int) -> tuple[str, int]:
    name = ""
    while path[at] != "'":
        at += path[at] == "\\"
        name += path[at]
        at += 1
    return name, at + 2


def chained(*wraps: Wrap | None) -> Wrap | None:
    """One after the other; None where there is none."""
    given = [wrap for wrap in wraps if wrap is not None]
    if not given:
        return None

    def all_of_them(builder: Builder, node: int) -> int:
        for wrap in given:
            node = wrap(builder, node)
        return node

    return all_of_them


__all__ = ["Ban", "BanPath", "Bans", "LetterTable", "Phrases", "Search", "Step", "chained", "pointer_of"]
