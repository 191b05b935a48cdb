"""A configuration is read whole, once, and what is wrong in it is named by its path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from safegen.errors import RequestError
from safegen.gateway.app import create_gateway
from safegen.gateway.config import GatewayConfig, load_config, read_config
from safegen.gateway.upstream import Upstream

ROOT = Path(__file__).parents[2]
ONE: dict[str, Any] = {"name": "one", "url": "http://127.0.0.1:8001/v1", "models": ["m"]}


def config(**given: Any) -> GatewayConfig:
    return read_config({"upstreams": [{**ONE, **given}]})


def test_everything_but_the_upstreams_has_a_default() -> None:
    made = config()
    assert made.hedge_after_s is None and made.forward_headers == ()
    assert not made.upstreams[0].forward_authorization
    assert made.server_settings().model_names == ("m",) and made.server_settings().keyring.is_open


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("http://host:8001", "http://host:8001/v1"),
        ("http://host:8001/", "http://host:8001/v1"),
        ("https://host/openai/v1/", "https://host/openai/v1"),
        ("http://[::1]:8001/v1", "http://[::1]:8001/v1"),
    ],
)
def test_a_base_url_is_read_as_openai_clients_read_it(given: str, read: str) -> None:
    assert config(url=given).upstreams[0].url == read


@pytest.mark.parametrize(
    "url",
    ["host:8001", "ftp://host/v1", "http:///v1", "http://u:p@host/v1", "http://host/v1?x=1", "http://host/v1#x",
     "http://host/../v1", "http://host\\@other/v1", "http://höst/v1", "http://host:99999/v1", "http://ho st/v1", ""],
)  # fmt: skip
def test_what_is_no_base_url_is_refused(url: str) -> None:
    with pytest.raises(RequestError) as refused:
        config(url=url)
    assert refused.value.field == "upstreams[0].url"


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (None, None),
        ([], None),
        ({}, "upstreams"),
        ({"upstreams": []}, "upstreams"),
        ({"upstreams": [ONE, ONE]}, None),
        ({"upstreams": [{**ONE, "uri": "x"}]}, "upstreams[0].uri"),
        ({"upstreams": [{**ONE, "models": []}]}, "upstreams[0].models"),
        ({"upstreams": [{**ONE, "models": "m"}]}, "upstreams[0].models"),
        ({"upstreams": [{**ONE, "name": "a b"}]}, "upstreams[0].name"),
        ({"upstreams": [{**ONE, "max_concurrent": 0}]}, "upstreams[0].max_concurrent"),
        ({"upstreams": [{**ONE, "health": "ready"}]}, "upstreams[0].health"),
        ({"upstreams": [{**ONE, "health": "//evil/x"}]}, "upstreams[0].health"),
        ({"upstreams": [{**ONE, "key_env": "A", "forward_authorization": True}]}, "upstreams[0]"),
        ({"upstreams": [ONE], "retries": {"share": 2}}, "retries.share"),
        ({"upstreams": [ONE], "retries": {"attempts": 2}}, "retries.attempts"),
        ({"upstreams": [ONE], "timeouts": {"connect_s": "3"}}, "timeouts.connect_s"),
        ({"upstreams": [ONE], "timeouts": {"connect_s": float("nan")}}, "timeouts.connect_s"),
        ({"upstreams": [ONE], "circuit": {"open_s": 5, "max_open_s": 1}}, "circuit"),
        ({"upstreams": [ONE], "hedge_after_s": 0}, "hedge_after_s"),
        ({"upstreams": [ONE], "forward_headers": ["Authorization"]}, "forward_headers"),
        ({"upstreams": [ONE], "forward_headers": ["x\r\ny"]}, "forward_headers"),
        ({"upstreams": [ONE], "server": {"keys": []}}, "server.keys"),
        ({"upstreams": [ONE], "url": "x"}, "url"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(document: Any, field: str | None) -> None:
    with pytest.raises(RequestError) as refused:
        read_config(document)
    assert refused.value.field == field
    assert field is None or field in str(refused.value)


def test_keys_come_from_the_environment_and_are_not_shown() -> None:
    made = config(key_env="UP")
    for environment, problem in (({}, "is not set"), ({"UP": ""}, "is not set"), ({"UP": "a b"}, "holds no key")):
        with pytest.raises(RequestError, match=problem) as refused:
            create_gateway(made, environment=environment)
        assert "a b" not in str(refused.value)
    upstream = Upstream(made.upstreams[0], made.circuit, made.health, environment={"UP": "sk-secret\n"})
    assert upstream.authorization(b"Bearer of-the-client") == [(b"authorization", b"Bearer sk-secret")]
    assert "sk-secret" not in repr(made) and "sk-secret" not in repr(upstream)


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    for path in (tmp_path / "ca.pem", tmp_path / "absent.pem"):
        made = config(url="https://host/v1", ca_file=str(path))
        with pytest.raises(RequestError, match=r"ca_file=.*cannot be used"):
            create_gateway(made, environment={})


def test_health_is_asked_at_the_upstream_itself() -> None:
    def urls(**given: Any) -> tuple[str, ...]:
        made = config(**given)
        return Upstream(made.upstreams[0], made.circuit, made.health, environment={}).health_urls

    assert urls() == ("http://127.0.0.1:8001/ready", "http://127.0.0.1:8001/health", "http://127.0.0.1:8001/v1/models")
    assert urls(url="http://host/a/v1", health="/alive?deep=1") == ("http://host/alive?deep=1",)


def test_the_example_is_a_configuration() -> None:
    made = load_config(ROOT / "examples" / "gateway.yaml")
    assert len(made.upstreams) >= 2 and made.model_names
    shown = (ROOT / "docs" / "gateway.md").read_text()
    for section in ("routing", "health", "circuit", "retries", "timeouts", "queue", "sizes", "server"):
        for name in type(getattr(made, section)).model_fields:
            assert f"`{name}`" in shown, f"{section}.{name} is not in docs/gateway.md"
    for name in (*GatewayConfig.model_fields, *type(made.upstreams[0]).model_fields):
        assert f"`{name}`" in shown, f"{name} is not in docs/gateway.md"


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("upstreams: [")
    (tmp_path / "wrong.yaml").write_text("upstreams: []")
    for name in ("absent.yaml", "bad.yaml", "wrong.yaml"):
        with pytest.raises(RequestError, match=name):
            load_config(tmp_path / name)
