"""The validator on public corpora: the JSON-Schema-Test-Suite and the constraint cases. Deviations are listed here."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from safegen.errors import SchemaError
from safegen.validation import SchemaValidator
from tests.support.suites import SuiteGroup, constraint_cases, suite_groups

# Groups that need a document from elsewhere: references are never fetched.
NEEDS_REMOTE_DOCUMENTS = {
    "draft2020-12/dynamicRef.json: strict-tree schema, guards against misspelled properties",
    "draft2020-12/dynamicRef.json: tests for implementation dynamic anchor and reference link",
    "draft2020-12/dynamicRef.json: $ref and $dynamicAnchor are independent of order - $defs first",
    "draft2020-12/dynamicRef.json: $ref and $dynamicAnchor are independent of order - $ref first",
    "draft2020-12/dynamicRef.json: $ref to $dynamicRef finds detached $dynamicAnchor",
}
# Optional behaviour that is not ours: `dependencies` is no keyword after draft 7, `content*` are annotations, other
# documents and metaschemas are refused, 1.0 is an integer in every draft.
OPTIONAL_FILES_NOT_FOLLOWED = {
    "optional/content.json",
    "optional/cross-draft.json",
    "optional/dependencies-compatibility.json",
    "optional/format-assertion.json",
    "optional/zeroTerminatedFloats.json",
}


def deviations(group: SuiteGroup) -> list[str]:
    """Tests of a group whose verdict differs from the suite's."""
    formats = "assert" if group.file.startswith("optional/format/") and "unknown" not in group.file else "known"
    if not group.is_optional:
        formats = "annotation"
    try:
        validator = SchemaValidator(json.dumps(group.schema), formats=formats)  # type: ignore[arg-type]
    except SchemaError as error:
        return [f"{group.name}: {error}"]
    wrong = []
    for test in group.tests:
        status = validator.outcome(json.dumps(test["data"], ensure_ascii=False)).status
        if status != ("valid" if test["valid"] else "invalid"):
            wrong.append(f"{group.name}: {test['description']}: {status}")
    return wrong


@pytest.mark.parametrize("draft", ["draft4", "draft6", "draft7", "draft2019-09", "draft2020-12"])
def test_the_required_suite_passes(draft: str) -> None:
    groups = [group for group in suite_groups() if group.draft == draft and not group.is_optional]
    wrong = [line for group in groups if group.name not in NEEDS_REMOTE_DOCUMENTS for line in deviations(group)]
    assert wrong == []
    assert sum(len(group.tests) for group in groups) > 500


def test_groups_that_need_other_documents_are_refused() -> None:
    groups = [group for group in suite_groups() if group.name in NEEDS_REMOTE_DOCUMENTS]
    assert len(groups) == len(NEEDS_REMOTE_DOCUMENTS)
    for group in groups:
        with pytest.raises(SchemaError, match="never fetched"):
            SchemaValidator(group.schema)


def test_the_optional_suite_passes_but_for_the_listed_files() -> None:
    groups = [group for group in suite_groups() if group.is_optional]
    wrong = [line for group in groups if group.file not in OPTIONAL_FILES_NOT_FOLLOWED for line in deviations(group)]
    assert wrong == []
    formats = Counter(group.file for group in groups if group.file.startswith("optional/format/"))
    assert len(formats) > 18


def test_constraint_cases_have_the_right_verdicts() -> None:
    wrong = []
    num_texts = 0
    for case in constraint_cases():
        if case.kind != "schema":
            continue
        try:
            validator = SchemaValidator(case.spec)
        except SchemaError as error:
            if case.expect == "enforce":
                wrong.append(f"{case.id}: {error}")
            continue
        num_texts += len(case.accept) + len(case.reject)
        wrong += [f"{case.id}: accept {text}" for text in case.accept if not validator.outcome(text).is_valid]
        for index, text in enumerate(case.reject):
            if index not in case.lenient_rejects and validator.outcome(text).status != "invalid":
                wrong.append(f"{case.id}: reject {text}")
    assert wrong == []
    assert num_texts > 1000
