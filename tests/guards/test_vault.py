"""Anonymize and Deanonymize: the model sees placeholders, the caller sees originals, nobody else sees either."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import BaseModel

from safegen.errors import RequestError
from safegen.events import DeltaEvent
from safegen.guards import register
from safegen.guards.guards import Guards
from safegen.guards.vault import Anonymize, Deanonymize, Vault
from tests.support.guards import Email, Ssn, Word
from tests.support.sdk_fakes import ScriptedBackend, make_llm

register(Email)
_PAIR = [Anonymize([Email(), Ssn()]), Email(on_fail="block", stages=["output"]), Deanonymize()]


def test_equal_texts_get_equal_placeholders_and_others_get_others() -> None:
    vault = Vault()
    vault.reserve("we know <EMAIL_2> already")
    made = [vault.placeholder("email", text) for text in ("a@b.co", "c@d.eu", "a@b.co", "e@f.gg")]
    assert made == ["<EMAIL_1>", "<EMAIL_3>", "<EMAIL_1>", "<EMAIL_4>"]
    assert vault.original("<EMAIL_3>") == "c@d.eu"
    assert "a@b.co" not in repr(vault)
    vault.wipe()
    assert (vault.original("<EMAIL_3>"), len(vault)) == (None, 0)


def test_threads_that_name_at_once_get_placeholders_of_their_own() -> None:
    class Slow(dict[str, int]):
        def get(self, key: str, default: Any = None) -> Any:
            known = super().get(key, default)
            time.sleep(0.002)  # another thread would have the same number
            return known

    vault = Vault()
    vault._counts = Slow()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: vault.placeholder("email", f"{number}@b.co"), range(8)))
    assert [vault.original(each) for each in made] == [f"{number}@b.co" for number in range(8)]


def test_the_model_sees_placeholders_and_the_caller_originals() -> None:
    with make_llm(ScriptedBackend("write to <EMAIL_1>, not <EMAIL_2> or <EMAIL_9>"), guards=_PAIR) as llm:
        bare = llm.generate("from <EMAIL_1> to <EMAIL_2>", guards=())
        result = llm.generate("from a@b.co to c@d.eu")
    assert result.unwrap() == "write to a@b.co, not c@d.eu or <EMAIL_9>"
    assert result.usage.prompt_tokens == bare.usage.prompt_tokens
    actions = [(record.guard, record.action, record.stage) for record in result.audit]
    assert actions.count(("anonymize", "redact", "input")) == 2
    assert actions.count(("deanonymize", "restore", "output")) == 2
    assert "b.co" not in str([record.to_dict() for record in result.audit])


def test_overlapping_findings_have_one_placeholder() -> None:
    guards = [Anonymize([Word("a@b"), Email()]), Deanonymize()]
    with make_llm(ScriptedBackend("<EMAIL_1>"), guards=guards) as llm:
        assert llm.generate("to a@b.co now").unwrap() == "a@b.co"


def test_only_the_fields_that_are_named_are_put_back() -> None:
    class Mail(BaseModel):
        to: str
        log: str

    guards = [Anonymize(Email()), Deanonymize(where="$.to")]
    with make_llm(ScriptedBackend('{"to":"<EMAIL_1>","log":"<EMAIL_1>"}'), guards=guards) as llm:
        assert llm.generate("a@b.co", Mail).unwrap() == Mail(to="a@b.co", log="<EMAIL_1>")


def test_an_original_is_escaped_where_json_needs_it() -> None:
    guards = [Anonymize(Word('say "x"')), Deanonymize()]
    with make_llm(ScriptedBackend('{"a":"<SAY_X_1>"}'), guards=guards) as llm:
        result = llm.generate('say "x"', dict[str, str])
    assert json.loads(result.text) == {"a": 'say "x"'}


def test_a_stream_puts_back_the_same_and_never_half_a_placeholder() -> None:
    with make_llm(ScriptedBackend("to <EMAIL_1>! a < b"), guards=_PAIR) as llm, llm.stream("a@b.co") as events:
        shown = [event.text for event in events if isinstance(event, DeltaEvent)]
        assert "".join(shown) == "to a@b.co! a < b"
        assert not any(text.startswith("<") and len(text) > 1 and text[1] == "E" for text in shown)


def test_a_request_does_not_know_the_vault_of_another() -> None:
    with make_llm(ScriptedBackend("<EMAIL_1>"), guards=_PAIR) as llm:
        results = llm.batch(["a@b.co", "c@d.eu", "nobody"])
    assert [result.value for result in results] == ["a@b.co", "c@d.eu", "<EMAIL_1>"]


@pytest.mark.parametrize("make", [lambda: Anonymize([]), lambda: Anonymize([Email()], on_fail="block"),
                                  lambda: Deanonymize(stages=["input"]), lambda: Anonymize("PII")])  # fmt: skip
def test_what_cannot_work_is_refused(make: object) -> None:
    with pytest.raises(RequestError):
        make()  # type: ignore[operator]


def test_the_pair_is_data_too() -> None:
    described = {
        "guards": [{"type": "Anonymize", "detectors": [{"type": "Email"}]}, {"type": "Deanonymize", "where": ["$.a"]}]
    }
    assert Guards.from_dict(described).to_dict() == described
