"""The document at `/`, put together once: markup, style and script in one response, under a policy that names both by
their digests, so that nothing else is run, loaded, framed or sent anywhere but to this server."""

from __future__ import annotations

import base64
import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent
_SCRIPTS = ("presets.js", "source.js", "tokens.js", "client.js", "panels.js", "page.js")


@dataclass(frozen=True, slots=True)
class Page:
    """body: UTF-8. headers: with the policy that the page needs."""

    body: bytes
    headers: dict[str, str]


@functools.cache
def page() -> Page:
    style = _read("page.css")
    script = '"use strict";\n' + "".join(_read(name) for name in _SCRIPTS)
    markup = _read("page.html").replace("/* style */", style, 1).replace("/* script */", script, 1)
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    headers = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": policy,
        "cache-control": "no-cache",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
    }
    return Page(markup.encode(), headers)


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
