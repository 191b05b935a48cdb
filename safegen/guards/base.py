"""What a guard is: where it looks (`GuardView`), what it finds (`Match`), what follows (`Verdict`), and `Guard` itself.

A guard sees decoded text only: the free text of an answer, one string value or key of a JSON answer, one tool
argument, one message of the prompt. It never sees raw JSON, so an escape such as `\\u0063` hides nothing.

**The stream law.** A guard with a finite `hold_bound` can watch a stream. For every text p with f = frontier(p):
`len(p) - f <= hold_bound`, and for every continuation t of p the matches of find(t) that start before f are exactly
the matches of find(p) that start before f, and all of them end at or before f. So `find` is local: a match is decided
by the characters from `look_behind` before its start to `look_ahead` after its end, never by where a scan began.
`Guard` derives bound and frontier from `max_match`, `look_ahead` and `find`; a guard may override both with tighter
ones. A guard without a bound (`max_match = None`) withholds a stream to its end.

Nothing here writes matched text: a `Match` holds offsets, and `repr` of a view leaves its text out.
"""

from __future__ import annotations

import abc
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from safegen.errors import RequestError

if TYPE_CHECKING:
    from safegen.guards.following import Follower
    from safegen.guards.vault import Vault

Stage = Literal["input", "decoding", "output"]
OnFail = Literal["block", "redact", "retry", "log"]

DAY_S = 86_400  # no deadline is later
STAGES: tuple[Stage, ...] = get_args(Stage)
ON_FAIL: tuple[OnFail, ...] = get_args(OnFail)


@dataclass(frozen=True, slots=True, order=True)
class Match:
    """A finding: half-open character offsets into the text of the view, the rule behind it, its certainty (0 to 1)."""

    start: int
    end: int
    rule: str
    score: float = 1.0


@dataclass(frozen=True, slots=True)
class GuardView:
    """One piece of decoded text as a guard sees it.

    path: its JSONPath; "$" is the free text or the root, a property name has the path of its value with "~" behind it,
    a prompt message is "$[i]", the reasoning of a Think type is "$thinking". final: False while more text may follow.
    role: of the message, for input. protected: texts that must not be repeated, such as the system prompt.
    """

    text: str = field(repr=False)
    path: str = "$"
    stage: Stage = "output"
    final: bool = True
    role: str | None = None
    protected: Sequence[str] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace text[start:end] by `text`, which may be an original that Deanonymize puts back."""

    start: int
    end: int
    text: str = field(repr=False)
    rule: str
    score: float = 1.0


@dataclass(frozen=True, slots=True)
class Allow:
    """Nothing to do. matches: what was found by a guard that only logs."""

    matches: tuple[Match, ...] = ()


@dataclass(frozen=True, slots=True)
class Replace:
    """Go on with the edits applied."""

    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Stop."""

    matches: tuple[Match, ...]


@dataclass(frozen=True, slots=True)
class Retry:
    """Ask again, with a hint for the model."""

    hint: str
    matches: tuple[Match, ...]


Verdict = Allow | Replace | Block | Retry


class Guard(abc.ABC):
    """Base class of guards. A subclass implements `find`, and calls `super().__init__(**common)` from its own
    keyword-only constructor, whose parameters it keeps as attributes of the same names (`to_dict` reads them there).

    name: how records call it, default the class name in snake case. on_fail: what a match leads to; "log" records and
    does nothing else. where: JSONPath or several; default everywhere. stages: when it runs, default `default_stages`.
    timeout_s: seconds for one check; a guard that takes longer counts as failed, and failed means blocked.

    Class attributes of a subclass. version: counted up when findings change. max_match: the longest match in
    characters, None when there is no bound. look_ahead, look_behind: characters after the end and before the start of a
    match that help to decide it (look_behind None: unknown, so that a stream scans its whole text again each time).
    inline: `find` takes time linear in the text and waits for nothing, so it needs no thread of its own to be stopped.
    roles: whose messages it looks at on input.
    """

    version: ClassVar[str] = "1"
    default_stages: ClassVar[tuple[Stage, ...]] = ("input", "output")
    inline: ClassVar[bool] = False
    roles: ClassVar[tuple[str, ...]] = ("user", "assistant", "tool")
    max_match: int | None = None
    look_ahead: int = 0
    look_behind: int | None = None

    def __init__(
        self,
        *,
        name: str | None = None,
        on_fail: OnFail = "block",
        where: str | Sequence[str] | None = None,
        stages: Sequence[Stage] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.name = snake_case(type(self).__name__) if name is None else name
        self.on_fail: OnFail = on_fail
        self.where: tuple[str, ...] | None = None if where is None else texts(self, "where", where)
        self.stages: tuple[Any, ...] = self.default_stages if stages is None else texts(self, "stages", stages)
        self.timeout_s = timeout_s
        check_common(self)

    @abc.abstractmethod
    def find(self, view: GuardView) -> Sequence[Match]:
        """All matches in view.text, in any order."""

    def check(self, view: GuardView) -> Verdict:
        """The verdict that `on_fail` makes of the matches. Guards define `find`, not this."""
        matches = tuple(sorted(self.find(view)))
        if not matches or self.on_fail == "log":
            return Allow(matches)
        if self.on_fail == "redact":
            return Replace(self.edits(view, matches))
        if self.on_fail == "retry":
            return Retry(self.hint(matches), matches)
        return Block(matches)

    def edits(self, view: GuardView, matches: Sequence[Match]) -> tuple[Edit, ...]:
        """What "redact" does about the matches: each is replaced by its placeholder."""
        return tuple(Edit(m.start, m.end, self.placeholder(m), m.rule, m.score) for m in matches)

    def for_request(self, vault: Vault) -> Guard:
        """The guard that serves one request: itself, unless it keeps something for that request in its vault."""
        return self

    def protecting(self, protected: Sequence[str]) -> Guard:
        """The guard that watches the streams of one request, whose protected texts are these: itself, unless its
        frontier depends on them."""
        return self

    def placeholder(self, match: Match) -> str:
        """What takes the place of a match in text: the rule's name in capitals, as `[EMAIL]`. Never the text itself."""
        return f"[{re.sub(r'[^A-Za-z0-9]+', '_', match.rule).strip('_').upper() or 'REDACTED'}]"

    def hint(self, matches: Sequence[Match]) -> str:
        """What the model is told before it is asked again. Holds rules, never matched text."""
        rules = sorted({match.rule for match in matches})
        return f"The previous answer was refused because it contained: {', '.join(rules)}. Answer again without it."

    def automaton(self, scope: str) -> object | None:
        """What decoding must stay out of in the values that `scope` (a JSONPath) names; None when that is nothing."""
        return None

    @property
    def bans_decoding(self) -> bool:
        """Whether it can work at the decoding stage: its class has an `automaton`."""
        return type(self).automaton is not Guard.automaton

    @property
    def hold_bound(self) -> int | None:
        """Characters that a stream may hold back for this guard; None: all of them, to the end."""
        return None if self.max_match is None else 2 * max(0, self.max_match - 1) + self.look_ahead

    def frontier(self, text: str) -> int:
        """Offset before which the matches in `text` are final, whatever follows it (see the stream law)."""
        if self.max_match is None:
            return 0
        cut = max(0, len(text) - max(0, self.max_match - 1) - self.look_ahead)
        straddling = [m.start for m in self.find(GuardView(text, final=False)) if m.start < cut < m.end]
        return min(straddling, default=cut)

    def follow(self) -> Follower | None:
        """What watches one growing text for this guard, token by token (see `safegen.guards.following`); None: `find`
        and `frontier` are asked each time."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """The guard as data: its type and every argument that is not its default. `from_dict` reads it back."""
        described: dict[str, Any] = {"type": type(self).__name__}
        defaults = {"name": snake_case(type(self).__name__), "stages": self.default_stages}
        for key, parameter in arguments_of(type(self)).items():
            value = getattr(self, key)
            if value != defaults.get(key, parameter.default):
                described[key] = plain(value)
        return described

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """A guard from its `to_dict`. Raises RequestError that names the key and its value."""
        arguments = {key: value for key, value in given.items() if key != "type"}
        known = arguments_of(cls)
        for key, value in arguments.items():
            if key not in known:
                raise RequestError(
                    f"guard {cls.__name__} has no setting {key!r} (given {value!r}); it has {', '.join(sorted(known))}",
                    field=key,
                    value=value,
                )
        try:
            return cls(**arguments)
        except (TypeError, ValueError) as error:
            raise RequestError(f"guard {cls.__name__} cannot be made of {sorted(arguments)}: {error}") from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, on_fail={self.on_fail!r})"


@lru_cache(maxsize=256)
def arguments_of(guard_class: type[Guard]) -> Mapping[str, inspect.Parameter]:
    """Constructor arguments by name, those that `**common` passes on to `Guard` included."""
    own = dict(inspect.signature(guard_class).parameters)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in own.values()):
        own = {name: p for name, p in own.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}
        own = {**inspect.signature(Guard).parameters, **own}
    return own


def check_common(guard: Any) -> None:
    """The settings that all guards share. Raises RequestError with the key and the value."""
    if not isinstance(guard.name, str) or not guard.name:
        raise _bad(guard, "name", guard.name, "a text that is not empty")
    if guard.on_fail not in ON_FAIL:
        raise _bad(guard, "on_fail", guard.on_fail, " or ".join(ON_FAIL))
    known = STAGES if guard.bans_decoding else tuple(stage for stage in STAGES if stage != "decoding")
    if not guard.stages or any(stage not in known for stage in guard.stages):
        raise _bad(guard, "stages", guard.stages, f"one or more of {', '.join(known)}")
    seconds = guard.timeout_s
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= DAY_S
    ):
        raise _bad(guard, "timeout_s", seconds, f"seconds above 0, at most {DAY_S:,}, or None")
    if guard.where is not None and not (guard.where and all(isinstance(path, str) for path in guard.where)):
        raise _bad(guard, "where", guard.where, "a JSONPath, a list of them, or None for everywhere")


def texts(guard: Guard, key: str, given: Any) -> tuple[str, ...]:
    """A setting that is a list of texts; one text stands for a list of it. Raises RequestError."""
    listed = (given,) if isinstance(given, str) else given
    if isinstance(listed, bytes | Mapping) or not isinstance(listed, Iterable):
        raise _bad(guard, key, given, "a text or a list of texts")
    made = (*listed,)
    for each in made:
        if not isinstance(each, str):
            raise _bad(guard, key, given, "a text or a list of texts")
    return made


def _bad(guard: object, key: str, value: object, wanted: str) -> RequestError:
    return RequestError(f"guard {type(guard).__name__}: {key}={value!r}; it takes {wanted}", field=key, value=value)


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def plain(value: Any) -> Any:
    """Lists, mappings and scalars only, as JSON and YAML have them."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(plain(inner) for inner in value)
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value
