"""The independent judge of DESIGN rule 2: `ok` implies valid.

`SchemaValidator` decides whether a text is strict JSON and an instance of a JSON Schema. It is built on `jsonschema`
(keywords, metaschemas, and `referencing` for `$ref`), with exact decimals, linear-time ECMA-262 patterns and exact
formats in place of the library's own; it shares no code with the constraint machine. Its verdicts are three: a value,
`ValidationFailure`, or an error (`SchemaError`, `ValidatorError`). Whatever goes wrong inside, the stack included, is
an error, never a value.

Drafts 4, 6, 7, 2019-09 and 2020-12, chosen by `$schema` (default 2020-12). References inside the schema, to documents
handed in with it and to the drafts' metaschemas resolve; all others are refused, nothing is fetched. A schema given as
text keeps its number literals exactly; in one given as Python objects a float stands for its shortest decimal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsonschema.exceptions import ValidationError

from safegen.errors import SafegenError, SchemaError
from safegen.validation.dialects import METASCHEMAS, dialect_of
from safegen.validation.evaluator import Evaluator, FormatMode, Library, Run
from safegen.validation.outcome import (
    JsonSyntaxError,
    ValidationFailure,
    ValidationOutcome,
    ValidatorError,
    json_pointer,
)
from safegen.validation.schema_check import audit, check_against_metaschema
from safegen.validation.strict_json import MAX_DEPTH, exact_copy, parse_strict

MAX_STEPS = 500_000


class SchemaValidator:
    """Validates texts against one schema. Immutable after construction but for caches; threads may share it.

    schema: a JSON Schema as dict or bool, or as JSON text. formats: "assert" checks every format and refuses schemas
    with an unknown one; "known" checks the known ones and takes others as annotations; "annotation" checks none.
    documents: further schemas by URI, for references. max_depth: nesting of the schema and of texts. max_steps:
    subschema applications for one text. Raises SchemaError when the schema cannot be served.
    """

    def __init__(
        self,
        schema: Any,
        *,
        formats: FormatMode = "assert",
        documents: Mapping[str, Any] | None = None,
        max_depth: int = MAX_DEPTH,
        max_steps: int = MAX_STEPS,
    ) -> None:
        if formats not in ("assert", "known", "annotation"):
            raise SchemaError(f"formats is 'assert', 'known' or 'annotation', got {formats!r}")
        self._max_depth = max_depth
        self._max_steps = max_steps
        self._library = Library(formats)
        try:
            self.schema = _exact_schema(schema, max_depth)
            self._dialect = dialect_of(self.schema)
            check_against_metaschema(self._dialect, self.schema)
            others = {uri: _exact_schema(other, max_depth) for uri, other in (documents or {}).items()}
            for other in others.values():
                check_against_metaschema(dialect_of(other, self._dialect), other)
            self._resolver = self._crawled_resolver(others)
            audit(self._evaluator(), self.schema)
        except RecursionError as error:
            raise SchemaError("nested too deep", hint="flatten the schema") from error
        except ValidatorError as error:
            raise SchemaError(f"the schema could not be checked: {error}") from error

    def validate(self, text: str | bytes) -> Any:
        """The value of a valid text: int for integers written plainly, exact Decimal for all other numbers.

        Raises ValidationFailure (JsonSyntaxError for what is not strict JSON), SchemaError or ValidatorError.
        """
        value = parse_strict(text, max_depth=self._max_depth)
        self.validate_value(value)
        return value

    def validate_value(self, value: Any) -> None:
        """The same for a value from parse_strict or exact_copy."""
        try:
            error = self._evaluator().first_error(value, self.schema, self._resolver)
        except SafegenError:
            raise
        except RecursionError as fault:
            raise ValidatorError("validation nested too deep: a reference without end, or too deep a value") from fault
        except Exception as fault:
            raise ValidatorError(f"the validator failed: {type(fault).__name__}: {fault}") from fault
        if error is not None:
            raise _failure(error)

    def outcome(self, text: str | bytes) -> ValidationOutcome:
        """The verdict as a value; never raises for what is in the text."""
        try:
            return ValidationOutcome("valid", self.validate(text))
        except ValidationFailure as failure:
            return ValidationOutcome("invalid", error=failure)
        except SafegenError as error:
            return ValidationOutcome("error", error=error)

    def _evaluator(self) -> Evaluator:
        return Evaluator(Run(self._library, self._max_steps), self._dialect, self._resolver)

    def _crawled_resolver(self, others: Mapping[str, Any]) -> Any:
        try:
            resource = self._dialect.specification.create_resource(self.schema)
            uri = (resource.id() or "").rstrip("#")
            known = METASCHEMAS.with_resources(
                (other_uri.rstrip("#"), dialect_of(other, self._dialect).specification.create_resource(other))
                for other_uri, other in others.items()
            )
            return known.with_resource(uri, resource).crawl().resolver(uri)
        except Exception as error:  # referencing and urllib raise many kinds on malformed identifiers
            raise SchemaError(f"its identifiers cannot be indexed: {error}", hint="check $id and $anchor") from error


def validate_json_schema(schema: Any, text: str | bytes, *, formats: FormatMode = "assert") -> ValidationOutcome:
    """Whether a text is strict JSON and valid under a JSON Schema. For many texts build a SchemaValidator once."""
    try:
        validator = SchemaValidator(schema, formats=formats)
    except SchemaError as error:
        return ValidationOutcome("error", error=error)
    return validator.outcome(text)


def _exact_schema(schema: Any, max_depth: int) -> Any:
    if not isinstance(schema, str | bytes):
        return exact_copy(schema, max_depth=max_depth)
    try:
        return parse_strict(schema, max_depth=max_depth)
    except JsonSyntaxError as error:
        raise SchemaError(f"the schema text is not strict JSON: {error.reason}") from error


def _failure(error: ValidationError) -> ValidationFailure:
    return ValidationFailure(
        error.message,
        instance_pointer=json_pointer(error.path),
        schema_pointer=json_pointer(error.schema_path),
        keyword=str(error.validator) if isinstance(error.validator, str) else "false schema",
    )
