"""Grammars of the library: random legal texts go through a parser of Python's own, and wrong ones do not match."""

from __future__ import annotations

import ast
import csv
import io
import json
import random
import re
import shlex
import sqlite3
from collections.abc import Callable
from datetime import date, timedelta

import pytest

from safegen.errors import GrammarError
from safegen.grammars import library
from safegen.grammars.lark_grammar import compile_grammar
from tests.grammars.lark_oracle import random_text

WALKS = 60


def check_json(text: str) -> None:
    json.loads(text)


def check_arithmetic(text: str) -> None:
    tree = ast.parse(text.strip(" "), mode="eval")
    allowed = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)
    assert all(isinstance(node, allowed) for node in ast.walk(tree))


def check_csv(text: str) -> None:
    rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    written = io.StringIO(newline="")
    csv.writer(written).writerows(rows)
    assert list(csv.reader(io.StringIO(written.getvalue(), newline=""), strict=True)) == rows


def check_iso_date(text: str) -> None:
    assert date.fromisoformat(text).isoformat() == text


def check_python_literal(text: str) -> None:
    ast.literal_eval(text.strip(" "))


def check_command_line(text: str) -> None:
    words = shlex.split(text)
    assert words[0]
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    assert list(lexer) == words  # no `|`, `;`, `&`, `<`, `>`, `(` or `)` outside of quotes
    assert not re.search(r"[$`*?\[\]{}~#!\\\"]", re.sub(r"'[^']*'", "", text))


def check_markdown_table(text: str) -> None:
    lines = text.split("\n")
    assert lines.pop() == ""
    cells = [line.strip("|").split("|") if line != "||" else [] for line in lines]
    assert len({len(row) for row in cells}) == 1
    assert all(re.fullmatch(r" (?=:?-+:?)(:?-{3,}:?|:-+:?|-+:) ", cell) for cell in cells[1])
    assert all(cell[0] == cell[-1] == " " and cell.strip() for row in cells for cell in row)


def check_sql_select(text: str) -> None:
    with sqlite3.connect(":memory:") as connection:
        try:
            connection.execute(f"EXPLAIN {text}")
        except sqlite3.OperationalError as error:  # the tables are not there; the syntax is right
            assert re.match(r"no such (table|column)", str(error)), (str(error), text)


CHECKS: dict[str, Callable[[str], None]] = {
    "arithmetic": check_arithmetic,
    "command_line": check_command_line,
    "csv": check_csv,
    "iso_date": check_iso_date,
    "json": check_json,
    "markdown_table": check_markdown_table,
    "python_literal": check_python_literal,
    "sql_select": check_sql_select,
}

WRONG = {
    "arithmetic": ["", "1 +", "01", "(1", "f(1)", "a", "1 2", "--", "1;2"],
    "command_line": ["", "rm -rf *", "a; b", "a|b", "echo $HOME", "a > b", "a  b", "a `b`", "a 'b", "../x"],
    "csv": ['"a', 'a"b', '"a"b', "a\rb"],
    "iso_date": ["2023-02-29", "1900-02-29", "0000-01-01", "2024-13-01", "2024-04-31", "2024-1-01", "20240101"],
    "json": ["", "[1,]", "{a:1}", "01", "1.", "'a'", '"\t"', "nul", "[1 2]", '"\\x"', "NaN"],
    "markdown_table": ["", "| a |\n| - |\n", "| a | b |\n| --- |\n", "| a |\n| --- |\n| b | c |\n", "a\n---\n"],
    "python_literal": ["", "a", "f()", "{[]: 1}", "(1)", "'a' 'b'", "01", "[1", "__import__('os')", "1+1"],
    "sql_select": ["", "SELECT", "DROP TABLE a", "SELECT * FROM a; DROP TABLE a", "SELECT from FROM a",
                   "SELECT * FROM a WHERE", "SELECT a FROM b -- c", "SELECT  * FROM a", "SELECT * FROM a AS select"],
}  # fmt: skip


def test_every_grammar_of_the_library_is_checked_here() -> None:
    assert library.names() == sorted(CHECKS) == sorted(WRONG)


@pytest.mark.parametrize("name", library.names())
def test_examples_and_random_texts_are_what_an_independent_parser_reads(name: str) -> None:
    program = compile_grammar(library.load(name)).program
    examples = library.examples(name)
    assert len(examples) >= 2
    for text in examples:
        assert program.matches(text.encode())
        CHECKS[name](text)
    rng = random.Random(f"library {name}")
    texts = {random_text(program, rng, rng.choice((4, 12, 40))) for _ in range(WALKS)}
    assert len(texts) > WALKS // 2
    for text in texts:
        CHECKS[name](text)


@pytest.mark.parametrize("name", library.names())
def test_wrong_texts_do_not_match(name: str) -> None:
    program = compile_grammar(library.load(name)).program
    assert [text for text in WRONG[name] if program.matches(text.encode())] == []


def test_every_date_of_eight_centuries_matches_and_no_other_day() -> None:
    program = compile_grammar(library.load("iso_date")).program
    day = date(1600, 1, 1)
    real = set()
    while day.year < 2001:
        real.add(day.isoformat())
        day += timedelta(days=1)
    for year in (1600, 1700, 1804, 1900, 1999, 2000):
        for month in range(14):
            for number in range(33):
                text = f"{year:04}-{month:02}-{number:02}"
                assert program.matches(text.encode()) == (text in real), text


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(GrammarError, match=r"'../json'; it has arithmetic, command_line"):
        library.load("../json")
