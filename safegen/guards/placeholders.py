"""What may stand in the place of a match: reserved values, most telling first, and the schema's declared fallback.

Reserved values belong to nobody: the domains of RFC 2606, the addresses of RFC 5737 and 3849, the telephone numbers
kept for fiction, social security numbers with area 000, card and account numbers of zeros. Which of them fits a field
is for the field's own constraint to say (`safegen.guards.redact`): it takes what can still become a legal value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from safegen.guards.scopes import Steps

_RESERVED: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("email", "mail"), ("x@redacted.invalid", "x@x.invalid", "x@example.com")),
    (("phone", "tel", "fax"), ("+1-555-0100", "+15550100100", "555-555-0100", "(555) 555-0100", "5555550100")),
    (("ssn", "social"), ("000-00-0000", "000000000")),
    (("card", "credit"), ("0000-0000-0000-0000", "0000 0000 0000 0000", "0000000000000000", "000000000000000")),
    (("iban",), ("XX00 0000 0000 0000", "XX00000000000000000000")),
    (("ipv6",), ("2001:db8::", "2001:0db8:0000:0000:0000:0000:0000:0000")),
    (("ip", "ipv4", "address"), ("192.0.2.0", "2001:db8::")),
    (("mac",), ("00:00:00:00:00:00", "00-00-00-00-00-00")),
    (("url", "uri", "link", "credential"), ("https://redacted.invalid", "https://redacted.invalid/")),
    (("date", "birth", "dob"), ("0001-01-01", "1900-01-01", "01/01/1900", "1900")),
    (("uuid", "guid"), ("00000000-0000-0000-0000-000000000000",)),
)
_ALWAYS = ("[REDACTED]", "REDACTED", "redacted", "XXXX", "xxx", "***", "X", "x", "-", "0")
_ANY_KIND = tuple(value for _, values in _RESERVED for value in values)
_MAX_STEPS = 200  # of resolving references


def candidates(rule: str, placeholder: str) -> Iterator[str]:
    """Values for a match of `rule`, the guard's own placeholder first; each once."""
    words = set("".join(char if char.isalnum() else " " for char in rule.lower()).split())
    fitting = [values for names, values in _RESERVED if words & set(names)]
    seen: set[str] = set()
    for value in (placeholder, *(value for values in fitting for value in values), *_ALWAYS, *_ANY_KIND):
        if value not in seen:
            seen.add(value)
            yield value


def declared_fallback(schema_text: str | None, steps: Steps) -> str | None:
    """The `default` that the schema declares for the value at a place, as JSON text; None without a scalar."""
    if schema_text is None:
        return None
    root = json.loads(schema_text)
    places = _resolved(root, [root])
    for step in steps:
        places = _resolved(root, [inner for place in places for inner in _below(place, step)])
    found = next((place["default"] for place in places if "default" in place), _NONE)
    if found is _NONE or isinstance(found, dict | list):  # a placeholder takes the place of one text or number
        return None
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


_NONE = object()


def _resolved(root: Any, places: list[Any]) -> list[dict[str, Any]]:
    """Schemas with what they refer to and are combined of."""
    found: list[dict[str, Any]] = []
    for place in places:
        if len(found) >= _MAX_STEPS or not isinstance(place, dict) or any(place is known for known in found):
            continue
        found.append(place)
        reference = place.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            places.append(_pointed(root, reference[1:]))
        for name in ("anyOf", "oneOf", "allOf"):
            if isinstance(place.get(name), list):
                places.extend(place[name])
    return found


def _pointed(root: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(root, dict) or name not in root:
            return None
        root = root[name]
    return root


def _below(schema: dict[str, Any], step: str | int) -> Iterator[Any]:
    if isinstance(step, int):
        prefix = schema.get("prefixItems")
        if isinstance(prefix, list) and step < len(prefix):
            yield prefix[step]
        else:
            yield schema.get("items")
    else:
        properties = schema.get("properties")
        if isinstance(properties, dict) and step in properties:
            yield properties[step]
        else:
            yield schema.get("additionalProperties")
