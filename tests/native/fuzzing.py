"""Fuzzing of the front ends: corpora are mutated, and whatever comes of it, the outcome is a typed error or a program
that keeps its promises on a few random walks.

    python -m tests.native.fuzzing FRONT_END SECONDS [SEED]

Inputs are drawn from a seed alone, so a run is repeated by its seed; the one being tried is in build/fuzz/FRONT_END,
which is where to look after a crash. One that takes longer than MAX_INPUT_S ends the process with a traceback.
`make fuzz` runs this under the sanitizers.
"""

from __future__ import annotations

import faulthandler
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from safegen._native import LimitExceeded, Program
from safegen.errors import GrammarError, SchemaError
from safegen.grammars.gbnf import from_gbnf
from safegen.grammars.json_schema import check_json_schema, compile_json_schema
from safegen.grammars.lark_grammar import compile_grammar
from safegen.grammars.options import Limits, SchemaOptions
from safegen.grammars.regex import compile_regex
from tests.grammars.walking import Walker, WalkStats
from tests.native.fuzz_bytes import BytePrograms
from tests.native.fuzz_corpora import CORPORA, WORDS
from tests.native.fuzz_mutation import Mutator

FOLDER = Path(__file__).resolve().parents[2] / "build" / "fuzz"
MAX_INPUT_S = 240
LIMITS = Limits(
    compile_deadline_s=3.0, max_states=30_000, max_pattern_chars=4000, max_grammar_chars=20_000, max_productions=5000
)
OPTIONS = (
    SchemaOptions(formats="known"),
    SchemaOptions("flexible", "any", "any"),
    SchemaOptions("flexible", formats="annotation"),
)


def try_schema(text: str, rng: random.Random) -> tuple[Program, bool]:
    options = rng.choice(OPTIONS)
    if rng.random() < 0.1:
        check_json_schema(text, options, LIMITS)
    compiled = compile_json_schema(text, options, LIMITS)
    return compiled.program, any(finding.handling == "verified" for finding in compiled.findings)


def try_regex(text: str, rng: random.Random) -> tuple[Program, bool]:
    return compile_regex(text, LIMITS), False


def try_grammar(text: str, rng: random.Random) -> tuple[Program, bool]:
    return compile_grammar(text, limits=LIMITS).program, "%json" in text


def try_gbnf(text: str, rng: random.Random) -> tuple[Program, bool]:
    return compile_grammar(from_gbnf(text), limits=LIMITS).program, False


Try = Callable[[str, random.Random], tuple[Program, bool]]
TEXT_FRONT_ENDS: dict[str, Try] = {"schema": try_schema, "regex": try_regex, "grammar": try_grammar, "gbnf": try_gbnf}
FRONT_ENDS = (*TEXT_FRONT_ENDS, "bytes")


def outcome_of(front_end: str, text: str, rng: random.Random) -> str:
    """What comes of one input: the name of a typed error, "limit", or "walked"."""
    try:
        program, may_verify = TEXT_FRONT_ENDS[front_end](text, rng)
    except (SchemaError, GrammarError) as error:
        return type(error).__name__
    try:
        Walker(program, rng, WalkStats(), may_verify=may_verify).walk(rng.randrange(6))
    except LimitExceeded:
        return "limit"
    return "walked"


class Fuzzer:
    """outcomes: how often what came of it."""

    def __init__(self, front_end: str, seed: int) -> None:
        self.front_end = front_end
        self.rng = random.Random(f"{front_end} {seed}")
        self.outcomes: Counter[str] = Counter()
        self.path = FOLDER / front_end
        if front_end == "bytes":
            self.bytes = BytePrograms(self.rng, CORPORA["schema"](), LIMITS)
        else:
            self.mutator = Mutator(self.rng, CORPORA[front_end](), WORDS[front_end])

    def run(self, seconds: float) -> Counter[str]:
        """Raises what is no typed error, with the input as a note. Ends the process where one input never ends."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            faulthandler.dump_traceback_later(MAX_INPUT_S, exit=True)
            self.outcomes["inputs"] += 1
            self.step()
        faulthandler.cancel_dump_traceback_later()
        return self.outcomes

    def step(self) -> None:
        if self.front_end == "bytes":
            self.bytes.step(self.path, self.outcomes)
            return
        text = self.mutator.draw()
        self.path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            self.outcomes[outcome_of(self.front_end, text, self.rng)] += 1
        except Exception as error:
            error.add_note(f"{self.front_end}: {text!r}")
            raise


if __name__ == "__main__":
    name, seconds, *seed = sys.argv[1:]
    print(name, dict(Fuzzer(name, int(seed[0]) if seed else 0).run(float(seconds))))
