r"""Regex trees to exprs of the native builder: languages over the UTF-8 bytes of the decoded text.

A tree without assertions is a plain expr. One with assertions is lowered from right to left with its continuation:
`after(tree, rest)` is the language of everything that may follow once the tree has started, where `rest` is the
language of what may follow once the tree has ended. An anchor or word boundary looks at the last character, so every
continuation is given three times, for a position at the start of the text, after a word character and after another
one. Look-aheads are intersections with the continuation (negative: with its complement), exact wherever they stand.

An assertion inside a group that repeats without bound is not expressible this way and refused by name, but for one
form: characters with look-aheads, up to the end of the text, as in `^(?:(?!--).)*$`. There the look-aheads speak about
every place of the text alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from safegen.errors import GrammarError
from safegen.grammars import unicode_sets
from safegen.grammars.regex_tree import Kind, Pattern
from safegen.grammars.unicode_sets import Ranges

if TYPE_CHECKING:
    from safegen._native import Builder

ContextFunction = Callable[[int], int]
Continuation = tuple[int, int, int]  # at the start of the text, after a word character, after another character
_AT_START, _AFTER_WORD, _AFTER_OTHER = range(3)
_MAX_UNROLL = 16


class RegexLowering:
    """Lowers trees with one builder, which shares equal exprs."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._chars: dict[Ranges, int] = {}
        self.nothing = builder.empty()
        self.blank = builder.epsilon()
        self.anything = builder.any_text()
        self._word_sets: tuple[int, int] | None = None

    def search(self, tree: Pattern) -> int:
        """Texts in which the regex matches somewhere (ECMA-262 `test`)."""
        anything = self.anything
        if not tree.asserts:
            return self.builder.concat([anything, self.plain(tree), anything])
        start, after_word, after_other = self.after(tree, (anything, anything, anything))
        return self.builder.alternate([start, *self._preceded(after_word, after_other)])

    def full(self, tree: Pattern) -> int:
        """Texts that the regex matches from end to end."""
        if not tree.asserts:
            return self.plain(tree)
        return self.after(tree, (self.blank, self.blank, self.blank))[_AT_START]

    def plain(self, tree: Pattern) -> int:
        """The language of a tree without assertions."""
        builder = self.builder
        match tree.kind:
            case Kind.TEXT:
                return builder.literal(tree.text.encode())
            case Kind.CHARS:
                return self.chars(tree.ranges)
            case Kind.SEQUENCE:
                return builder.concat([self.plain(part) for part in tree.parts])
            case Kind.ALTERNATIVES:
                return builder.alternate([self.plain(part) for part in tree.parts])
            case _:
                return builder.repeat(self.plain(tree.parts[0]), tree.low, tree.high)

    def chars(self, ranges: Ranges) -> int:
        """One code point of `ranges`; the UTF-8 lowering is done once a set."""
        expr = self._chars.get(ranges)
        if expr is None:
            expr = self._chars[ranges] = self.builder.chars(ranges)
        return expr

    def after(self, tree: Pattern, rest: Continuation) -> Continuation:
        builder = self.builder
        if not tree.asserts:
            return self._plain_after(self.plain(tree), rest)
        match tree.kind:
            case Kind.SEQUENCE:
                for part in reversed(tree.parts):
                    rest = self.after(part, rest)
                return rest
            case Kind.ALTERNATIVES:
                return self._either(*(self.after(part, rest) for part in tree.parts))
            case Kind.REPEAT:
                return self._repeat_after(tree, rest)
            case Kind.START:
                return (rest[_AT_START], self.nothing, self.nothing)
            case Kind.END:
                return self._each(lambda context: builder.intersect([rest[context], self.blank]))
            case Kind.BOUNDARY | Kind.NO_BOUNDARY:
                return self._boundary_after(tree.kind is Kind.BOUNDARY, rest)
            case _:
                return self._look_after(tree, rest)

    def _plain_after(self, expr: int, rest: Continuation) -> Continuation:
        builder = self.builder
        at_start, after_word, after_other = rest
        nullable = builder.is_nullable(expr)
        if after_word == after_other:
            if at_start == after_word or not nullable:
                joined = builder.concat([expr, after_word])
                return (joined, joined, joined)
            some = builder.intersect([expr, builder.complement(self.blank)])
            tail = builder.concat([some, after_word])
        else:
            ends_word, ends_other = self._preceded(self.blank, self.blank)
            tail = builder.alternate(
                [
                    builder.concat([builder.intersect([expr, ends_word]), after_word]),
                    builder.concat([builder.intersect([expr, ends_other]), after_other]),
                ]
            )
        return self._each(lambda context: builder.alternate([rest[context], tail]) if nullable else tail)

    def _repeat_after(self, tree: Pattern, rest: Continuation) -> Continuation:
        part, low, high = tree.parts[0], tree.low, tree.high
        if high is None or high > _MAX_UNROLL:
            guarded = self._guarded_to_the_end(tree, rest)
            if guarded is not None:
                return (guarded, guarded, guarded)
            raise GrammarError(
                "Regex: an assertion (^, $, \\b or a look-ahead) inside a repeated group is not supported; "
                "move it in front of the repetition."
            )
        result = rest
        for remaining in range(high, 0, -1):
            inner = self.after(part, result)
            if remaining > low:  # this and all further rounds are optional
                result = self._either(rest, inner)
            else:
                result = inner
        return result

    def _guarded_to_the_end(self, tree: Pattern, rest: Continuation) -> int | None:
        """The language of a repetition of one character with look-aheads around it, when nothing may follow: no place
        in it has what a look-ahead forbids behind it. None for any other."""
        builder = self.builder
        if any(builder.intersect([language, self.blank]) != language for language in rest):
            return None
        part = tree.parts[0]
        parts = part.parts if part.kind is Kind.SEQUENCE else (part,)
        places = [place for place, each in enumerate(parts) if not each.asserts]
        if len(places) != 1 or not _is_one_char(parts[places[0]]):
            return None
        chars = self.plain(parts[places[0]])
        some = builder.concat([builder.chars(unicode_sets.ALL), self.anything])
        forbidden = []
        for place, look in enumerate(parts):
            if place == places[0]:
                continue
            ahead = set(self.after(look, (self.anything, self.anything, self.anything)))
            if len(ahead) != 1:  # it asks what stands before
                return None
            behind = builder.intersect([self.anything, builder.complement(ahead.pop())])
            if place < places[0]:
                forbidden.append(builder.concat([self.anything, builder.intersect([behind, some])]))
            else:
                forbidden.append(builder.concat([some, behind]))
        allowed = builder.complement(builder.alternate(forbidden))
        return builder.intersect([builder.repeat(chars, tree.low, tree.high), allowed])

    def _boundary_after(self, wanted: bool, rest: Continuation) -> Continuation:
        builder = self.builder
        word, _ = self._sets()
        begins_word = builder.concat([word, self.anything])
        begins_other = builder.intersect([self.anything, builder.complement(begins_word)])

        def at(context: int) -> int:
            differs = begins_other if context == _AFTER_WORD else begins_word
            same = begins_word if context == _AFTER_WORD else begins_other
            return builder.intersect([rest[context], differs if wanted else same])

        return self._each(at)

    def _look_after(self, tree: Pattern, rest: Continuation) -> Continuation:
        builder = self.builder
        ahead = self.after(tree.parts[0], (self.anything, self.anything, self.anything))
        if tree.kind is Kind.NOT_AHEAD:
            ahead = (builder.complement(ahead[0]), builder.complement(ahead[1]), builder.complement(ahead[2]))
        return self._each(lambda context: builder.intersect([rest[context], ahead[context]]))

    def _preceded(self, after_word: int, after_other: int) -> list[int]:
        """Some text that ends in a word character, then after_word; the same for other characters."""
        builder = self.builder
        if after_word == after_other == self.nothing:
            return []
        if after_word == after_other and after_word != self.blank:
            some = builder.concat([builder.chars(unicode_sets.ALL), self.anything])
            return [builder.concat([some, after_word])]
        word, other = self._sets()
        return [
            builder.concat([self.anything, word, after_word]),
            builder.concat([self.anything, other, after_other]),
        ]

    def _sets(self) -> tuple[int, int]:
        if self._word_sets is None:
            word = unicode_sets.WORD
            self._word_sets = (self.builder.chars(word), self.builder.chars(unicode_sets.complement(word)))
        return self._word_sets

    def _either(self, *branches: Continuation) -> Continuation:
        return self._each(lambda context: self.builder.alternate([branch[context] for branch in branches]))

    @staticmethod
    def _each(of: ContextFunction) -> Continuation:
        return (of(_AT_START), of(_AFTER_WORD), of(_AFTER_OTHER))


def _is_one_char(part: Pattern) -> bool:
    return part.kind is Kind.CHARS or (part.kind is Kind.TEXT and len(part.text) == 1)
