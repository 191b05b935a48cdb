"""Lark's own Earley parser as the oracle of grammar tests, random grammars, and a matcher over single bytes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from lark import Lark
from lark.exceptions import UnexpectedInput

from safegen._native import Matcher, Program
from safegen.grammars.vocabulary import Vocabulary

STOP = 256
BYTE_VOCABULARY = Vocabulary([bytes([byte]) for byte in range(256)] + [None], [STOP])
TERMINALS = ('"a"', '"b"', '"ab"', "A", "B", "/[ab]/", "/a+/", "/b?a/", '"ba"', "/a|ab/", "/a+?b?/", '"A"i')
IGNORED = ('" "', "/ +/", '/ +/\n%ignore "a"', "/b+ ?/", "/ a*/", "/[ b]+/", "/ b?/\n%ignore /a{1,2}/")


def earley(text: str, start: str = "start") -> Lark:
    return Lark(text, start=start, parser="earley", lexer="dynamic_complete", ambiguity="forest")


def is_small(parser: Lark) -> bool:
    """Lark multiplies options out; its parser then takes minutes for one short text."""
    return sum(1 + len(rule.expansion) for rule in parser.rules) <= 80


def accepts(parser: Lark, text: str) -> bool:
    try:
        parser.parse(text)
    except UnexpectedInput:
        return False
    except RuntimeError as error:  # Lark accepted the text in several ways and trips over them
        assert "multiple start symbol" in str(error)
    return True


def words(letters: str, longest: int) -> Iterator[str]:
    for length in range(longest + 1):
        yield from ("".join(word) for word in itertools.product(letters, repeat=length))


def random_grammar(rng: random.Random, with_ignore: bool) -> str:
    """Up to four rules over two letters: recursive on any side, nullable, ambiguous."""
    names = ["start", "p", "q", "r"][: rng.randint(1, 4)]

    def atom(depth: int) -> str:
        kind = rng.random()
        if depth and kind < 0.2:
            return f"({alternatives(depth - 1)})"
        if depth and kind < 0.25:
            return f"[{alternatives(depth - 1)}]"
        return rng.choice(names if kind < 0.6 else TERMINALS)

    def item(depth: int) -> str:
        suffixes = ("?", "*", "+", " ~ 2", " ~ 0..2", " ~ 1..3")
        return atom(depth) + (rng.choice(suffixes) if rng.random() < 0.25 else "")

    def sequence(depth: int) -> str:
        return " ".join(item(depth) for _ in range(rng.choice((0, 1, 1, 2, 2, 3))))

    def alternatives(depth: int) -> str:
        return " | ".join(sequence(depth) for _ in range(rng.choice((1, 1, 2, 2, 3))))

    rules = [f"{name}: {alternatives(1)}" for name in names]
    ignored = [f"%ignore {rng.choice(IGNORED)}"] if with_ignore else []
    return "\n".join([*rules, 'A: /a/ | "aa"', 'B: "b"+', *ignored, ""])


def random_text(program: Program, rng: random.Random, longest: int) -> str:
    """A legal random walk over characters of few bytes, closed on the shortest way. Every step must be alive."""
    matcher = Matcher(program, BYTE_VOCABULARY.native)
    text = b""
    while len(text) < longest and not matcher.is_complete():
        choices = list(program.expected(text))
        if matcher.can_end() and (not choices or rng.random() < 0.05):
            break
        assert choices, f"a live prefix has no continuation: {text!r}"
        byte = rng.choice(choices)
        matcher.advance([byte])
        text += bytes([byte])
    rest = bytes(matcher.shortest_completion())
    assert program.matches(text + rest)
    return (text + rest).decode()
