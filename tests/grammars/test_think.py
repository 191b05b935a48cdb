"""Reasoning before a strict answer: masks against a reader that knows nothing of the machine, every token tried."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from safegen._native import Builder, Predicate
from safegen.grammars.bans import Bans
from safegen.grammars.constraint import ConstraintViolation, MaskRows, Retract
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.markers import compile_free_text
from safegen.grammars.options import Limits
from safegen.grammars.regex import compile_choice
from safegen.grammars.think import ThinkConstraint, ThinkProgram, ThinkSyntax
from safegen.grammars.vocabulary import Vocabulary
from safegen.guards import Never

START, END = b"<t>", b"</t>"
LABELS = ("yes", "no", "</t>x", "né")
LONGER = [
    b"</", b"/t", b"t>", b"</t", b"/t>", b"</t>", b"</t>y", b"</t>yes", b"</t>yesx", b">no", b">z", b"t>ye", b"a</t>n",
    b"a</t>q", b"</t></t>", b"</t></t>x", b"<<", b"<</", b"<t>", b"<t>a", b"<t></", b"<t></t>no", b"</t>a</t>no",
    "é".encode(), b"\xc3", b"\xa9<", b"\xa9</t>", b"\x82\xac</", "€".encode(), b"\xe2", b"\xe2\x82", b"ab", b"no",
]  # fmt: skip
BYTES = sorted({*range(0x20, 0x7F), 0x0A, 0xC3, 0xA9, 0xE2, 0x82, 0xAC})
TOKENS: list[bytes | None] = [*(bytes([byte]) for byte in BYTES), *LONGER, None, None]
FINISHES = [bytes(rest) for size in range(3) for rest in itertools.product(b"\xa9\x82\xac", repeat=size)]
STOP, CONTROL = len(TOKENS) - 2, len(TOKENS) - 1


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(TOKENS, [STOP])


def compiled(cap: int | None, start: bytes = START, end: bytes = END) -> ThinkProgram:
    syntax = ThinkSyntax(start, end, cap)
    return ThinkProgram(compile_choice(LABELS, wrap=syntax.wrap()), syntax)


class Reader:
    """What the texts of tokens may be, by the definition: find the first marker, count tokens, compare strings."""

    def __init__(self, cap: int | None, start: bytes = START, end: bytes = END) -> None:
        self.cap, self.start, self.end = cap, start, end

    def legal(self, ids: Sequence[int]) -> bool:
        """Whether the last token may follow the others, which are legal."""
        *before, last = ids
        piece = TOKENS[last]
        text = b"".join(TOKENS[token] or b"" for token in before)
        if last == STOP:
            return self.answer(text) in {label.encode() for label in LABELS}
        if piece is None or not self.is_beginning(text + piece):
            return False
        if self.answer(text) is not None or self.cap is None or self.num_counted(before) < self.cap:
            return True
        return self.agrees(text, piece)

    def answer(self, text: bytes) -> bytes | None:
        place = text.find(self.end, len(self.start))
        return None if place < 0 else text[place + len(self.end) :]

    def is_beginning(self, text: bytes) -> bool:
        if not text.startswith(self.start):
            return self.start.startswith(text)
        answer = self.answer(text)
        if answer is not None:
            reasoning = text[len(self.start) : len(text) - len(answer)]
            return is_utf8(reasoning) and any(label.encode().startswith(answer) for label in LABELS)
        return any(is_utf8(text + rest) for rest in FINISHES)

    def num_counted(self, ids: Sequence[int]) -> int:
        pieces = [TOKENS[token] or b"" for token in ids]
        ends = [sum(map(len, pieces[: number + 1])) for number in range(len(pieces))]
        return sum(end > len(self.start) for end in ends)

    def agrees(self, text: bytes, piece: bytes) -> bool:
        """Whether a token leads straight to the end marker."""
        missing_start = self.start[len(text) :] if len(text) < len(self.start) else b""
        reasoning = text[len(self.start) :]
        begun = [size for size in range(len(self.end)) if size and reasoning.endswith(self.end[:size])]
        rest = missing_start + self.end[max(begun, default=0) :]
        finishes = [b""] if begun else [finish for finish in FINISHES if is_utf8(text + finish)]
        ways = [finish + rest for finish in finishes]
        assert ways, text
        return any(way.startswith(piece) or piece.startswith(way) for way in ways)


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def row_of(constraint: ThinkConstraint) -> list[int]:
    rows = MaskRows.allocate(1, len(TOKENS))
    assert constraint.fill((), rows) == 0
    return np.flatnonzero(rows.bools(0)).tolist()


def walk(rng: random.Random, constraint: ThinkConstraint, length: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < length and not constraint.is_complete():
        legal = [token for token in row_of(constraint) if token != STOP]
        longer = [token for token in legal if len(TOKENS[token] or b"") > 1 or TOKENS[token] in (b"<", b"/", b">")]
        token = rng.choice(longer if longer and rng.random() < 0.8 else legal)
        constraint.advance([token])
        ids.append(token)
    return ids


@pytest.mark.parametrize("start", [START, b""])
@pytest.mark.parametrize("cap", [None, 0, 1, 2, 5])
def test_every_row_of_a_random_walk_is_what_the_definition_says(
    vocabulary: Vocabulary, cap: int | None, start: bytes
) -> None:
    program, reader, rng = compiled(cap, start), Reader(cap, start), random.Random(f"{cap}{start!r}")
    num_answers = 0
    for _ in range(25):
        constraint = ThinkConstraint(program, vocabulary)
        ids: list[int] = []
        while len(ids) < 14:
            expected = [token for token in range(len(TOKENS)) if reader.legal([*ids, token])]
            assert row_of(constraint) == expected, b"".join(TOKENS[token] or b"" for token in ids)
            assert expected, "no token is legal"
            if constraint.is_complete():
                assert expected == [STOP]
                num_answers += 1
                break
            ids += walk(rng, constraint, 1)
    assert num_answers or cap is None


@pytest.mark.parametrize("cap", [None, 1, 3])
def test_rows_of_a_draft_are_those_of_its_beginnings(vocabulary: Vocabulary, cap: int | None) -> None:
    program, reader, rng = compiled(cap), Reader(cap), random.Random(cap)
    for _ in range(40):
        constraint = ThinkConstraint(program, vocabulary)
        before = walk(rng, constraint, rng.randrange(5))
        draft = walk(rng, constraint.fork(), 8)
        if draft and rng.random() < 0.6:
            draft[rng.randrange(len(draft))] = rng.randrange(len(TOKENS))
        rows = MaskRows(
            np.full((len(draft) + 1, MaskRows.allocate(1, len(TOKENS)).words.shape[1]), -1, np.int32), len(TOKENS)
        )
        num_legal = constraint.fill(draft, rows)
        expected = 0
        while expected < len(draft) and reader.legal([*before, *draft[: expected + 1]]):
            expected += 1
        assert num_legal == expected
        for place in range(len(draft) + 1):
            wanted = [t for t in range(len(TOKENS)) if place <= num_legal and STOP not in draft[:place]
                      and reader.legal([*before, *draft[:place], t])]  # fmt: skip
            if STOP in draft[:place] and place <= num_legal:
                wanted = [STOP]
            assert np.flatnonzero(rows.bools(place)).tolist() == wanted
        assert row_of(constraint) == [t for t in range(len(TOKENS)) if reader.legal([*before, t])]


def splits(text: bytes) -> list[list[bytes]]:
    """Every way to cut a text into pieces."""
    if not text:
        return [[]]
    return [[text[:size], *rest] for size in range(1, len(text) + 1) for rest in splits(text[size:])]


@pytest.mark.parametrize("pieces", splits(b"a" + END + b"y"), ids=repr)
def test_the_marker_is_found_however_tokens_cut_it(pieces: list[bytes]) -> None:
    texts: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    ids = [*b"<t>"]
    for piece in pieces:
        texts.append(piece)
        ids.append(len(texts) - 1)
    constraint = ThinkConstraint(compiled(None), Vocabulary([*texts, None], [len(texts)]))
    rows = MaskRows.allocate(len(ids) + 1, len(texts) + 1)
    assert constraint.fill(ids, rows) == len(ids)
    constraint.advance(ids)
    assert constraint.forced() == b"es"
    constraint.advance([*b"es"])
    assert constraint.is_complete()


def token(text: bytes) -> int:
    return TOKENS.index(text)


def test_switch_at_the_first_and_at_the_last_place_of_a_draft(vocabulary: Vocabulary) -> None:
    for draft in ([token(b"</t>"), token(b"n"), token(b"o")], [token(b"a"), token(b"a"), token(b"</t>")]):
        constraint = ThinkConstraint(compiled(None), vocabulary)
        constraint.advance([token(b"<t>")])
        rows = MaskRows.allocate(4, len(TOKENS))
        assert constraint.fill(draft, rows) == 3
        last = np.flatnonzero(rows.bools(3)).tolist()
        assert last == ([STOP] if draft[0] == token(b"</t>") else [t for t in range(len(TOKENS)) if is_label_start(t)])


def is_label_start(token_id: int) -> bool:
    piece = TOKENS[token_id]
    return piece is not None and any(label.encode().startswith(piece) for label in LABELS)


def test_cap_inside_the_marker_leaves_only_its_rest(vocabulary: Vocabulary) -> None:
    constraint = ThinkConstraint(compiled(2), vocabulary)
    constraint.advance([token(b"<t>"), token(b"a"), token(b"</")])
    assert constraint.forced() == b"t>"
    wanted = {b"t", b"t>", b"t>ye"}
    assert {TOKENS[found] for found in row_of(constraint)} == wanted
    with pytest.raises(ConstraintViolation, match="token limit"):
        constraint.advance([token(b"t"), token(b"a")])
    assert {TOKENS[found] for found in row_of(constraint)} == wanted
    assert b"".join(TOKENS[found] or b"" for found in constraint.shortest_completion()) == b"t>no"


def test_cap_inside_a_character_lets_it_be_finished(vocabulary: Vocabulary) -> None:
    constraint = ThinkConstraint(compiled(1), vocabulary)
    constraint.advance([token(b"<t>"), token(b"\xe2")])
    assert constraint.forced() == b""
    assert {TOKENS[found] for found in row_of(constraint)} == {b"\x82", b"\xa9", b"\xac", b"\x82\xac</"}
    constraint.advance([token(b"\x82\xac</")])
    assert constraint.forced() == b"t>"


def test_cap_inside_a_draft_ends_what_is_legal_there(vocabulary: Vocabulary) -> None:
    constraint = ThinkConstraint(compiled(2), vocabulary)
    draft = [token(b"<t>"), token(b"a"), token(b"a"), token(b"a"), token(b"a")]
    rows = MaskRows.allocate(6, len(TOKENS))
    assert constraint.fill(draft, rows) == 3
    assert not rows.words[4:].any()
    assert rows.bools(3)[token(b"</t>yes")]
    assert not rows.bools(3)[token(b"a</t>n")]


def test_marker_of_characters_beyond_ascii_is_closed_at_the_cap() -> None:
    end = "◁/think▷".encode()
    texts: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    vocabulary = Vocabulary([*texts, None], [256])
    program = compiled(3, b"", end)
    for beginning in (b"abc", "◁"[:1].encode(), "ab◁".encode()[:3], "🙂".encode()[:3], "a◀".encode()[:3]):
        constraint = ThinkConstraint(program, vocabulary)
        constraint.advance([*beginning])
        written = beginning
        while constraint.forced() != b"":
            written += constraint.forced()[:1]
            constraint.advance([constraint.forced()[0]])
            if written.endswith(end):
                break
        if not written.endswith(end):
            rest = constraint.shortest_completion()
            constraint.advance(rest)
            written += bytes(rest)
        text = written.decode()
        assert text.count(end.decode()) == 1
        assert len(written.split(end)[0]) <= 3 + 3


def test_a_prompt_that_has_begun_the_reasoning_leaves_the_start_out(vocabulary: Vocabulary) -> None:
    constraint = ThinkConstraint(compiled(1), vocabulary, begun=True)
    assert row_of(constraint) == row_of(ThinkConstraint(compiled(1, b""), vocabulary))
    assert constraint.settled() == 0
    constraint.advance([token(b"a")])
    assert constraint.forced() == END
    assert constraint.settled() == 1


def test_a_control_token_given_text_is_the_marker(vocabulary: Vocabulary) -> None:
    texts = [*TOKENS[:-1], END]
    constraint = ThinkConstraint(compiled(1), Vocabulary(texts, [STOP]))
    constraint.advance([token(b"<t>"), token(b"a"), CONTROL, token(b"no")])
    assert constraint.is_complete()
    rows = MaskRows.allocate(1, len(TOKENS))
    plain = ThinkConstraint(compiled(1), vocabulary)
    plain.fill((), rows)
    assert not rows.bools(0)[CONTROL]


def test_a_fork_goes_its_own_way(vocabulary: Vocabulary) -> None:
    constraint = ThinkConstraint(compiled(2), vocabulary)
    constraint.advance([token(b"<t>"), token(b"a")])
    twin = constraint.fork()
    constraint.advance([token(b"</t>")])
    assert twin.forced() == b""
    twin.advance([token(b"a")])
    assert twin.forced() == END
    assert constraint.forced() == b""
    constraint.advance([token(b"no")])
    assert constraint.is_complete()
    assert not twin.can_end()


@pytest.mark.parametrize("cap", [None, 0, 1, 4])
def test_shortest_completion_is_legal_and_ends_the_answer(vocabulary: Vocabulary, cap: int | None) -> None:
    program, rng = compiled(cap), random.Random(7)
    for _ in range(40):
        constraint = ThinkConstraint(program, vocabulary)
        walk(rng, constraint, rng.randrange(8))
        constraint.advance(constraint.shortest_completion())
        assert constraint.can_end()


def test_free_text_may_be_the_answer(vocabulary: Vocabulary) -> None:
    syntax = ThinkSyntax(START, END, 2)
    constraint = ThinkConstraint(ThinkProgram(compile_free_text(Limits(), wrap=syntax.wrap()), syntax), vocabulary)
    constraint.advance([token(b"<t>"), token(b"</t>")])
    assert constraint.can_end()
    constraint.advance([token(b"a")] * 5 + [token(b"</t>")])
    assert constraint.can_end()
    assert not constraint.is_complete()


def test_random_generations_have_capped_reasoning_and_a_valid_answer(vocabulary: Vocabulary) -> None:
    schema = {"type": "array", "items": {"enum": ["a", 7]}, "maxItems": 2}
    syntax = ThinkSyntax(START, END, 4)
    program = ThinkProgram(compile_json_schema(schema, wrap=syntax.wrap()).program, syntax)
    rng = random.Random(3)
    for _ in range(60):
        constraint = ThinkConstraint(program, vocabulary)
        ids = walk(rng, constraint, 60)
        text = b"".join(TOKENS[token] or b"" for token in ids).decode()
        assert constraint.is_complete(), text
        reasoning, _, answer = text.removeprefix("<t>").partition("</t>")
        assert len(reasoning.encode()) <= 4 * max(map(len, LONGER)) + 3
        assert answer in {"[]", *(f"[{a}{b}]" for a in ('"a"', "7") for b in ("", ',"a"', ",7"))}


def distinct_digits(cap: int | None) -> ThinkProgram:
    """Reasoning, then two digits that must differ, which is verified."""
    syntax, builder = ThinkSyntax(START, END, cap), Builder()
    digit = builder.lexeme(builder.byte_set([(ord("1"), ord("3"))]))
    pair = builder.verified(builder.array([], digit, 2, 2), Predicate.unique_items(), pointer="/pair")
    return ThinkProgram(builder.build(syntax.wrap()(builder, pair)), syntax)


@pytest.mark.parametrize("begun", [False, True])
def test_a_retract_of_the_straddling_token_leads_back_into_the_reasoning(begun: bool) -> None:
    texts: list[bytes | None] = [*(bytes([byte]) for byte in range(256)), b"abc</t>[", None]
    constraint = ThinkConstraint(distinct_digits(2), Vocabulary(texts, [257]), begun=begun)
    start = [] if begun else [*START]
    constraint.advance([*start, ord("x")])
    assert constraint.settled() == len(start) + 1
    constraint.advance([256, *b"1,"])
    retract = constraint.advance([*b"1"])
    assert retract == Retract(len(start) + 1, b"abc</t>", "/pair")
    for byte in b"abc</t>":  # more tokens than the cap lets pass, but they were one
        assert constraint.forced().startswith(bytes([byte]))
        rows = MaskRows.allocate(1, len(texts))
        constraint.fill((), rows)
        assert byte in np.flatnonzero(rows.bools(0))
        assert set(np.flatnonzero(rows.bools(0))) <= {byte, 256}
        constraint.advance([byte])
    constraint.advance([*b"[1,2]"])
    assert constraint.is_complete()
    assert constraint.settled() == len(start) + 1 + 7 + 5


def test_a_retract_inside_the_answer_stays_in_it() -> None:
    texts: list[bytes | None] = [*(bytes([byte]) for byte in range(256)), None]
    constraint = ThinkConstraint(distinct_digits(1), Vocabulary(texts, [256]))
    assert constraint.advance([*b"<t>a</t>[2,2]"]) == Retract(8, b"", "/pair")
    constraint.advance([*b"[2,"])
    rows = MaskRows.allocate(1, len(texts))
    constraint.fill((), rows)
    assert set(np.flatnonzero(rows.bools(0))) <= {*b"123"}
    constraint.advance([*b"1]"])
    assert constraint.is_complete()


@pytest.mark.parametrize("cap", [0, 1, 2, 3, 4, 5])
def test_where_a_ban_forbids_the_marker_the_cap_is_passed_to_where_it_may_stand(
    cap: int, vocabulary: Vocabulary
) -> None:
    """ "no" is banned as a word: behind it the reasoning can only go on as "nothing" does."""
    syntax = ThinkSyntax(START, END, cap)
    bans = Bans.of([Never(phrases=["no", "é"], word=True).ban])
    program = ThinkProgram(compile_choice(("yes",), wrap=syntax.wrap(bans)), syntax)
    for reasoning in ("a no", "noé", "a n", "é no", "é"):
        constraint, rows = ThinkConstraint(program, vocabulary), MaskRows.allocate(1, vocabulary.size)
        wanted, steps = (START + reasoning.encode()), 0
        while not constraint.is_complete():
            constraint.fill((), rows)
            row = rows.bools(0)
            assert row.any()
            token = next((at for at in np.flatnonzero(row) if (TOKENS[at] or b"?")[:1] == wanted[:1]), None)
            if token is None or len(TOKENS[token] or b"") > 1:
                token, wanted = int(np.flatnonzero(row)[0]), b""
            assert constraint.advance([int(token)]) is None
            wanted, steps = wanted[1:], steps + 1
            assert steps < 40
