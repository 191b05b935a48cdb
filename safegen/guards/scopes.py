"""Scopes: which fields of an answer a guard looks at, by JSONPath.

Read are `$`, `.name`, `['name']`, `[3]`, `[*]` and `.*`, `..name` and `..*`; a `~` at the end means property names
instead of values, and a `!` in front leaves out what the path names. A path stands for the value there and all that
lies below it, so `$.notes` covers a text, a list or an object. Filters, slices and unions are refused: a scope is
decided from the path alone, before the value is there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from safegen.errors import RequestError

Step = str | int
Steps = tuple[Step, ...]

THINKING = "$thinking"
_NAME = re.compile(r"[^\W\d]\w*(?:-\w+)*")
_TOKEN = re.compile(
    r"""(?P<deep>\.\.)?(?:(?<=\.\.)|\.)?(?P<name>[^\W\d][\w-]*|\*)|(?P<deeper>\.\.)?\[(?:(?P<index>[0-9]{1,9})|(?P<any>\*)|"""
    r"""'(?P<single>(?:[^'\\]|\\.)*)'|"(?P<double>(?:[^"\\]|\\.)*)")\]"""
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a text stands. root: "$" or "$thinking". is_key: it is the name of the property, not its value."""

    steps: Steps = ()
    is_key: bool = False
    root: str = "$"

    def __str__(self) -> str:
        return self.root + "".join(step_text(step) for step in self.steps) + ("~" if self.is_key else "")


def step_text(step: Step) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if step == "*" or _NAME.fullmatch(step):
        return f".{step}"
    escaped = step.replace("\\", "\\\\").replace("'", "\\'")
    return f"['{escaped}']"


@dataclass(frozen=True, slots=True)
class _Selector:
    """One step of a scope. name: None is any. deep: any number of steps may come before it."""

    name: Step | None
    deep: bool


@dataclass(frozen=True, slots=True)
class Scope:
    """One parsed path."""

    selectors: tuple[_Selector, ...]
    of_keys: bool
    leaves_out: bool

    def covers(self, place: Place) -> bool:
        """Whether the place is what the path names, or lies below it."""
        if place.root != "$":
            return not self.selectors and not self.of_keys
        if self.of_keys:
            return place.is_key and _matches(self.selectors, place.steps, whole=True)
        return _matches(self.selectors, place.steps[:-1] if place.is_key else place.steps, whole=False)


@dataclass(frozen=True, slots=True)
class Scopes:
    """The `where` of one guard."""

    included: tuple[Scope, ...]
    left_out: tuple[Scope, ...]

    def covers(self, place: Place) -> bool:
        if any(scope.covers(place) for scope in self.left_out):
            return False
        return not self.included or any(scope.covers(place) for scope in self.included)


def parse_scopes(where: Sequence[str] | None) -> Scopes:
    """Raises RequestError for what is no path. None is everywhere."""
    scopes = [parse_scope(path) for path in where or ()]
    return Scopes(
        tuple(scope for scope in scopes if not scope.leaves_out), tuple(scope for scope in scopes if scope.leaves_out)
    )


def parse_scope(path: str) -> Scope:
    """One path. Raises RequestError that shows the place it cannot read."""
    leaves_out, text = path.startswith("!"), path.removeprefix("!").strip()
    of_keys, text = text.endswith("~"), text.removesuffix("~")
    if not text.startswith("$"):
        raise _bad(path, 0, 'a JSONPath starts with "$"')
    at, selectors = 1, []
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or not found.group() or (found.group("name") and text[at] != "."):
            raise _bad(path, at, "known are .name, ['name'], [3], [*], .*, ..name, ~ at the end and ! in front")
        selectors.append(_selector(found))
        at = found.end()
    if of_keys and not selectors:
        raise _bad(path, 0, "the root has no name")
    return Scope(tuple(selectors), of_keys, leaves_out)


def _selector(found: re.Match[str]) -> _Selector:
    deep = bool(found["deep"] or found["deeper"])
    if found["index"]:
        return _Selector(int(found["index"]), deep)
    for name in ("single", "double"):
        if found[name] is not None:
            return _Selector(re.sub(r"\\(.)", r"\1", found[name]), deep)
    name = found["name"] or "*"
    return _Selector(None if name == "*" else name, deep)


def _matches(selectors: tuple[_Selector, ...], steps: Steps, *, whole: bool) -> bool:
    """Whether the selectors lead to `steps` (whole), or to a beginning of them."""
    reached = {0}  # how many steps the selectors so far may have taken
    for selector in selectors:
        first = min(reached, default=len(steps))
        tried = range(first, len(steps)) if selector.deep else (at for at in reached if at < len(steps))
        reached = {at + 1 for at in tried if selector.name is None or selector.name == steps[at]}
    return len(steps) in reached if whole else bool(reached)


def _bad(path: str, at: int, wanted: str) -> RequestError:
    return RequestError(f"where={path!r} cannot be read at character {at}: {wanted}", field="where", value=path)
