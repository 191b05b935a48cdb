"""On the default model, answers with and without speculation are the same, token by token: greedy and seeded, free and
constrained, alone and in company. SAFEGEN_FULL=1 takes 200 prompts instead of a dozen, and 256 requests of one text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from safegen.llm import LLM
from safegen.speculation import Speculation
from safegen.types import Choice, JsonSchema, Regex, Think

IS_FULL = bool(os.environ.get("SAFEGEN_FULL"))
NUM_PROMPTS, MAX_TOKENS = (200, 64) if IS_FULL else (12, 40)
CONCURRENCY = [1, 4, 8, 16, 32]


class Person(BaseModel):
    name: str = Field(max_length=24)
    age: int = Field(ge=0, le=130)
    city: str = Field(max_length=24)
    member: bool


class Order(BaseModel):
    order_number: int = Field(ge=1, le=99_999)
    status: Literal["ordered", "shipped", "delivered"]
    items: list[str] = Field(max_length=3)


PEOPLE = ["Maria Lopez, 34, Lisbon", "John Smith of Leeds is 52", "Aiko Tanaka (27), Osaka", "Ada Ames, Bonn, aged 61"]
TASKS: list[tuple[str, Any]] = [
    ("Extract the person: {0}. Member since {1}.", Person),
    ("Order {1} of {0} was shipped. Extract the order.", Order),
    ("Write two sentences about {0}, number {1}.", None),
    ("Repeat after me, word by word: {0} met {0} in {1}, and {0} met {0} in {1} again.", None),
    ("Is {0} person {1}?", Choice(["certainly", "certainly not", "perhaps"])),
    ("A date for {0} ({1}):", Regex(r"20\d\d-(0[1-9]|1[0-2])-[0-3]\d")),
    ("List numbers for {0}: {1}", JsonSchema({"type": "array", "items": {"type": "integer"}, "maxItems": 4})),
    ("Think, then extract: {0} {1}", Think(Person, max_tokens=12)),
]
ROWS = [
    (task.format(PEOPLE[place % len(PEOPLE)], 1900 + place), kind)
    for place, (task, kind) in ((place, TASKS[place % len(TASKS)]) for place in range(NUM_PROMPTS))
]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(max_num_seqs=32) as loaded:
        yield loaded


def answers(llm: LLM, rows: list[Any], num_together: int, **options: Any) -> list[tuple[str, str, int]]:
    found: list[tuple[str, str, int]] = []
    for start in range(0, len(rows), num_together):
        results = llm.batch(rows[start : start + num_together], **options)
        found += [(result.status, result.text, result.usage.completion_tokens) for result in results]
    return found


@pytest.fixture(scope="module")
def greedy(llm: LLM) -> list[tuple[str, str, int]]:
    return answers(llm, ROWS, 4, max_tokens=MAX_TOKENS, speculation=False)


@pytest.mark.parametrize("num_together", CONCURRENCY)
def test_greedy_answers_are_those_without_speculation(
    llm: LLM, greedy: list[tuple[str, str, int]], num_together: int
) -> None:
    assert answers(llm, ROWS, num_together, max_tokens=MAX_TOKENS) == greedy


@pytest.mark.parametrize("drafter", ["forced", "ngram"])
def test_each_drafter_alone_leaves_greedy_answers_as_they_are(
    llm: LLM, greedy: list[tuple[str, str, int]], drafter: str
) -> None:
    rows, wanted = ROWS[:8], greedy[:8]
    speculation = Speculation(drafters=(drafter,), share_outputs=True)
    for _ in range(2):  # the second time the corpus holds the answers themselves
        assert answers(llm, rows, 8, max_tokens=MAX_TOKENS, speculation=speculation) == wanted


def test_seeded_answers_are_those_without_speculation(llm: LLM) -> None:
    rows = ROWS[:8] if not IS_FULL else ROWS
    options: dict[str, Any] = {"max_tokens": 32, "temperature": 0.8, "top_p": 0.95, "seed": 11, "min_p": 0.02}
    wanted = answers(llm, rows, 8, speculation=False, **options)
    assert answers(llm, rows, 1, **options) == wanted
    assert answers(llm, rows, 8, **options) == wanted


FIXED_TEXT = (
    '{"version":3,"kind":"quarterly statement of accounts","currency":"EUR","is_final":true,"signed_by":["A. Ames",'
    '"B. Bohr","C. Curie"],"note":'
    '"All amounts are in thousands, rounded half to even; see parts 12-3 of the handbook."}'
)


@pytest.mark.parametrize("drafters", [("forced",), ("ngram",), ("forced", "ngram")], ids="+".join)
@pytest.mark.parametrize("num_together", CONCURRENCY if IS_FULL else [1, 8])
def test_a_grammar_of_one_text_gives_that_text_each_time(
    llm: LLM, drafters: tuple[str, ...], num_together: int
) -> None:
    assert len(FIXED_TEXT) == 225
    count = 256 if IS_FULL else num_together
    one_text = Choice([FIXED_TEXT])
    rows = [(f"Statement {number}", one_text) for number in range(count)]
    speculation = Speculation(drafters=drafters, share_outputs=True)
    for start in range(0, count, num_together):
        for result in llm.batch(rows[start : start + num_together], speculation=speculation, show_schema=False):
            assert (result.status, result.text) == ("ok", FIXED_TEXT)
            assert result.usage.accepted <= result.usage.drafted


def test_usage_tells_what_each_drafter_did(llm: LLM) -> None:
    result = llm.generate(*ROWS[0], max_tokens=MAX_TOKENS)
    usage = result.usage
    assert usage.by_drafter["forced"].accepted > 3
    assert usage.drafted == sum(counts.drafted for counts in usage.by_drafter.values())
    assert usage.accepted == sum(counts.accepted for counts in usage.by_drafter.values())
    assert usage.forwards + usage.accepted >= usage.completion_tokens > usage.forwards
    off = llm.generate(*ROWS[0], max_tokens=MAX_TOKENS, speculation=False).usage
    assert (off.drafted, off.forwards, off.by_drafter) == (0, off.completion_tokens, {})
