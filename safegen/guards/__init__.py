"""Guards: what must not come in or out. Every name loads on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from safegen.guards.base import Allow, Block, Edit, Guard, GuardView, Match, Replace, Retry
    from safegen.guards.registry import register

# Names of guard classes, which are type names in configuration too. A new guard is added here, in _MODULE_OF, in
# __all__ and (when its module is new) in _module.
GUARD_NAMES: frozenset[str] = frozenset()

_MODULE_OF = {
    "Allow": "base",
    "Block": "base",
    "Edit": "base",
    "Guard": "base",
    "GuardView": "base",
    "Match": "base",
    "Replace": "base",
    "Retry": "base",
    "register": "registry",
}

__all__ = ["Allow", "Block", "Edit", "Guard", "GuardView", "Match", "Replace", "Retry", "register"]


def __getattr__(name: str) -> Any:
    module_name = _MODULE_OF.get(name)
    if module_name is None:
        raise AttributeError(f"module 'safegen.guards' has no attribute {name!r}")
    value = getattr(_module(module_name), name)
    globals()[name] = value
    return value


def _module(name: str) -> Any:
    """One import statement a module, so that a reader (and a test) sees all imports there are."""
    match name:
        case "registry":
            from safegen.guards import registry

            return registry
        case _:
            from safegen.guards import base

            return base


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
