"""Every grammar row of the case files gets the right verdicts or a typed error, in bounded time and memory."""

from __future__ import annotations

import json
import os
import time
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from safegen.errors import GrammarError
from safegen.grammars.lark_grammar import compile_grammar

CASES = Path(os.environ.get("SAFEGEN_CASES") or Path(__file__).resolve().parents[3] / "shared" / "cases")
BUILTINS = {"len": len, "list": list, "range": range, "str": str}


def rows() -> list[dict[str, Any]]:
    found = []
    for name in ("constraints.jsonl", "abuse.jsonl"):
        if (CASES / name).is_file():
            lines = (CASES / name).read_text(encoding="utf-8").split("\n")
            found += [
                row for line in lines if line and "grammar" in (row := json.loads(line)).get("spec_kind", row["kind"])
            ]
    return found


def spec_of(row: dict[str, Any]) -> str:
    spec = row["spec"]
    if isinstance(spec, dict):
        spec = eval(spec["generate"], {"__builtins__": BUILTINS, "reduce": reduce})
    assert isinstance(spec, str)
    return spec


@pytest.mark.skipif(not CASES.is_dir(), reason=f"corpus absent: {CASES}")
def test_case_files_hold_grammars() -> None:
    assert len(rows()) >= 30


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["id"])
def test_grammar_case_has_the_right_verdicts_or_a_typed_error(row: dict[str, Any]) -> None:
    started = time.monotonic()
    try:
        program = compile_grammar(spec_of(row)).program
    except GrammarError:
        assert row["expect"] != "enforce"
    else:
        assert row["expect"] in ("enforce", "enforce_or_refuse")
        assert [text for text in row["accept"] if not program.matches(text.encode())] == []
        assert [text for text in row["reject"] if program.matches(text.encode())] == []
    assert time.monotonic() - started < row.get("limits", {"seconds": 10})["seconds"]
