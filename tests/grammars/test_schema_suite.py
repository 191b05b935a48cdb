"""JSON-Schema-Test-Suite: no test of a schema that compiles may get the wrong verdict.

Under spelling="any", property_order="any" and whitespace="flexible" the language is all texts of valid values, so the
verdicts are those of a validator. The native machine walks all groups, the twin a seeded tenth of them.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from safegen.errors import SchemaError
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.options import Formats, SchemaOptions
from tests.grammars.conftest import FACTORIES

SUITE = Path(os.environ.get("SAFEGEN_DATA", "../shared/data")) / "json-schema-test-suite.jsonl.gz"
DIALECTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
# Share of the required tests that must be decided (not refused), by draft: what is left is remote references, custom
# vocabularies, dynamic references, contains, uniqueItems, and schemas that no value satisfies.
DECIDED = {"draft4": 0.85, "draft6": 0.83, "draft7": 0.85, "draft2019-09": 0.80, "draft2020-12": 0.79}
FORMATS_WITHOUT_A_REGULAR_FORM = ("hostname.json: validation of A-label",)

pytestmark = pytest.mark.skipif(not SUITE.is_file(), reason=f"1 test suite is absent: {SUITE} (set SAFEGEN_DATA)")


def groups(draft: str, optional: bool) -> list[dict[str, Any]]:
    with gzip.open(SUITE, "rt", encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines]
    return [group for group in found if group["draft"] == draft and group["optional"] is optional]


def wrong_verdicts(
    group: dict[str, Any], formats: Formats, make_builder: Callable[..., Any]
) -> tuple[list[str], int, int]:
    """(wrong tests, decided tests, refused tests) of a group."""
    schema = group["schema"]
    if isinstance(schema, dict) and "$schema" not in schema:
        schema = {"$schema": DIALECTS[group["draft"]], **schema}
    try:
        options = SchemaOptions("flexible", "any", "any", formats)
        program = compile_json_schema(schema, options, make_builder=make_builder).program
    except SchemaError:
        return [], 0, len(group["tests"])
    wrong = []
    for test in group["tests"]:
        text = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":"))
        if program.matches(text.encode(errors="surrogatepass")) is not test["valid"]:
            wrong.append(f"{group['name']}: {test['description']}")
    return wrong, len(group["tests"]), 0


@pytest.mark.parametrize("draft", list(DIALECTS))
def test_required_part_has_no_wrong_verdict(draft: str) -> None:
    count: Counter[str] = Counter()
    wrong: list[str] = []
    for group in groups(draft, optional=False):
        bad, decided, refused = wrong_verdicts(group, "annotation", FACTORIES["native"])
        wrong += bad
        count.update(decided=decided, refused=refused)
    assert wrong == []
    assert count["decided"] / count.total() >= DECIDED[draft]


def test_twin_agrees_on_a_slice_of_the_suite() -> None:
    every = groups("draft2020-12", optional=False)
    sample = random.Random(20).sample(every, len(every) // 10)
    assert [name for group in sample for name in wrong_verdicts(group, "annotation", FACTORIES["twin"])[0]] == []


def test_known_formats_have_no_wrong_verdict() -> None:
    wrong: list[str] = []
    decided = 0
    for group in groups("draft2020-12", optional=True):
        if "optional/format/" not in group["name"] or any(n in group["name"] for n in FORMATS_WITHOUT_A_REGULAR_FORM):
            continue
        bad, count, _ = wrong_verdicts(group, "assert", FACTORIES["native"])
        wrong += bad
        decided += count
    assert wrong == []
    assert decided > 550
