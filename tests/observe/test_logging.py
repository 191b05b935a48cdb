"""Logs tell which request did what, and never a word of what was asked or answered."""

from __future__ import annotations

import logging

import pytest

from safegen.errors import RequestError, SchemaError
from safegen.guards.base import GuardView, Match
from safegen.guards.custom import Custom
from safegen.llm import LLM
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
