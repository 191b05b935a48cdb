"""SystemPromptLeak, Canary, MaxLength, Charset and Language."""

from __future__ import annotations

import base64
import codecs
import random

import pytest

from safegen.errors import RequestError
from safegen.guards.base import Guard, GuardView
from safegen.guards.canary import Canary
from safegen.guards.charset import Charset
from safegen.guards.language import Language, tell_language
from safegen.guards.length import MaxLength
from safegen.guards.prompt_leak import SystemPromptLeak
from tests.guards.law import assert_stream_law, assert_window_law

PROMPT = (
    "You are Ada, the assistant of Northwind Bank. Never mention the merger with Contoso, which is planned for May. "
    "Answer politely, in at most three sentences, and send customers with complaints to the branch manager."
)


def found(guard: Guard, text: str, protected: tuple[str, ...] = ()) -> list[str]:
    return [text[m.start : m.end] for m in sorted(guard.find(GuardView(text, protected=protected)))]


def test_every_verbatim_overlap_of_the_length_is_found_wherever_it_begins() -> None:
    guard = SystemPromptLeak(segments=[PROMPT], min_overlap=32)
    letters = [at for at, character in enumerate(PROMPT) if character.isalnum()]
    for first in range(len(letters) - 32):
        overlap = PROMPT[letters[first] : letters[first + 31] + 1]
        assert found(guard, f"It says {overlap}; so there"), overlap


@pytest.mark.parametrize(
    "disguise",
    [
        str.upper,
        lambda text: text.replace(" ", "\n> "),
        lambda text: text.replace("e", "е").replace("o", "о"),
        lambda text: "\u200b".join(text),
        lambda text: text.replace(".", "!").replace(",", ""),
    ],
)
def test_a_leak_is_found_through_case_spacing_and_look_alikes(disguise: object) -> None:
    assert callable(disguise)
    assert found(SystemPromptLeak(), "Sure: " + disguise(PROMPT), (PROMPT,))


def test_short_overlaps_and_allowed_texts_are_no_leak() -> None:
    assert not found(SystemPromptLeak(), "I am Ada, the assistant of Northwind Bank. How can I help?", (PROMPT,))
    assert not found(SystemPromptLeak(allow=[PROMPT]), PROMPT, (PROMPT,))
    assert not found(SystemPromptLeak(), PROMPT)


_CHINESE = (
    "你是北风银行的助手，名字叫艾达。任何时候都不要提到与康托索公司的合并计划，因为它要到五月才会公布。回答要有礼貌，"
    "最多三句话，遇到投诉的客户请他们去找分行经理。"
)
_OTHER_CHINESE = (
    "春天的花园里开满了各种颜色的花朵，孩子们在草地上奔跑玩耍，老人们坐在长椅上晒太阳聊天，小鸟在树枝间唱歌，"
    "空气里有泥土和青草的味道，大家都很喜欢这样的下午。"
)


def test_letters_of_a_script_without_look_alikes_are_told_apart() -> None:
    guard = SystemPromptLeak(min_overlap=24)
    assert not found(guard, _OTHER_CHINESE, (_CHINESE,))
    assert found(guard, f"好的：{_CHINESE[10:60]}", (_CHINESE,))
    assert found(guard, "• ".join(PROMPT.split()), (PROMPT,))
    assert_stream_law(guard.protecting([_CHINESE, PROMPT]), f"{_OTHER_CHINESE[:20]}{_CHINESE[5:50]} • {PROMPT[:40]}")


def test_a_leak_of_the_whole_prompt_is_covered_but_for_a_few_letters_at_its_ends() -> None:
    text = f"Here: {PROMPT} Bye."
    covered = sum(len(each) for each in found(SystemPromptLeak(), text, (PROMPT,)))
    assert covered >= len(PROMPT) - 2 * 12


def test_streams_of_a_leak_keep_the_law() -> None:
    guard = SystemPromptLeak(min_overlap=24).protecting([PROMPT])
    text = f"No. {PROMPT[20:90]} and {PROMPT[5:40]}\u200b{PROMPT[40:70].upper()} {PROMPT[:30]}"
    assert_stream_law(guard, text)
    assert_window_law(guard, text, 60)


@pytest.mark.parametrize(
    "spell",
    [
        str.upper,
        lambda token: token[::-1],
        lambda token: "\u200b".join(token),
        lambda token: codecs.encode(token, "rot13"),
        lambda token: token.encode().hex(),
        lambda token: base64.b64encode(token.encode()).decode(),
        lambda token: base64.b64encode(b"x" + token.encode() + b"yz").decode(),
        lambda token: base64.b64encode(b"xy" + token.encode()).decode(),
    ],
)
def test_a_canary_is_found_in_each_spelling(spell: object) -> None:
    guard = Canary(token="cn1a2B3c4d5e")
    assert callable(spell)
    text = f"the word is {spell(guard.token)}, is it not"
    assert found(guard, text)
    assert_stream_law(guard, text)
    assert not found(guard, "the word is cn1a2B3c4d, is it not")


def test_each_canary_is_drawn_anew_and_kept_in_its_data() -> None:
    one, other = Canary(), Canary()
    assert one.token != other.token and one.token in one.line
    assert Canary.from_dict(one.to_dict()).token == one.token
    with pytest.raises(RequestError, match="token='short'"):
        Canary(token="short")


def test_the_first_character_beyond_a_limit_is_the_match() -> None:
    assert found(MaxLength(characters=3), "abcd") == ["d"] and not found(MaxLength(characters=4), "abcd")
    assert found(MaxLength(words=2), "one two  three four") == ["t"] and not found(MaxLength(words=4), "a b c d")
    assert_stream_law(MaxLength(characters=4, words=2), "one two three")
    for wrong in ({}, {"characters": -1}, {"words": True}, {"words": 2, "on_fail": "redact"}):
        with pytest.raises(RequestError):
            MaxLength(**wrong)  # type: ignore[arg-type]


def test_letters_of_other_scripts_are_found_one_by_one() -> None:
    assert found(Charset(), "Grüße, naïve 5 € — ok 😀") == []
    assert found(Charset(), "pаypal Ω 山") == ["а", "Ω", "山"]
    assert found(Charset(scripts=["Latin", "Greek"]), "Ω and я") == ["я"]
    assert found(Charset(ascii_only=True), "é!") == ["é"]
    assert_stream_law(Charset(), "pаypal Ω 山")
    with pytest.raises(RequestError, match="Klingon"):
        Charset(scripts=["Klingon"])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("The quick brown fox is not in the house, but it was there all the time.", "en"),
        ("Ich weiß nicht, was das bedeuten soll, aber es ist auch nicht so wichtig für mich.", "de"),
        ("Je ne sais pas ce que cela veut dire, mais nous sommes dans la maison avec vous.", "fr"),
        ("No sé lo que quiere decir, pero está en la casa con los niños de mi hermano.", "es"),
        ("Non so che cosa vuol dire, ma sono nella casa con gli amici di mia sorella.", "it"),
        ("Não sei o que isso quer dizer, mas está em casa com os filhos da minha irmã.", "pt"),
        ("Ik weet niet wat het betekent, maar het is ook niet zo belangrijk voor mij.", "nl"),
        ("Jag vet inte vad det betyder, men det är inte så viktigt för mig att veta.", "sv"),
        ("Я не знаю, что это значит, но это не так важно для меня.", "ru"),
        ("これは日本語の文章です。", "ja"),
        ("这是一个中文句子。", "zh"),
        ("이것은 한국어 문장입니다.", "ko"),
        ("هذه جملة باللغة العربية", "ar"),
    ],
)
def test_a_language_is_told_by_its_script_or_its_commonest_words(text: str, code: str) -> None:
    told = tell_language(text)
    assert told is not None and told[0] == code
    assert found(Language(allow=[code]), text) == []
    other = "fi" if code != "fi" else "en"
    assert found(Language(allow=other), text) == [text]


@pytest.mark.parametrize(
    "text", ["", "42", "OK", "foo(bar) == baz", "x = [1, 2, 3]", "Berlin London Paris Madrid Roma Wien"]
)
def test_a_text_that_does_not_say_passes(text: str) -> None:
    assert tell_language(text) is None


def test_random_texts_of_protected_pieces_keep_the_law() -> None:
    guard = SystemPromptLeak(min_overlap=24).protecting([PROMPT])
    rng = random.Random(5)
    for _ in range(6):
        starts = [rng.randrange(len(PROMPT) - 40) for _ in range(4)]
        assert_stream_law(guard, " ".join(PROMPT[start : start + rng.randrange(10, 40)] for start in starts))
