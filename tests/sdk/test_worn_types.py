"""Programs learn states as they meet texts and never forget: before a limit is met, new answers get a new program."""

from __future__ import annotations

from safegen.limits import Limits
from safegen.output_type import OutputType, TypeCache
from safegen.types import JsonSchema

_SCHEMA = JsonSchema({"type": "string", "pattern": "^(a|b)*a(a|b){10}$"})
_LIMITS = Limits(max_states=3_000)


def wear(compiled: OutputType[str]) -> None:
    """Texts of as many states as it takes."""
    assert compiled.program is not None
    number = 0
    while not compiled.is_worn:
        text = f"{number:013b}".replace("0", "a").replace("1", "b")
        compiled.program.longest_prefix(f'"{text}"'.encode())
        number += 1
        assert number < 1 << 13, compiled.program.fullness()


def test_a_worn_type_is_compiled_anew_for_new_answers() -> None:
    cache = TypeCache(_LIMITS)
    first = cache.get(_SCHEMA)
    assert cache.get(_SCHEMA) is first and not first.is_worn
    wear(first)
    second = cache.get(_SCHEMA)
    assert second is not first and second.program is not first.program and not second.is_worn
    assert cache.get(_SCHEMA) is second
    assert first.program is not None and first.program.fullness() < 0.9, "answers under way have room left"


def test_a_type_that_a_caller_holds_is_renewed_behind_it() -> None:
    cache = TypeCache(_LIMITS)
    held = cache.get(_SCHEMA)
    wear(held)
    fresh = cache.get(held)
    assert fresh.program is not held.program
    assert cache.get(held) is fresh, "compiled once, not for each call"
    assert fresh.schema_text == held.schema_text and fresh.kind == held.kind


def test_a_type_that_fills_much_of_its_limit_from_the_start_is_not_worn_by_that() -> None:
    cache = TypeCache(Limits(max_states=3_800))
    schema = JsonSchema({"type": "object", "properties": {f"key{i}": {"enum": [f"value {i}"]} for i in range(200)}})
    compiled = cache.get(schema)
    assert compiled.program is not None and compiled.program.fullness() > 0.5
    assert not compiled.is_worn and cache.get(schema) is compiled
