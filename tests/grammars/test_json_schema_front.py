"""The JSON Schema front end: exact intersections, refusals by pointer, order, spelling, limits and findings."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from safegen._native import Builder
from safegen.errors import RequestError, SchemaError
from safegen.grammars.json_schema import Finding, check_json_schema, compile_json_schema
from safegen.grammars.options import Limits, SchemaOptions
from safegen.validation import SchemaValidator

Factory = Callable[..., Any]
ANY = SchemaOptions("flexible", "any", "any")


def verdicts(schema: Any, texts: list[str], make_builder: Factory, options: SchemaOptions | None = None) -> list[bool]:
    program = compile_json_schema(schema, options, make_builder=make_builder).program
    return [program.matches(text.encode()) for text in texts]


def assert_language(
    schema: Any, accepted: list[str], rejected: list[str], make_builder: Factory, options: SchemaOptions | None = None
) -> None:
    given = verdicts(schema, accepted + rejected, make_builder, options)
    assert [text for text, ok in zip(accepted, given) if not ok] == []
    assert [text for text, ok in zip(rejected, given[len(accepted) :]) if ok] == []


# Meaning.


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        pytest.param(
            {"allOf": [{"properties": {"a": {"minimum": 3}}}, {"properties": {"a": {"maximum": 5}, "b": False}}]},
            ['{"a":4}', '"x"', '{"a":"x","c":1}'],
            ['{"a":2}', '{"a":6}', '{"b":1}'],
            id="properties meet",
        ),
        pytest.param(
            {"allOf": [{"additionalProperties": {"type": "integer"}}, {"properties": {"a": {"minimum": 1}}}]},
            ['{"a":1,"z":0}'],
            ['{"a":0}', '{"a":1.5}', '{"z":"x"}'],
            id="a name meets the other side's additionalProperties",
        ),
        pytest.param(
            {"patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 5}}, "additionalProperties": False},
            ['{"ab":7,"a":1,"b":9}', "[]"],
            ['{"ab":3}', '{"ab":7.5}', '{"c":1}', '{"a":"x"}'],
            id="overlapping key patterns",
        ),
        pytest.param(
            {"type": "object", "propertyNames": {"maxLength": 2, "not": {"const": "no"}}, "minProperties": 1},
            ['{"a":1}', '{"ab":1,"b":2}'],
            ["{}", '{"abc":1}', '{"no":1}'],
            id="names by length and negation",
        ),
        pytest.param(
            {"if": {"required": ["k"]}, "then": {"required": ["v"]}, "else": {"maxProperties": 1}},
            ['{"k":1,"v":2}', '{"z":1}', "{}", "5"],
            ['{"k":1}', '{"y":1,"z":1}'],
            id="condition on presence",
        ),
        pytest.param(
            {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
            ["1", "2.5"],
            ["3", "1.5"],
            id="exactly one of two overlapping",
        ),
        pytest.param(
            {"not": {"properties": {"a": {"type": "string"}}, "required": ["a"]}},
            ["{}", '{"a":1}', '{"b":"x"}'],
            ['{"a":"x"}', "1"],
            id="negated object",
        ),
        pytest.param(
            {"type": "array", "prefixItems": [{"const": 1}], "not": {"prefixItems": [True, {"const": 2}]}},
            ["[1,3]"],
            ["[1,2]", "[1]", "[]", "[2,3]"],
            id="negated tuple",
        ),
        pytest.param(
            {"not": {"not": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}}},
            ["[]", "[1,2]"],
            ["[1,2,3]", '["a"]', "1"],
            id="negation twice",
        ),
        pytest.param(
            {"enum": [[1, 2], [1], {"a": 1}, {"a": "x"}, "yes", 3], "minItems": 2,
             "properties": {"a": {"type": "string"}}},
            ["[1,2]", '{"a":"x"}', '"yes"', "3"],
            ["[1]", '{"a":1}'],
            id="enum filtered by siblings of every type",
        ),
        pytest.param(
            {"$defs": {"t": {"type": "object", "properties": {"l": {"$ref": "#/$defs/t"}},
                             "additionalProperties": False}},
             "allOf": [{"$ref": "#/$defs/t"}, {"properties": {"l": {"required": ["l"]}}}]},
            ["{}", '{"l":{"l":{}}}'],
            ['{"l":{}}', '{"x":1}'],
            id="a recursive schema meets another",
        ),
        pytest.param(
            {"dependentRequired": {"a": ["b"], "b": ["c"]}, "type": "object"},
            ["{}", '{"c":1}', '{"b":1,"c":1}', '{"a":1,"b":1,"c":1}'],
            ['{"a":1}', '{"a":1,"b":1}', '{"b":1}'],
            id="dependencies chain",
        ),
        pytest.param(
            {"anyOf": [{"properties": {"a": True}, "required": ["a"]}, {"properties": {"b": True}}],
             "unevaluatedProperties": False, "type": "object"},
            ['{"a":1,"b":2}', '{"b":1}', "{}", '{"a":1}'],
            ['{"a":1,"c":1}', '{"c":1}'],
            id="every branch that holds evaluates",
        ),
        pytest.param(
            {"type": "array", "contains": {"minimum": 5}, "minContains": 2, "maxContains": 3, "maxItems": 4},
            ["[5,6]", "[5,1,6,7]", '[5,"a",5]'],
            ["[5]", "[]", "[5,6,7,8]", "[5,1,1,1,6]", "[1,2]"],
            id="contains with counts",
        ),
        pytest.param(
            {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"},
             "allOf": [{"contains": {"const": 3}}, {"contains": {"type": "string", "minLength": 2}}]},
            ['["ab",3]', '["ab",1,3,3]'],
            ['["ab",1]', '["a",3]', "[3]", '["ab","ab",3]'],
            id="two contains behind a prefix",
        ),
        pytest.param(
            {"type": "array", "not": {"contains": {"type": "string"}}, "minItems": 1},
            ["[1]", "[null,[]]"],
            ["[]", '[1,"a"]'],
            id="negated contains",
        ),
        pytest.param(
            {"type": "array", "items": {"enum": [1, "a", None, [1], {"k": 2}]}, "uniqueItems": True, "minItems": 2},
            ['[1,"a"]', '[{"k":2},[1],null,1]', '["a",1.0]'],
            ["[1]", '["a",1,"\\u0061"]', "[1,1.0]", '[{"k":2},{"k":2e0}]'],
            id="unique items out of a list",
        ),
        pytest.param(
            {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
            ["[]", '["a","b","ab"]'],
            ['["a","b","a"]', '["a","\\u0061"]'],
            id="unique strings",
        ),
        pytest.param(
            {"type": "array", "uniqueItems": True, "contains": {"type": "object"}},
            ["[{}]", '[1,{"a":1},{"a":2}]'],
            ["[]", "[{},{}]", '[1,{"a":1},1]'],
            id="unique items that are counted",
        ),
        pytest.param(
            {"type": "array", "not": {"uniqueItems": True}},
            ["[1,1]", "[[],2,[]]", '[{"a":1,"b":2},{"b":2,"a":1}]'],
            ["[]", "[1]", "[1,2]", "[1,true]"],
            id="two equal items",
        ),
        pytest.param(
            {"type": "object", "not": {"additionalProperties": {"type": "integer"}}},
            ['{"a":"x"}', '{"a":1,"b":null}'],
            ["{}", '{"a":1,"b":2}'],
            id="some key of any name",
        ),
        pytest.param(
            {"oneOf": [{"additionalProperties": {"type": "integer"}}, {"required": ["a"]}], "type": "object"},
            ['{"b":1}', "{}", '{"a":1,"b":"x"}', '{"a":"x"}'],
            ['{"a":1}', '{"b":"x"}', '{"a":1,"b":2}'],
            id="overlapping maps",
        ),
        pytest.param(
            {"type": "number", "multipleOf": 0.1, "exclusiveMaximum": 1, "not": {"enum": [0.5]}},
            ["0.3", "0.9", "-7", "0.40"],
            ["0.5", "5e-1", "1", "0.25"],
            id="decimal multiples without one value",
        ),
    ],
)  # fmt: skip
def test_keywords_meet_exactly(schema: Any, accepted: list[str], rejected: list[str], make_builder: Factory) -> None:
    assert_language(schema, accepted, rejected, make_builder, ANY)


def test_property_order_is_first_appearance_depth_first(make_builder: Factory) -> None:
    schema = {
        "allOf": [{"$ref": "#/$defs/base"}],
        "properties": {"c": True, "a": True},
        "required": ["z", "a"],
        "$defs": {"base": {"properties": {"a": True, "b": True}}},
        "type": "object",
    }
    legal = '{"a":1,"b":2,"c":3,"z":4,"free":5}'
    assert_language(
        schema,
        [legal, '{"a":1,"z":4}', '{"a":1,"z":4,"y":0,"x":0}'],
        ['{"b":2,"a":1,"z":4}', '{"a":1,"free":5,"z":4}', '{"a":1,"z":4,"c":3}'],
        make_builder,
    )
    assert verdicts(schema, ['{"free":5,"z":4,"c":3,"b":2,"a":1}'], make_builder, ANY) == [True]


def test_order_follows_properties_when_it_stands_before_all_of(make_builder: Factory) -> None:
    inner = {"properties": {"a": True}}
    schema = {"type": "object", "properties": {"b": True}, "allOf": [inner], "required": ["a", "b"]}
    assert verdicts(schema, ['{"b":1,"a":1}', '{"a":1,"b":1}'], make_builder) == [True, False]


def test_canonical_spelling_is_one_spelling(make_builder: Factory) -> None:
    schema = {"enum": ["é/\n", 1.50, 1e2, {"k": 0}]}
    canonical = ['"é/\\n"', "1.5", "100", '{"k":0}']
    others = ['"\\u00e9/\\n"', '"é\\/\\n"', "1.50", "1e2", "100.0", '{"\\u006b":0}', '{"k":-0}']
    assert_language(schema, canonical, others, make_builder)
    assert_language(schema, canonical + others, [], make_builder, SchemaOptions(spelling="any"))


def test_integers_are_plain_only_where_number_is_not_admitted(make_builder: Factory) -> None:
    schema: Any
    for schema in ({"type": "integer"}, {"allOf": [{"type": "number"}, {"type": "integer"}]}):
        assert_language(schema, ["0", "-1"], ["-0", "1.0", "1e1"], make_builder)
    for schema in ({"type": ["integer", "number"], "multipleOf": 1}, {"multipleOf": 1}):
        assert_language(schema, ["0", "-0", "1.0", "1e1"], ["1.5"], make_builder)


def test_data_is_never_read_as_schema(make_builder: Factory) -> None:
    schema = {
        "const": {"$ref": "#/nowhere", "type": "strnig"},
        "default": {"type": 5},
        "examples": [{"pattern": "("}],
        "x-unknown": {"minLength": -1},
    }
    assert verdicts(schema, ['{"$ref":"#/nowhere","type":"strnig"}', "{}"], make_builder) == [True, False]


def test_deep_texts_of_a_recursive_schema(make_builder: Factory) -> None:
    schema = {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}
    assert verdicts(schema, ["[" * 40 + "]" * 40, "[[],[],[]]"], make_builder) == [True, False]


def test_formats_by_option(make_builder: Factory) -> None:
    schema = {"type": "string", "format": "date"}
    assert verdicts(schema, ['"2023-02-29"', '"2024-02-29"'], make_builder) == [False, True]
    ignored = SchemaOptions(formats="annotation")
    assert verdicts(schema, ['"2023-02-29"'], make_builder, ignored) == [True]
    with pytest.raises(SchemaError, match="'phone'"):
        compile_json_schema({"format": "phone"})
    assert verdicts({"format": "phone"}, ['"x"'], make_builder, SchemaOptions(formats="known")) == [True]


# Documents.


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        ({"properties": {"a": {"type": "strnig"}}}, "/properties/a", "type"),
        ({"type": []}, "", "type"),
        ({"required": "a"}, "", "required"),
        ({"properties": []}, "", "properties"),
        ({"items": [{"minLength": -1}]}, "", "items"),
        ({"items": {"minLength": -1}}, "/items", "minLength"),
        ({"minLength": 2.5}, "", "minLength"),
        ({"minLength": True}, "", "minLength"),
        ({"enum": "abc"}, "", "enum"),
        ({"multipleOf": 0}, "", "multipleOf"),
        ({"minimum": "3"}, "", "minimum"),
        ({"exclusiveMinimum": True, "minimum": 1}, "", "exclusiveMinimum"),
        ({"uniqueItems": "yes"}, "", "uniqueItems"),
        ({"anyOf": []}, "", "anyOf"),
        ({"anyOf": [{"not": 5}]}, "/anyOf/0", "not"),
        ({"type": "string", "pattern": "("}, "", "pattern"),
        ({"patternProperties": {"(": {}}}, "", "patternProperties"),
        ({"dependentRequired": {"a": "b"}}, "", "dependentRequired"),
        ({"$defs": {"a/b~": {"type": 5}}}, "/$defs/a~1b~0", "type"),
        ({"$schema": "http://example.com/x"}, "", "$schema"),
        ({"$ref": "https://example.com/s.json"}, "", "$ref"),
        ({"items": {"$ref": "other.json#/a"}}, "/items", "$ref"),
        ({"$ref": "#/title", "title": "t"}, "", "$ref"),
        ({"$ref": "#/allOf/5", "allOf": [True]}, "", "$ref"),
        ({"$ref": "#nowhere"}, "", "$ref"),
        ({"$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x"}}, "$ref": "#x"}, "", "$ref"),
    ],
)
def test_refusal_names_the_place_and_the_keyword(schema: Any, pointer: str, keyword: str) -> None:
    with pytest.raises(SchemaError) as refusal:
        compile_json_schema(schema)
    assert (refusal.value.pointer, refusal.value.keyword) == (pointer, keyword)


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (False, ""),
        ({"type": "string", "pattern": "^a", "allOf": [{"pattern": "^b"}]}, ""),
        ({"type": "string", "pattern": "^[ab]{2}$", "minLength": 3}, ""),
        ({"type": "integer", "minimum": 1, "maximum": 6, "multipleOf": 7}, ""),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "/items"),
        ({"properties": {"a": {"enum": []}}, "required": ["a"], "type": "object"}, "/properties/a"),
        (
            {"type": "object", "required": ["a"], "properties": {"a": {"type": "string", "pattern": "x^"}}},
            "/properties/a",
        ),
        (
            {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["k"], "properties": {"k": {
                "type": "string", "pattern": "(?!)"}}}},
            "/items/properties/k",
        ),
        ({"const": "\ud800"}, ""),
        ({"type": "object", "properties": {"\ud800": True}, "required": ["\ud800"]}, ""),
    ],
)  # fmt: skip
def test_unsatisfiable_schema_is_refused_at_the_culprit(schema: Any, pointer: str, make_builder: Factory) -> None:
    with pytest.raises(SchemaError, match="no value satisfies") as refusal:
        compile_json_schema(schema, make_builder=make_builder)
    assert refusal.value.pointer == pointer


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}, {"type": "integer"}]},
        {"not": {"$ref": "#"}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}},
    ],
)
def test_reference_cycle_without_progress_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaError, match="refers to itself"):
        compile_json_schema(schema)


@pytest.mark.parametrize("text", ['{"type":"integer","type":"string"}', '{"minimum":NaN}', "{", "[" * 100_000, "5"])
def test_bad_schema_text_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        compile_json_schema(text)


@pytest.mark.parametrize(
    "schema", [0, None, b"x", {1: {}}, {"const": b"x"}, {"minimum": float("inf")}, {"const": {"a": {1, 2}}}]
)
def test_what_json_cannot_hold_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaError):
        compile_json_schema(schema)


def test_numbers_in_a_schema_stay_exact(make_builder: Factory) -> None:
    text = '{"type":"number","minimum":0.1000000000000000000001,"maximum":9007199254740993}'
    accepted, rejected = ["0.1000000000000000000001", "9007199254740993"], ["0.1", "9007199254740993.1"]
    assert_language(text, accepted, rejected, make_builder)
    bound = {"type": "number", "minimum": Decimal("0.1"), "maximum": 0.3}
    assert_language(bound, ["0.1", "0.3"], ["0.09", "0.30000000000000004"], make_builder)


def test_a_dict_that_holds_itself_and_deep_nesting_are_refused() -> None:
    loop: dict[str, Any] = {"type": "array"}
    loop["items"] = loop
    nested: dict[str, Any] = {"type": "integer"}
    for _ in range(5_000):
        nested = {"type": "array", "items": nested}
    inline: dict[str, Any] = {"type": "integer"}
    for _ in range(200):
        inline = {"allOf": [inline]}
    for schema in (loop, nested, inline):
        with pytest.raises(SchemaError, match=r"max_depth|max_inline_depth"):
            compile_json_schema(schema)


def test_alternatives_that_multiply_are_verified_in_bounded_time() -> None:
    schema = {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(25)]}
    started = time.perf_counter()
    compiled = compile_json_schema(schema)
    assert time.perf_counter() - started < 5
    assert Finding("", "allOf", "verified", "alternatives past max_alternatives") in compiled.findings
    whole = {f"{'ab'[i % 2]}{i}": 0 for i in range(25)}
    assert compiled.program.matches(json.dumps(whole, separators=(",", ":")).encode())
    del whole["b23"]
    assert not compiled.program.matches(json.dumps(whole, separators=(",", ":")).encode())


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        (
            {"oneOf": [{"properties": {f"k{i}": {"minimum": i}, "t": True}} for i in range(9)]},
            ['{"k0":-1,"k1":0,"k2":0,"k3":0,"k4":0,"k5":0,"k6":0,"k7":0}'],
            ["{}", '{"k1":0}', '{"k0":-1,"k1":0,"k2":0,"k3":0,"k4":0,"k5":0,"k6":0,"k7":0,"k8":1}'],
        ),
        (
            {"$defs": {"o": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}}, "not": {
                "allOf": [{"$ref": "#/$defs/o"}, *({"anyOf": [{"required": [f"c{i}"]}, {"maxProperties": i}]}
                                                  for i in range(1, 6))]}},
            ['{"z":1}', "{}", '{"a":1,"z":2}'],
            ['{"a":1}', '{"b":1}', "1"],
        ),
    ],
)  # fmt: skip
def test_verified_schema_has_the_verdicts_of_the_exact_one(
    schema: Any, accepted: list[str], rejected: list[str], make_builder: Factory
) -> None:
    for limits in (Limits(), Limits(max_alternatives=8)):
        compiled = compile_json_schema(schema, ANY, limits, make_builder=make_builder)
        assert [text for text in accepted if not compiled.program.matches(text.encode())] == []
        assert [text for text in rejected if compiled.program.matches(text.encode())] == []
    assert any(finding.handling == "verified" for finding in compiled.findings)


def test_doubling_references_cost_no_doubling_work() -> None:
    levels = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)}
    schema = {"$defs": levels | {"d30": {"type": "null"}}, "$ref": "#/$defs/d0"}
    program = compile_json_schema(schema, None, Limits(max_inline_depth=200)).program
    assert program.matches(b"null")
    assert not program.matches(b"1")


def test_large_enum_and_object_compile_in_under_a_second() -> None:
    started = time.process_time()
    program = compile_json_schema({"enum": [f"v{i}" for i in range(50_000)]}).program
    assert time.process_time() - started < 1
    assert program.matches(b'"v49999"')
    assert not program.matches(b'"v50000"')
    started = time.process_time()
    properties = {f"p{i}": {"type": "integer"} for i in range(5_000)}
    program = compile_json_schema({"type": "object", "properties": properties, "additionalProperties": False}).program
    assert time.process_time() - started < 1
    assert program.matches(b'{"p1":1,"p4000":2}')


# Drafts.


def test_older_drafts_are_mapped(make_builder: Factory) -> None:
    draft_4, draft_7 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"
    old = {"$schema": draft_4, "id": "http://x/y", "minimum": 3, "exclusiveMinimum": True, "const": 1}
    assert_language(old, ["4", "3.5", '"x"'], ["3", "1"], make_builder)
    tuples = {"$schema": draft_7, "items": [{"type": "null"}], "additionalItems": {"type": "string"}, "type": "array"}
    assert_language(tuples, ["[]", '[null,"a"]'], ["[1]", "[null,1]"], make_builder)
    depends = {"$schema": draft_7, "dependencies": {"a": ["b"], "c": {"required": ["d"]}}, "type": "object"}
    assert_language(depends, ['{"a":1,"b":1}', '{"c":1,"d":1}'], ['{"a":1}', '{"c":1}'], make_builder, ANY)
    siblings = {"$schema": draft_7, "definitions": {"s": {"type": "string"}}, "$ref": "#/definitions/s", "maxLength": 1}
    assert_language(siblings, ['"abc"'], ["1"], make_builder)


def test_integers_of_draft_4_are_told_by_their_text(make_builder: Factory) -> None:
    integer = {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"}
    assert_language(integer, ["1", "-0", "-12"], ["1.0", "1e0", "10e-1", "1.5"], make_builder, ANY)
    others = {"$schema": integer["$schema"], "not": {"type": "integer"}}
    assert_language(others, ["1.0", "1e0", '"x"'], ["1", "-12", "-0"], make_builder, ANY)
    listed = {**integer, "enum": [1, 2, 2.5], "not": {"enum": [2]}}
    assert_language(listed, ["1"], ["1.0", "2", "2.0", "2.5"], make_builder, ANY)
    different = {"$schema": integer["$schema"], "items": {"type": "integer", "minimum": 1, "maximum": 2}}
    different |= {"type": "array", "uniqueItems": True}
    assert_language(different, ["[1,2]"], ["[1,1]", "[1.0,2]"], make_builder, ANY)


def test_a_part_of_the_patterns_is_held_and_all_of_it_is_valid(make_builder: Factory) -> None:
    schema = {"type": "string", "format": "regex"}
    accepted = [r"^[a-z0-9-_]+$", "", "a|b", r"((a{2,3}?)*)(?=\d)", r"[^\]\u0400-\u04ff-]", r"\p{Lu}[\0-\x1f]", "[]"]
    rejected = ["[", "a**", "(", "[z-a]", "a{3,2}", r"\y", "(?=a)*", r"[\w-.]", "}", r"[\u0410-\u0400]", r"\u{110000}"]
    assert_language(schema, [json.dumps(x) for x in accepted], [json.dumps(x) for x in rejected], make_builder)


def test_idn_hostnames_that_are_held_are_valid() -> None:
    rng = random.Random(9)
    program = compile_json_schema({"type": "string", "format": "idn-hostname"}).program
    validator = SchemaValidator({"format": "idn-hostname"})
    held = 0
    for _ in range(4000):
        blocks = rng.sample(
            [0x61, 0x2D, 0x30, 0xDF, 0x3B1, 0x430, 0x5D0, 0x915, 0xAC00, 0x4E00, 0x3041, 0x300, 0x1100], 3
        )
        label = "".join(chr(rng.choice(blocks) + rng.randrange(26)) for _ in range(rng.randrange(1, 9)))
        text = json.dumps(rng.choice([label, f"{label}.com", f"a\u3002{label}"]), ensure_ascii=False)
        if program.matches(text.encode()):
            held += 1
            assert validator.outcome(text).status == "valid", text
    assert held > 200
    assert program.matches('"실례.테스트"'.encode())


def test_regex_and_hostname_agree_with_the_validator_on_changed_texts() -> None:
    rng = random.Random(8)
    seeds = {
        "regex": [
            r"^[a-zA-Z_$][\w$]*(?:\.[a-z]+)?$",
            r"(?!x)\u{1F600}|[^\s\-]{2,}",
            r"^\d{4}-[01]\d$",
            r"[+--]|(a)(b)",
        ],
        "hostname": [
            "example.com",
            "a-b.c-d.e",
            "xn--a.b",
            "a--b.c",
            "ab--c",
            "a" * 63 + ".b",
            "1.2.3.4",
            "xn--bcher-kva.example",
        ],
    }
    for name, texts in seeds.items():
        program = compile_json_schema({"type": "string", "format": name}, SchemaOptions(spelling="any")).program
        validator = SchemaValidator({"format": name})
        held = 0
        for _ in range(400):
            text = rng.choice(texts)
            for _ in range(rng.randrange(3)):
                at = rng.randrange(len(text) + 1)
                text = text[:at] + rng.choice(r"()[]{}*+?|\\-^$a0zA.,:=!<u") + text[at + rng.randrange(2) :]
            spelled = json.dumps(text)
            if program.matches(spelled.encode()):
                held += 1
                assert validator.outcome(spelled).status == "valid", text
        assert held > 40


LIST = "http://example.com/list"


def test_references_reach_documents_that_were_handed_in_and_metaschemas(make_builder: Factory) -> None:
    item = {"$id": "http://example.com/item", "type": "integer"}
    listed = {"$defs": {"l": {"type": "array", "items": {"$ref": "item"}, "maxItems": 2}}}
    documents = {LIST: listed, "http://example.com/item": item}
    options = SchemaOptions(documents=documents)
    assert_language({"$ref": f"{LIST}#/$defs/l"}, ["[1,2]", "[]"], ["[1,2,3]", '["a"]'], make_builder, options)
    with pytest.raises(SchemaError, match=r"documents=\{'http://example.com/list': schema\}"):
        compile_json_schema({"$ref": LIST})
    metaschema = {"$ref": "http://json-schema.org/draft-07/schema#"}
    annotated = SchemaOptions("flexible", "any", "any", "annotation")
    for meta in (metaschema, {"$ref": "https://json-schema.org/draft/2020-12/schema"}):
        accepted = ['{"type":"array","maxItems":3}', "true", '{"items":{"minimum":1.5}}']
        rejected = ['{"type":"arr"}', "5", '{"items":{"minItems":-1}}', '{"required":["a","a"]}']
        assert_language(meta, accepted, rejected, Builder, annotated)


def test_dynamic_references_follow_the_way_that_evaluation_took(make_builder: Factory) -> None:
    generic = {
        "$id": "http://example.com/generic",
        "properties": {"list": {"items": {"$dynamicRef": "#item"}}},
        "$defs": {"any": {"$dynamicAnchor": "item"}},
    }
    kinds = {
        kind: {"$id": f"http://example.com/{kind}", "$ref": "generic",
               "$defs": {"item": {"$dynamicAnchor": "item", "type": kind}}}
        for kind in ("string", "number")
    }  # fmt: skip
    schema = {
        "$id": "http://example.com/root",
        "properties": {"strings": {"$ref": "string"}, "numbers": {"$ref": "number"}, "any": {"$ref": "generic"}},
        "$defs": kinds | {"generic": generic},
    }
    accepted = ['{"strings":{"list":["a"]}}', '{"numbers":{"list":[1]},"any":{"list":[1,"a"]}}']
    rejected = ['{"strings":{"list":[1]}}', '{"numbers":{"list":["a"]}}']
    assert_language(schema, accepted, rejected, make_builder, ANY)


def test_items_that_contains_counts_are_evaluated(make_builder: Factory) -> None:
    schema = {"type": "array", "prefixItems": [True], "contains": {"type": "string"}, "unevaluatedItems": False}
    assert_language(schema, ['[1,"a","b"]', '["a"]'], ['[1,"a",2]', "[1]"], make_builder, ANY)
    old = {"$schema": "https://json-schema.org/draft/2019-09/schema", "contains": {"type": "string"}}
    old |= {"items": [True], "unevaluatedItems": False, "type": "array"}
    assert_language(old, ['["a"]'], ['[1,"a"]'], make_builder, ANY)


# Findings.


def test_findings_tell_how_each_keyword_is_handled() -> None:
    compiled = compile_json_schema({"type": "object", "properties": {"a": {"nullable": True, "minlength": 3}}})
    assert Finding("", "type", "enforced") in compiled.findings
    notes = {(finding.pointer, finding.keyword): finding.note for finding in compiled.findings if finding.note}
    assert "OpenAPI" in notes["/properties/a", "nullable"]
    assert "'minLength'" in notes["/properties/a", "minlength"]
    assert compiled.compile_ms > 0


def test_check_collects_every_problem() -> None:
    broken = check_json_schema({"type": "strnig", "properties": {"a": {"minLength": -1}, "b": {"type": "null"}}})
    refused = {(finding.pointer, finding.keyword) for finding in broken if finding.handling == "refused"}
    assert refused == {("", "type"), ("/properties/a", "minLength")}
    assert Finding("/properties/b", "type", "enforced") in broken
    unsupported = check_json_schema(
        {"properties": {"a": {"format": "phone"}, "b": {"type": "array", "uniqueItems": True}, "c": {"pattern": r"\1"}}}
    )
    handled = {(finding.pointer, finding.keyword): finding.handling for finding in unsupported}
    assert handled["/properties/a", "format"] == handled["/properties/c", "pattern"] == "refused"
    assert handled["/properties/b", "uniqueItems"] == "verified"
    assert check_json_schema("{")[0].handling == "refused"


def test_options_and_limits_are_checked_at_construction() -> None:
    with pytest.raises(RequestError, match="whitespace='wide'"):
        SchemaOptions(whitespace="wide")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="max_depth=0"):
        Limits(max_depth=0)


def test_default_spelling_is_what_json_dumps_writes() -> None:
    value = {'a"b': "\x7f\u2028\x1f😀", "n": [0.1, -5, 1e300, True, None]}
    program = compile_json_schema({"const": value}, limits=Limits(max_digits=400)).program
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert program.matches(text.replace("1e+300", "1" + "0" * 300).encode())
