"""A set of guards: unique names, failing closed, one deadline, and its way to data and back."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from safegen.errors import RequestError
from safegen.guards import register
from safegen.guards.base import Allow, Block, Edit, Guard, GuardView, Match, Replace, Retry
from safegen.guards.custom import Adapted, Custom
from safegen.guards.guards import Guards, as_guard, as_guards
from safegen.guards.refusal import Refusal
from safegen.guards.running import run_guards
from tests.support.guards import Raising, Ssn, Word, entries
from tests.support.sdk_fakes import ScriptedBackend, make_llm

register(Ssn)
register(Word)


class Sleeping(Guard):
    def __init__(self, *, seconds: float = 5.0, **common: Any) -> None:
        super().__init__(**common)
        self.seconds = seconds

    def find(self, view: GuardView) -> Sequence[Match]:
        time.sleep(self.seconds)
        return []


def _run(*guards: Guard, text: str = "some secret", deadline_s: float = 5.0) -> list[Any]:
    found = run_guards(entries(*guards), GuardView(text), deadline_s)
    return [finding.failure or finding.verdict for finding in found]


def test_two_guards_of_one_class_keep_their_own_findings() -> None:
    guards = Guards([Word("secret"), Word("some"), Word("some", name="word_2")])
    assert guards.names == ("word", "word_2", "word_2_2")
    findings = run_guards(guards.entries, GuardView("a secret"), 5.0)
    assert [type(finding.verdict) for finding in findings] == [Block, Allow, Allow]


def test_a_guard_that_raises_has_failed() -> None:
    assert _run(Raising(), Word()) == ["error", Block((Match(5, 11, "secret"),))]


@pytest.mark.parametrize(
    "found", [[Match(3, 99, "x")], [Match(-1, 2, "x")], [Match(4, 2, "x")], [(1.5, 2)], ["x"], True, "text", [(1,)]]
)
def test_findings_that_are_none_of_the_text_are_failures(found: Any) -> None:
    assert _run(Custom(lambda view: found)) == ["error"]


def test_a_function_may_return_matches_in_short() -> None:
    assert _run(Custom(lambda view: None), Custom(lambda view: [])) == [Allow(), Allow()]
    assert _run(Custom(lambda view: [(0, 1), (1, 2, "r")], rule="q")) == [Block((Match(0, 1, "q"), Match(1, 2, "r")))]


def test_guards_that_wait_run_side_by_side_within_their_time() -> None:
    started = time.perf_counter()
    found = _run(Sleeping(seconds=0.2), Sleeping(seconds=0.2), Sleeping(seconds=0.2), Sleeping(timeout_s=0.05))
    assert found == [Allow(), Allow(), Allow(), "timeout"]
    assert time.perf_counter() - started < 0.55


def test_the_deadline_holds_for_all_together() -> None:
    started = time.perf_counter()
    assert _run(Sleeping(), Word(), Sleeping(), deadline_s=0.1) == [
        "timeout",
        Block((Match(5, 11, "secret"),)),
        "timeout",
    ]
    assert time.perf_counter() - started < 2


def test_an_inline_guard_that_takes_too_long_has_failed() -> None:
    class Slow(Word):
        def find(self, view: GuardView) -> Sequence[Match]:
            time.sleep(0.05)
            return []

    assert _run(Slow(timeout_s=0.01)) == ["timeout"]


def test_any_object_with_a_check_is_a_guard() -> None:
    class Foreign:
        name = "foreign"
        hold_bound = 3

        def __init__(self, verdict: Any) -> None:
            self.verdict = verdict

        def check(self, view: GuardView) -> Any:
            return self.verdict

        def frontier(self, text: str) -> int:
            return max(0, len(text) - 3)

    for verdict in (Allow(), Block((Match(0, 1, "x"),)), Retry("again", ()), Replace(())):
        adapted = as_guard(Foreign(verdict))
        assert _run(adapted) == [verdict]
        assert (adapted.name, adapted.hold_bound, adapted.frontier("abcdef")) == ("foreign", 3, 3)
    assert _run(as_guard(Foreign("yes"))) == ["error"]
    assert isinstance(as_guard(Foreign(None)), Adapted)


class _Judge:
    """Its verdict is what it was made with."""

    name = "judge"

    def __init__(self, verdict: Any) -> None:
        self.verdict = verdict

    def check(self, view: GuardView) -> Any:
        return self.verdict


@pytest.mark.parametrize(
    "verdict",
    [
        Replace((Edit(0, 3, None, "r"),)), Replace((Edit(0, 3, "\ud83d", "r"),)), Replace((Edit(0, 3, "x", None),)),
        Block(None), Block((Match(0, 2, None),)), Block((Match(0, 2, "r", float("nan")),)), Allow(5),
        Block((Match(0, 2, "r", "high"),)), Retry(None, (Match(0, 1, "r"),)), Replace((3,)), Block("text"),
    ],
)  # fmt: skip
def test_a_verdict_that_cannot_be_kept_is_a_failure(verdict: Any) -> None:
    assert _run(as_guard(_Judge(verdict))) == ["error"]


@pytest.mark.parametrize("verdict", [Block(()), Retry("again", ())])
def test_a_verdict_without_a_place_is_about_the_whole_text(verdict: Any) -> None:
    with make_llm(ScriptedBackend("hello")) as llm:
        result = llm.generate("go", guards=_Judge(verdict), max_tokens=20)
    assert (result.status, result.text, result.error.guard) == ("blocked", "", "judge")


@pytest.mark.parametrize("given", [object(), [3], "PII", Word, {"type": "Word", "size": 1}])
def test_what_is_no_guard_is_refused(given: Any) -> None:
    with pytest.raises(RequestError):
        as_guards(given)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("deadline_s", 0), ("deadline_s", "soon"), ("max_retries", -1), ("max_retries", 11), ("on_block", str),
        ("audit", 3), ("audit_key", "text"), ("audit_key", b"short"), ("audit", "/no/such/folder/audit.jsonl"),
        ("audit", "a\0b"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(key: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        Guards([], **{key: value})
    assert caught.value.field == key


def test_a_set_becomes_data_and_comes_back() -> None:
    guards = Guards([Word("x", on_fail="redact"), Ssn(where="$.a")], deadline_s=2.5, max_retries=1, on_block=Refusal)
    described = {
        "guards": [{"type": "Word", "word": "x", "on_fail": "redact"}, {"type": "Ssn", "where": ["$.a"]}],
        "deadline_s": 2.5, "max_retries": 1, "on_block": "Refusal",
    }  # fmt: skip
    assert guards.to_dict() == described
    again = Guards.from_dict(described)
    assert again.to_dict() == described
    assert again.config == guards.config
    assert Guards.from_dict(described["guards"]).names == ("word", "ssn")


def test_a_yaml_file_is_a_set(tmp_path: Path) -> None:
    path = tmp_path / "guards.yaml"
    path.write_text("guards:\n  - type: Word\n    word: x\n    on_fail: redact\n  - type: Ssn\nmax_retries: 0\n")
    guards = Guards.from_yaml(path)
    assert guards.names == ("word", "ssn")
    assert guards.max_retries == 0


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("guards:\n  - type: Word\n    wrod: x\n", ("wrod", "'x'")),
        ("guards:\n  - type: Wrod\n", ("Wrod",)),
        ("guards:\n  - word: x\n", ("type",)),
        ("guards: 3\n", ("guards", "3")),
        ("gards: []\n", ("gards",)),
        ("guards:\n  - type: Word\n    on_fail: explode\n", ("on_fail", "explode")),
        ("guards: [}\n", ("YAML",)),
        ("on_block: Sorry\n", ("on_block", "Sorry")),
    ],
)
def test_a_wrong_file_is_refused_by_file_key_and_value(tmp_path: Path, text: str, named: tuple[str, ...]) -> None:
    path = tmp_path / "guards.yaml"
    path.write_text(text)
    with pytest.raises(RequestError, match=re.escape(str(path))) as caught:
        Guards.from_yaml(path)
    assert all(part in str(caught.value) for part in named)
    with pytest.raises(RequestError, match="cannot be read"):
        Guards.from_yaml(tmp_path / "none.yaml")


def test_a_call_adds_guards_and_takes_none_away() -> None:
    own = Guards([Ssn()], audit_key=b"k" * 16, on_block=Refusal)
    both = own.plus(as_guards(Word()))
    assert both.names == ("ssn", "word")
    assert (both.on_block, both.digests) == (Refusal, own.digests)
    assert own.plus(Guards([], max_retries=7)).max_retries == 7


def test_what_a_call_does_not_say_stays_as_the_model_has_it() -> None:
    own = Guards([Ssn()], deadline_s=0.5, max_retries=0, audit_key=b"k" * 16)
    both = own.plus(Guards([Word()], audit_key=b"another key, 16+"))
    assert (both.deadline_s, both.max_retries, both.digests) == (0.5, 0, own.digests)
    assert own.plus(Guards([Word()], deadline_s=9)).deadline_s == 9
    assert Guards([Ssn()]).plus(both).deadline_s == 0.5
    said = Guards.from_dict(Guards([], deadline_s=5.0, max_retries=2).to_dict())
    assert (own.plus(said).deadline_s, own.plus(said).max_retries) == (5.0, 2)


def test_a_set_within_a_list_keeps_its_settings() -> None:
    seen = list[Any]()
    own = Guards([Ssn()], deadline_s=0.5, max_retries=0, on_block=Refusal, audit=seen.append, audit_key=b"k" * 16)
    for taken in (Guards([own, Word()]), as_guards([Word(), own]), Guards([Guards([own]), Guards([Word()])])):
        assert set(taken.names) == {"ssn", "word"}
        assert (taken.deadline_s, taken.max_retries, taken.on_block) == (0.5, 0, Refusal)
        assert (taken.audit, taken.digests) == (own.audit, own.digests)
    assert Guards([own, Guards([Word()], max_retries=7)]).max_retries == 7
    outer = Guards([own], deadline_s=9, audit_key=b"another key, 16+")
    assert (outer.deadline_s, outer.max_retries, outer.digests.key) == (9, 0, b"another key, 16+")


def test_a_call_with_a_record_of_its_own_does_not_silence_the_models() -> None:
    own, added = list[Any](), list[Any]()
    guards = Guards([Ssn()], audit=own.append)
    with make_llm(ScriptedBackend("x"), guards=guards) as llm:
        llm.generate("go", guards=Guards([Word()], audit=added.append))
        llm.generate("go", guards=Guards([Word()], audit=guards.audit))
    assert [len(each) for each in own] == [4, 4]
    assert added == own[:1]
