"""`Guards`: a set of guards with its settings, as objects or as data. Immutable and thread-safe; made once.

Order matters where guards compete: of overlapping edits the first guard's wins, of several blocks at one place the
first is named. Names are unique: a second guard of a name gets a number behind it, so that no finding overwrites
another. What a call adds (`generate(..., guards=...)`) comes after what the LLM has; it never takes anything away.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safegen.errors import RequestError
from safegen.guards.audit import AuditRecord, Digests, JsonlSink, config_digest
from safegen.guards.base import DAY_S, Guard
from safegen.guards.custom import Adapted, Custom
from safegen.guards.refusal import Refusal
from safegen.guards.registry import guard_from_dict
from safegen.guards.running import Entry
from safegen.guards.scopes import parse_scopes

if TYPE_CHECKING:
    from safegen.grammars.bans import Bans

Sink = Callable[[tuple[AuditRecord, ...]], None]
_MAX_VALUES = 1_000_000  # of a configuration
_DEADLINE_S, _MAX_RETRIES = 5.0, 2  # of a set that does not say
_SETTINGS = ("deadline_s", "max_retries", "on_block", "audit")


class Guards:
    """guards: Guard objects, functions of a GuardView, objects with `check(view)`, or sets of such, which bring their
    settings along where this set does not say them (of several the last, as in `plus`). deadline_s: seconds that all
    guards together may take for one text, 5 by default. max_retries: how often an answer is asked for again for guards
    with on_fail="retry", 2 by default; after that it is blocked. on_block: Refusal gives a blocked request a Refusal
    as its value. audit: a JSONL file, or a function of the records of a request. audit_key: secret of the digests in
    them, at least 16 bytes; never part of `to_dict`.

    Raises RequestError that names the setting and its value.
    """

    def __init__(
        self,
        guards: Iterable[Any] = (),
        *,
        deadline_s: float | None = None,
        max_retries: int | None = None,
        on_block: type[Refusal] | None = None,
        audit: str | os.PathLike[str] | Sink | None = None,
        audit_key: bytes | None = None,
    ) -> None:
        listed = _listed(guards)
        for nested in reversed([each for each in listed if isinstance(each, Guards)]):
            deadline_s = nested._said_deadline_s if deadline_s is None else deadline_s
            max_retries = nested._said_max_retries if max_retries is None else max_retries
            on_block = on_block or nested.on_block
            audit = _both(audit, nested.audit)
            audit_key = audit_key or nested.digests.key
        self.guards: tuple[Guard, ...] = tuple(
            as_guard(each) for given in listed for each in (given.guards if isinstance(given, Guards) else (given,))
        )
        self._said_deadline_s: float | None = deadline_s
        self._said_max_retries: int | None = max_retries
        deadline_s = _DEADLINE_S if deadline_s is None else deadline_s
        max_retries = _MAX_RETRIES if max_retries is None else max_retries
        if isinstance(deadline_s, bool) or not isinstance(deadline_s, int | float) or not 0 < deadline_s <= DAY_S:
            raise _bad("deadline_s", deadline_s, f"seconds above 0, at most {DAY_S:,}")
        if isinstance(max_retries, bool) or not isinstance(max_retries, int) or not 0 <= max_retries <= 10:
            raise _bad("max_retries", max_retries, "a number from 0 to 10")
        if on_block is not None and on_block is not Refusal:
            raise _bad("on_block", on_block, "safegen.Refusal or None")
        self.deadline_s: float = deadline_s
        self.max_retries: int = max_retries
        self.on_block: type[Refusal] | None = on_block
        self.digests: Digests = Digests(audit_key)
        self.audit: str | os.PathLike[str] | Sink | None = audit
        self.sink: Sink | None = _sink(audit)
        self.entries = _entries(self.guards)
        self.config = config_digest(self.to_dict())

    def __len__(self) -> int:
        return len(self.guards)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the guards, as records call them."""
        return tuple(entry.name for entry in self.entries)

    def bans(self) -> Bans | None:
        """What decoding is held to; None where that is nothing."""
        from safegen.grammars.bans import Ban, Bans

        found: list[Ban] = []
        for guard in self.guards:
            ban = guard.automaton("$") if "decoding" in guard.stages else None
            if isinstance(ban, Ban):
                found.append(ban)
            elif ban is not None:
                raise _bad("guards", guard, f"guards whose automaton is a Ban or None, not a {type(ban).__name__}")
        return Bans.of(found)

    def plus(self, added: Guards) -> Guards:
        """This set with further guards behind its own. Of the settings, `deadline_s`, `max_retries` and `on_block` are
        those of `added` where it says them. What this set keeps of a request it keeps all the same: `audit` of both
        have the records, and the key is its own where it has one."""
        return Guards(
            (*self.guards, *added.guards),
            deadline_s=self._said_deadline_s if added._said_deadline_s is None else added._said_deadline_s,
            max_retries=self._said_max_retries if added._said_max_retries is None else added._said_max_retries,
            on_block=added.on_block or self.on_block,
            audit=_both(self.audit, added.audit),
            audit_key=self.digests.key or added.digests.key,
        )

    def to_dict(self) -> dict[str, Any]:
        """The set as data, without its key. A guard that is a function stands there by name alone."""
        described: dict[str, Any] = {"guards": [guard.to_dict() for guard in self.guards]}
        if self._said_deadline_s is not None:
            described["deadline_s"] = self.deadline_s
        if self._said_max_retries is not None:
            described["max_retries"] = self.max_retries
        if self.on_block is not None:
            described["on_block"] = "Refusal"
        if isinstance(self.audit, str | os.PathLike):
            described["audit"] = os.fspath(self.audit)
        return described

    @classmethod
    def from_dict(cls, given: Mapping[str, Any] | Sequence[Any], *, audit_key: bytes | None = None) -> Guards:
        """A set from data: a list of guards, or {"guards": [...], "deadline_s": ..., ...}.

        Raises RequestError that names the key and its value.
        """
        if isinstance(given, Mapping):
            settings = {key: value for key, value in given.items() if key != "guards"}
            listed = given.get("guards", ())
        else:
            settings, listed = {}, given
        for key, value in settings.items():
            if key not in _SETTINGS:
                known = ", ".join(("guards", *_SETTINGS))
                raise RequestError(f"guards have no setting {key!r} (given {value!r}); known are {known}", field=key)
        if isinstance(listed, str | Mapping) or not isinstance(listed, Sequence):
            raise _bad("guards", listed, "a list of mappings with the key 'type'")
        if "on_block" in settings:
            if settings["on_block"] not in ("Refusal", None):
                raise _bad("on_block", settings["on_block"], "'Refusal' or null")
            settings["on_block"] = Refusal if settings["on_block"] == "Refusal" else None
        return cls([guard_from_dict(each) for each in listed], audit_key=audit_key, **settings)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], *, audit_key: bytes | None = None) -> Guards:
        """A set from a YAML (or JSON) file. Raises RequestError that names the file, the key and the value."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"{os.fspath(path)} cannot be read: {error}", field="path", value=path) from error
        try:
            return cls.from_dict(parsed_config(text), audit_key=audit_key)
        except RecursionError:
            raise RequestError(
                f"{os.fspath(path)}: it is nested too deeply, or refers to itself", field="path"
            ) from None
        except RequestError as error:
            raise RequestError(f"{os.fspath(path)}: {error}", field=error.field, value=error.value) from error

    def __repr__(self) -> str:
        return f"Guards({', '.join(self.names)})"


def as_guards(given: Any) -> Guards:
    """What callers may pass as `guards=`: a set, one guard, a list of them, or None."""
    if isinstance(given, Guards):
        return given
    if given is None:
        return Guards()
    return Guards(given if isinstance(given, list | tuple | set | frozenset) else (given,))


def as_guard(given: Any) -> Guard:
    if isinstance(given, Guard):
        return given
    if isinstance(given, type):
        raise RequestError(f"{given.__name__} is a class; write {given.__name__}()", field="guards", value=given)
    if isinstance(given, Mapping):
        return guard_from_dict(given)
    return Custom(given) if callable(given) and not hasattr(given, "check") else Adapted(given)


def _listed(guards: Any) -> list[Any]:
    if isinstance(guards, str | Mapping) or not isinstance(guards, Iterable):
        raise _bad("guards", guards, "a list of guards")
    return list(guards)


def _entries(guards: Sequence[Guard]) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    taken: set[str] = set()
    for number, guard in enumerate(guards):
        name, copy = guard.name, 2
        while name in taken:
            name, copy = f"{guard.name}_{copy}", copy + 1
        taken.add(name)
        entries.append(Entry(number, name, guard, parse_scopes(guard.where)))
    return tuple(entries)


def _both(own: Any, added: Any) -> Any:
    """What keeps records for two sets; a file or function that is in both has them once."""
    kept = [audit for number, audit in enumerate((own, added)) if audit is not None and (number == 0 or audit != own)]
    if len(kept) < 2:
        return kept[0] if kept else None
    sinks = [_sink(audit) for audit in kept]

    def write(records: tuple[AuditRecord, ...]) -> None:
        for sink in sinks:
            if sink is not None:
                sink(records)

    return write


def _sink(audit: Any) -> Sink | None:
    if audit is None or callable(audit):
        return audit  # type: ignore[no-any-return]
    if isinstance(audit, str | os.PathLike):
        return JsonlSink(audit).write
    raise _bad("audit", audit, "a path of a JSONL file, or a function of the records")


def parsed_config(text: str) -> Any:
    """What a configuration file says, for `Guards.from_dict`. Raises RequestError, also where a key stands
    twice in a mapping: one of the two would not count."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        try:
            return json.loads(text, object_pairs_hook=_once_each)
        except ValueError as error:
            raise RequestError("reading YAML needs PyYAML: pip install pyyaml (JSON needs nothing)") from error
    try:
        parsed = yaml.safe_load(text)
        _check_keys(yaml.compose(text, yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # such as the date 2024-13-45
        raise RequestError(f"it is no YAML: {error}") from error
    _check_size(parsed)
    return parsed


def _check_keys(root: Any) -> None:
    """root: a node of YAML, None for an empty file."""
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(getattr(node, "value", None), list):
            continue
        seen.add(id(node))
        if node.id == "mapping":
            _once_each([(key.value, None) for key, _ in node.value if key.id == "scalar"])
        waiting += [inner for _, inner in node.value] if node.id == "mapping" else node.value


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise RequestError(f"the key {key!r:.80} stands twice in one mapping", field=key)
        made[key] = value
    return made


def _check_size(parsed: Any) -> None:
    """Aliases make a short file a huge text once somebody reads it out, or an endless one."""
    waiting, num_values = [parsed], 0
    while waiting:
        value = waiting.pop()
        num_values += 1
        if num_values > _MAX_VALUES:
            raise RequestError(f"it has more than {_MAX_VALUES:,} values, each alias counted, or refers to itself")
        if isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value


def _bad(key: str, value: object, wanted: str) -> RequestError:
    return RequestError(f"{key}={value!r:.120}; it takes {wanted}", field=key, value=value)
