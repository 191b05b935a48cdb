"""Loaders of the shared corpora that tests measure with. They are found through SAFEGEN_DATA and SAFEGEN_CASES, by
default in ../shared beside the repository; a test that needs an absent one is skipped."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("SAFEGEN_DATA") or _ROOT.parent / "shared" / "data")
CASES = Path(os.environ.get("SAFEGEN_CASES") or _ROOT.parent / "shared" / "cases")
APART_FILES = ("refRemote.json", "vocabulary.json")
_STRICTNESS = re.compile(r"\[strictness: reject ([\d, ]+)\]")
_DIALECTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}


@dataclass(frozen=True, slots=True)
class SuiteGroup:
    """One group of the JSON-Schema-Test-Suite. file: its name within the draft. schema: with `$schema` set."""

    name: str
    draft: str
    file: str
    is_optional: bool
    schema: Any
    tests: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ConstraintCase:
    """One row of constraints.jsonl. lenient_rejects: indexes of rejects that only a stricter reader than a validator
    refuses (a key twice, blanks, order of keys)."""

    id: str
    kind: str
    spec: Any
    options: dict[str, Any]
    accept: list[str]
    reject: list[str]
    expect: str
    note: str
    lenient_rejects: frozenset[int]


def _path(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.exists():
        pytest.skip(f"corpus absent: {path} is not there; set SAFEGEN_DATA and SAFEGEN_CASES")
    return path


def corpus_rows(stem: str) -> Iterator[dict[str, Any]]:
    """The rows of a corpus of JSON lines."""
    with gzip.open(_path(DATA, f"{stem}.jsonl.gz"), "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def suite_groups(path: Path | None = None, *, with_apart: bool = False) -> Iterator[SuiteGroup]:
    """The groups of the suite. with_apart: also those that need documents from elsewhere (refRemote) or custom
    vocabularies, which are counted apart. path: the file, by default the shared one."""
    with gzip.open(path or _path(DATA, "json-schema-test-suite.jsonl.gz"), "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            file = row["name"].partition("/")[2].partition(": ")[0]
            if file in APART_FILES and not with_apart:
                continue
            schema = row["schema"]
            if isinstance(schema, dict):
                schema = {"$schema": _DIALECTS[row["draft"]], **schema}
            yield SuiteGroup(row["name"], row["draft"], file, row["optional"], schema, row["tests"])


def constraint_cases() -> Iterator[ConstraintCase]:
    with _path(CASES, "constraints.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            match = _STRICTNESS.search(row["note"])
            yield ConstraintCase(
                id=row["id"],
                kind=row["kind"],
                spec=row["spec"],
                options=row["options"],
                accept=row["accept"],
                reject=row["reject"],
                expect=row["expect"],
                note=row["note"],
                lenient_rejects=frozenset(int(index) for index in match.group(1).split(",")) if match else frozenset(),
            )


def _remote(name: str, **keywords: Any) -> tuple[str, dict[str, Any]]:
    uri = f"http://localhost:1234/draft2020-12/{name}"
    return uri, {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": uri, **keywords}


def _list_of(reference: str) -> dict[str, Any]:
    return {"type": "array", "items": {"$dynamicRef": reference}}


# The documents that the suite's required tests of $dynamicRef expect behind their URIs.
SUITE_DOCUMENTS = dict(
    [
        _remote(
            "tree.json",
            **{"$dynamicAnchor": "node"},
            type="object",
            properties={"data": True, "children": _list_of("#node")},
        ),
        _remote(
            "extendible-dynamic-ref.json",
            **{"$defs": {"elements": {"$dynamicAnchor": "elements"}}},
            type="object",
            properties={"elements": _list_of("#elements")},
            required=["elements"],
            additionalProperties=False,
        ),
        _remote(
            "detached-dynamicref.json",
            **{
                "$ref": "#/$defs/foo",
                "$defs": {
                    "foo": {"$dynamicRef": "#detached"},
                    "detached": {"$dynamicAnchor": "detached", "type": "integer"},
                },
            },
        ),
    ]
)
