"""What is kept of a state under bans, and told of it in one native call, is what its language says.

Forced bytes and shortest completions are kept by the state that decides them and shared by all sequences of a type;
drafts are cut to what is legal without a mask. Sequences that come to the same state by different texts must not get
what belongs to another: each is compared with a program of its own that has met nothing else, and with the language.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from safegen.errors import SchemaError
from safegen.grammars.bans import Bans
from safegen.grammars.constraint import MaskRows
from safegen.grammars.matcher import NativeConstraint, Program
from safegen.guards import Never
from safegen.output_type import compile_type
from safegen.types import JsonSchema, Regex
from tests.grammars.random_schemas import SIMPLE_FORMATS, SchemaGenerator
from tests.grammars.walking import STOP, TOKENS, VOCABULARY, Walker, WalkStats, text_of
from tests.support.plain_never import holds_ban, json_holds_ban

IS_FULL = os.environ.get("SAFEGEN_FULL") == "1"
PHRASES = ["kill", "abab", "aé"]
WANTED = [*(phrase.encode() for phrase in PHRASES), b'{"', b'":"', b'","', b'"', b"\\u006b"]
SPECS: dict[str, Any] = {
    "text": None,
    "values": JsonSchema({"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 2}),
    "listed": JsonSchema({"type": "array", "items": {"enum": ["killswitch", "king size", "abab", "abacus", "aéb"]}}),
    "short": JsonSchema({"type": "array", "items": {"type": "string", "minLength": 3, "maxLength": 5}, "minItems": 1}),
    "members": JsonSchema({"type": "object", "properties": {"kind": {"enum": ["killer", "kilt"]}, "kilo": {"pattern":
                           "^k[a-l]{3}$", "type": "string"}}, "required": ["kind", "kilo"]}),
    "keys": JsonSchema({"type": "object", "patternProperties": {"^k[il]{2,4}$": {"type": "boolean"}},
                        "additionalProperties": False}),
    "regex": Regex("(ki?l{1,3}|aba?)+x"),
}  # fmt: skip
GUARDS = {
    "phrases": [Never(phrases=PHRASES)],
    "words": [Never(phrases=PHRASES, word=True, fold="case")],
    "several": [Never(phrases=PHRASES[:1]), Never(phrases=PHRASES[1:], fold="exact"), Never(regexes=["l{3}|x+b"])],
}


def program_of(spec: Any, guards: Sequence[Never]) -> Program:
    program = compile_type(spec, bans=Bans.of(guard.ban for guard in guards)).program
    assert program is not None
    return program


def steer(rng: random.Random, legal: list[int], text: bytes) -> int:
    """Mostly a token that brings some wanted text nearest."""
    liked: dict[int, int] = {}
    for wanted in WANTED:
        begun = next(size for size in range(len(wanted) - 1, -1, -1) if text.endswith(wanted[:size]))
        for token in legal:
            if wanted[begun:].startswith(TOKENS[token] or b"?"):
                liked[token] = max(liked.get(token, 0), begun + 1)
    if not liked or rng.random() < 0.1:
        return rng.choice(legal)
    return rng.choices(list(liked), [4**size for size in liked.values()])[0]


def forced_by_language(program: Program, text: bytes) -> bytes:
    """Bytes that alone may follow, one after the other."""
    out = b""
    while not program.matches(text + out) and len(out) < 4096:
        following = program.expected(text + out)
        if len(following) != 1:
            break
        out += following
    return out


def check_state(program: Program, fresh: Program, constraint: NativeConstraint, ids: list[int]) -> list[int]:
    """Returns the legal tokens, the stop token left out."""
    text, rows = constraint.text(), MaskRows.allocate(2, VOCABULARY.size)
    twin = NativeConstraint(fresh, VOCABULARY)
    twin.advance(ids)
    for row, each in enumerate((constraint, twin)):
        each.fill((), MaskRows(rows.words[row : row + 1], rows.vocab_size))
    assert (rows.words[0] == rows.words[1]).all(), text
    assert constraint.forced() == twin.forced() == forced_by_language(program, text), text
    completion = text_of(constraint.shortest_completion())
    assert len(completion) == len(text_of(twin.shortest_completion())), text
    assert program.matches(text + completion), (text, completion)
    legal: list[int] = np.flatnonzero(rows.bools(0)).tolist()
    told = constraint.legal_prefix
    assert told is not None
    for wanted in WANTED:
        begun = next(size for size in range(len(wanted), -1, -1) if text.endswith(wanted[:size]))
        draft = [*wanted[begun:], *wanted]
        assert told((), draft) == program.longest_prefix(text + bytes(draft)) - len(text), (text, draft)
    for token in legal[:: max(1, len(legal) // 5)]:
        if token != STOP:
            piece, draft = TOKENS[token] or b"", [*b"killabab"]
            wanted_count = program.longest_prefix(text + piece + bytes(draft)) - len(text + piece)
            assert told((token,), draft) == wanted_count, (text, piece)
    return [token for token in legal if token != STOP]


@pytest.mark.parametrize("guards", GUARDS)
@pytest.mark.parametrize("name", SPECS)
def test_what_is_kept_by_state_is_what_the_language_says(name: str, guards: str) -> None:
    program = program_of(SPECS[name], GUARDS[guards])
    rng = random.Random(name + guards)
    for _ in range(20 if IS_FULL else 4):
        fresh = program_of(SPECS[name], GUARDS[guards])
        constraint, ids = NativeConstraint(program, VOCABULARY), list[int]()
        for _ in range(14):
            legal = check_state(program, fresh, constraint, ids)
            if not legal:
                break
            ids.append(steer(rng, legal, constraint.text()))
            constraint.advance(ids[-1:])


def test_random_schemas_under_several_bans_at_once_are_live_valid_and_clean() -> None:
    """One schema, many sets of bans, their sequences in turn: none takes over what another is held to."""
    rng, stats, made = random.Random(11), WalkStats(), 0
    sets: list[list[Never]] = [
        [Never(phrases=["a"], fold="exact")],
        [Never(phrases=["b"], fold="compat"), Never(phrases=["é", "10"], fold="exact")],
        [Never(phrases=["ab"], word=True), Never(regexes=["ba|q.?"], fold="case")],
        [],
    ]
    for number in range(150 if IS_FULL else 20):
        schema = JsonSchema(SchemaGenerator(rng, formats=SIMPLE_FORMATS, max_depth=2).document())
        walkers = []
        for guards in sets:
            try:
                compiled = compile_type(schema, bans=Bans.of(guard.ban for guard in guards))
            except SchemaError:
                continue
            may_verify = "uniqueItems" in str(schema.text) or any(
                found.handling == "verified" for found in compiled.findings
            )
            assert compiled.program is not None
            walker = Walker(compiled.program, random.Random(number), stats, may_verify=may_verify)
            walkers.append((walker, guards, compiled))
        made += len(walkers)
        for length in (2, 6, 12):
            for walker, guards, compiled in walkers:
                text = walker.walk(length, lambda text, read=compiled.read: (read(text.decode()), True)[1])  # type: ignore[misc]
                for guard in guards if text else ():
                    if guard.phrases:
                        assert not json_holds_ban(text.decode(), guard.phrases, guard.fold, guard.word), text
    assert made > (150 if IS_FULL else 20) * 2


def test_a_completion_never_ends_a_text_with_a_ban() -> None:
    """The shortest way out of a regex would be the banned word."""
    program = program_of(Regex("k(ill|eepsake)"), [Never(phrases=["kill"])])
    constraint = NativeConstraint(program, VOCABULARY)
    constraint.advance([*b"k"])
    assert constraint.forced() == b"eepsake"
    assert text_of(constraint.shortest_completion()) == b"eepsake"
    assert not holds_ban("keepsake", ["kill"], "compat")
