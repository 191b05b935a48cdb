"""Grammar as an output type: what it accepts, what value comes out, what is refused."""

from __future__ import annotations

import pytest
from lark import Tree

import safegen
from safegen import Grammar, Think
from safegen.errors import GrammarError, InvalidOutput
from safegen.grammars import library
from safegen.output_type import compile_type

SUM = 'start: sum\n?sum: sum "+" N -> add | N\nN: /[0-9]+/'


def test_value_is_the_text_or_the_tree() -> None:
    assert compile_type(Grammar(SUM)).read("1+2") == "1+2"
    tree = compile_type(Grammar(SUM, tree=True)).read("1+2")
    assert isinstance(tree, Tree)
    assert next(tree.find_data("add")).children == ["1", "2"]


def test_matches_is_the_decoders_verdict() -> None:
    assert safegen.matches(Grammar(SUM), "1+22")
    assert not safegen.matches(Grammar(SUM), "1+")
    assert safegen.matches(Grammar("a: /x+/", start="a"), "xx")
    assert safegen.matches(Grammar(library.load("iso_date")), "2024-02-29")


def test_a_wrong_text_is_invalid() -> None:
    with pytest.raises(InvalidOutput, match="near character 2"):
        compile_type(Grammar(SUM)).read("1+x")


@pytest.mark.parametrize(("text", "line"), [("start: a", 1), ('start: "a"\nb: (', 2), ("start: A\nA: /a(?=b)/", 2)])
def test_a_bad_grammar_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(GrammarError) as refusal:
        compile_type(Grammar(text))
    assert refusal.value.line == line
    assert safegen.check(Grammar(text))[0].handling == "refused"
    assert safegen.check(Grammar(SUM)) == []


def test_arguments_are_checked_at_construction() -> None:
    with pytest.raises(GrammarError, match="Grammar takes a grammar"):
        Grammar(5)  # type: ignore[arg-type]


def test_grammar_can_be_the_answer_after_thinking() -> None:
    thought = Think(Grammar(SUM), max_tokens=50)
    assert safegen.matches(thought, f"{thought.start}hm{thought.end}1+2")
    assert not safegen.matches(thought, f"{thought.start}hm{thought.end}1+")


def test_every_library_example_is_valid_for_the_judge() -> None:
    for name in library.names():
        compiled = compile_type(Grammar(library.load(name)))
        for text in library.examples(name):
            assert compiled.read(text) == text
