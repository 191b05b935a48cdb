"""JSON-Schema-Test-Suite: the verdict of the masks on every test of every group, safegen and its peers.

Texts are walked in compact form. safegen takes every spelling, any property order and flexible whitespace, so that its
verdicts should be a validator's. Parts, by draft:

    required   the required tests but refRemote and vocabulary, formats="annotation"
    format     optional/format, formats="assert"
    optional   the other optional tests, formats="annotation"
    apart      refRemote and vocabulary: they need documents that the suite's server would hand out

`--expected FILE` writes what safegen does with each group that is not all right. tests/grammars/test_schema_suite.py
compares a run with that file, so that no verdict changes unseen.

    python benchmarks/schema_suite.py --out FILE.json [--expected tests/grammars/expected_schema_suite.json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import data_folder, environment, version, write_report
from benchmarks.common.constraint_engines import PACKAGES
from benchmarks.common.vocabularies import VOCABULARIES, load_vocabulary
from benchmarks.common.walks import SchemaResult, Task, run_engine
from safegen.grammars.options import Formats
from tests.support.suites import APART_FILES, SuiteGroup, suite_groups

PARTS: dict[str, Formats] = {
    "required": "annotation",
    "format": "assert",
    "optional": "annotation",
    "apart": "annotation",
}
ENGINES = ("safegen", "llguidance", "xgrammar", "xgrammar_spec", "outlines")


def part_of(group: SuiteGroup) -> str:
    if group.file in APART_FILES:
        return "apart"
    if not group.is_optional:
        return "required"
    return "format" if group.file.startswith("optional/format/") else "optional"


def text_of(test: Mapping[str, Any]) -> str:
    """A test's instance in compact form; escaped where UTF-8 cannot hold it (lone surrogates)."""
    text = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(test["data"], separators=(",", ":"))
    return text


def expectation(group: SuiteGroup, refusal: tuple[str, str] | None, verdicts: Sequence[bool]) -> dict[str, Any] | None:
    """What the expected-results file holds of a group; None when all its tests are right.

    refusal: (pointer, keyword) when the schema was refused. verdicts: of the tests in order.
    """
    if refusal is not None:
        return {"refused": list(refusal)}
    wrong = [test["description"] for test, accepted in zip(group.tests, verdicts) if accepted is not test["valid"]]
    return {"wrong": wrong} if wrong else None


def expected_results(groups: Sequence[SuiteGroup], found: Iterable[dict[str, Any] | None]) -> dict[str, Any]:
    """The content of the expected-results file: by draft and part the size of it, and the groups not all right."""
    by_part: dict[str, Any] = {}
    for group, expected in zip(groups, found):
        part = by_part.setdefault(f"{group.draft} {part_of(group)}", {"groups": 0, "tests": 0, "not_right": {}})
        part["groups"] += 1
        part["tests"] += len(group.tests)
        if expected is not None:
            part["not_right"][group.name] = expected
    return by_part


def figures_of(engine: str, groups: Sequence[SuiteGroup], results: Sequence[SchemaResult]) -> dict[str, float]:
    """Tests by draft and part: how many there are, percent right, percent refused, and how many wrong in each way."""
    counts: dict[str, dict[str, int]] = {}
    for group, result in zip(groups, results):
        count = counts.setdefault(f"{engine}.{group.draft}.{part_of(group)}", dict.fromkeys(_COUNTED, 0))
        count["tests"] += len(group.tests)
        if result.refused is not None:
            count["refused"] += len(group.tests)
            continue
        for test, text in zip(group.tests, result.texts):
            count["wrong_accept"] += text.accepted and not test["valid"]
            count["wrong_reject"] += test["valid"] and not text.accepted
    figures: dict[str, float] = {}
    for name, count in counts.items():
        tests, refused = count["tests"], count["refused"]
        right = tests - refused - count["wrong_accept"] - count["wrong_reject"]
        figures |= {f"{name}.tests": tests, f"{name}.right_pct": 100 * right / tests}
        figures |= {f"{name}.refused_pct": 100 * refused / tests}
        figures |= {f"{name}.{key}": count[key] for key in ("wrong_accept", "wrong_reject")}
    return figures


_COUNTED = ("tests", "refused", "wrong_accept", "wrong_reject")


def row_of(group: SuiteGroup, results: Mapping[str, SchemaResult]) -> dict[str, object]:
    row: dict[str, object] = {"name": group.name, "draft": group.draft, "part": part_of(group)}
    for engine, result in results.items():
        if result.refused is not None:
            row[engine] = {"refused": result.refused[:300], "pointer": result.pointer, "keyword": result.keyword}
            continue
        row[engine] = expectation(group, None, [text.accepted for text in result.texts]) or "right"
    return row


def print_wrong(engine: str, groups: Sequence[SuiteGroup], results: Sequence[SchemaResult]) -> None:
    for title, wanted in (("wrongly accepts", False), ("wrongly rejects", True)):
        names = [
            f"{group.name}: {test['description']}"
            for group, result in zip(groups, results)
            for test, text in zip(group.tests, result.texts)
            if test["valid"] is wanted and text.accepted is not wanted
        ]
        shown = names if engine == "safegen" else names[:5]
        print(f"{engine} {title} {len(names)}" + "".join(f"\n  {name}" for name in shown))


def print_table(figures: Mapping[str, float]) -> None:
    print(f"\n{'part':44}{'tests':>7}{'right %':>9}{'refused %':>11}{'accepts':>9}{'rejects':>9}")
    for name in sorted(key.removesuffix(".tests") for key in figures if key.endswith(".tests")):
        a, b, c, d, e = (
            figures[f"{name}.{key}"] for key in ("tests", "right_pct", "refused_pct", "wrong_accept", "wrong_reject")
        )
        print(f"{name:44}{a:7.0f}{b:9.2f}{c:11.2f}{d:9.0f}{e:9.0f}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = data_folder() / "json-schema-test-suite.jsonl.gz"
    parser.add_argument("--data", type=Path, default=default, help="gzipped JSON lines")
    parser.add_argument("--vocab", choices=VOCABULARIES, default="smollm")
    parser.add_argument("--engines", default="safegen", help=f"comma-separated, of {', '.join(ENGINES)}")
    parser.add_argument("--drafts", default="2020-12,2019-09,7,6,4", help="comma-separated")
    parser.add_argument("--limit", type=int, help="the first so many groups")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds one schema may take in one engine")
    parser.add_argument("--expected", type=Path, help="write the expected results of safegen to this file")
    parser.add_argument("--out", type=Path, help="write figures and rows to this JSON file")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    wanted = arguments.engines.split(",")
    if unknown := set(wanted) - set(ENGINES):
        sys.exit(f"--engines: {', '.join(sorted(unknown))} is not one of {', '.join(ENGINES)}")
    missing = sorted({PACKAGES[name] for name in wanted if name in PACKAGES and version(PACKAGES[name]) is None})
    engines = [name for name in wanted if PACKAGES.get(name) not in missing]
    drafts = {f"draft{draft}" for draft in arguments.drafts.split(",")}
    groups = [group for group in suite_groups(arguments.data, with_apart=True) if group.draft in drafts]
    groups = groups[: arguments.limit]
    described = environment(
        engines={name: version(PACKAGES.get(name, "safegen")) or "this working tree" for name in engines},
        missing=missing,
        vocabulary=arguments.vocab,
        data=arguments.data.name,
        groups=len(groups),
    )
    print(json.dumps(described, indent=2), flush=True)
    for package in missing:
        print(f"missing: {package} is not installed; pip install 'safegen[bench]'", flush=True)
    encode = load_vocabulary(arguments.vocab).encode
    tasks = [
        Task(g.name, g.schema, PARTS[part_of(g)], [(test["valid"], encode(text_of(test))) for test in g.tests])
        for g in groups
    ]
    results = {name: run_engine(name, tasks, arguments.vocab, None, arguments.timeout) for name in engines}
    figures = {key: value for name in engines for key, value in figures_of(name, groups, results[name]).items()}
    rows = [row_of(group, {name: results[name][i] for name in engines}) for i, group in enumerate(groups)]
    write_report(arguments.out, described, figures, rows)
    if arguments.expected:
        found = [_expectation_of(group, result) for group, result in zip(groups, results["safegen"])]
        arguments.expected.write_text(json.dumps(expected_results(groups, found), indent=1) + "\n")
    for name in engines:
        print_wrong(name, groups, results[name])
    print_table(figures)


def _expectation_of(group: SuiteGroup, result: SchemaResult) -> dict[str, Any] | None:
    refusal = None if result.refused is None else (result.pointer or "", result.keyword or "")
    return expectation(group, refusal, [text.accepted for text in result.texts])


if __name__ == "__main__":
    main()
