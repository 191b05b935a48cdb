"""Audit: one record a decision, in an order that depends on nothing but prompt, guards and answer.

A record says which guard found what where, and what followed; of the text it holds a keyed digest (HMAC-SHA256), never
a character. With `audit_key=` equal texts have equal digests across runs; without one the key is random, made once a
process and never shown. Names in paths that the output type does not declare are the model's own text, so they are
digests too, as is a declared one that is no plain short identifier or in which a guard has found something.

`replay` decides again from the same texts and compares; milliseconds are the only field that may differ.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import os
import re
import secrets
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safegen.errors import RequestError
from safegen.guards.scopes import Place, Step, step_text

Action = Literal["allow", "block", "redact", "retry", "log", "error", "timeout", "restore"]

_PROCESS_KEY = secrets.token_bytes(32)
_PLAIN_NAME = re.compile(r"(?!.*\d{4})[A-Za-z_][A-Za-z0-9_-]{0,39}")
_DIGEST_CHARACTERS = 32


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One decision. number: in the request's order. type, version: of the guard; config: digest of all settings.
    path: of the text; start, end: the match in its decoded characters (None for a guard that found nothing).
    action: what followed; "error" and "timeout" mean that the guard failed and, unless it only logs, that the request
    was blocked. milliseconds: what the guard took, in this stage. digest: of the matched text."""

    request_id: str
    number: int
    guard: str
    type: str
    version: str
    stage: str
    path: str
    action: Action
    rule: str | None = None
    start: int | None = None
    end: int | None = None
    score: float | None = None
    milliseconds: float = 0.0
    digest: str | None = None
    config: str = ""
    sample: int = 0

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def same_decision(self, other: AuditRecord) -> bool:
        """Equal but for the request's id and the time it took."""
        return dataclasses.replace(self, request_id="", milliseconds=0.0) == dataclasses.replace(
            other, request_id="", milliseconds=0.0
        )


@dataclass(frozen=True, slots=True)
class Digests:
    """Keyed digests of texts. key: at least 16 bytes, None takes the process's own."""

    key: bytes | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.key is not None and (not isinstance(self.key, bytes) or len(self.key) < 16):
            raise RequestError("audit_key takes at least 16 bytes, such as secrets.token_bytes(32)", field="audit_key")

    def of(self, text: str) -> str:
        key = _PROCESS_KEY if self.key is None else self.key
        return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:_DIGEST_CHARACTERS]

    def path(self, place: Place, declared: Collection[Step], found: Collection[Step] = ()) -> str:
        """The place as a path in which every name is its digest that is not declared, or no plain short identifier, or
        one of those in which a guard has found something."""

        def shows(step: str) -> bool:
            return step == "*" or (step in declared and step not in found and _PLAIN_NAME.fullmatch(step) is not None)

        steps = [step if isinstance(step, int) or shows(step) else f"#{self.of(step)[:12]}" for step in place.steps]
        if place.is_key and steps:
            steps[-1] = "*"
        return place.root + "".join(map(step_text, steps)) + ("~" if place.is_key else "")


def config_digest(settings: Mapping[str, Any]) -> str:
    """Of a guard set as data. Plain, so that two processes agree; settings that are secrets are not told by it unless
    they can be guessed."""
    text = json.dumps(settings, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class JsonlSink:
    """Appends records to a file, one JSON object a line, readable by its owner alone. Thread-safe.

    Raises RequestError when the file cannot be opened; a write that fails raises OSError, and the request whose
    decisions could not be kept ends as "error".
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()  # a stream that is dropped may be recorded while a record is being written
        try:
            self._close(self._open())
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise RequestError(f"audit={str(path)!r} cannot be written: {error}", field="audit", value=path) from error

    def write(self, records: tuple[AuditRecord, ...]) -> None:
        lines = "".join(json.dumps(record.to_dict()) + "\n" for record in records).encode()
        with self._lock:
            handle = self._open()
            try:
                while lines:
                    lines = lines[os.write(handle, lines) :]
            finally:
                self._close(handle)

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _close(self, handle: int) -> None:
        os.close(handle)


def differences(
    recorded: tuple[AuditRecord, ...], again: tuple[AuditRecord, ...]
) -> list[tuple[AuditRecord | None, AuditRecord | None]]:
    """Pairs of decisions that are not the same, None where one side has no more."""
    pairs: list[tuple[AuditRecord | None, AuditRecord | None]] = []
    for place in range(max(len(recorded), len(again))):
        old = recorded[place] if place < len(recorded) else None
        new = again[place] if place < len(again) else None
        if old is None or new is None or not old.same_decision(new):
            pairs.append((old, new))
    return pairs
