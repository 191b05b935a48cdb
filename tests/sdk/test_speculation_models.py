"""`Speculation` with drafters that are models: what it takes, what it refuses, and in which order they are asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from safegen.errors import RequestError
from safegen.loading import LoadOptions
from safegen.speculation import Speculation, resolve_call, resolve_load

BOTH = Speculation(draft_model=Path("small"), self_draft=True)


def test_a_draft_model_adds_its_drafter_after_the_others() -> None:
    assert BOTH.drafters == ("forced", "ngram", "model", "self")
    assert Speculation(("self", "forced"), self_draft=True).drafters == ("forced", "self")
    assert Speculation((), draft_model="org/small").drafters == ("model",)
    assert Speculation().drafters == ("forced", "ngram")


@pytest.mark.parametrize(
    "fields", [{"draft_model": 3}, {"draft_model": ["a"]}, {"self_draft": 1}, {"self_draft": "yes"}]
)
def test_wrong_fields_are_refused_by_name(fields: Any) -> None:
    with pytest.raises(RequestError, match=next(iter(fields))) as caught:
        Speculation(**fields)
    assert caught.value.field == "speculation"


@pytest.mark.parametrize(("name", "fix"), [("model", "draft_model="), ("self", "self_draft=True")])
def test_an_llm_is_not_loaded_with_a_drafter_whose_model_is_not_named(name: str, fix: str) -> None:
    for refuse in (resolve_load, lambda value: LoadOptions(speculation=value)):
        with pytest.raises(RequestError, match=f"{name!r} needs {fix}"):
            refuse(Speculation(drafters=(name,)))
    assert resolve_load(None) == resolve_load("auto") == Speculation()
    assert resolve_load(BOTH) is BOTH


def test_a_call_chooses_among_the_models_that_are_loaded() -> None:
    for name in ("model", "self"):
        assert resolve_call(Speculation((name,)), BOTH).drafters == (name,)
        with pytest.raises(RequestError, match=f"{name!r} is not loaded"):
            resolve_call(Speculation((name,)), Speculation())
    assert resolve_call(Speculation((), draft_model=Path("small")), BOTH).drafters == ("model",)
    with pytest.raises(RequestError, match="not the one of this LLM"):
        resolve_call(Speculation((), draft_model=Path("other")), BOTH)
