"""Secrets: keys of forty providers, what surrounds them, and code and prose that holds none."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from safegen.errors import RequestError
from safegen.guards.base import GuardView
from safegen.guards.secrets import RULE_NAMES, Secrets
from tests.guards.samples import provider_keys

_GUARD = Secrets()
_ROOT = Path(__file__).parents[2]
_AROUND = ['key = "{}"', "export TOKEN={}\n", "use {} please", "https://x.example/?k={}&a=1", "{}", "({})", "a,{},b"]


def found(text: str, guard: Secrets = _GUARD) -> list[tuple[str, str]]:
    return [(match.rule, text[match.start : match.end]) for match in guard.find(GuardView(text))]


@pytest.mark.parametrize("name", provider_keys(0))
def test_a_key_of_each_provider_is_found_in_every_surrounding(name: str) -> None:
    for number, around in enumerate(_AROUND):
        key = provider_keys(number)[name]
        text = around.format(key)
        covered = {at for match in _GUARD.find(GuardView(text)) for at in range(match.start, match.end)}
        bare = key.removeprefix("https://").removeprefix("AccountKey=")
        begin = text.index(bare)
        assert set(range(begin, begin + len(bare.rstrip("=")))) <= covered, text


@pytest.mark.parametrize(
    ("text", "rule", "what"),
    [
        ('password = "Tr0ub4dor&3x"', "named_secret", "Tr0ub4dor&3x"),
        ("api_key: 9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c\n", "named_secret", "9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c"),
        ("Authorization: Bearer x7Kp2mQ9vR4tL8wN3zB6", "named_secret", "x7Kp2mQ9vR4tL8wN3zB6"),
        ("postgres://admin:s3cr3tpw@db.host/x", "connection_string", "s3cr3tpw"),
        ("gh\u200bp_" + "aB3dE6gH9j" * 4, "github_token", "gh\u200bp_" + "aB3dE6gH9j" * 4),
        ("AКIАIOSFODNN7EXAMPLE", "aws_access_key", "AКIАIOSFODNN7EXAMPLE"),
    ],
)  # fmt: skip
def test_secrets_without_a_form_are_found_by_their_name(text: str, rule: str, what: str) -> None:
    assert found(text) == [(rule, what)]


def test_a_key_that_stands_twice_is_reported_twice() -> None:
    key = provider_keys(3)["github"]
    assert [what for _, what in found(f"{key} and again {key}")] == [key, key]


@pytest.mark.parametrize(
    "text",
    [
        "token = get_access_token_for_user1()",
        'password = "your_password_1"',
        'api_key = os.environ["OPENAI_API_KEY_2"]',
        "secret: ${VAULT_SECRET_9}",
        "sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
        "123e4567-e89b-12d3-a456-426614174000",
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4",
        "sk-learn-contrib is a package; hf_transfer too",
        "the password is required and must have 8 characters",
        "pk_test is the prefix",
        "-----BEGIN CERTIFICATE-----",
    ],
)
def test_what_only_looks_like_a_secret_is_left_alone(text: str) -> None:
    assert found(text) == []


def test_code_without_secrets_has_almost_no_findings() -> None:
    """At most one of a hundred functions of this project."""
    functions = [
        ast.get_source_segment(source, node) or ""
        for path in sorted((_ROOT / "safegen").rglob("*.py"))
        for source in [path.read_text(encoding="utf-8")]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    ]
    assert len(functions) > 300
    assert sum(bool(found(function)) for function in functions) <= 0.01 * len(functions)


def test_ignored_rules_and_allowed_texts_are_no_findings() -> None:
    key = provider_keys(4)["aws"]
    assert found(key, Secrets(ignore=["aws_access_key"])) == []
    assert found(key, Secrets(allow=[key])) == []
    with pytest.raises(RequestError, match="aws_acces_key"):
        Secrets(ignore=["aws_acces_key"])
    assert len(RULE_NAMES) > 60
