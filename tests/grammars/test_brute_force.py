"""Masks agree with brute force over a small vocabulary: every token is tried, in every state of short walks.

A token in the mask must be one that `advance` takes, and the text with it must have a completion that an independent
judge accepts. A token that is not must lead to none of the texts that the judge accepts out of a pool. Judges are
`jsonschema` on exact numbers, an ECMA-262 matcher and Lark's Earley parser; none shares code with the machine.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from typing import Any

import jsonschema
import numpy as np
from lark.exceptions import LarkError

from safegen._native import Program
from safegen.errors import GrammarError, RetractsExhausted, SchemaError, UnsatisfiableSchema
from safegen.grammars.constraint import ConstraintViolation, MaskRows, NoCompletion
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.lark_grammar import compile_grammar
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.options import SchemaOptions
from safegen.grammars.regex import compile_regex
from safegen.grammars.vocabulary import Vocabulary
from safegen.validation import EcmaRegex
from tests.grammars.lark_oracle import accepts, earley, is_small, random_grammar, words
from tests.grammars.random_schemas import NAMES, PATTERNS, SIMPLE_FORMATS, TEXTS, SchemaGenerator
from tests.support.regex_generation import random_pattern

PIECES = (*'{}[]",: -.0123456789abez\\uqtrflsn', '{"', '":', '",', '"}', "},", "],", "]}", '["', "[[", "[]", "{}", ',"',
          "true", "null", "false", '"a', 'a"', "ab", '"é"', "10", "1,", "-1", ".5", ".0", "e0", "\\u0", '\\"', ', "',
          "20", "-0", "1.1", "::")  # fmt: skip
TOKENS = [*(piece.encode() for piece in PIECES), b"\xc3", b"\xa9"]
STOP = len(TOKENS)
VOCABULARY = Vocabulary([*TOKENS, None], [STOP])
FREE = SchemaOptions("flexible", "any", "any")
OPTIONS = (FREE, SchemaOptions(), SchemaOptions(property_order="any"), SchemaOptions(spelling="any"))
PYTHON_PATTERNS = tuple(pattern for pattern in PATTERNS if "\\p" not in pattern)  # `jsonschema` asks `re`

Judge = Callable[[bytes], bool]


@dataclass(slots=True)
class BruteForce:
    """exact: the judge's language is the program's, not only a larger one. pool: texts that the judge accepts and the
    options allow. counts: adds up states, tokens whose node failed as it closed (retracts), and tokens after which no
    completion was at hand (unclosed)."""

    program: Program
    judge: Judge
    pool: Iterable[bytes]
    rng: random.Random
    exact: bool = True
    may_verify: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    def walk(self, length: int) -> None:
        beginnings = {text[:size] for text in self.pool for size in range(len(text) + 1)}
        constraint = NativeConstraint(self.program, VOCABULARY)
        for _ in range(length):
            legal = self.check(constraint, beginnings)
            if not legal:
                return
            longer = [token for token in legal if constraint.text() + TOKENS[token] in beginnings]
            choice = self.rng.choice(longer if longer and self.rng.random() < 0.6 else legal)
            if constraint.advance((choice,)) is not None:
                return

    def check(self, constraint: NativeConstraint, beginnings: set[bytes]) -> list[int]:
        """The tokens that may go on."""
        rows = MaskRows.allocate(1, VOCABULARY.size)
        constraint.fill((), rows)
        legal: list[int] = np.flatnonzero(rows.bools(0)).tolist()
        text = constraint.text()
        assert legal, text
        ended = self.judge(text)
        assert (STOP in legal) <= ended, text
        assert (STOP in legal) == ended or not self.exact, text
        going_on = [token for token in range(STOP) if self.is_taken(constraint, token)]
        assert going_on == [token for token in legal if token != STOP], text
        for token in set(range(STOP)) - set(going_on):
            assert text + TOKENS[token] not in beginnings, (text, TOKENS[token])
        self.counts["states"] += 1
        return going_on

    def is_taken(self, constraint: NativeConstraint, token: int) -> bool:
        twin = constraint.fork()
        try:
            retract = twin.advance((token,))
        except ConstraintViolation:
            return False
        except RetractsExhausted:
            retract = None
            assert self.may_verify, constraint.text()
        if retract is not None:
            assert self.may_verify, constraint.text()
            self.counts["retracts"] += 1
            return True
        try:
            rest = b"".join(TOKENS[other] for other in twin.shortest_completion())
        except NoCompletion:
            assert self.may_verify, twin.text()
            self.counts["unclosed"] += 1
            return True
        assert self.judge(twin.text() + rest), (twin.text(), rest)
        return True


# --- schemas --------------------------------------------------------------------------------------------------------


def exact(text: str) -> int | Decimal:
    """ValueError for a number with more digits than any answer has: as an int it would fill the memory."""
    value = Decimal(text)
    if value.adjusted() > 5000:
        raise ValueError(f"{value.adjusted()} digits")
    return int(value) if value == value.to_integral_value() else value


def unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name stands twice")
    return dict(pairs)


def exact_json(text: str) -> Any:
    return json.loads(text, parse_float=exact, object_pairs_hook=unique_pairs)


class SchemaJudge:
    """`jsonschema` on exact numbers. flexible: blanks are legal outside of strings."""

    def __init__(self, schema: Any, flexible: bool) -> None:
        checker = jsonschema.FormatChecker(SIMPLE_FORMATS)
        self._validator = jsonschema.Draft202012Validator(exact_json(json.dumps(schema)), format_checker=checker)
        self._flexible = flexible

    def __call__(self, text: bytes) -> bool:
        try:
            value = exact_json(text.decode())
            text.decode().encode()
        except (ValueError, UnicodeError):
            return False
        if has_lone_surrogate(value):
            return False
        return self.holds(value) and (self._flexible or not has_blanks(text.decode()))

    def holds(self, value: Any) -> bool:
        with localcontext(prec=2500):
            return bool(self._validator.is_valid(value))


def has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return True
    return False


def has_blanks(text: str) -> bool:
    inside = escaped = False
    for char in text:
        if not inside and char in " \t\r\n":
            return True
        if inside and escaped:
            escaped = False
        elif inside and char == "\\":
            escaped = True
        elif char == '"':
            inside = not inside
    return False


def all_orders(value: Any) -> Iterator[Any]:
    """A value with the names of its objects in every order."""
    if isinstance(value, list):
        yield from map(list, itertools.product(*map(all_orders, value)))
    elif isinstance(value, dict):
        for names in itertools.permutations(value):
            for members in itertools.product(*(all_orders(value[name]) for name in names)):
                yield dict(zip(names, members))
    else:
        yield value


def small_values(rng: random.Random) -> list[Any]:
    generator = SchemaGenerator(rng)
    drawn = [generator.value() for _ in range(60)]
    numbers = [*range(-3, 13), 0.25, 0.5, -1.5, 1.5, 20, 21]
    names = [{name: value} for name in (*NAMES, "z") for value in (0, 1, "a", True, None, [], {})]
    pairs = [{a: 1, b: "a"} for a, b in itertools.permutations((*NAMES, "z"), 2)]
    return [
        *drawn,
        *numbers,
        *TEXTS,
        None,
        True,
        [],
        {},
        [0],
        [1, 2],
        ["a"],
        [0, 0],
        *names,
        *pairs,
        "2020-01-01",
        "::",
        "1.1.1.1",
    ]


def compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def spellings(value: Any, rng: random.Random) -> list[bytes]:
    """Of one value, all legal where everything is free."""
    turned = rng.choice(list(itertools.islice(all_orders(value), 24)))
    tenths = f"{value}0e-1" if isinstance(value, int) and not isinstance(value, bool) and value else None
    texts = [json.dumps(value), json.dumps(turned, ensure_ascii=False, indent=1), compact(turned).decode(), tenths]
    return [text.encode() for text in texts if text is not None]


def check_schema(seed: int, counts: Counter[str]) -> None:
    rng = random.Random(f"brute force {seed}")
    schema = SchemaGenerator(rng, SIMPLE_FORMATS, PYTHON_PATTERNS, max_depth=2).document()
    options = OPTIONS[seed % 4]
    compiled = None
    try:
        compiled = compile_json_schema(schema, options)
    except UnsatisfiableSchema:
        counts["unsatisfiable"] += 1
    except SchemaError:
        counts["refused"] += 1
        return
    judge = SchemaJudge(schema, options.whitespace == "flexible")
    valid = [value for value in small_values(rng) if judge.holds(exact_json(json.dumps(value)))]
    if compiled is None:
        assert not valid, (schema, valid[0])
        return
    counts["schemas"] += 1
    pool = pool_of(compiled.program, options, valid, rng)
    may_verify = any(finding.handling == "verified" for finding in compiled.findings)
    brute = BruteForce(compiled.program, judge, pool, rng, options is FREE, may_verify, counts)
    try:
        for _ in range(2):
            brute.walk(5)
    except AssertionError as error:
        error.add_note(f"seed {seed}, {options}: {json.dumps(schema, ensure_ascii=False)}")
        raise


def pool_of(program: Program, options: SchemaOptions, valid: list[Any], rng: random.Random) -> list[bytes]:
    """Texts of valid values that the options allow; some order of every value must be among them."""
    if options is FREE:
        return [text for value in valid for text in spellings(value, rng)]
    pool = []
    for value in valid:
        texts = [compact(turned) for turned in itertools.islice(all_orders(value), 24)]
        legal = [text for text in texts if program.matches(text)]
        assert legal, f"no order of {value!r} is legal"
        assert legal == texts or options.property_order == "schema", value
        pool += legal
    return pool


def test_masks_of_random_schemas_agree_with_jsonschema(full: bool) -> None:
    counts: Counter[str] = Counter()
    for seed in range(1900 if full else 100):
        check_schema(seed, counts)
    assert counts["schemas"] >= (1300 if full else 60)
    assert counts["states"] >= 4 * counts["schemas"]
    assert counts["refused"] < counts["schemas"] / 20
    assert counts["unclosed"] < 10 * counts["states"]


# --- regexes and grammars -------------------------------------------------------------------------------------------

ATOMS = ["a", "b", "0", "-", "é", ".", "ab", r"\d", r"\w", "[ab]", "[^a]", "[a-z]", r"\D", "[0-9a]"]


def test_masks_of_random_regexes_agree_with_an_ecma_matcher(full: bool) -> None:
    counts: Counter[str] = Counter()
    rng = random.Random("brute force of regexes")
    while counts["regexes"] < (300 if full else 30):
        pattern = random_pattern(rng, 3, atoms=ATOMS, looks=[], anchors=[])
        if rng.random() < 0.3:
            pattern = rng.choice(["(?=.*a)", "(?!.*b)"]) + pattern
        try:
            program = compile_regex(pattern)
        except GrammarError as error:
            assert "matches no text" in str(error), pattern
            continue
        matcher = EcmaRegex(f"^(?:{pattern})$", lenient=False)
        counts["regexes"] += 1

        def judge(text: bytes, matcher: EcmaRegex = matcher) -> bool:
            try:
                return bool(matcher.search(text.decode()))
            except UnicodeDecodeError:
                return False

        pool = [text.encode() for text in words("ab0-é", 4) if judge(text.encode())]
        BruteForce(program, judge, pool, rng, counts=counts).walk(6)


def test_masks_of_random_grammars_agree_with_earley(full: bool) -> None:
    counts: Counter[str] = Counter()
    seed = 0
    while counts["grammars"] < (400 if full else 25):
        seed += 1
        rng = random.Random(f"brute force of grammars {seed}")
        grammar = random_grammar(rng, with_ignore=seed % 3 == 0)
        try:
            parser = earley(grammar)
            program = compile_grammar(grammar).program
        except (LarkError, GrammarError):
            continue
        if not is_small(parser):
            continue
        counts["grammars"] += 1

        def judge(text: bytes, parser: Any = parser) -> bool:
            try:
                return accepts(parser, text.decode())
            except UnicodeDecodeError:
                return False

        letters = "ab " if seed % 3 == 0 else "ab"
        pool = [text.encode() for text in words(letters, 4) if judge(text.encode())]
        BruteForce(program, judge, pool, rng, counts=counts).walk(5)
