"""Logs tell which request did what, and never a word of what was asked or answered."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from safegen.engine.speculate.speculator import Speculator
from safegen.errors import RequestError, SchemaError
from safegen.guards.base import GuardView, Match
from safegen.guards.custom import Custom
from safegen.llm import LLM
from safegen.speculation import Speculation
from safegen.types import Choice, JsonSchema, Regex
from tests.support.sdk_fakes import ScriptedBackend, make_llm

WORDS = ("zebrafinch", "marmalade", "quokka", "obsidian")


def use(llm: LLM) -> None:
    """Every way in and every way out, with words that stand nowhere else."""
    schema = {"type": "object", "properties": {"marmalade": {"const": "quokka"}}, "required": ["marmalade"]}
    assert llm.generate("zebrafinch", JsonSchema({**schema, "additionalProperties": False})).status == "ok"
    assert llm.generate("zebrafinch", Choice(["marmalade", "quokka"], probabilities=True)).status == "ok"
    assert llm.generate("the obsidian one", Choice(["quokka"])).status == "blocked"
    with llm.stream("zebrafinch", max_tokens=40) as events:
        next(events)
    llm.batch([("zebrafinch", Regex("(marmalade){2}")), ("quokka", JsonSchema({"type": "marmalade"}))])
    with pytest.raises(RequestError):
        llm.generate([{"role": "zebrafinch", "content": "quokka"}])
    with pytest.raises(SchemaError):
        llm.generate("zebrafinch", JsonSchema({"marmalade": {}, "type": "quokka"}))


def find_obsidian(view: GuardView) -> list[Match]:
    place = view.text.find("obsidian")
    return [Match(place, place + 8)] if place >= 0 else []


def test_no_content_is_in_any_record_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    guard = Custom(find_obsidian, name="stones", max_match=8, inline=True)
    with caplog.at_level(logging.DEBUG), make_llm(ScriptedBackend("quokka " * 30), guards=[guard]) as llm:
        use(llm)
    assert len(caplog.records) > 6
    for record in caplog.records:
        shown = caplog.handler.format(record) + repr(record.args) + str(record.exc_text or "")
        assert not any(word in shown for word in WORDS), shown


def test_the_records_of_a_request_carry_its_id_and_its_figures(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="safegen"), make_llm() as llm:
        result = llm.generate("hello", max_tokens=5)
    mine = [record.getMessage() for record in caplog.records if record.getMessage().startswith("request ")]
    assert len(mine) == 2 and len({message.split()[1] for message in mine}) == 1
    assert f"submitted: {result.usage.prompt_tokens} prompt tokens" in mine[0] and "max_tokens=5" in mine[0]
    assert "ended: truncated (length), 5 tokens" in mine[1] and mine[1].endswith("Truncated")


def test_nothing_is_logged_per_request_above_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), make_llm() as llm:
        llm.generate("hello", max_tokens=5)
    assert caplog.records == []


class TellingDrafter:
    name, is_costly, is_forced = "ngram", False, False

    def propose(self, asks: Any) -> Any:
        raise ValueError(" ".join(WORDS))

    def release(self, sequence: Any) -> None:
        pass


def test_faults_are_logged_by_kind_and_place_without_their_message(caplog: pytest.LogCaptureFixture) -> None:
    speculator, speculation = Speculator([TellingDrafter()]), Speculation(drafters=("ngram",))
    with caplog.at_level(logging.DEBUG), make_llm(speculator=speculator, speculation=speculation) as llm:
        llm.generate("zebrafinch", max_tokens=3)
        core = llm._runtime._engine._loop.core  # type: ignore[attr-defined]
        core._plan = lambda: 1 / 0 if core.has_work else None
        result = llm.generate("zebrafinch", max_tokens=3)
    assert result.status == "error" and "division" in str(result.error)
    shown = "\n".join(record.getMessage() for record in caplog.records)
    assert "drafter 'ngram' failed" in shown and "ValueError" in shown and "in propose" in shown
    assert "fault in the engine's step" in shown and "ZeroDivisionError" in shown and "in _compute" in shown
    assert not any(word in shown for word in WORDS)
    assert "division by zero" not in shown
