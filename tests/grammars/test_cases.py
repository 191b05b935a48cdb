"""Every row of the shared case file gets the right verdict or a typed refusal; none is accepted silently."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from safegen.errors import GrammarError, SchemaError
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.options import SchemaOptions
from safegen.grammars.regex import compile_regex

CASES = Path(os.environ.get("SAFEGEN_CASES", "../shared/cases")) / "constraints.jsonl"
KINDS = ("schema", "regex")


def rows() -> list[dict[str, Any]]:
    if not CASES.is_file():
        return []
    lines = CASES.read_text(encoding="utf-8").split("\n")
    return [row for line in lines if line and (row := json.loads(line))["kind"] in KINDS]


def compiled(row: dict[str, Any], make_builder: Callable[..., Any]) -> Any:
    if row["kind"] == "regex":
        return compile_regex(row["spec"], make_builder=make_builder)
    return compile_json_schema(row["spec"], SchemaOptions(**row["options"]), make_builder=make_builder).program


@pytest.mark.skipif(not CASES.is_file(), reason=f"1 case file is absent: {CASES} (set SAFEGEN_CASES)")
def test_case_file_has_rows_of_both_kinds() -> None:
    assert {row["kind"] for row in rows()} == set(KINDS)
    assert len(rows()) > 200


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["id"])
def test_case_has_the_right_verdicts_or_a_typed_refusal(row: dict[str, Any], make_builder: Callable[..., Any]) -> None:
    if row["expect"] in ("error", "refuse"):
        with pytest.raises((SchemaError, GrammarError)):
            compiled(row, make_builder)
        return
    try:
        program = compiled(row, make_builder)
    except (SchemaError, GrammarError):
        assert row["expect"] == "enforce_or_refuse"
        return
    verdicts = {text: program.matches(text.encode(errors="surrogatepass")) for text in row["accept"] + row["reject"]}
    assert [text for text in row["accept"] if not verdicts[text]] == []
    assert [text for text in row["reject"] if verdicts[text]] == []
