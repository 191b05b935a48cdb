"""Values that are judged as a whole: unique items, counted items, verified nodes, and going back when one fails."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from safegen._native import Builder, Matcher, Predicate
from safegen.errors import SchemaError
from safegen.grammars.constraint import MaskRows
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.options import Limits
from tests.grammars.test_native_machine import STOP, vocabulary


def differ(items: list[Any]) -> bool:
    forms = [json.dumps(x, sort_keys=True) if isinstance(x, bool | str | list | dict) else float(x) for x in items]
    return len(set(forms)) == len(forms)


def strings(b: Builder) -> int:
    return b.array([], b.lexeme(b.json_string(b.any_text())), 0, None, unique=True)


def small_integers(b: Builder) -> int:
    return b.array([], b.lexeme(b.number(integer=True, plain=True, low="0", high="12")), 3, 6, unique=True)


def halves(b: Builder) -> int:
    number = b.number(integer=False, plain=False, low="0", high="3", multiple_of="0.5")
    return b.array([], b.lexeme(number), 2, 5, unique=True)


def objects(b: Builder) -> int:
    item = b.object(
        [(b"a", b.lexeme(b.strings([b"1", b"2", b"12"])), True), (b"b", b.lexeme(b.literal(b"true")), False)],
        [],
        0,
        None,
    )
    return b.array([], item, 2, 4, unique=True)


def listed(b: Builder) -> int:
    return b.distinct_array([b.lexeme(b.literal(x)) for x in (b"1", b"12", b"true", b'"a"')], 2, None)


def counted(b: Builder) -> int:
    big = b.lexeme(b.number(integer=True, plain=True, low="5"))
    small = b.lexeme(b.number(integer=True, plain=True, high="4"))
    text = b.lexeme(b.json_string(b.any_text()))
    return b.counted_array([[(text, 0)]], [(big, 1), (small, 0)], 0, 6, [(2, 3)])


def verified(b: Builder) -> int:
    other = Builder(whitespace=2)
    bad = other.build(other.lexeme(other.strings([b"[1,1]", b"[2,1]"])))
    inner = b.array([], b.lexeme(b.strings([b"1", b"2"])), 0, 2)
    checked = b.verified(inner, Predicate.none_of(Predicate.matches(bad)), pointer="/properties/a")
    return b.object([(b"a", checked, True), (b"b", inner, True)], [], 0, None)


def nested(b: Builder) -> int:
    rows = b.array([], b.array([], b.lexeme(b.strings([b"1", b"2", b"3"])), 3, 3, unique=True), 1, 2)
    return b.object([(b"abc", b.verified(rows, Predicate.unique_items()), True)], [], 0, None)


def holds_count(items: list[Any]) -> bool:
    return 2 <= sum(isinstance(x, int) and x >= 5 for x in items) <= 3 and len(items) <= 6


CASES: list[tuple[Callable[[Builder], int], Callable[[Any], bool], dict[str, Any]]] = [
    (strings, differ, {}),
    (small_integers, differ, {}),
    (halves, differ, {}),
    (objects, differ, {}),
    (objects, differ, {"whitespace": 2}),
    (listed, differ, {}),
    (counted, holds_count, {}),
    (verified, lambda o: o["a"] not in ([1, 1], [2, 1]), {}),
    (nested, lambda o: differ(o["abc"]) and all(differ(x) for x in o["abc"]), {}),
]


@pytest.mark.parametrize(("spec", "condition", "options"), CASES, ids=lambda x: getattr(x, "__name__", None) or str(x))
def test_random_walks_end_in_values_that_hold(spec, condition, options) -> None:
    b = Builder(**options)
    program = b.build(spec(b))
    vocab, tokens = vocabulary()
    rows = MaskRows.allocate(1, len(tokens))
    rng = random.Random(5)
    went_back = 0
    for _ in range(40):
        matcher, ids, settled = Matcher(program, vocab), list[int](), 0
        while len(ids) < 60:
            matcher.fill([], rows.words)
            legal = np.flatnonzero(rows.bools(0))
            assert legal.size, matcher.text()
            choices = [int(t) for t in legal if t != STOP]
            if not choices or (matcher.can_end() and rng.random() < 0.5):
                break
            ids.append(rng.choice(choices))
            back = matcher.advance(ids[-1:])
            if back is not None:
                went_back += 1
                kept, forced, _ = back
                assert kept >= settled
                ids = ids[:kept]
                assert matcher.forced().startswith(forced)
            settled = matcher.settled()
            assert settled <= len(ids)
            assert b"".join(tokens[t] or b"" for t in ids) == matcher.text()
        if not matcher.can_end():
            assert matcher.advance(matcher.shortest_completion()) is None
        assert condition(json.loads(matcher.text())), matcher.text()
        assert program.matches(matcher.text())
    if spec in (strings, listed, counted):
        assert went_back == 0  # enforced in the mask alone


def test_failed_value_goes_back_to_its_start_and_never_returns() -> None:
    b = Builder()
    program = b.build(verified(b))
    vocab, tokens = vocabulary()
    matcher = Matcher(program, vocab)
    matcher.advance([tokens.index(b'{"'), *b'a":[1,'])
    assert matcher.settled() == 4  # the value began after the colon
    assert matcher.advance([ord("1")]) == (4, b"", "/properties/a")  # only "]" could follow, and it fails
    assert matcher.text() == b'{"a":'
    rows = MaskRows.allocate(1, len(tokens))
    matcher.advance(list(b"[1,"))
    matcher.fill([], rows.words)
    assert not rows.bools(0)[ord("1")]
    assert rows.bools(0)[ord("2")]


def test_value_that_fails_as_it_closes_never_returns() -> None:
    b, other = Builder(), Builder()
    bad = other.build(other.lexeme(other.literal(b"[1]")))
    items = b.array([], b.lexeme(b.strings([b"1", b"2"])), 0, 2)
    program = b.build(b.verified(items, Predicate.none_of(Predicate.matches(bad)), pointer="/a"))
    vocab, tokens = vocabulary()
    matcher = Matcher(program, vocab)
    assert matcher.advance(list(b"[1")) is None
    assert matcher.advance([ord("]")]) == (0, b"", "/a")
    rows = MaskRows.allocate(1, len(tokens))
    matcher.advance(list(b"[1"))
    matcher.fill([], rows.words)
    assert not rows.bools(0)[ord("]")]
    assert rows.bools(0)[ord(",")]


def test_going_back_lands_on_a_token_boundary_and_forces_the_rest() -> None:
    tokens: list[bytes | None] = [bytes([x]) for x in range(256)] + [b'":[', b"1,", None]
    from safegen._native import Vocabulary

    vocab = Vocabulary(tokens, [258])
    b = Builder()
    program = b.build(
        b.object([(b"k", b.array([], b.lexeme(b.strings([b"1", b"2"])), 2, 2, unique=True), True)], [], 0, None)
    )
    matcher = Matcher(program, vocab)
    rows = MaskRows.allocate(1, len(tokens))
    matcher.advance([*b'{"k', 256])
    back = matcher.advance([257])
    assert back is None
    matcher.fill([], rows.words)
    assert not rows.bools(0)[ord("1")]
    assert rows.bools(0)[ord("2")]


def test_predicates_compare_values_not_texts() -> None:
    unique = Predicate.unique_items()
    assert not unique.holds(b'[{"a":1,"b":[1.0]}, {"b":[1e0],"a":10e-1}]')
    assert unique.holds(b'[1, true, "1", [1], {"1":1}]')
    assert not unique.holds('["é", "\\u00e9"]'.encode())
    assert unique.holds(b'{"not":"an array"}')


def test_counts_that_cannot_be_met_leave_no_text() -> None:
    b = Builder()
    yes, no = b.lexeme(b.literal(b"1")), b.lexeme(b.literal(b"0"))
    assert b.node_is_empty(b.counted_array([], [(yes, 1), (no, 0)], 0, 2, [(3, None)]))
    assert not b.node_is_empty(b.counted_array([], [(yes, 1), (no, 0)], 0, 3, [(3, None)]))
    assert b.node_is_empty(b.distinct_array([yes, no], 3, None))


def test_compiling_stops_at_its_deadline() -> None:
    words = [f"{a}{b}.{a}" for a in "abcdefghm" for b in "ijklnop"]
    schema = {"allOf": [{"type": "string", "pattern": word} for word in words]}
    started = perf_counter()
    with pytest.raises(SchemaError, match="deadline"):
        compile_json_schema(schema, limits=Limits(compile_deadline_s=0.05))
    assert perf_counter() - started < 20
