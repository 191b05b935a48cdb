"""A thousand constrained generations with random logits, through the public API and the default vocabulary.

The model knows nothing and adores what is wrong: on top of random logits it raises stop ids, special ids, ids past the
text, quotes, brackets, blanks, broken UTF-8, or one token again and again. Whatever it likes, an answer that is `ok`
is valid for an independent judge, nothing stalls, and an answer that could be closed within its budget is whole.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from safegen.engine.config import EngineConfig
from safegen.engine.engine import Engine
from safegen.engine.locate import locate_model
from safegen.engine.tokenizer import Tokenizer
from safegen.limits import Limits
from safegen.llm import LLM
from safegen.result import Result
from safegen.runtime import Runtime
from tests.support.fake_backend import FakeBackend
from tests.support.output_types import OUTPUT_TYPES, judge_of

MAX_CONTEXT = 2048
ROUNDS_FULL, ROUNDS = 20, 2


class Adoring(FakeBackend):
    """Random logits of each prefix, with a few dozen ids raised far above the others."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(len(tokenizer.token_bytes), MAX_CONTEXT)
        texts = tokenizer.token_bytes
        self._special = [token for token, text in enumerate(texts) if text is None or token in tokenizer.stop_ids]
        self._marks = [token for token, text in enumerate(texts) if text and set(text) <= set(b'"\\{}[],:- \n\te0.')]
        self._torn = [token for token, text in enumerate(texts) if text and not _is_text(text)]
        self._digits = [token for token, text in enumerate(texts) if text and text.isdigit()]
        self.shape_logits = self._adore

    def _adore(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        for row in logits:
            rng = np.random.default_rng(row[:4].view(np.uint32))
            kind = rng.integers(6)
            if kind < 4:
                chosen = (self._special, self._marks, self._torn, self._digits)[kind]
                row[rng.choice(chosen, 40)] += rng.uniform(30, 60)
            elif kind == 4:
                row[rng.integers(0, self.vocab_size, 4000)] += 30.0
            row[self._special[0]] += 90.0
        return logits


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    tokenizer = Tokenizer.load(locate_model())
    backend = Adoring(tokenizer)
    engine = Engine(backend, tokenizer.token_bytes, EngineConfig(max_num_seqs=16, kv_cache_memory=8 * 16 * 400))
    with LLM.from_runtime(Runtime(engine, tokenizer, Limits(), max_context=MAX_CONTEXT, max_num_seqs=16)) as made:
        yield made


def shortest(llm: LLM, spec: Any) -> int:
    """Tokens of the shortest answer."""
    runtime = llm._runtime
    constraint = runtime.constraint(llm.compile(spec), runtime._tokenizer.stop_ids)
    assert constraint is not None
    return len(constraint.shortest_completion())


def check(result: Result[Any], spec: Any, is_closable: bool) -> str:
    """One finished row: valid, or cut where no whole answer could fit."""
    assert result.status in ("ok", "truncated"), (spec, result)
    if result.status == "ok" or is_closable:
        judge_of(spec)(result.text)
        return "ok" if result.status == "ok" else "closed"
    return "cut"


def test_whatever_the_model_adores_ok_is_valid_and_what_could_be_closed_is_whole(llm: LLM, full: bool) -> None:
    rng = random.Random(5)
    assert len(OUTPUT_TYPES) >= 50
    kinds: Counter[str] = Counter()
    for round_number in range(ROUNDS_FULL if full else ROUNDS):
        options: dict[str, Any] = {
            "max_tokens": rng.choice([4, 20, 60, 150]),
            "temperature": rng.choice([0.0, 0.7, 2.0, 50.0]),
            "top_p": rng.choice([1.0, 0.9]),
            "seed": round_number,
        }
        rows = [(f"round {round_number}", spec) for spec in OUTPUT_TYPES]
        results = llm.batch(rows, show_schema=False, **options)
        for spec, result in zip(OUTPUT_TYPES, results):
            kinds[check(result, spec, shortest(llm, spec) <= options["max_tokens"])] += 1
    assert sum(kinds.values()) == len(OUTPUT_TYPES) * (ROUNDS_FULL if full else ROUNDS)
    assert kinds["ok"] > 20 and kinds["closed"] > 5, kinds
    print(kinds)
