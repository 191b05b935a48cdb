"""`safegen.explain`: the byte is the decoder's, the pointer and keyword are the schema's, the expectation is what may
stand there. Cases are small so that each says one thing."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pydantic import BaseModel, Field

import safegen
from safegen import Blamed, Choice, Explanation, Grammar, JsonSchema, Limits, Regex, SchemaError, Think, Tools
from safegen.output_type import compile_type
from tests.support.suites import constraint_cases

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def explained(schema: Any, text: str, **options: Any) -> Explanation:
    found = safegen.explain(JsonSchema(schema), text, **options)
    assert found.accepted == safegen.matches(JsonSchema(schema), text, **options)
    return found


def test_an_accepted_text_has_no_place_and_says_so() -> None:
    found = explained(PERSON, '{"name":"x","age":5}')
    assert found == Explanation(True)
    assert (found.byte, found.pointer, found.keyword, str(found)) == (None, "", "", "the text is accepted")


@pytest.mark.parametrize(
    ("text", "byte", "pointer", "keyword", "expected"),
    [
        ('{"name":"","age":5}', 9, "/properties/name", "minLength", 'any character but "'),
        ('{"name":"x","age":-5}', 18, "/properties/age", "minimum", "a number"),
        ('{"name":"x","age":151}', 20, "/properties/age", "maximum", "0"),
        ('{"name":"x","age":"5"}', 18, "/properties/age", "type", "a number"),
        ('{"name":"x"}', 11, "", "required", ","),
        ('{"name":"x","age":5,"z":1}', 19, "", "additionalProperties", "}"),
        ('{"name":"x","z":1}', 13, "", "additionalProperties", '"age"'),
    ],
)  # fmt: skip
def test_the_keyword_to_blame_is_named_with_its_byte(
    text: str, byte: int, pointer: str, keyword: str, expected: str
) -> None:
    found = explained(PERSON, text)
    assert (found.byte, found.pointer, found.keyword) == (byte, pointer, keyword)
    assert expected in found.expected
    assert keyword in found.reason and keyword in str(found)


ONE_KEYWORD: list[tuple[Any, str, str, str]] = [
    ({"type": "string", "maxLength": 2}, '"abc"', "", "maxLength"),
    ({"type": "string", "pattern": "^a+$"}, '"aab"', "", "pattern"),
    ({"type": "string", "format": "date"}, '"2024-13-01"', "", "format"),
    ({"type": "integer", "exclusiveMinimum": 3}, "3", "", "exclusiveMinimum"),
    ({"type": "integer", "multipleOf": 3}, "4", "", "multipleOf"),
    ({"enum": ["red", "green"]}, '"blue"', "", "enum"),
    ({"const": {"a": [1, 2]}}, '{"a":[1,3]}', "", "const"),
    ({"type": "array", "items": {"type": "integer"}}, '[1,"x"]', "/items", "type"),
    ({"prefixItems": [{"type": "integer"}], "type": "array"}, '["x"]', "/prefixItems/0", "type"),
    ({"type": "array", "minItems": 2}, "[1]", "", "minItems"),
    ({"type": "array", "maxItems": 1}, "[1,2]", "", "maxItems"),
    ({"type": "array", "contains": {"const": 1}}, "[2,3]", "", "contains"),
    ({"type": "array", "contains": {"const": 0}, "maxContains": 1}, "[0,0]", "", "contains"),
    ({"type": "array", "uniqueItems": True, "items": {"type": "integer"}}, "[1,1]", "", "uniqueItems"),
    ({"type": "array", "uniqueItems": True, "items": {"enum": [1, 2, 3]}}, "[1,1]", "", "uniqueItems"),
    ({"type": "array", "uniqueItems": True, "contains": {"const": 1}}, "[1,2,2]", "", "uniqueItems"),
    ({"type": "object", "minProperties": 1}, "{}", "", "minProperties"),
    ({"type": "object", "maxProperties": 1}, '{"a":1,"b":2}', "", "maxProperties"),
    ({"type": "object", "propertyNames": {"pattern": "^x"}}, '{"y":1}', "", "propertyNames"),
    ({"type": "object", "patternProperties": {"^n": {"type": "null"}}}, '{"no":1}', "/patternProperties/^n", "type"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, '{"a":1}', "", "dependentRequired"),
    ({"type": "object", "dependentSchemas": {"a": {"maxProperties": 1}}}, '{"a":1,"b":2}', "", "dependentSchemas"),
    ({"unevaluatedProperties": False, "properties": {"a": True}, "type": "object"}, '{"y":1}', "",
     "unevaluatedProperties"),
    ({"type": "array", "prefixItems": [True], "unevaluatedItems": False}, "[1,2]", "", "unevaluatedItems"),
    ({"not": {"type": "string"}}, '"x"', "", "not"),
    ({"oneOf": [{"minimum": 1, "type": "integer"}, {"maximum": 5, "type": "integer"}]}, "3", "", "oneOf"),
    ({"if": {"required": ["a"]}, "then": {"required": ["b"]}, "type": "object"}, '{"a":1}', "/then", "required"),
    ({"if": {"type": "string"}, "else": {"type": "null"}}, "1", "/else", "type"),
    ({"allOf": [{"type": "integer"}, {"minimum": 5}]}, "4", "/allOf/1", "minimum"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, "1", "/$defs/a", "type"),
    ({"properties": {"a/b": {"type": "null"}}, "type": "object"}, '{"a/b":1}', "/properties/a~1b", "type"),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "number", "minimum": 3, "exclusiveMinimum": True},
     "3", "", "minimum"),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [True],
      "additionalItems": False}, "[1,2]", "", "additionalItems"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "text", "pointer", "keyword"), ONE_KEYWORD)
def test_each_keyword_is_blamed_where_it_stands(schema: Any, text: str, pointer: str, keyword: str) -> None:
    found = explained(schema, text)
    assert (found.pointer, found.keyword) == (pointer, keyword)
    assert found.places == (Blamed(pointer, keyword),)


def test_a_recursive_reference_is_blamed_where_it_is_defined() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#"}, "v": {"enum": ["x", "y"]}}}
    found = explained(node, '{"next":{"next":{"v":"z"}}}')
    assert (found.byte, found.pointer, found.keyword) == (22, "/properties/v", "enum")
    assert found.expected == ('x"', 'y"')


def test_keywords_that_meet_are_all_named() -> None:
    schema = {"allOf": [{"multipleOf": 10}, {"minimum": 11}, {"maximum": 19}], "type": "integer"}
    meeting = {"type": "integer", "anyOf": [{"const": 5}, schema]}
    found = explained(meeting, "10")
    assert ("/anyOf/1/allOf/1", "minimum") in {(place.pointer, place.keyword) for place in found.places}
    both = explained({"type": "string", "pattern": "^ab", "maxLength": 2, "minLength": 2}, '"abc"')
    assert [place.keyword for place in both.places] == ["maxLength"]
    types = explained({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "true")
    assert types.places == (Blamed("/anyOf/0", "type"), Blamed("/anyOf/1", "type"))
    # Neither pattern refuses the first "b" alone: together they leave only "a" and "c".
    met = {"type": "string", "allOf": [{"pattern": "^(a|b1)$"}, {"pattern": "^(a|b2)$"}]}
    assert explained(met, '"b').places == (Blamed("/allOf/0", "pattern"), Blamed("/allOf/1", "pattern"))


def test_of_alternatives_the_one_that_came_farthest_is_blamed() -> None:
    def tagged(tag: str, name: str) -> dict[str, Any]:
        members = {"k": {"const": tag}, name: {"type": "integer"}}
        return {"type": "object", "properties": members, "required": ["k"], "additionalProperties": False}

    found = explained({"anyOf": [tagged("a", "x"), tagged("b", "y")]}, '{"k":"b","x":1}')
    assert (found.pointer, found.keyword, found.expected) == ("/anyOf/1", "additionalProperties", ('"y"',))


@pytest.mark.parametrize(
    ("text", "byte", "option"),
    [
        ('{"age":5,"name":"x"}', 2, "property_order='any'"),
        ('{"name": "x","age":5}', 8, "whitespace='flexible'"),
        ('{"name":"x","age":5.0}', 19, "spelling='any'"),
        ('{"name":"x","age":5}\n', 20, "whitespace='flexible'"),
    ],
)  # fmt: skip
def test_a_right_value_in_another_writing_names_the_option(text: str, byte: int, option: str) -> None:
    found = explained(PERSON, text)
    assert found.byte == byte and option in found.reason and found.keyword == ""
    assert safegen.explain(
        JsonSchema(PERSON), text, whitespace="flexible", property_order="any", spelling="any"
    ).accepted


def test_writing_is_named_also_where_the_text_is_cut_later() -> None:
    found = explained(PERSON, '{"age":5,"na')
    assert found.byte == 2 and "property_order='any'" in found.reason


def test_what_follows_a_whole_answer_is_told_apart() -> None:
    assert explained({"type": "boolean"}, "true false").reason.startswith("' ' is not how")
    assert explained({"type": "boolean"}, "true false", whitespace="flexible").byte == 5
    found = safegen.explain(Regex("[0-9]{3}"), "1234")
    assert found.reason == "the answer is whole, and '4' follows it"
    assert explained({"type": "object"}, "]").reason.startswith("no JSON")


@pytest.mark.parametrize("text", ["", "{", '{"name":"x","age":', '{"name":"x","age":5', '{"name":"x"', '{"na'])
def test_a_beginning_of_an_answer_ends_too_early(text: str) -> None:
    found = explained(PERSON, text)
    assert (found.byte, found.found, found.reason) == (len(text), "the end of the text", "the text ends too early")
    assert found.expected


@pytest.mark.parametrize("text", ["hello", '{"name":"x","age":5x}', "{'name'", '{"name":"\\q', '{"name":"x",,', "[1}"])
def test_what_no_schema_would_take_is_told_apart(text: str) -> None:
    found = explained({"type": ["object", "array"]}, text)
    assert found.reason.startswith("no JSON goes on with") and found.keyword == ""


def test_bytes_are_those_of_utf8_and_half_a_character_shows_whole() -> None:
    found = explained({"const": "aé"}, '"aè"')
    assert (found.byte, found.found) == (3, "'è'")
    assert explained({"type": "string", "maxLength": 1}, '"éé"').byte == 3


def test_a_lone_surrogate_is_a_reason_of_its_own() -> None:
    found = safegen.explain(JsonSchema({"type": "string"}), '"é\ud800"')
    assert (found.accepted, found.byte, found.found) == (False, 3, "U+D800")
    assert safegen.explain(None, "\udfff").byte == 0
    assert safegen.explain(JsonSchema({"type": "null"}), 'n"\ud800').byte == 1


class Animal(BaseModel):
    legs: int = Field(ge=0, le=8)
    names: list[str]


def test_python_types_are_explained_by_their_schema() -> None:
    found = safegen.explain(Animal, '{"legs":4,"names":["a",5]}')
    assert (found.byte, found.pointer, found.keyword) == (23, "/properties/names/items", "type")
    compiled = compile_type(Animal)
    bare = safegen.explain(compiled, '{"legs":4,"names":["a",5]}')
    assert (bare.byte, bare.places, bare.expected) == (23, (), ('"',))


def test_a_regex_and_a_choice_say_what_may_stand_there() -> None:
    found = safegen.explain(Regex(r"\d{3}-[a-f]+"), "12x")
    assert (found.byte, found.places, found.expected) == (2, (), ("a digit",))
    assert safegen.explain(Regex(r"\d{3}-[a-f]+"), "123-").expected == ("a to f",)
    found = safegen.explain(Choice(["red", "green", "grey"]), "gold")
    assert (found.byte, found.expected) == (1, ("reen", "rey"))
    assert safegen.explain(Choice(["red"]), "redder").expected == ("the end of the text",)


ARITHMETIC = """start: sum
sum: product (("+"|"-") product)*
product: NUMBER | "(" sum ")"
%import common.NUMBER
"""


def test_a_grammar_names_the_rule_and_the_terminals() -> None:
    found = safegen.explain(Grammar(ARITHMETIC), "1+(2+)")
    assert found.byte == 5
    assert set(found.places) == {Blamed("product", "NUMBER"), Blamed("product", "LPAR")}
    assert str(found).startswith("byte 5: ')' cannot stand here. At product (NUMBER)")
    late = safegen.explain(Grammar(ARITHMETIC), "1 ")
    assert {place.keyword for place in late.places} >= {"PLUS", "MINUS"} and "the end of the text" in late.expected


def test_a_schema_inside_a_grammar_is_explained_as_one() -> None:
    schema = json.dumps({"type": "object", "required": ["a"], "properties": {"a": {"maximum": 3}}})
    grammar = Grammar(f'start: "x" body\nbody: %json {schema}')
    found = safegen.explain(grammar, 'x{"a":4}')
    assert (found.byte, found.pointer, found.keyword) == (7, "/properties/a", "maximum")


def test_the_answer_behind_reasoning_is_explained() -> None:
    found = safegen.explain(Think(JsonSchema(PERSON)), '<think>{"</think>{"name":"x","age":-5}')
    assert (found.byte, found.pointer, found.keyword) == (35, "/properties/age", "minimum")
    assert safegen.explain(Think(None), "<think>x").reason == "the text ends too early"


def test_arguments_of_a_tool_are_explained_under_its_name() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tools = Tools([{"name": "f", "description": "d", "parameters": parameters}])
    form = tools.format
    head = f'{form.begin}{form.lead}{{"name":"f","{form.arguments_key}":'
    found = safegen.explain(tools, head + '{"a":"x"}}' + form.end)
    assert (found.pointer, found.keyword) == ("/f/properties/a", "type")
    found = safegen.explain(tools, head + "{}}" + form.end)
    assert (found.byte, found.pointer, found.keyword) == (len(head) + 1, "/f", "required")


def test_a_verified_part_is_blamed_when_it_closes() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "not": {"uniqueItems": True}}
    found = explained(schema, "[1,2]")
    assert found.byte == 4 and found.keyword == "not"


def test_a_value_past_max_alternatives_is_blamed_on_the_keyword_that_fails() -> None:
    either = [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(4)]
    schema = {"type": "object", "allOf": either}
    limits = safegen.Limits(max_alternatives=4)
    text = '{"a0":1,"b1":1,"a3":1}'
    found = safegen.explain(JsonSchema(schema), text, limits=limits, property_order="any")
    assert (found.byte, found.pointer) == (len(text) - 1, "/allOf/2/anyOf/0") and found.keyword == "required"
    assert "}" not in found.expected and "," in found.expected


def test_a_type_that_cannot_be_served_raises() -> None:
    with pytest.raises(SchemaError, match="pattern"):
        safegen.explain(JsonSchema({"pattern": "("}), "x")
    with pytest.raises(safegen.RequestError, match="nonsense"):
        safegen.explain(JsonSchema(PERSON), "x", nonsense=1)


def test_a_text_that_takes_too_long_to_judge_is_refused_in_time() -> None:
    ambiguous = Grammar('start: a\na: a a | "x" | a "y" a\n')
    limits = Limits(compile_deadline_s=0.3)
    started = time.monotonic()
    with pytest.raises(SchemaError, match="takes too long to judge"):
        safegen.explain(ambiguous, "x" * 3000, limits=limits)
    assert time.monotonic() - started < 3, "to its end it would take minutes"
    for text, byte in (("x" * 100 + "z", 100), ("xz" + "x" * 3000, 1)):
        assert safegen.explain(ambiguous, text, limits=limits).byte == byte


def test_an_explanation_agrees_with_the_verdict_on_every_case() -> None:
    rejected = with_place = 0
    for case in constraint_cases():
        if case.kind != "schema" or case.expect not in ("enforce", "enforce_or_refuse"):
            continue
        for text in case.reject[:3]:
            try:
                spec = JsonSchema(json.dumps(case.spec), **case.options)
                found = safegen.explain(spec, text)
            except SchemaError:
                continue
            assert found.accepted == safegen.matches(spec, text), (case.id, text)
            assert found.accepted or (
                found.byte is not None and 0 <= found.byte <= len(text.encode("utf-8", "replace"))
            )
            rejected += 1
            with_place += bool(found.places)
    assert rejected > 300 and with_place > 0.97 * rejected


@pytest.mark.parametrize("ask", [safegen.matches, safegen.explain])
@pytest.mark.parametrize("text", [b"1", None, 1, ["1"]])
def test_a_text_that_is_no_str_is_a_request_error(ask: Any, text: Any) -> None:
    with pytest.raises(safegen.RequestError, match="text is a str, got"):
        ask(JsonSchema({}), text)
