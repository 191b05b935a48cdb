"""What 500 banned phrases cost: to compile, and in each mask.

Masks are timed along texts that bring the phrases on: after every few words stands one of them but for its last
character, so that most states lie inside some phrase. The same tokens are walked with the ban and without it, in JSON
(where there is a mask anyway) and in free text (where there is none, so that all of it is added). CPU time, less the
clock's own; a state's first mask counts like any other.
"""

from __future__ import annotations

import gzip
import json
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import clock_cost_ns, percentile
from benchmarks.common.vocabularies import BenchVocabulary, load_vocabulary
from safegen.grammars.bans import Bans
from safegen.grammars.constraint import MaskRows
from safegen.grammars.matcher import NativeConstraint, Program
from safegen.grammars.vocabulary import Vocabulary
from safegen.guards import Never
from safegen.guards.folding import FOLDS, Fold
from safegen.output_type import compile_type
from safegen.types import JsonSchema

NUM_PHRASES, SEED, COMPILES = 500, 7, 5
_SCHEMA = JsonSchema(
    {
        "type": "object",
        "properties": {"title": {"type": "string"}, "body": {"type": "string"}},
        "required": ["title", "body"],
        "additionalProperties": False,
    }
)
_LEXICON = "lexicon-phrases.jsonl.gz"


def banned_phrases(folder: Path) -> list[str]:
    """Those of the lexicon, filled up with invented words."""
    rng, found = random.Random(SEED), list[str]()
    if (folder / _LEXICON).exists():
        with gzip.open(folder / _LEXICON, "rt", encoding="utf-8") as lines:
            found = [json.loads(line)["phrase"] for line in lines]
    while len(found) < NUM_PHRASES:
        found.append("".join(rng.choice("aeioulnrst") for _ in range(rng.randint(5, 12))))
    return found[:NUM_PHRASES]


def measure_never(phrases: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    compile_ms = {fold: _compile_ms(phrases, fold) for fold in FOLDS}
    figures = {"never.compile_ms_500": max(compile_ms.values())}
    figures |= {f"never.compile_ms_500.{fold}": value for fold, value in compile_ms.items()}
    written, added = _bringing_on(phrases, texts), list[float]()
    for name in ("smollm", "tekken"):
        loaded = load_vocabulary(name)
        vocabulary = Vocabulary(loaded.token_bytes, loaded.stop_ids)
        for fold in FOLDS:
            bans = Bans.of([Never(phrases=phrases, fold=fold).ban])
            for kind in ("json", "free"):
                found = _added_us(kind, bans, loaded, vocabulary, written)
                added += found
                for share in (50, 99):
                    figures[f"never.added_us_p{share}.{kind}.{fold}.{name}"] = percentile(found, share / 100)
    return {**figures, "never.added_us_p50": statistics.median(added), "never.masks": float(len(added))}


def _compile_ms(phrases: Sequence[str], fold: Fold) -> float:
    """Phrases to a program that is ready, in milliseconds; of JSON, which is the larger one. The median of a few."""
    taken = []
    for _ in range(COMPILES):
        start = time.process_time_ns()
        compile_type(_SCHEMA, bans=Bans.of([Never(phrases=phrases, fold=fold).ban]))
        taken.append((time.process_time_ns() - start) / 1e6)
    return statistics.median(taken)


def _bringing_on(phrases: Sequence[str], texts: Sequence[str]) -> list[str]:
    rng = random.Random(SEED)
    return [
        " ".join(
            word if rng.random() < 0.7 else f"{word} {rng.choice(phrases)[:-1]}"
            for word in text.replace("\n", " ").split()
        )
        for text in texts
    ]


def _added_us(
    kind: str, bans: Bans | None, loaded: BenchVocabulary, vocabulary: Vocabulary, texts: Sequence[str]
) -> list[float]:
    """Microseconds by which each mask took longer; of the part of each text that the ban allows."""
    spec = _SCHEMA if kind == "json" else None
    held, plain = compile_type(spec, bans=bans).program, compile_type(spec).program
    assert held is not None
    before, added = clock_cost_ns() / 1e3, list[float]()
    for text in texts:
        ids = loaded.encode(_as_json(text) if spec else text)
        with_ban = _walk(held, vocabulary, ids)
        without = _walk(plain, vocabulary, ids[: len(with_ban)]) if plain is not None else [before] * len(with_ban)
        added += [a - b for a, b in zip(with_ban, without, strict=True)]
    return added


def _as_json(text: str) -> str:
    return json.dumps({"title": "x", "body": text}, ensure_ascii=False, separators=(",", ":"))


def _walk(program: Program, vocabulary: Vocabulary, ids: Sequence[int]) -> list[float]:
    constraint, rows, taken = (
        NativeConstraint(program, vocabulary),
        MaskRows.allocate(1, vocabulary.size),
        list[float](),
    )
    for token in ids:
        start = time.process_time_ns()
        constraint.fill((), rows)
        taken.append((time.process_time_ns() - start) / 1e3)
        if not int(rows.words[0, token // 32]) >> (token % 32) & 1:
            break
        constraint.advance((token,))
    return taken
