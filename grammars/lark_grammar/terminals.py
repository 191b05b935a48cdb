"""Terminals as exprs of the native builder.

A terminal stands for the words that `re.match` takes whole (see `automaton`). For most regexes those are simply all
words that match: no lazy count or earlier alternative ever hides one. That is proved with exprs (`_is_plain`), and
then the tree is lowered as it stands, counts unrolled nowhere; otherwise its automaton is.

A look-ahead is exact when what it looks at lies within the terminal, however the text goes on: it becomes an
intersection. One that may look past the end of the terminal is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from safegen.errors import GrammarError
from safegen.grammars import unicode_sets
from safegen.grammars.lark_grammar.automaton import preferred_words
from safegen.grammars.lark_grammar.tree import (
    Ahead,
    Behind,
    Chars,
    Concatenation,
    Either,
    Repeat,
    Tree,
    first_chars,
    literal_codes,
    never_chooses,
    parts_of,
    unrolled,
    width,
)
from safegen.grammars.unicode_sets import Ranges

if TYPE_CHECKING:
    from safegen._native import Builder

_MAX_PROVED = 2000  # characters of a regex, counts written out, for which a proof with exprs is tried


class _Rest(NamedTuple):
    """What may follow within the terminal. first: characters it may begin with; width: characters at least."""

    expr: int
    first: Ranges
    is_nullable: bool
    width: int


class TerminalLowering:
    """Lowers trees with one builder. embedded: exprs that stand for reserved characters (see `source`)."""

    def __init__(self, builder: Builder, embedded: dict[int, int]) -> None:
        self.builder = builder
        self.embedded = embedded
        self._is_large = False
        self._chars: dict[Ranges, int] = {}
        self._nothing_after = _Rest(builder.epsilon(), (), True, 0)

    def words(self, tree: Tree) -> int:
        """The terminal's language. Raises GrammarError."""
        if self._holds_embedded(tree):
            return self._plain(tree)
        self._is_large = unrolled(tree) > _MAX_PROVED
        looks = _looks_ahead(tree)
        if not _looks_behind(tree) and self._is_plain(tree, self._nothing_after):
            return self._after(tree, self._nothing_after).expr if looks else self._plain(tree)
        return preferred_words(tree).words(self.builder)

    def _holds_embedded(self, tree: Tree) -> bool:
        if not self.embedded:
            return False
        match tree:
            case Chars():
                return self._embedded(tree.ranges) is not None
            case Concatenation():
                return any(self._holds_embedded(part) for part in tree.parts)
            case Either():
                return any(self._holds_embedded(branch) for branch in tree.branches)
            case Repeat():
                return self._holds_embedded(tree.part)
            case _:
                return False

    def _embedded(self, ranges: Ranges) -> int | None:
        low, high = ranges[0] if len(ranges) == 1 else (0, 1)
        return self.embedded.get(low) if low == high else None

    # All words that match.

    def _plain(self, tree: Tree) -> int:
        builder = self.builder
        match tree:
            case Chars():
                return self._one_char(tree.ranges)
            case Concatenation():
                return builder.concat([self._plain(part) for part in tree.parts])
            case Either():
                return builder.alternate([self._plain(branch) for branch in tree.branches])
            case Repeat():
                return builder.repeat(self._plain(tree.part), tree.low, tree.high)
            case _:
                raise GrammarError("A look-around inside a repeated group of a terminal is not supported.")

    def _one_char(self, ranges: Ranges) -> int:
        expr = self._chars.get(ranges)
        if expr is None:
            expr = self._embedded(ranges)
            expr = self._chars[ranges] = self.builder.chars(ranges) if expr is None else expr
        return expr

    def _after(self, tree: Tree, rest: _Rest) -> _Rest:
        """The tree, then `rest`."""
        builder = self.builder
        match tree:
            case Concatenation():
                for part in reversed(tree.parts):
                    rest = self._after(part, rest)
                return rest
            case Either():
                branches = [self._after(branch, rest) for branch in tree.branches]
                return _Rest(
                    builder.alternate([branch.expr for branch in branches]),
                    unicode_sets.normalise(r for branch in branches for r in branch.first),
                    any(branch.is_nullable for branch in branches),
                    min(branch.width for branch in branches),
                )
            case Ahead():
                return self._look(tree, rest)
            case _:
                first, nullable = first_chars(tree)
                ranges = unicode_sets.normalise([*first, *rest.first]) if nullable else first
                expr = builder.concat([self._plain(tree), rest.expr])
                return _Rest(expr, ranges, nullable and rest.is_nullable, width(tree)[0] + rest.width)

    def _look(self, look: Ahead, rest: _Rest) -> _Rest:
        widest = width(look.part)[1]
        if widest is None or widest > rest.width:
            raise GrammarError(
                "A terminal's look-ahead may look past the end of the terminal, which is not supported. Exclude words "
                "with '&' and '~' instead, as in NAME: /[a-z]+/ & ~/if|else/."
            )
        builder = self.builder
        ahead = builder.concat([self._plain(look.part), builder.any_text()])
        condition = builder.complement(ahead) if look.negative else ahead
        return _Rest(builder.intersect([rest.expr, condition]), rest.first, rest.is_nullable, rest.width)

    # Whether preference hides nothing. Sufficient, not necessary: a False only costs the automaton.

    def _is_plain(self, tree: Tree, rest: _Rest) -> bool:
        match tree:
            case Concatenation():
                for part in reversed(tree.parts):
                    if not self._is_plain(part, rest):
                        return False
                    if not isinstance(part, Ahead):  # it only narrows, within the terminal
                        rest = self._after(part, rest)
                return True
            case Either():
                return self._is_plain_either(tree, rest)
            case Repeat():
                return self._is_plain_repeat(tree, rest)
            case _:
                return True

    def _is_plain_either(self, tree: Either, rest: _Rest) -> bool:
        if rest.expr == self._nothing_after.expr:
            texts = [literal_codes(branch) for branch in tree.branches]
            if None not in texts:
                return not _hides_text([text for text in texts if text is not None])
        if not all(self._is_plain(branch, rest) for branch in tree.branches):
            return False
        ends = [self._after(branch, rest) for branch in tree.branches]
        seen: Ranges = ()
        for index, end in enumerate(ends):
            touches = end.is_nullable or _overlap(seen, end.first)
            if index and (touches or any(other.is_nullable for other in ends[:index])):
                earlier = self.builder.alternate([other.expr for other in ends[:index]])
                if self._hides(earlier, end.expr):
                    return False
            seen = unicode_sets.normalise([*seen, *end.first])
        return True

    def _is_plain_repeat(self, tree: Repeat, rest: _Rest) -> bool:
        builder = self.builder
        first, nullable = first_chars(tree.part)
        if nullable:
            return False
        part = self._plain(tree.part)
        again = builder.repeat(part, 0, None if tree.high is None else max(0, tree.high - 1))
        inner = _Rest(
            builder.concat([again, rest.expr]), unicode_sets.normalise([*first, *rest.first]), rest.is_nullable, 0
        )
        # Inside of a counted repeat what follows differs from round to round: only what never chooses is plain.
        if not (self._is_plain(tree.part, inner) if tree.high is None else never_chooses(tree.part)):
            return False
        if tree.low == tree.high or (rest.expr == self._nothing_after.expr and not tree.lazy):
            return True
        if not _overlap(first, rest.first) and not (tree.lazy and rest.is_nullable):
            return True
        once_more = builder.concat([part, inner.expr])
        return not (self._hides(rest.expr, once_more) if tree.lazy else self._hides(once_more, rest.expr))

    def _hides(self, preferred: int, other: int) -> bool:
        """Some word of `other` begins with a word of `preferred` and is none itself."""
        if self._is_large:
            return True
        builder = self.builder
        going_on = builder.concat([preferred, builder.any_text()])
        return not builder.is_empty(builder.intersect([other, going_on, builder.complement(preferred)]))


def _hides_text(texts: list[tuple[int, ...]]) -> bool:
    """Some text goes on from an earlier one."""
    seen: set[tuple[int, ...]] = set()
    for text in texts:
        if any(text[:length] in seen for length in range(len(text))):
            return True
        seen.add(text)
    return False


def _overlap(a: Ranges, b: Ranges) -> bool:
    return any(low <= other_high and other_low <= high for low, high in a for other_low, other_high in b)


def _looks_ahead(tree: Tree) -> bool:
    return isinstance(tree, Ahead) or any(_looks_ahead(part) for part in parts_of(tree))


def _looks_behind(tree: Tree) -> bool:
    return isinstance(tree, Behind) or any(_looks_behind(part) for part in parts_of(tree))
