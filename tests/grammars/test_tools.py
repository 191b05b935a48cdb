"""Tool calls: masks against a reader of the wire format that knows nothing of the machine, every token tried."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import numpy as np
import pytest

from safegen.errors import RequestError, SchemaError
from safegen.grammars.constraint import MaskRows
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.options import Limits, SchemaOptions
from safegen.grammars.tool_formats import TOOL_FORMATS, ToolFormat
from safegen.grammars.tools import CompiledTools, ToolsSyntax, compile_tools
from safegen.grammars.vocabulary import Vocabulary

SHORT = ToolFormat("<c>", "</c>")
JOINED = ToolFormat("[T]", "]", lead="[", separator=",", arguments_key="parameters")
SCHEMAS = {
    "on": '{"type":"object","properties":{"x":{"enum":[1,"a"]}},"required":["x"],"additionalProperties":false}',
    "o/f": '{"type":"object","additionalProperties":false}',
}
ARGUMENTS = {"on": ['{"x":1}', '{"x":"a"}'], "o/f": ["{}"]}
LONGER = [
    "<c", "c>", "<c>", "a<c>", "<c>{", '<c>{"name', "<c><c>", '{"name":"', '"on"', '","arguments":', '{"x":1}', "}}",
    "}}</c>", "}}</c>\n<c>", "}}</c>\n<c>{", "}}</c>x", "</c>", "</c>\n", "[T]", "[T][{", "}},{", '}]', "T]", "é", "x<",
]  # fmt: skip
TOKENS: list[bytes | None] = [
    *(bytes([byte]) for byte in (0x0A, *range(0x20, 0x7F), 0xC3, 0xA9)),
    *(text.encode() for text in LONGER),
    None,
]
STOP = len(TOKENS) - 1


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(TOKENS, [STOP])


def compiled(syntax: ToolsSyntax, schemas: dict[str, str] = SCHEMAS, *, drop: bool = False) -> CompiledTools:
    return compile_tools(schemas, syntax, SchemaOptions(), Limits(), drop=drop)


class Reader:
    """What texts a `ToolsSyntax` allows, by enumeration of the calls."""

    def __init__(self, syntax: ToolsSyntax) -> None:
        self.syntax, self.form = syntax, syntax.form
        key = self.form.arguments_key
        self.calls = [
            f'{{"name":{json.dumps(name)},"{key}":{arguments}}}'.encode()
            for name, listed in ARGUMENTS.items()
            for arguments in listed
        ]

    def accepts(self, text: bytes, *, whole: bool) -> bool:
        """Whether text is an answer, or (not whole) the beginning of one."""
        begin, lead = self.form.begin.encode(), self.form.lead.encode()
        place = text.find(begin)
        if place < 0:
            alone = self.syntax.allow_text and self.syntax.min_calls == 0
            if whole:
                return alone and is_utf8(text)
            return self.begins_utf8(text) if self.syntax.allow_text else begin.startswith(text)
        if not is_utf8(text[:place]) or (place and not self.syntax.allow_text):
            return False
        rest = text[place + len(begin) :]
        if not rest.startswith(lead):
            return not whole and lead.startswith(rest)
        return self.rest_is_calls(rest[len(lead) :], 1, whole)

    def rest_is_calls(self, rest: bytes, number: int, whole: bool) -> bool:
        end, between = self.form.end.encode(), self.form.between.encode()
        for call in self.calls:
            if not rest.startswith(call):
                if not whole and call.startswith(rest):
                    return True
                continue
            after = rest[len(call) :]
            if number >= self.syntax.min_calls and (after == end or (not whole and end.startswith(after))):
                return True
            if self.syntax.max_calls is not None and number >= self.syntax.max_calls:
                continue
            if not whole and between.startswith(after):
                return True
            if after.startswith(between) and self.rest_is_calls(after[len(between) :], number + 1, whole):
                return True
        return False

    @staticmethod
    def begins_utf8(text: bytes) -> bool:
        return is_utf8(text) or is_utf8(text + b"\xa9")

    def legal(self, text: bytes, token: int) -> bool:
        piece = TOKENS[token]
        return self.accepts(text, whole=True) if piece is None else self.accepts(text + piece, whole=False)


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def row_of(constraint: NativeConstraint) -> list[int]:
    rows = MaskRows.allocate(1, len(TOKENS))
    constraint.fill((), rows)
    return np.flatnonzero(rows.bools(0)).tolist()


SYNTAXES = [
    ToolsSyntax(SHORT),
    ToolsSyntax(SHORT, allow_text=False),
    ToolsSyntax(SHORT, min_calls=1, max_calls=1),
    ToolsSyntax(SHORT, allow_text=False, min_calls=2, max_calls=3),
    ToolsSyntax(JOINED, max_calls=2),
    ToolsSyntax(JOINED, min_calls=3),
    ToolsSyntax(ToolFormat("<c>", "", separator=";")),
]


@pytest.mark.parametrize("syntax", SYNTAXES, ids=repr)
def test_every_row_of_a_random_walk_is_what_the_format_says(vocabulary: Vocabulary, syntax: ToolsSyntax) -> None:
    program, reader, rng = compiled(syntax).program, Reader(syntax), random.Random(repr(syntax))
    num_calls = 0
    for _ in range(12):
        constraint, text = NativeConstraint(program, vocabulary), b""
        for _ in range(40):
            expected = [token for token in range(len(TOKENS)) if reader.legal(text, token)]
            assert row_of(constraint) == expected, text
            assert constraint.can_end() == reader.accepts(text, whole=True)
            further = [token for token in expected if token != STOP]
            if not further:
                assert constraint.is_complete()
                break
            longer = [token for token in further if len(TOKENS[token] or b"") > 1]
            starting = [token for token in further if (TOKENS[token] or b"").startswith(syntax.form.begin.encode())]
            chosen = rng.choice(starting or longer or further) if rng.random() < 0.8 else rng.choice(further)
            constraint.advance([chosen])
            text += TOKENS[chosen] or b""
        num_calls += text.count(b'"name"')
    assert num_calls >= 12


@pytest.mark.parametrize(
    ("text", "legal"),
    [
        ("no call", True),
        ("<tool_call", True),
        ("<tool_call> is a marker", False),
        ("a <tool_call>\n{CALL}\n</tool_call>", True),
        ("<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{CALL}\n</tool_call>", True),
        ("<tool_call>\n{CALL}\n</tool_call><tool_call>\n{CALL}\n</tool_call>", False),
        ("<tool_call>\n{CALL}\n</tool_call>\n", False),
        ("<tool_call>\n{CALL}</tool_call>", False),
        ('<tool_call>\n{"name":"on","arguments":{}}\n</tool_call>', False),
        ('<tool_call>\n{"name":"off","arguments":{}}\n</tool_call>', False),
        ('<tool_call>\n{"name":"o/f","arguments":{"x":1}}\n</tool_call>', False),
        ('<tool_call>\n{"name": "o/f", "arguments": {}}\n</tool_call>', False),
    ],
)
def test_hermes_format(text: str, legal: bool) -> None:
    program = compiled(ToolsSyntax(TOOL_FORMATS["hermes"])).program
    assert program.matches(text.replace("{CALL}", '{"name":"on","arguments":{"x":1}}').encode()) == legal


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral", '[TOOL_CALLS] [{"name":"o/f","arguments":{}}, {"name":"o/f","arguments":{}}]'),
        ("llama", '<|python_tag|>{"name":"o/f","parameters":{}}; {"name":"o/f","parameters":{}}'),
        ("phi", '<|tool_call|>[{"name":"o/f","arguments":{}},{"name":"o/f","arguments":{}}]<|/tool_call|>'),
    ],
)
def test_other_formats(name: str, text: str) -> None:
    program = compiled(ToolsSyntax(TOOL_FORMATS[name], min_calls=2, max_calls=2)).program
    assert program.matches(f"Hm. {text}".encode())
    assert not program.matches(text[:-1].encode())


def test_whitespace_may_be_flexible() -> None:
    options = SchemaOptions(whitespace="flexible")
    program = compile_tools(SCHEMAS, ToolsSyntax(SHORT), options, Limits()).program
    assert program.matches(b'<c>{"name": "on", "arguments": {"x": 1}}</c>')


def test_marker_that_overlaps_itself_ends_the_text_at_its_first_place() -> None:
    program = compiled(ToolsSyntax(ToolFormat("aa", "b"))).program
    assert program.matches(b'caa{"name":"o/f","arguments":{}}b')
    assert not program.matches(b'aaa{"name":"o/f","arguments":{}}b')


BAD = {"$ref": "https://example.com/schema"}


def with_bad(*names: str) -> dict[str, str]:
    return {**SCHEMAS, **{name: json.dumps({"properties": {"p": BAD}}) for name in names}}


def test_a_bad_tool_is_refused_by_name() -> None:
    with pytest.raises(SchemaError, match=r"tool 'b~d/'") as raised:
        compiled(ToolsSyntax(SHORT), with_bad("b~d/"))
    assert raised.value.pointer == "/b~0d~1/properties/p"
    assert raised.value.keyword == "$ref"


def test_the_others_live_where_bad_ones_are_dropped() -> None:
    made = compiled(ToolsSyntax(SHORT), with_bad("bad", "worse"), drop=True)
    assert list(made.dropped) == ["bad", "worse"]
    assert made.dropped["worse"].pointer == "/worse/properties/p"
    assert made.program.matches(b'<c>{"name":"o/f","arguments":{}}</c>')
    assert not made.program.matches(b'<c>{"name":"bad","arguments":{}}</c>')
    assert {finding.pointer.split("/")[1] for finding in made.findings} == {"on", "o~1f"}


def test_a_tool_that_no_arguments_satisfy_is_refused_by_name() -> None:
    endless = '{"type":"object","properties":{"x":{"$ref":"#"}},"required":["x"]}'
    with pytest.raises(SchemaError, match="tool 'endless'"):
        compiled(ToolsSyntax(SHORT), {**SCHEMAS, "endless": endless})
    made = compiled(
        ToolsSyntax(SHORT), {"endless": endless, **SCHEMAS, "none": '{"type":"object","not":{}}'}, drop=True
    )
    assert list(made.dropped) == ["none", "endless"]
    assert made.program.matches(b'<c>{"name":"o/f","arguments":{}}</c>')


def test_no_tool_left_is_an_error_that_names_them_all() -> None:
    schemas: Sequence[str] = ("bad", "worse")
    with pytest.raises(SchemaError, match=r"tool 'bad'.*tool 'worse'"):
        compiled(ToolsSyntax(SHORT), {name: json.dumps(BAD) for name in schemas}, drop=True)


def test_many_tools_and_calls_compile() -> None:
    schemas = {f"tool_{number}": SCHEMAS["on"] for number in range(150)}
    program = compiled(ToolsSyntax(SHORT, min_calls=2, max_calls=256), schemas).program
    call = '<c>{"name":"tool_149","arguments":{"x":1}}</c>'
    assert program.matches("\n".join([call] * 256).encode())
    assert not program.matches("\n".join([call] * 257).encode())
    assert not program.matches(call.encode())


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("begin", {"begin": "", "end": "x"}),
        ("end", {"begin": "x", "end": None}),
        ("separator", {"begin": "x", "end": "y", "separator": ""}),
        ("arguments_key", {"begin": "x", "end": "y", "arguments_key": "name"}),
        ("begin", {"begin": "\ud800", "end": "y"}),
    ],
)
def test_a_format_that_cannot_serve_is_refused(field: str, arguments: dict[str, str]) -> None:
    with pytest.raises(RequestError) as raised:
        ToolFormat(**arguments)
    assert raised.value.field == field
