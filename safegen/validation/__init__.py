"""Independent validation: is a text strict JSON, and valid under a JSON Schema? See `schema_validator`."""

from safegen.validation.ecma import EcmaRegex
from safegen.validation.formats import FORMATS
from safegen.validation.outcome import JsonSyntaxError, ValidationFailure, ValidationOutcome, ValidatorError
from safegen.validation.schema_validator import SchemaValidator, validate_json_schema
from safegen.validation.strict_json import parse_strict

__all__ = [
    "FORMATS",
    "EcmaRegex",
    "JsonSyntaxError",
    "SchemaValidator",
    "ValidationFailure",
    "ValidationOutcome",
    "ValidatorError",
    "parse_strict",
    "validate_json_schema",
]
