"""Type names of guards, for configuration as data: `{"type": "PII", "on_fail": "redact"}`.

Built-in names are those that `safegen.guards` exports; their modules load on first use. An application adds its own
classes with `register`, under their class names; a built-in name cannot be taken over.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, TypeVar

from safegen import guards
from safegen.errors import RequestError
from safegen.guards.base import Guard

_GuardClass = TypeVar("_GuardClass", bound=type[Guard])


class Registry:
    """Guard classes by type name. Thread-safe."""

    def __init__(self) -> None:
        self._own: dict[str, type[Guard]] = {}
        self._lock = threading.Lock()

    def register(self, guard_class: _GuardClass) -> _GuardClass:
        """Make a class known by its name; usable as a decorator. Raises RequestError when the name is taken."""
        name = guard_class.__name__
        if name in guards.__all__:
            raise RequestError(f"{name!r} is a built-in guard; give the class another name", field="type", value=name)
        with self._lock:
            self._own[name] = guard_class
        return guard_class

    def find(self, name: object) -> type[Guard]:
        """The class behind a type name. Raises RequestError."""
        with self._lock:
            found: Any = self._own.get(name) if isinstance(name, str) else None
        if found is None and isinstance(name, str) and name in guards.__all__:
            found = getattr(guards, name)
        if not (isinstance(found, type) and issubclass(found, Guard)):
            known = ", ".join(self.names())
            raise RequestError(f"type={name!r} is no guard; known are {known}", field="type", value=name)
        return found

    def names(self) -> list[str]:
        """All type names that `find` takes, without loading a module."""
        with self._lock:
            return sorted({*self._own, *guards.GUARD_NAMES})


REGISTRY = Registry()
register = REGISTRY.register


def guard_from_dict(given: object) -> Guard:
    """One guard from data. Raises RequestError that names the key and the value."""
    if not isinstance(given, Mapping):
        raise RequestError(f"a guard is described by a mapping, got {given!r}", field="guards", value=given)
    if "type" not in given:
        raise RequestError(
            f"a guard's description needs the key 'type', got the keys {sorted(map(str, given))}", field="type"
        )
    return REGISTRY.find(given["type"]).from_dict(given)
