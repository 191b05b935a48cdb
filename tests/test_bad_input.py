"""Hostile arguments at the public API: each is a typed error or a whole answer, and the rows beside it are unharmed.

The plain mistakes (empty prompt, unknown option, NaN, invalid regex, ...) are in tests/sdk/test_llm.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, field_validator

from safegen.checking import check, matches
from safegen.errors import GrammarError, ModelLoadError, RequestError, SafegenError, SchemaError
from safegen.llm import LLM
from safegen.types import Choice, JsonSchema, Regex
from tests.support.sdk_fakes import TOKEN_BYTES, ScriptedBackend, make_llm

LONE = "\ud800"
HUGE = 10**400


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with make_llm() as made:
        yield made


# --- types that cannot be served --------------------------------------------------------------------------------------

TYPES: list[tuple[str, Callable[[], Any], type[SafegenError]]] = [
    ("lone surrogate in a key", lambda: JsonSchema({"properties": {LONE: {}}}), SchemaError),
    ("lone surrogate in schema text", lambda: JsonSchema(f'{{"const": "{LONE}"}}'), SchemaError),
    ("escaped lone surrogate that is required", lambda: JsonSchema('{"const": "\\ud800"}'), SchemaError),
    ("lone surrogate in a Literal", lambda: Literal[LONE, "a"], SchemaError),
    ("lone surrogate in a label", lambda: Choice([LONE, "a"]), GrammarError),
    ("lone surrogate in a pattern", lambda: Regex(LONE), GrammarError),
    ("no labels at all", lambda: Choice(None), GrammarError),  # type: ignore[arg-type]
    ("labels past every limit", lambda: Choice(["x" * 100_000, "y" * 100_000]), GrammarError),
    ("minLength past 64 bits", lambda: JsonSchema({"type": "string", "minLength": 10**30}), SchemaError),
    ("minItems past 64 bits", lambda: JsonSchema({"type": "array", "minItems": 10**30}), SchemaError),
    ("minProperties past 64 bits", lambda: JsonSchema({"type": "object", "minProperties": 10**30}), SchemaError),
    ("bound of 5,000 digits", lambda: JsonSchema(f'{{"minimum": {"9" * 5000}}}'), SchemaError),
    ("bound of a billion digits", lambda: JsonSchema('{"minimum": 1e999999999}'), SchemaError),
    ("bound past max_digits", lambda: JsonSchema({"type": "integer", "minimum": HUGE}), SchemaError),
    ("dict that holds itself", lambda: JsonSchema(_endless()), SchemaError),
    ("schema of 10 MB", lambda: JsonSchema({"enum": ["x" * 10_000_000]}), SchemaError),
    ("5,000 levels", lambda: JsonSchema(_nested(5000)), SchemaError),
    ("140 required levels", lambda: JsonSchema(_nested(140)), SchemaError),
    ("reference to the network", lambda: JsonSchema({"$ref": "http://127.0.0.1/x"}), SchemaError),
    ("endless required recursion", lambda: JsonSchema({"properties": {"a": {"$ref": "#"}}, "required": ["a"],
                                                       "type": "object"}), SchemaError),
    ("nested counts", lambda: Regex("(?:(?:a{1000}){1000}){1000}"), GrammarError),
    ("pattern of 200,000 characters", lambda: Regex("a" * 200_000), GrammarError),
    ("a module", lambda: json, SchemaError),
    ("an instance", object, SchemaError),
]  # fmt: skip


def _endless() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    schema["items"] = schema
    return schema


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
    return schema


def _multiplying() -> dict[str, Any]:
    return {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(20)]}


@pytest.mark.parametrize(("make", "kind"), [case[1:] for case in TYPES], ids=[case[0] for case in TYPES])
def test_type_that_cannot_be_served_is_a_typed_error(
    llm: LLM, make: Callable[[], Any], kind: type[SafegenError]
) -> None:
    with pytest.raises(kind):
        llm.generate("go", make(), max_tokens=8, show_schema=False)


def test_alternatives_that_multiply_past_the_limit_are_verified_when_the_value_closes(llm: LLM) -> None:
    spec = JsonSchema(_multiplying())
    assert {finding.handling for finding in check(spec)} >= {"verified"}
    whole = {f"a{i}": 0 for i in range(20)}
    assert matches(spec, json.dumps(whole, separators=(",", ":")))
    del whole["a7"]
    assert not matches(spec, json.dumps(whole, separators=(",", ":")))
    result = llm.generate("go", spec, max_tokens=8, show_schema=False)
    assert result.status in ("ok", "truncated")
    if result.status == "ok":
        jsonschema.validate(result.value, _multiplying())


SAMPLING: list[dict[str, Any]] = [
    {"stop": [LONE]}, {"stop": 5}, {"stop": None}, {"stop": [b"x"]},
    {"stop_ids": [10**9]}, {"stop_ids": [2**70]}, {"stop_ids": [-1]}, {"stop_ids": ["a"]}, {"stop_ids": [1.0]},
    {"stop_ids": [True]}, {"stop_ids": 5}, {"stop_ids": None},
    {"logit_bias": {5: 1e300}}, {"logit_bias": {5: HUGE}}, {"logit_bias": {5: math.inf}}, {"logit_bias": {"5": 1}},
    {"logit_bias": [5]}, {"logit_bias": None}, {"temperature": HUGE}, {"temperature": -HUGE}, {"temperature": "1"},
    {"repetition_penalty": 1e-300}, {"repetition_penalty": 1e300}, {"seed": 2**70}, {"n": 10**9}, {"max_tokens": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("options", SAMPLING, ids=repr)
@pytest.mark.parametrize("spec", [None, bool])
def test_sampling_option_that_makes_no_sense_is_a_request_error_that_names_it(
    llm: LLM, spec: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate("go", spec, **options)
    assert caught.value.field == next(iter(options))


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": {5: 1e30, 6: -1e30, 7: -math.inf}, "repetition_penalty": 1e-6},
        {"logit_bias": {5: 1e30, 6: -1e30}, "repetition_penalty": 1e6},
        {"temperature": 1e308, "seed": 1},
        {"temperature": 5e-324, "seed": 1},
        {"top_k": 10**30, "temperature": 1.0},
        {"logprobs": 10**30, "max_tokens": 2},
        {"min_tokens": 10**30},
        {"max_tokens": 10**30},
        {"seed": -(2**63), "temperature": 1.0},
        {"cache_salt": LONE},
        {"cache_salt": "x" * 1_000_000},
        {"n": 128},
    ],
    ids=lambda options: next(iter(options)),
)
def test_extreme_but_legal_option_is_served(llm: LLM, options: dict[str, Any]) -> None:
    result = llm.generate("go", Regex("[a-f]{4}"), **options)
    assert result.status in ("ok", "truncated"), result
    assert len(result.text) == 4 or options.get("max_tokens") == 2


@pytest.mark.parametrize(
    "prompt",
    [
        "a\0b",
        "\u200b",
        "\u202eabc\u0627",
        "<|im_start|>system\n",
        "<|im_end|>",
        "</s><s>[INST]",
        "\ufeff",
        "\ufffe",
        "😀" * 50,
    ],
)
def test_odd_but_legal_prompt_is_served(llm: LLM, prompt: str) -> None:
    result, messages = llm.generate(prompt, bool), llm.generate([{"role": "user", "content": prompt}], bool)
    assert result.value is messages.value is False or result.value is messages.value is True


@pytest.mark.parametrize(
    "prompt", [LONE, [{"role": "user", "content": LONE}], b"bytes", None, 5, [], [[]], [LONE], " \n"]
)
def test_prompt_that_is_no_text_is_a_request_error(llm: LLM, prompt: Any) -> None:
    with pytest.raises(RequestError):
        llm.generate(prompt)


def test_bad_rows_leave_the_good_ones_as_they_are(llm: LLM) -> None:
    bad: list[Any] = [(f"row {number}", make) for number, (_, make, _) in enumerate(TYPES)]
    rows: list[Any] = []
    for prompt, make in bad:
        try:
            rows.append((prompt, make()))
        except SafegenError:
            rows.append((prompt, {"a": "dict is no type"}))
        rows.append((f"good {prompt}", Regex("[a-f]{3}")))
    results = llm.batch(rows, max_tokens=8, show_schema=False)
    assert {result.status for result in results[::2]} == {"refused"}
    assert all(isinstance(result.error, SafegenError) for result in results[::2])
    alone = [llm.generate(prompt, spec, max_tokens=8, show_schema=False).text for prompt, spec in rows[1::2]]
    assert [result.text for result in results[1::2]] == alone


@pytest.mark.parametrize(
    "model", ["/dev/null", "/dev/zero", "a\0b.gguf", LONE, "x" * 10_000, "/proc/self/mem", ".", "~nobody/x.gguf"]
)
def test_path_that_is_no_model_is_a_load_error(model: str) -> None:
    with pytest.raises(ModelLoadError):
        LLM(model)


# --- large and deep types ---------------------------------------------------------------------------------------------

ODD_KEYS = [
    "\0", "\x1f", "\x7f", "\u202e\u0627", '"', "\\", 'a"b\\c', "\u2028", "👨‍👩‍👧", "", "\t\n",
    "é", "e\u0301", "\ufeff", "/", "~",
    "a/b~c", "$ref", "__proto__", "\uffff", "\U0010ffff", "key with blanks ", "\\u0041",
]  # fmt: skip


@pytest.mark.parametrize("spelling", ["canonical", "any"])
@pytest.mark.parametrize("order", ["schema", "any"])
def test_keys_of_any_characters_come_back_as_they_were(llm: LLM, spelling: Any, order: Any) -> None:
    schema = {
        "type": "object",
        "properties": {key: {"const": key} for key in ODD_KEYS},
        "required": ODD_KEYS,
        "additionalProperties": False,
    }
    spec = JsonSchema(schema, spelling=spelling, property_order=order)
    result = llm.generate("go", spec, max_tokens=1500)
    assert result.unwrap() == {key: key for key in ODD_KEYS}


def test_large_types_are_served_or_refused_by_a_named_limit(llm: LLM) -> None:
    properties = {f"prop_{number}": {"type": "boolean"} for number in range(5000)}
    optional = JsonSchema({"type": "object", "properties": properties, "additionalProperties": False})
    required = JsonSchema({"type": "object", "properties": properties, "required": list(properties)})
    assert llm.generate("go", JsonSchema({"enum": list(range(50_000))}), show_schema=False).unwrap() in range(50_000)
    assert llm.generate("go", optional, show_schema=False, max_tokens=300).status in ("ok", "truncated")
    cut = llm.generate("go", required, show_schema=False, max_tokens=20)
    assert (cut.status, cut.text[:11]) == ("truncated", '{"prop_0":t') or cut.text.startswith('{"prop_0":f')
    with pytest.raises(SchemaError, match="max_schema_bytes"):
        llm.generate("go", JsonSchema({"enum": [f"a long label, number {number}" for number in range(50_000)]}))
    with pytest.raises(RequestError, match="context"):
        llm.generate("go", Choice([f"label {number}" for number in range(50_000)]))


class Tree(BaseModel):
    kids: list[Tree]


RECURSIVE = JsonSchema({"type": "array", "items": {"$ref": "#"}})


@pytest.mark.parametrize(("spec", "opening"), [(RECURSIVE, "["), (JsonSchema(True), "["), (list, "["), (Any, "["),
                                               (JsonSchema(True), '{"a":'), (Tree, '{"kids":[')])  # fmt: skip
def test_answer_never_nests_deeper_than_its_readers_go(spec: Any, opening: str) -> None:
    with make_llm(ScriptedBackend(opening * 400)) as deep:
        result = deep.generate("go", spec, max_tokens=1800, show_schema=False)
    assert result.status in ("ok", "truncated"), result
    assert result.value is not None
    assert result.text.count("[") + result.text.count("{") > 100 and result.text.startswith(opening * 50)


def test_type_that_is_compiled_deep_in_the_callers_stack_is_a_typed_error_or_served(llm: LLM) -> None:
    def at_depth(frames: int) -> Any:
        if frames:
            return at_depth(frames - 1)
        try:
            return llm.generate("go", JsonSchema(_nested(90)), max_tokens=300, show_schema=False).status
        except SafegenError as error:
            return error

    outcomes = [at_depth(frames) for frames in range(100, 900, 100)]
    assert all(outcome in ("ok", "invalid", "error") or isinstance(outcome, SchemaError) for outcome in outcomes)
    assert outcomes[0] == "ok"


def test_two_thousand_rows_are_answered_in_order(llm: LLM) -> None:
    rows = [(f"row {number}", Regex(f"{number}[ab]")) for number in range(2000)]
    results = llm.batch(rows, show_schema=False)
    assert [result.text[:-1] for result in results] == [str(number) for number in range(2000)]


# --- callers' own code ------------------------------------------------------------------------------------------------


class Picky(BaseModel):
    value: Literal[1, 2]
    mood: str = ""

    @field_validator("value")
    @classmethod
    def crash(cls, value: int) -> int:
        raise ZeroDivisionError("the caller's own bug")


def test_validator_that_crashes_is_an_error_row_and_the_others_go_on(llm: LLM) -> None:
    crashed, fine = llm.batch([("go", Picky), ("go", bool)], max_tokens=300)
    assert (crashed.status, fine.status) == ("error", "ok")
    assert isinstance(crashed.error, ZeroDivisionError)


def test_union_keeps_the_order_of_its_own_members(llm: LLM) -> None:
    """typing takes A | B and B | A for equal, and pydantic prefers the first member of equally good ones."""

    class One(BaseModel):
        x: bool

    class Other(BaseModel):
        x: bool

    assert isinstance(llm.generate("go", One | Other).value, One)
    assert isinstance(llm.generate("go", Other | One).value, Other)
    assert isinstance(llm.generate("go", list[Other | One], max_tokens=200).unwrap(), list)


def test_vocabulary_stays_whole_for_stop_ids_inside_it(llm: LLM) -> None:
    last = len(TOKEN_BYTES) - 1
    assert llm.generate("go", Regex("[a-f]{4}"), stop_ids=[last, 0]).status == "ok"


def test_alternatives_past_the_limit_do_not_stall_the_engine(llm: LLM) -> None:
    """They are verified, and looking for a way to close them in time is bounded."""
    spec = JsonSchema({"type": "object", **_multiplying()})
    slow, quick = llm.batch([("go", spec), ("go", bool)], max_tokens=30, show_schema=False)
    assert slow.status in ("ok", "truncated", "invalid")
    assert quick.status == "ok"
