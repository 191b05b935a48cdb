"""What a validation can end in: valid, invalid, or an error; never anything that could be read as "probably valid".

`ValidationFailure` says that the text is not an instance of the schema, with both JSON Pointers. `ValidatorError` says
that the validator could not decide (a bound was exceeded): the row's status is then "error". A schema that cannot be
served is a `SchemaError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from safegen.errors import EngineError, InvalidOutput, SafegenError

MAX_MESSAGE_CHARS = 300


def json_pointer(segments: Iterable[str | int]) -> str:
    """RFC 6901 pointer of a path; "" is the root."""
    return "".join("/" + str(segment).replace("~", "~0").replace("/", "~1") for segment in segments)


def shortened(text: str) -> str:
    """text, cut to what an error message can hold."""
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 3] + "..."


class ValidationFailure(InvalidOutput):
    """The text is not valid. instance_pointer: where in the value; schema_pointer: the keyword location that refused
    it, `$ref` steps included; keyword: its name (None when the text is not strict JSON)."""

    def __init__(
        self, reason: str, *, instance_pointer: str = "", schema_pointer: str = "", keyword: str | None = None
    ) -> None:
        self.reason = shortened(reason)
        self.instance_pointer = instance_pointer
        self.schema_pointer = schema_pointer
        self.keyword = keyword
        rule = f" (schema #{schema_pointer})" if keyword else ""
        super().__init__(f"value at #{instance_pointer}: {self.reason}{rule}")


class JsonSyntaxError(ValidationFailure):
    """The text is not strict JSON: malformed, a key twice, a lone surrogate, NaN, too deep."""


class ValidatorError(EngineError):
    """The validator could not decide within its bounds. Never to be taken for a verdict."""


@dataclass(frozen=True, slots=True)
class ValidationOutcome:
    """status: "valid", "invalid" (error is a ValidationFailure) or "error" (SchemaError or ValidatorError).

    value: the parsed value when valid; integers are int, other numbers exact `decimal.Decimal`.
    """

    status: Literal["valid", "invalid", "error"]
    value: Any = None
    error: SafegenError | None = None

    @property
    def is_valid(self) -> bool:
        return self.status == "valid"
