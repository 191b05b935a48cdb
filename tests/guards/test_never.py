"""`Never` in every output type: what an answer can hold, what it cannot, what is refused, and what a scan finds."""

from __future__ import annotations

import json
import random
import unicodedata
from typing import Any

import pytest

from safegen.errors import GrammarError, RequestError, SafegenError, UnsatisfiableSchema
from safegen.grammars.bans import Bans
from safegen.guards import Guards, GuardView, Never
from safegen.guards.folding import FOLDS, Fold, folding
from safegen.output_type import OutputType, compile_type
from safegen.tools import Tools
from safegen.types import Choice, JsonSchema, Regex, Think
from tests.support.plain_never import holds_ban, plain_fold
from tests.support.sdk_fakes import ScriptedBackend, make_llm

_CALL = '<tool_call>\n{"name":"f","arguments":{"q":"%s"}}\n</tool_call>'
_TOOLS = Tools(
    [{"name": "f", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}}]
)
_ANY = JsonSchema({"type": "object"})
_KILL = Never(phrases=["kill"])


def compiled(spec: Any, *guards: Never) -> OutputType[Any]:
    return compile_type(spec, bans=Bans.of(guard.ban for guard in guards))


def allows(output_type: OutputType[Any], text: str) -> bool:
    assert output_type.program is not None
    return output_type.program.matches(text.encode())


_EVASIONS = ["kill", "KILL", "ki\u200bll", "ｋｉｌｌ", "kíll", "k\u0301i\u00adll", "skills", "ki\u2063ll"]


@pytest.mark.parametrize(
    ("spec", "around"),
    [
        (None, "%s"),
        (None, "a %s b"),
        (_ANY, '{"a":"%s"}'),
        (_ANY, '{"%s":1}'),
        (_ANY, '{"a":[{"b":["x%sx"]}]}'),
        (Regex(".{1,20}"), "%s"),
        (Think(Choice(["a"])), "<think>well %s</think>a"),
        (_TOOLS, "%s"),
        (_TOOLS, _CALL),
        (_TOOLS, "first %s " + _CALL % "x"),
    ],
)
def test_a_banned_phrase_can_stand_nowhere_in_any_spelling(spec: Any, around: str) -> None:
    held = compiled(spec, _KILL)
    assert allows(held, around % "kil l")
    for spelled in _EVASIONS:
        assert allows(compile_type(spec), around % spelled) if spec is not None else True
        assert not allows(held, around % spelled), ascii(spelled)


@pytest.mark.parametrize(
    "written", ["\\u006bill", "k\\u0049ll", "ki\\u200b\\u006c\\u006C", "\\ud835\\udc24ill", "k\\u0069ll"]
)
def test_escapes_count_as_what_they_decode_to(written: str) -> None:
    held = compiled(_ANY, _KILL)
    for text in (f'{{"a":"{written}"}}', f'{{"{written}":0}}'):
        json.loads(text)
        assert allows(compile_type(_ANY), text)
        assert not allows(held, text)


def test_the_twelfth_fault_and_the_third_are_none_here() -> None:
    """Substring bans of others miss these; a scan of raw JSON misses the escape."""
    for spelled in ("con\ufb01dential", "con\u200bfidential", "ｃonfidential", "con\u00adfidential"):
        assert not allows(compiled(None, Never(phrases=["confidential"])), spelled)
    assert not allows(compiled(None, Never(phrases=["confidential"], fold="skeleton")), "\u0441onfidential")
    assert not allows(compiled(_ANY, Never(phrases=["confidential"])), '{"a":"\\u0063onfidential"}')


def test_values_that_hold_a_ban_drop_out_of_a_list() -> None:
    for options in ({}, {"spelling": "any"}):
        held = compiled(JsonSchema({"enum": ["killswitch", "king", 3]}, **options), _KILL)  # type: ignore[arg-type]
        assert [allows(held, text) for text in ('"killswitch"', '"king"', "3")] == [False, True, True]
    choice = compiled(Choice(["kill", "keep"], probabilities=True), _KILL)
    assert choice.labels == ("keep",)
    assert not allows(choice, "kill")


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"enum": ["killer", "KILL"]}, ""),
        ({"properties": {"a b": {"properties": {"c": {"const": "kill"}}, "required": ["c"], "type": "object"}},
          "required": ["a b"], "type": "object"}, "/a b/c"),
        ({"type": "object", "properties": {"skilled": {"type": "string"}}}, "/skilled"),
        ({"type": "array", "items": {"pattern": "kill", "type": "string"}, "minItems": 1}, "/*"),
    ],
)  # fmt: skip
def test_a_type_of_which_nothing_is_left_is_refused_with_its_field(schema: Any, pointer: str) -> None:
    with pytest.raises(UnsatisfiableSchema, match="guard 'never'") as caught:
        compiled(JsonSchema(schema), _KILL)
    assert caught.value.pointer == pointer
    assert "kill" not in str(caught.value).replace(pointer, "").replace("skilled", "")


def test_a_text_type_of_which_nothing_is_left_is_refused() -> None:
    for spec in (Regex("(s)?kill(er)?"), Choice(["kill"])):
        with pytest.raises(GrammarError, match="'never'"):
            compiled(spec, _KILL)


def test_an_optional_part_of_which_nothing_is_left_cannot_be_said() -> None:
    schema = {"type": "object", "properties": {"a": {"const": "kill"}, "b": {}}, "additionalProperties": False}
    held = compiled(JsonSchema(schema), _KILL)
    assert allows(held, '{"b":1}')
    assert not allows(held, '{"a":"kill"}')


@pytest.mark.parametrize(
    ("where", "legal", "illegal"),
    [
        ("$.sql", ['{"a":"kill","kill":2}'], ['{"sql":"kill"}', '{"sql":{"x":["kill"]}}', '{"sql":{"kill":1}}']),
        (["$..x", "!$.ok"], ['{"a":"kill","ok":{"x":"kill"}}'], ['{"x":"kill"}', '{"a":[{"x":"kill"}]}']),
        ("$.a[1]", ['{"a":["kill","x","kill"]}', '{"b":["x","kill"]}'], ['{"a":["x","kill"]}', '{"a":["x",["kill"]]}']),
        ("$.*~", ['{"a":{"kill":"kill"}}'], ['{"kill":1}']),
        ("!$.notes", ['{"notes":"kill"}'], ['{"a":"kill"}', '{"kill":1}', '{"notes2":"kill"}']),
    ],
)
def test_a_ban_holds_where_its_paths_lead_and_nowhere_else(where: Any, legal: list[str], illegal: list[str]) -> None:
    held = compiled(_ANY, Never(phrases=["kill"], where=where))
    assert [text for text in legal if not allows(held, text)] == []
    assert [text for text in illegal if allows(held, text)] == []


def test_paths_lead_through_references_that_lead_back() -> None:
    schema = {"$defs": {"n": {"type": "object", "properties": {"t": {"type": "string"}, "kid": {"$ref": "#/$defs/n"}}}},
              "$ref": "#/$defs/n"}  # fmt: skip
    held = compiled(JsonSchema(schema), Never(phrases=["kill"], where="$.kid.t"))
    assert allows(held, '{"t":"kill","kid":{"t":"x","kid":{"t":"kill"}}}')
    assert not allows(held, '{"t":"x","kid":{"t":"kill"}}')


def test_bans_of_several_guards_all_hold() -> None:
    held = compiled(_ANY, _KILL, Never(phrases=["drop"], where="$.sql"), Never(regexes=["[0-9]{3}-[0-9]{4}"]))
    assert allows(held, '{"a":"drop","sql":"dro"}')
    for text in ('{"a":"kill"}', '{"sql":"drop"}', '{"a":["555-1234"]}'):
        assert not allows(held, text)


def test_a_compiled_type_takes_further_bans() -> None:
    first = compiled(_ANY, _KILL)
    both = compile_type(first, bans=Bans.of([Never(phrases=["drop"]).ban]))
    assert not allows(both, '{"a":"kill"}') and not allows(both, '{"a":"drop"}')
    assert allows(first, '{"a":"drop"}')


def test_tool_arguments_are_a_scope_of_their_own() -> None:
    held = compiled(_TOOLS, Never(phrases=["kill"], where="$.calls[*].arguments.q"))
    assert allows(held, "I kill " + _CALL % "x")
    assert not allows(held, _CALL % "kill")
    held = compiled(_TOOLS, Never(phrases=["kill"], where="$.text"))
    assert allows(held, "I " + _CALL % "kill")
    assert not allows(held, "I kill " + _CALL % "x")


def test_regexes_read_folded_text() -> None:
    guard = Never(regexes=[r"DROP\s+TABLE", r"\bkey: ?[a-f0-9]{4,}", "^begin", "[^a-z]end$"], fold="compat")
    held = compiled(None, guard)
    for text in ("drop  table", "ＤＲＯＰ\u00a0table", "my key:DEADbeef", "begin", "the.end", "d\u200brop\ttable"):
        assert not allows(held, text), text
        assert guard.find(GuardView(text)), text
    for text in ("droptable", "monkey:dead", "key:abc", "a begin", "bend", "end"):
        assert allows(held, text), text
        assert not guard.find(GuardView(text)), text


@pytest.mark.parametrize("fold", FOLDS)
def test_folds_agree_with_the_unicode_data_of_the_interpreter(fold: Fold) -> None:
    if unicodedata.unidata_version != "14.0.0" and fold != "exact":
        pytest.skip("the interpreter has another version of the Unicode data")
    if fold == "skeleton":
        assert folding(fold).text("Раураl rn0dеl") == folding(fold).text("paypa1 Model")
        return
    sample = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000 and (code < 0x3000 or code % 7 == 0)]
    table = folding(fold)
    wrong = [hex(code) for code in sample if table.of(chr(code)) != plain_fold(chr(code), fold)]
    assert wrong == []


def test_what_compat_finds_skeleton_finds_too() -> None:
    compat, skeleton = folding("compat"), folding("skeleton")
    same: dict[str, str] = {}
    for char in map(chr, [*range(0xD800), *range(0xE000, 0x20000)]):
        folded = compat.of(char)
        assert same.setdefault(folded, skeleton.of(char)) == skeleton.of(char), ascii(char)


def _random_text(rng: random.Random) -> str:
    return "".join(rng.choice("aAbB \u200bé\ufb00fсc1l.") for _ in range(rng.randint(0, 14)))


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("word", [False, True])
def test_a_scan_finds_what_decoding_forbids(fold: Fold, word: bool) -> None:
    rng = random.Random(f"{fold}{word}")
    for _ in range(25):
        phrases = [text for text in (_random_text(rng)[:4] for _ in range(3)) if folding(fold).text(text)] or ["ab"]
        guard = Never(phrases=phrases, fold=fold, word=word)
        held = compiled(None, guard)
        for _ in range(12):
            text = _random_text(rng)
            found = guard.find(GuardView(text))
            assert bool(found) == holds_ban(text, phrases, fold, word), (phrases, text)
            assert allows(held, text) == (not found), (phrases, text)
            for match in found:
                part = text[match.start : match.end]
                assert any(plain_fold(phrase, fold) in plain_fold(part, fold) for phrase in phrases)


def test_matches_stand_where_the_text_has_them() -> None:
    found = Never(phrases=["confidential", "dent"]).find(GuardView("a con\ufb01\u200bdential b CONFIDENTIAL"))
    assert sorted((match.start, match.end) for match in found) == [(2, 14), (7, 11), (17, 29), (22, 26)]


def test_a_guard_survives_as_data() -> None:
    guard = Never(phrases=["a b"], regexes=["x+y"], fold="skeleton", word=True, where="$.a", on_fail="retry")
    again = Guards.from_dict({"guards": [guard.to_dict()]}).guards[0]
    assert again.to_dict() == guard.to_dict()
    assert isinstance(again, Never) and again.phrases == ("a b",)


@pytest.mark.parametrize(
    "given",
    [
        {}, {"phrases": [""]}, {"phrases": "kill"}, {"phrases": ["\u200b"]}, {"phrases": ["a"], "fold": "upper"},
        {"regexes": ["(?=a)b"]}, {"regexes": ["("]}, {"regexes": [r"(a)\1"]}, {"phrases": ["a"], "word": 1},
        {"phrases": ["a" * 2000]}, {"phrases": ["\ud800"]},
    ],
)  # fmt: skip
def test_settings_that_cannot_serve_are_refused_by_name(given: Any) -> None:
    with pytest.raises(RequestError) as caught:
        Never(**given)
    assert caught.value.field in ("phrases", "regexes", "fold", "word")


def test_no_error_shows_a_banned_phrase() -> None:
    for spec in (JsonSchema({"const": "my secret phrase"}), Choice(["my secret phrase"])):
        with pytest.raises(SafegenError) as caught:
            compiled(spec, Never(phrases=["secret"], name="house rules"))
        assert "secret" not in str(caught.value) and "house rules" in str(caught.value)


def test_a_guard_that_only_logs_bans_nothing() -> None:
    assert Guards([Never(phrases=["a"], on_fail="log")]).bans() is None
    assert Guards([Never(phrases=["a"], stages=["output"])]).bans() is None
    assert Guards([Never(phrases=["a"])]).bans() is not None


def test_a_dry_run_records_what_would_have_been_banned() -> None:
    guard = Never(phrases=["secret"], on_fail="log")
    assert (guard.stages, Never.from_dict(guard.to_dict()).stages) == (("output",), ("output",))
    with make_llm(ScriptedBackend("a secret")) as llm:
        result = llm.generate("go", guards=guard, max_tokens=20)
    assert (result.status, result.text) == ("ok", "a secret")
    assert [(r.stage, r.action, r.start, r.end) for r in result.audit] == [("output", "log", 2, 8)]


def test_long_text_is_scanned_in_linear_time() -> None:
    guard = Never(phrases=["a" * 200 + "b", "kaleidoscope"], regexes=["(a+)+c"], fold="case")
    assert guard.find(GuardView("a" * 200_000)) == []


@pytest.mark.parametrize("text", ["acme\u2122", "|acme|", "\u24d0acme", "acme \u2122", "an acme\u2120, yes"])
def test_a_word_ends_at_a_symbol_that_folds_to_letters(text: str) -> None:
    guard = Never(phrases=["acme", "lx"], fold="skeleton", word=True)
    assert guard.find(GuardView(text))
    assert not allows(compiled(None, guard), text)
    assert not allows(compiled(_ANY, guard), json.dumps({"a": text}))
    for other in ("acmes\u2122", "\u2122acmes", "lacme", "acme\u017f"):
        assert not guard.find(GuardView(other))
        assert allows(compiled(None, guard), other)


def test_a_phrase_of_letters_that_a_symbol_folds_to_is_found_in_it() -> None:
    guard = Never(phrases=["acme tm"], word=True)
    assert guard.find(GuardView("the Acme \u2122 thing"))
    assert not allows(compiled(None, guard), "the Acme \u2122 thing")


@pytest.mark.parametrize("odd", ["\uffff", "\ufffe"])
def test_a_noncharacter_stands_for_itself_alone(odd: str) -> None:
    guard = Never(phrases=[f"a{odd}"], fold="exact", word=True)
    held = compiled(None, guard)
    assert allows(held, "ab a. a")
    assert not allows(held, f"a{odd}")


@pytest.mark.parametrize("level", FOLDS)
def test_a_fold_of_a_fold_is_the_fold(level: Fold) -> None:
    fold = folding(level)
    chars = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assert not [char for char in chars if fold.text(fold.of(char)) != fold.of(char)]


@pytest.mark.parametrize("level", ["compat", "skeleton"])
def test_a_syllable_is_its_letters(level: Fold) -> None:
    guard = Never(phrases=["\uc774\uac01"], fold=level)
    for spelled in ("\uc774\uac01", unicodedata.normalize("NFD", "\uc774\uac01"), "\u1175\uc774\u1100\u1161\u11a8"):
        assert guard.find(GuardView(spelled))
        assert not allows(compiled(None, guard), spelled)
    assert allows(compiled(None, guard), "\uc774\uac00")
