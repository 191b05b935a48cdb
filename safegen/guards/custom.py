"""`Custom(fn)`: a guard from a function, and `Adapted`: a guard from any object with the methods of the protocol.

A function is given the view and returns what it found: None or an empty list for nothing, else a list of `Match`,
(start, end) or (start, end, rule). Anything else counts as a failure of the guard, and a guard that fails blocks; a
bool is refused because it does not say whether True means fine or found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from safegen.errors import RequestError
from safegen.guards.base import Allow, Block, Guard, GuardView, Match, Replace, Retry, Verdict


class Custom(Guard):
    """fn: GuardView -> matches. rule: the name of matches that have none. max_match: the longest match it returns, in
    characters, when its findings depend on nothing but the match and `look_behind` and `look_ahead` characters around
    it; None withholds a stream to its end. inline: it takes time linear in the text and waits for nothing, so it may
    run on the caller's and the engine's thread; else it has one of its own, and is not used while decoding."""

    def __init__(
        self,
        fn: Callable[[GuardView], Any],
        *,
        rule: str = "custom",
        max_match: int | None = None,
        look_ahead: int = 0,
        look_behind: int | None = None,
        inline: bool = False,
        **common: Any,
    ) -> None:
        if not callable(fn):
            raise RequestError(f"Custom takes a function of a GuardView, got {type(fn).__name__}", field="fn", value=fn)
        super().__init__(**common)
        numbers = {"max_match": max_match, "look_ahead": look_ahead, "look_behind": look_behind}
        for key, value in numbers.items():
            if value is None and key != "look_ahead":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                wanted = "a number of characters from 0 on" + (", or None" if key != "look_ahead" else "")
                raise RequestError(f"Custom: {key}={value!r}; it takes {wanted}", field=key, value=value)
        for key, given, kind in (("rule", rule, str), ("inline", inline, bool)):
            if not isinstance(given, kind):
                raise RequestError(f"Custom: {key}={given!r}; it takes a {kind.__name__}", field=key, value=given)
        self.fn, self.rule = fn, rule
        self.inline = inline  # type: ignore[misc]
        self.max_match, self.look_ahead, self.look_behind = max_match, look_ahead, look_behind

    def find(self, view: GuardView) -> Sequence[Match]:
        found = self.fn(view)
        if found is None:
            return []
        if not isinstance(found, list | tuple):
            raise TypeError(
                f"the function of guard {self.name!r} returned {type(found).__name__}, not a list of matches"
            )
        return [self._match(each) for each in found]

    def _match(self, found: Any) -> Match:
        if isinstance(found, Match):
            return found
        if isinstance(found, tuple) and len(found) in (2, 3):
            return Match(found[0], found[1], found[2] if len(found) == 3 else self.rule)
        raise TypeError(f"the function of guard {self.name!r} returned a {type(found).__name__} among its matches")

    def to_dict(self) -> dict[str, Any]:
        """The function by its name: it is no data, so `from_dict` cannot bring it back."""
        described = super().to_dict()
        described["fn"] = getattr(self.fn, "__qualname__", type(self.fn).__name__)
        return described


class Adapted(Guard):
    """Any object with `check(view) -> Verdict` as a guard. It decides by itself what a match leads to, so its verdict
    is taken as it is; `name`, `where`, `stages` and `timeout_s` are read from it where it has them."""

    def __init__(self, inner: Any) -> None:
        if not callable(getattr(inner, "check", None)):
            raise RequestError(
                f"{type(inner).__name__} is no guard: it has no check(view); pass a Guard, a function or Custom(fn)",
                field="guards",
                value=inner,
            )
        common = {
            name: getattr(inner, name) for name in ("name", "where", "stages", "timeout_s") if hasattr(inner, name)
        }
        if "name" not in common:
            common["name"] = type(inner).__name__
        self.inner = inner
        super().__init__(**common)
        self.version = str(getattr(inner, "version", "1"))  # type: ignore[misc]

    def check(self, view: GuardView) -> Verdict:
        given = self.inner.check(view)
        if not isinstance(given, Allow | Replace | Block | Retry):
            raise TypeError(f"guard {self.name!r} returned {type(given).__name__}, which is no verdict")
        return given

    def find(self, view: GuardView) -> Sequence[Match]:
        given = self.check(view)
        if isinstance(given, Replace):
            return [Match(edit.start, edit.end, edit.rule, edit.score) for edit in given.edits]
        return given.matches

    @property
    def bans_decoding(self) -> bool:
        return callable(getattr(self.inner, "automaton", None))

    def automaton(self, scope: str) -> object | None:
        return self.inner.automaton(scope) if self.bans_decoding else None

    @property
    def hold_bound(self) -> int | None:
        bound: int | None = getattr(self.inner, "hold_bound", None)
        return bound if callable(getattr(self.inner, "frontier", None)) else None

    def frontier(self, text: str) -> int:
        return int(self.inner.frontier(text)) if self.hold_bound is not None else 0

    def to_dict(self) -> dict[str, Any]:
        return {"type": type(self.inner).__name__, "name": self.name}
