"""Every kind of Python type: what is accepted, what is refused, and what value comes out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pytest
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, IPvAnyAddress, SecretStr, TypeAdapter
from typing_extensions import TypedDict

from safegen.checking import check, matches
from safegen.errors import InvalidOutput, RequestError, SchemaError
from safegen.limits import Limits
from safegen.output_type import OutputType, compile_type
from safegen.types import Choice, JsonSchema, Regex


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Point(BaseModel):
    x: int
    y: int = 0


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int


class Renamed(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    value: int = Field(alias="theValue")


class Node(BaseModel):
    name: Literal["n"]
    children: list[Node] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[Literal["sit"]]


class Movie(TypedDict, total=False):
    title: Literal["m"]
    year: int


class Pair(NamedTuple):
    left: int
    right: bool


@dataclass
class Item:
    name: Literal["i"]
    tags: list[Literal["t"]] = field(default_factory=list)


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
UTC = UTC

ACCEPTED: list[tuple[Any, str, Any]] = [
    (int, "-12", -12),
    (float, "1.5", 1.5),
    (bool, "true", True),
    (str, '"a\\n€"', "a\n€"),
    (type(None), "null", None),
    (Literal["a", 1, None], "1", 1),
    (Colour, '"blue"', Colour.BLUE),
    (Level, "2", Level.HIGH),
    (int | None, "null", None),
    (int | list[int], "[1]", [1]),
    (list[bool], "[true,false]", [True, False]),
    (tuple[int, bool], "[1,true]", (1, True)),
    (Pair, "[1,true]", Pair(1, True)),
    (set[int], "[1,1,2]", {1, 2}),
    (dict[str, int], '{"a":1}', {"a": 1}),
    (dict[Literal["a", "b"], int], '{"a":1}', {"a": 1}),
    (Annotated[int, Field(ge=3, lt=6)], "5", 5),
    (Annotated[str, Field(pattern="^[a-c]+$", max_length=4)], '"abca"', "abca"),
    (Annotated[list[int], Field(min_length=1, max_length=2)], "[1,2]", [1, 2]),
    (date, '"2024-02-29"', date(2024, 2, 29)),
    (datetime, '"2024-02-29T10:00:00Z"', datetime(2024, 2, 29, 10, tzinfo=UTC)),
    (time, '"10:00:00Z"', time(10, tzinfo=UTC)),
    (timedelta, '"P1DT2H"', timedelta(days=1, hours=2)),
    (UUID, '"12345678-1234-4234-8234-123456789abc"', UUID("12345678-1234-4234-8234-123456789abc")),
    (Decimal, "12.50", Decimal("12.5")),
    (Annotated[Decimal, Field(ge=0)], "0.1", Decimal("0.1")),
    (IPv4Address, '"10.0.0.1"', IPv4Address("10.0.0.1")),
    (IPvAnyAddress, '"10.0.0.1"', IPv4Address("10.0.0.1")),
    (bytes, '"ab"', b"ab"),
    (Base64Bytes, '"aGk="', b"hi"),
    (SecretStr, '"pw"', SecretStr("pw")),
    (Path, '"a/b"', Path("a/b")),
    (Point, '{"x":1}', Point(x=1)),
    (Point, '{"x":1,"y":2}', Point(x=1, y=2)),
    (Open, '{"x":1,"more":[]}', Open(x=1, more=[])),  # type: ignore[call-arg]
    (Renamed, '{"theValue":3}', Renamed(theValue=3)),
    (Node, '{"name":"n","children":[{"name":"n"}]}', Node(name="n", children=[Node(name="n")])),
    (Pet, '{"kind":"dog","tricks":["sit"]}', Dog(kind="dog", tricks=["sit"])),
    (Movie, '{"year":1999}', {"year": 1999}),
    (Item, '{"name":"i","tags":["t"]}', Item("i", ["t"])),
    (list[Point], '[{"x":1}]', [Point(x=1)]),
    (JsonSchema({"type": "number"}), "1.25", 1.25),
    (JsonSchema('{"const": 1.5}'), "1.5", 1.5),
    (JsonSchema(True), "null", None),
    (Regex("[0-9]+"), "007", "007"),
    (Choice(["yes", "no"]), "no", "no"),
]

REJECTED: list[tuple[Any, str]] = [
    (int, "1.5"),
    (int, "01"),
    (int, '"1"'),
    (bool, "1"),
    (str, "abc"),
    (Literal["a", 1, None], '"b"'),
    (Colour, '"green"'),
    (list[bool], "[true,]"),
    (tuple[int, bool], "[1]"),
    (dict[str, int], '{"a":1,"a":2}'),
    (dict[Literal["a", "b"], int], '{"c":1}'),
    (Annotated[int, Field(ge=3, lt=6)], "6"),
    (Annotated[str, Field(pattern="^[a-c]+$", max_length=4)], '"abcabc"'),
    (Annotated[list[int], Field(min_length=1, max_length=2)], "[]"),
    (date, '"2023-02-29"'),
    (timedelta, '"P"'),
    (Annotated[Decimal, Field(ge=0)], "-1"),
    (Decimal, '"1"'),
    (Base64Bytes, '"a"'),
    (Point, '{"x":1,"z":2}'),
    (Point, '{"y":1}'),
    (Point, '{"x": 1}'),
    (Pet, '{"kind":"cat","tricks":[]}'),
    (Movie, '{"director":1}'),
    (JsonSchema({"type": "number"}), "NaN"),
    (Regex("[0-9]+"), "007x"),
    (Choice(["yes", "no"]), "ye"),
]


def name(case: Any) -> str:
    return f"{case[0]!r:.40} {case[1]}"


@pytest.mark.parametrize("case", ACCEPTED, ids=name)
def test_legal_text_is_accepted_by_the_decoder_and_read_as_its_value(case: tuple[Any, str, Any]) -> None:
    spec, text, value = case
    assert matches(spec, text)
    read = compile_type(spec).read(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("case", REJECTED, ids=name)
def test_illegal_text_is_not_accepted_by_the_decoder(case: tuple[Any, str]) -> None:
    assert not matches(*case)


@pytest.mark.parametrize("spec", [int, Point, list[Pet], Item, Movie])
def test_shown_schema_is_compact_json_without_derived_titles(spec: Any) -> None:
    shown = compile_type(spec).shown
    assert shown is not None
    schema = shown.split("\n", 1)[1]
    assert json.dumps(json.loads(schema), separators=(",", ":"), ensure_ascii=False) == schema
    assert '"title":"X"' not in schema


def test_property_named_title_is_still_shown() -> None:
    assert '"title":{' in str(compile_type(Movie).shown)


@pytest.mark.parametrize(
    "spec", ["Point", 5, 1.5, {"type": "integer"}, [int], lambda: 3, len, Regex, object()], ids=repr
)
def test_what_is_no_output_type_is_a_schema_error(spec: Any) -> None:
    with pytest.raises(SchemaError):
        compile_type(spec)


def test_options_of_matches_win_over_those_of_the_schema() -> None:
    schema = JsonSchema({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}})
    text = '{ "b" : 1, "a" : 2 }'
    assert not matches(schema, text)
    assert matches(schema, text, whitespace="flexible", property_order="any")
    with pytest.raises(RequestError):
        matches(schema, text, whitespaces="flexible")
    with pytest.raises(RequestError):
        matches(schema, text, whitespace="some")


def test_check_names_every_keyword_and_refusal() -> None:
    findings = check(Annotated[int, Field(ge=3)])
    assert {(each.pointer, each.keyword, each.handling) for each in findings} >= {("", "minimum", "enforced")}
    refused = [each for each in check(JsonSchema({"type": "text"})) if each.handling == "refused"]
    assert refused[0].keyword == "type"
    assert check(Regex("(")) != []
    assert check(Regex("a")) == []
    assert check(lambda: 3)[0].handling == "refused"


def test_independent_reader_does_not_trust_the_decoder() -> None:
    compiled: OutputType[Any] = compile_type(Point)
    for text in ('{"x":"1"}', '{"x":1,"z":2}', '{"x":1,"x":2}', "", '{"x":1', '{"x":1.5}'):
        with pytest.raises(InvalidOutput):
            compiled.read(text)
    with pytest.raises(InvalidOutput, match="does not match"):
        compile_type(Regex("a|b")).read("ab")


def test_pydantic_schema_is_only_made_narrower_by_closing_objects() -> None:
    adapter = TypeAdapter(Point)
    assert "additionalProperties" not in adapter.json_schema()
    assert matches(Point, '{"x":1}') and not matches(Point, '{"x":1,"extra":1}')


def test_text_past_the_automaton_limit_is_a_typed_error() -> None:
    spec = JsonSchema({"type": "string", "pattern": "a.{30}b"})
    text = '"' + "ab" * 60 + '"'
    assert matches(spec, text)
    with pytest.raises(SchemaError, match="max_states"):
        matches(spec, text, limits=Limits(max_states=100))
