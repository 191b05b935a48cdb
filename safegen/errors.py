"""Every error that safegen raises on purpose, in one tree. A leaf module: any layer may import it.

SafegenError
├── SchemaError      an output type cannot be served: .pointer, .keyword, .hint
│   └── UnsatisfiableSchema  no value satisfies it
├── GrammarError     a regex or grammar cannot be served: .line, .column
├── ModelLoadError   a model file, folder or config cannot be used: .path, .tensor, .hint
├── CapacityError    the request can never fit the KV cache
│   └── QueueFull    too many requests wait; submit again later (back-pressure)
├── RequestError     an argument of a call is wrong: .field, .value
│   └── RowError     a row of a job's input cannot be read
├── JobError         a job cannot go on: .path, .hint
│   ├── JobInputError    its input cannot be read (a row that cannot is a RowError, and the job goes on)
│   ├── JobOutputError   its output cannot be written: disk full, read-only, or a file of something else
│   ├── JobLocked        another process writes the same output
│   ├── JobChanged       the output was begun with another type, prompt, model or setting
│   └── JobWorkerError   the workers of a Ray cluster cannot go on
├── GuardBlocked     status "blocked": .guard, .rule, .path, .stage
├── Truncated        status "truncated": the token limit came first
├── Refused          status "refused"
├── InvalidOutput    status "invalid", or an `ok` text that the independent validator refused
│   └── RetractsExhausted  a part that is checked when it closes was never right: .pointer
├── Cancelled        status "cancelled"
├── EngineError      status "error": an engine fault, never the caller's
└── EngineClosed     the LLM was closed

A user's mistake never surfaces as AssertionError, KeyError or a torch traceback. Messages name the thing, the value
and the fix.
"""

from __future__ import annotations


class SafegenError(Exception):
    """Base of all errors raised by safegen. result: the Result behind an error that `Result.unwrap` raised."""

    result: object | None = None


class SchemaError(SafegenError):
    """An output type cannot be served: invalid, unsatisfiable, or holding a keyword that cannot be enforced.

    pointer: JSON Pointer of the offending schema position ("" is the root). keyword: the keyword there, if one is to
    blame. hint: what to do instead.
    """

    def __init__(self, message: str, *, pointer: str = "", keyword: str | None = None, hint: str | None = None) -> None:
        self.reason = message
        self.pointer = pointer
        self.keyword = keyword
        self.hint = hint
        where = f"#{pointer}" + (f" ({keyword})" if keyword else "")
        super().__init__(f"{where}: {message}" + (f" Hint: {hint}" if hint else ""))


class UnsatisfiableSchema(SchemaError):
    """No value satisfies the schema, so there is nothing to generate: the verdict on every text is "invalid"."""


class GrammarError(SafegenError):
    """A regex, choice or grammar cannot be served. line and column are 1-based, None where unknown."""

    def __init__(self, message: str, *, line: int | None = None, column: int | None = None) -> None:
        self.reason = message
        self.line = line
        self.column = column
        where = "" if line is None else f"line {line}" + ("" if column is None else f", column {column}") + ": "
        super().__init__(where + message)


class ModelLoadError(SafegenError):
    """A model cannot be loaded. path: the file or folder; tensor: its tensor, if one is to blame; hint: the fix."""

    def __init__(
        self, message: str, *, path: str | None = None, tensor: str | None = None, hint: str | None = None
    ) -> None:
        self.reason = message
        self.path = path
        self.tensor = tensor
        self.hint = hint
        where = ": ".join(part for part in (path, tensor) if part)
        super().__init__((f"{where}: " if where else "") + message + (f" Fix: {hint}" if hint else ""))


class CapacityError(SafegenError):
    """A request that can never fit the KV cache, or (QueueFull) not now."""


class QueueFull(CapacityError):
    """Too many requests wait in the engine's queue. The same request may be submitted again later."""


class RequestError(SafegenError):
    """An argument is wrong. field: its name; value: what was given."""

    def __init__(self, message: str, *, field: str | None = None, value: object = None) -> None:
        self.field = field
        self.value = value
        super().__init__(message)


class RowError(RequestError):
    """A row of a job's input cannot be read: broken, too long, no UTF-8, or without a column that is needed."""


class JobError(SafegenError):
    """A job cannot go on; what was written stays. path: the file in question; hint: the fix."""

    def __init__(self, message: str, *, path: str | None = None, hint: str | None = None) -> None:
        self.reason = message
        self.path = path
        self.hint = hint
        super().__init__((f"{path}: " if path else "") + message + (f" Fix: {hint}" if hint else ""))


class JobInputError(JobError):
    """The input as a whole cannot be read."""


class JobOutputError(JobError):
    """The output cannot be written, or holds what no job wrote. Every record that was written is still there."""


class JobLocked(JobError):
    """Another process (or thread) writes the same output."""


class JobChanged(JobError):
    """The output was begun with another configuration, so its rows would not go together."""


class JobWorkerError(JobError):
    """The workers of a job on Ray cannot go on: no cluster, no model there, or Ray itself has failed."""


class GuardBlocked(SafegenError):
    """A guard stopped the request or its output. guard, rule: by whom and for what (rule is "error" or "timeout" for a
    guard that failed). path: JSONPath of the text. stage: "input" or "output". Never holds the text itself."""

    def __init__(
        self,
        message: str,
        *,
        guard: str | None = None,
        rule: str | None = None,
        path: str | None = None,
        stage: str | None = None,
    ) -> None:
        self.guard = guard
        self.rule = rule
        self.path = path
        self.stage = stage
        super().__init__(message)


class Truncated(SafegenError):
    """The token limit came before the answer was complete; `.result` holds what there is."""


class Refused(SafegenError):
    """The spec or request cannot be served."""


class InvalidOutput(SafegenError):
    """The output did not validate; retries or retracts are exhausted."""


class RetractsExhausted(InvalidOutput):
    """Output was taken back as often as is allowed, or nothing was left to try. pointer: the schema position that
    failed last."""

    def __init__(self, message: str, *, pointer: str = "") -> None:
        self.pointer = pointer
        super().__init__(message)


class Cancelled(SafegenError):
    """The request was cancelled."""


class EngineError(SafegenError):
    """A fault inside the engine. Other requests go on."""


class EngineClosed(SafegenError):
    """The LLM has been closed; start a new one."""
