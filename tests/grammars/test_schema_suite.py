"""JSON-Schema-Test-Suite: the verdicts are those of the expected-results file, group by group, and none is wrong.

Under spelling="any", property_order="any" and whitespace="flexible" the language is all texts of valid values, so the
verdicts are those of a validator. The native machine reads every group byte by byte, the twin a seeded tenth of them;
benchmarks/schema_suite.py asks the masks of a real vocabulary instead, and writes the file.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.schema_suite import PARTS, expectation, expected_results, part_of, text_of
from safegen._native import LimitExceeded
from safegen.errors import SchemaError, UnsatisfiableSchema
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.options import SchemaOptions
from tests.grammars.conftest import FACTORIES
from tests.support.suites import SUITE_DOCUMENTS, SuiteGroup, suite_groups

EXPECTED = Path(__file__).with_name("expected_schema_suite.json")
DRAFTS = ("draft4", "draft6", "draft7", "draft2019-09", "draft2020-12")
# Formats of which the decoder holds a part (safegen.grammars.json_schema.formats): some valid texts are not in it.
FORMATS_HELD_IN_PART = ("hostname.json",)
UPDATE = f"python benchmarks/schema_suite.py --expected tests/grammars/{EXPECTED.name}"


def judge(group: SuiteGroup, make_builder: Callable[..., Any]) -> dict[str, Any] | None:
    """What is not right about a group, as the expected-results file has it; None when all its tests are."""
    options = SchemaOptions("flexible", "any", "any", PARTS[part_of(group)], SUITE_DOCUMENTS)
    try:
        program = compile_json_schema(group.schema, options, make_builder=make_builder).program
        verdicts = [program.matches(text_of(test).encode()) for test in group.tests]
    except UnsatisfiableSchema:
        return expectation(group, None, [False] * len(group.tests))
    except SchemaError as error:
        return expectation(group, (error.pointer or "", error.keyword or ""), [])
    except LimitExceeded:
        return expectation(group, ("", "limit"), [])
    return expectation(group, None, verdicts)


@pytest.mark.parametrize("draft", DRAFTS)
def test_verdicts_are_the_expected_ones(draft: str) -> None:
    groups = [group for group in suite_groups(with_apart=True) if group.draft == draft]
    found = expected_results(groups, [judge(group, FACTORIES["native"]) for group in groups])
    expected = json.loads(EXPECTED.read_text())
    for name, part in found.items():
        assert part == expected[name], f"if every change is for the better: {UPDATE}"


def test_no_required_or_format_verdict_is_expected_to_be_wrong() -> None:
    """Optional tests that are no format tests ask for what other validators choose to do."""
    wrong = [
        f"{group}: {test}"
        for name, part in json.loads(EXPECTED.read_text()).items()
        if not name.endswith(" optional")
        for group, found in part["not_right"].items()
        if not any(known in group for known in FORMATS_HELD_IN_PART)
        for test in found.get("wrong", [])
    ]
    assert wrong == []


def test_twin_agrees_on_a_slice_of_the_suite() -> None:
    every = [group for group in suite_groups() if group.draft == "draft2020-12" and part_of(group) == "required"]
    for group in random.Random(20).sample(every, len(every) // 10):
        assert judge(group, FACTORIES["twin"]) == judge(group, FACTORIES["native"]), group.name
