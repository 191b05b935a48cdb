"""What the drafters propose: bytes that are forced, in the tokenizer's own tokens; what followed the longest match."""

from __future__ import annotations

import random
from collections.abc import Sequence as Ids
from typing import Any

import pytest

from safegen.engine.logits import LogitsPipeline, RowBuffers
from safegen.engine.request import Request, SamplingParams
from safegen.engine.sequence import RequestContext, Sequence
from safegen.engine.speculate.base import Ask, Draft, legal_prefix
from safegen.engine.speculate.forced import ForcedDrafter
from safegen.engine.speculate.ngram import NgramDrafter
from safegen.errors import RequestError, RetractsExhausted
from safegen.grammars.constraint import Constraint
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.vocabulary import Vocabulary
from safegen.output_type import compile_type
from safegen.types import Choice, JsonSchema, Regex, Think

STOP = 0
PIECES = ['{"', '":', ',"', '":"', '","', "name", "na", "age", "true", "fal", "né", "</think>"]
TOKENS: list[bytes | None] = [None, *(bytes([value]) for value in range(1, 256)), *(text.encode() for text in PIECES)]
VOCABULARY = Vocabulary(TOKENS, frozenset({STOP}))


def encode(text: str) -> list[int]:
    """The longest token first."""
    left, ids = text.encode(), list[int]()
    by_length = sorted((number for number, piece in enumerate(TOKENS) if piece), key=lambda n: -len(TOKENS[n] or b""))
    while left:
        ids.append(next(number for number in by_length if left.startswith(TOKENS[number] or b"?")))
        left = left[len(TOKENS[ids[-1]] or b"") :]
    return ids


def spell(ids: Ids[int]) -> bytes:
    return b"".join(TOKENS[token] or b"" for token in ids)


def sequence_of(
    prompt: Ids[int], output: Ids[int] = (), constraint: Constraint | None = None, **fields: Any
) -> Sequence:
    request = Request("a", tuple(prompt), SamplingParams(), frozenset({STOP}), constraint, **fields)
    pipeline = LogitsPipeline(request.params, request.prompt_ids, request.stop_ids, RowBuffers(len(TOKENS)))
    sequence = Sequence(RequestContext(request, 0, 0.0, 1, 100, pipeline, 8), 0, (0,))
    sequence.commit(tuple(output))
    return sequence


def constraint_of(spec: Any, begun: bytes = b"") -> NativeConstraint:
    program = compile_type(spec).program
    assert program is not None
    constraint = NativeConstraint(program, VOCABULARY)
    if begun:
        constraint.advance(encode(begun.decode()))
    return constraint


def forced(spec: Any, begun: bytes = b"", prefix: Ids[int] = (), room: int = 16) -> Draft:
    drafter = ForcedDrafter(encode, TOKENS)
    [draft] = drafter.propose([Ask(sequence_of([1], (), constraint_of(spec, begun)), tuple(prefix), room)])
    return draft


PERSON = JsonSchema(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


def test_forced_bytes_are_proposed_in_the_tokens_that_the_tokenizer_makes_of_them() -> None:
    draft = forced(PERSON)
    assert spell(draft.ids) == b'{"name":"'
    assert list(draft.ids) == encode('{"name":"')
    assert draft.probs is None


def test_forced_text_goes_on_where_the_value_has_ended() -> None:
    assert spell(forced(PERSON, b'{"name":"Bo"').ids) == b',"age":'
    assert forced(PERSON, b'{"name":"Bo').ids == ()


def test_forced_text_after_a_prefix_is_that_of_the_text_with_it() -> None:
    assert spell(forced(PERSON, b'{"name":"', encode('Bo"')).ids) == b',"age":'


def test_the_boundary_token_is_of_a_kind_of_its_own() -> None:
    draft = forced(PERSON)
    assert draft.kinds is not None and draft.chances is not None
    assert draft.kinds[-1] == ("boundary", draft.ids[-1])
    assert len(set(draft.kinds)) == len(draft.ids)
    assert draft.chances[-1] < draft.chances[0]


@pytest.mark.parametrize("text", ["é", "né", "x€", "\U0001f600"])
def test_forced_text_may_begin_or_end_inside_a_character(text: str) -> None:
    whole = text.encode()
    options = [text + "a", text[:-1] + chr(ord(text[-1]) + 1) + "b"]  # one more or less differs in the last byte
    draft = forced(Choice(options))
    assert whole.startswith(spell(draft.ids))
    constraint = constraint_of(Choice([text + "a"]))
    for byte in whole[:-1]:
        constraint.advance([byte])
    [begun] = ForcedDrafter(encode, TOKENS).propose([Ask(sequence_of([1], (), constraint), (), 16)])
    assert (whole[-1:] + b"a").startswith(spell(begun.ids))


def test_a_tokenizer_that_gives_other_bytes_is_followed_as_far_as_it_is_right() -> None:
    right = encode('{"name":"')
    drafter = ForcedDrafter(lambda text: [*right[:2], right[0], *right[2:]], TOKENS)
    [draft] = drafter.propose([Ask(sequence_of([1], (), constraint_of(PERSON)), (), 16)])
    assert list(draft.ids) == right[:2]


def test_a_tokenizer_that_refuses_the_text_gives_no_draft() -> None:
    def refuse(text: str) -> list[int]:
        raise RequestError("no", field="text")

    [draft] = ForcedDrafter(refuse, TOKENS).propose([Ask(sequence_of([1], (), constraint_of(PERSON)), (), 16)])
    assert draft.ids == ()


def test_free_text_forces_nothing() -> None:
    [draft] = ForcedDrafter(encode, TOKENS).propose([Ask(sequence_of([1]), (), 16)])
    assert draft.ids == ()


@pytest.mark.parametrize(
    "spec", [PERSON, Regex(r"v\d{2}-final"), Choice(["certain", "certainly"]), Think(PERSON, max_tokens=4)], ids=repr
)
def test_what_is_forced_is_legal_in_every_state(spec: Any) -> None:
    rng = random.Random(1)
    for _ in range(20):
        constraint = constraint_of(spec)
        while not constraint.is_complete():
            [draft] = ForcedDrafter(encode, TOKENS).propose([Ask(sequence_of([1], (), constraint), (), 16)])
            assert legal_prefix(constraint, (), draft.ids) == len(draft.ids)
            if draft.ids:
                constraint.advance(draft.ids)
                continue
            legal = [token for token in range(1, len(TOKENS)) if legal_prefix(constraint, (), (token,))]
            short = constraint.shortest_completion()
            if not legal or not short or rng.random() < 0.3:
                constraint.advance(short)
                break
            constraint.advance((rng.choice(legal),))


class OwnWay(NativeConstraint):
    """The same machine as a subclass, which is asked token by token."""


@pytest.mark.parametrize(
    "schema",
    [
        PERSON,
        JsonSchema({"type": "array", "items": {"type": "number"}, "uniqueItems": True, "maxItems": 3}),
        JsonSchema({"type": "string", "not": {"pattern": "^na+$"}}),
    ],
    ids=["enforced", "unique", "verified"],
)
def test_native_legal_prefix_is_that_of_forks_advanced_token_by_token(schema: Any) -> None:
    rng = random.Random(5)
    native = constraint_of(schema)
    assert isinstance(native, NativeConstraint) and native.legal_prefix is not None
    num_partial = 0
    for _ in range(150):
        if native.is_complete():
            native = constraint_of(schema)
        by_token = OwnWay._of(native._matcher.fork())
        assert by_token.legal_prefix is None
        drafts = [
            list(native.shortest_completion()),
            encode(rng.choice(["1,1]", '"na"', '"n","age":3}', '{"name":"b', "12]"])),
        ]
        for ids in drafts:
            ids = ids[:6] + ([rng.randrange(len(TOKENS))] if rng.random() < 0.5 else [])
            cut = rng.randrange(len(ids) + 1)
            count = legal_prefix(native, ids[:cut], ids[cut:])
            assert count == legal_prefix(by_token, ids[:cut], ids[cut:])
            num_partial += 0 < count < len(ids) - cut
        before = native.text()
        legal = [token for token in range(1, len(TOKENS)) if legal_prefix(native, (), (token,))]
        assert native.text() == before
        native.advance((rng.choice(legal),)) if legal else native.advance(native.shortest_completion())
    assert num_partial > 5


# --- n-gram ---------------------------------------------------------------------------------------------------------


def ngram(sequence: Sequence, prefix: Ids[int] = (), room: int = 4, drafter: NgramDrafter | None = None) -> Draft:
    [draft] = (drafter or NgramDrafter()).propose([Ask(sequence, tuple(prefix), room)])
    return draft


def reference(ids: list[int], num_committed: int, room: int) -> list[int]:
    """By looking everywhere: the longest match of the end (at most 8) that ends in committed tokens, of equal ones the
    latest."""
    best = (0, 0)
    for place in range(1, min(num_committed, len(ids) - 1) + 1):
        length = 0
        while length < min(8, place) and ids[place - 1 - length] == ids[-1 - length]:
            length += 1
        if length and (length, place) >= best:
            best = (length, place)
    if not best[0]:
        return []
    found: list[int] = []
    for _ in range(room):
        found.append((ids + found)[best[1] + len(found)])
    return found


def test_what_followed_the_longest_match_is_proposed() -> None:
    ids = [1, 2, 3, 4, 9, 2, 3, 7, 1, 2, 3]
    assert list(ngram(sequence_of(ids)).ids) == [4, 9, 2, 3]
    assert list(ngram(sequence_of(ids[:5], ids[5:])).ids) == [4, 9, 2, 3]


def test_of_equal_matches_the_latest_is_taken() -> None:
    assert list(ngram(sequence_of([5, 1, 6, 5, 2, 6, 5]), room=2).ids) == [2, 6]


def test_a_match_runs_into_itself() -> None:
    assert list(ngram(sequence_of([7, 1, 2, 1, 2]), room=6).ids) == [1, 2, 1, 2, 1, 2]


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_same_as_looking_everywhere(seed: int) -> None:
    rng = random.Random(seed)
    drafter = NgramDrafter()
    sequence = sequence_of([rng.randrange(1, 5) for _ in range(3)])
    for _ in range(25):
        ids = sequence.token_ids(0, sequence.num_tokens)
        for count in (0, 1, 3):
            prefix = tuple(rng.randrange(1, 5) for _ in range(count))
            assert list(ngram(sequence, prefix, 6, drafter).ids) == reference([*ids, *prefix], len(ids), 6)
        sequence.commit((rng.randrange(1, 5),))
        if rng.random() < 0.2:
            sequence.cut(max(0, sequence.num_output_tokens - 2))
            sequence.num_retracts += 1


def test_a_proposal_ends_before_the_first_illegal_token() -> None:
    constraint = constraint_of(Regex("abcx+"))
    constraint.advance(encode("ab"))
    prompt = encode("zabcd")
    draft = ngram(sequence_of(prompt, encode("ab"), constraint))
    assert spell(draft.ids) == b"c"


def test_outputs_of_the_same_type_are_shared_only_by_those_that_want_it() -> None:
    drafter = NgramDrafter()
    first = sequence_of([1], [5, 6, 7, 8, 9], type_key=3, shares_output=True)
    ngram(first, drafter=drafter)
    drafter.release(first)
    assert list(ngram(sequence_of([2], [5, 6], type_key=3, shares_output=True), drafter=drafter).ids) == [7, 8, 9]
    for fields in (
        {"type_key": 4, "shares_output": True},
        {"type_key": 3, "shares_output": True, "cache_salt": "tenant"},
        {"type_key": 3},
        {},
    ):
        assert ngram(sequence_of([2], [5, 6], **fields), drafter=drafter).ids == ()


def test_what_was_not_shared_is_in_no_corpus() -> None:
    drafter = NgramDrafter()
    private = sequence_of([1], [5, 6, 7, 8, 9], type_key=3)
    ngram(private, drafter=drafter)
    drafter.release(private)
    assert ngram(sequence_of([2], [5, 6], type_key=3, shares_output=True), drafter=drafter).ids == ()


def test_drafters_keep_nothing_of_a_sequence_that_ended() -> None:
    drafter = NgramDrafter()
    sequence = sequence_of([1, 2, 1])
    ngram(sequence, drafter=drafter)
    drafter.release(sequence)
    assert not drafter._indexes


def test_a_token_matches_the_same_one_with_a_space_in_front() -> None:
    pieces: list[bytes | None] = [None, b" Har", b"Har", b"rog", b"ate", b"x", b'":"']
    sequence = sequence_of([5, 1, 3, 4, 5], [6, 2])
    assert list(ngram(sequence, room=2, drafter=NgramDrafter(pieces)).ids) == [3, 4]
    assert ngram(sequence, room=2).ids == ()


def test_a_copied_value_is_closed_as_values_of_its_type_were_and_forced_text_follows() -> None:
    drafter = NgramDrafter(TOKENS)
    close = TOKENS.index(b'","')
    first = sequence_of(encode("Bo. "), (), constraint_of(PERSON), type_key=7)
    ngram(first, drafter=drafter)
    for piece in ('{"', "name", '":"', "Bo"):
        first.commit(tuple(encode(piece)))
        ngram(first, drafter=drafter)
    first.commit((close, *encode("age")))
    ngram(first, drafter=drafter)
    constraint = constraint_of(PERSON, b'{"name":"A')
    second = sequence_of(encode("(Ada. Eve)"), encode('{"name":"A'), constraint, type_key=7)
    draft = ngram(second, room=6, drafter=drafter)
    assert spell(draft.ids) == b'da","'
    assert draft.ids[-1] == close
    [after] = ForcedDrafter(encode, TOKENS).propose([Ask(second, draft.ids, 4)])
    assert spell(after.ids) == b'age":'


class Least:
    """`Worth` of a drafter that is believed: what it gives less than `least` does not pay."""

    def __init__(self, least: float) -> None:
        self.least = least
        self.asked: list[Any] = []
        self.left: list[Any] = []

    def pays(self, kind: Any, chance: float) -> bool:
        self.asked.append(kind)
        return chance >= self.least

    def left_out(self, kind: Any) -> None:
        self.left.append(kind)


class Untouched:
    """A constraint that nobody may look at."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the constraint was asked for {name}")


def test_a_guess_that_cannot_pay_is_not_shown_to_the_constraint() -> None:
    worth = Least(2.0)
    ids = encode("zabcab")
    sequence = sequence_of(ids[:4], ids[4:], Untouched())  # type: ignore[arg-type]
    [draft] = NgramDrafter(TOKENS).propose([Ask(sequence, (), 4, worth)])
    assert not draft.ids
    assert worth.left == [(2, 0, False)] and len(worth.asked) == 2  # the token itself, and one that closes the value


@pytest.mark.parametrize("seed", range(4))
def test_a_guess_that_pays_is_the_same_as_if_nobody_had_asked(seed: int) -> None:
    rng, drafter = random.Random(seed), NgramDrafter(TOKENS)
    num_given = num_left = 0
    for _ in range(60):
        names = [rng.choice(("Bo. ", "Ada, ", "Eve ")) for _ in range(rng.randrange(1, 4))]
        begun = rng.choice(('{"name":"', '{"name":"A', '{"name":"Bo', '{"name":"Bo","age":'))
        sequence = sequence_of(
            encode("".join(names)), encode(begun), constraint_of(PERSON, begun.encode()), type_key=rng.randrange(2)
        )
        free, worth = ngram(sequence, room=5, drafter=drafter), Least(rng.choice((0.1, 0.3, 0.6)))
        [draft] = drafter.propose([Ask(sequence, (), 5, worth)])
        if free.ids and free.chances is not None and free.chances[0] >= worth.least:
            assert draft.ids == free.ids and draft.kinds == free.kinds
            num_given += 1
        num_left += bool(free.ids) and not draft.ids
        drafter.release(sequence)
    assert num_given > 3 and num_left > 3


def answer(drafter: NgramDrafter, pieces: Ids[str], spec: Any = PERSON) -> None:
    """A whole answer of type 7, seen piece by piece."""
    sequence = sequence_of(encode("Bo. "), (), constraint_of(spec), type_key=7)
    for piece in pieces:
        ngram(sequence, drafter=drafter)
        sequence.commit(tuple(encode(piece)))
    drafter.release(sequence)


PAIR = JsonSchema(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "string"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


def test_a_value_is_closed_as_those_of_its_field_were_the_last_one_too() -> None:
    drafter = NgramDrafter(TOKENS)
    for _ in range(3):
        answer(drafter, ['{"', "name", '":"', "Bo", '","', "age", '":', '"', "x", '"', "}"], PAIR)
    for begun, copied, end in [('{"name":"A', b"da", b'","'), ('{"name":"Bo","age":"A', b"da", b'"')]:
        sequence = sequence_of(encode("(Ada. Eve)"), encode(begun), constraint_of(PAIR, begun.encode()), type_key=7)
        for _ in range(2):
            draft = ngram(sequence, room=6, drafter=drafter)
        assert spell(draft.ids) == copied + end


def test_nothing_is_added_to_a_value_that_has_ended_for_good() -> None:
    drafter, spec = NgramDrafter(TOKENS), JsonSchema({"type": "array", "items": {"enum": [1989, 1971]}, "minItems": 3})
    answer(drafter, ["[", "1971", ",", "1971", ",", "1971", "]"], spec)
    sequence = sequence_of(encode("(1989.)"), encode("[1"), constraint_of(spec, b"[1"), type_key=7)
    draft = ngram(sequence, room=6, drafter=drafter)
    assert spell(draft.ids) == b"989"


class _TakesBackForGood(NativeConstraint):
    """Knows of nothing illegal, but goes back from "da", and finds nothing to go on with: as a guard's may."""

    @property
    def legal_prefix(self) -> Any:
        return self._matcher.legal_prefix

    def advance(self, ids: Ids[int]) -> Any:
        retract = super().advance(ids)
        if self.text().endswith(b"da"):
            raise RetractsExhausted("no placeholder fits")
        return retract


def test_a_copied_value_that_a_constraint_would_take_back_for_good_is_a_draft_like_others() -> None:
    names = {"type": "object", "properties": {"name": {"enum": ["Ada", "Adam"]}}, "required": ["name"]}
    program = compile_type(JsonSchema(names)).program
    assert program is not None
    constraint = _TakesBackForGood(program, VOCABULARY)
    constraint.advance(encode('{"name":"A'))
    sequence = sequence_of(encode("(Ada. Eve)"), encode('{"name":"A'), constraint, type_key=7)
    assert spell(ngram(sequence, room=6).ids) == b"da"


def test_forced_text_is_proposed_again_as_the_model_spelled_it() -> None:
    drafter = ForcedDrafter(encode, TOKENS)
    constraint = constraint_of(PERSON)
    sequence = sequence_of([1], (), constraint)
    [canonical] = drafter.propose([Ask(sequence, (), 16)])
    spelled = (*encode('{"'), TOKENS.index(b"na"), *b"me", *encode('":'), *b'"')
    for token_id in (*spelled, ord("B")):
        sequence.commit((token_id,))
        constraint.advance((token_id,))
    drafter.propose([Ask(sequence, (), 16)])
    [learned] = drafter.propose([Ask(sequence_of([1], (), constraint_of(PERSON)), (), 16)])
    assert learned.ids == spelled != canonical.ids
    assert spell(learned.ids) == spell(canonical.ids)


def test_what_was_spelled_before_a_retract_is_not_learned() -> None:
    drafter = ForcedDrafter(encode, TOKENS)
    sequence = sequence_of([1], (), constraint_of(PERSON))
    [canonical] = drafter.propose([Ask(sequence, (), 16)])
    sequence.num_retracts += 1
    sequence.commit(tuple(b'{"name":"'))
    drafter.release(sequence)
    [again] = drafter.propose([Ask(sequence_of([1], (), constraint_of(PERSON)), (), 16)])
    assert again.ids == canonical.ids
