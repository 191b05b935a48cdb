from __future__ import annotations

from typing import Any

import pytest

from safegen.errors import RequestError
from safegen.prompt import chat_messages


def test_string_is_one_user_message() -> None:
    assert chat_messages("Hi", None) == [{"role": "user", "content": "Hi"}]


def test_schema_is_appended_to_the_system_message() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    shown = chat_messages(messages, "SCHEMA")
    assert shown[0] == {"role": "system", "content": "Be brief.\n\nSCHEMA"}
    assert shown[1:] == messages[1:]
    assert messages[0]["content"] == "Be brief."


def test_schema_makes_a_system_message_where_there_is_none() -> None:
    assert chat_messages("Hi", "SCHEMA")[0] == {"role": "system", "content": "SCHEMA"}


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "  \n",
        [],
        [{"role": "user", "content": ""}],
        [{"role": "robot", "content": "Hi"}],
        [{"content": "Hi"}],
        [{"role": "user"}],
        [{"role": "user", "content": ["Hi"]}],
        [{"role": "user", "content": "Hi", "contnet": "x"}],
        ["Hi"],
        7,
        None,
        b"Hi",
        "lone \ud800 surrogate",
    ],
)
def test_malformed_prompt_is_a_request_error_that_names_it(prompt: Any) -> None:
    with pytest.raises(RequestError) as caught:
        chat_messages(prompt, None)
    assert caught.value.field == "prompt"
