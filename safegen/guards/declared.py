"""The property names that a schema declares: what a path may show, because the caller wrote it and not the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=64)
def names_of_schema(schema_text: str) -> frozenset[str]:
    """All keys of objects called `properties`, wherever these stand; patterns declare no name."""
    return frozenset(_names(json.loads(schema_text)))


def _names(root: Any) -> Iterator[str]:
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            properties = value.get("properties")
            if isinstance(properties, dict):
                yield from properties
            waiting += value.values()
