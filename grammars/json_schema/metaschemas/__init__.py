"""The metaschemas of the drafts, as json-schema.org publishes them, so that references to them resolve offline."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any

_OLD = {f"http://json-schema.org/{draft}/schema": draft for draft in ("draft-04", "draft-06", "draft-07")}
_VOCABULARIES = {
    "2019-09": ("core", "applicator", "validation", "meta-data", "format", "content"),
    "2020-12": (
        *("core", "applicator", "unevaluated", "validation", "meta-data"),
        *("format-annotation", "format-assertion", "content"),
    ),
}
_NEW = {f"https://json-schema.org/draft/{draft}/schema": draft for draft in _VOCABULARIES}
_PARTS = {
    f"https://json-schema.org/draft/{draft}/meta/{part}": f"{draft}-{part}"
    for draft, parts in _VOCABULARIES.items()
    for part in parts
}
_FILES = _OLD | _NEW | _PARTS


@cache
def metaschema(uri: str) -> dict[str, Any] | None:
    """The metaschema, or vocabulary of one, with this URI. Shared: not to be changed."""
    name = _FILES.get(uri)
    if name is None:
        return None
    text = (files(__name__) / f"{name}.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return loaded
