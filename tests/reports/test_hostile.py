"""Text that others wrote stays text: it makes no markup, moves nothing, and hides nothing."""

from __future__ import annotations

import unicodedata
from html.parser import HTMLParser

import pytest

from safegen.reports.hostile import excerpt, isolated, plain

HOSTILE = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onmouseover='x", "&lt;b&gt;", "</title></style>",
    "]]>", "<!--", "\u202egpj.exe", "\u2066\u2067abc\u2069", "a\u200bb\u00adc\ufeff", "\x00\x1b[31m\x7f\x9b",
    "\ud800 \udfff", "a\u2028b\u2029c", "\U000e0041", "\ufffe\U0010ffff",
]  # fmt: skip


class Texts(HTMLParser):
    """What a page says, and which elements it has."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, text: str) -> None:
        self.text += text


def read(markup: str) -> Texts:
    texts = Texts()
    texts.feed(markup)
    texts.close()
    return texts


@pytest.mark.parametrize("text", HOSTILE)
def test_it_is_one_element_and_no_unseen_character(text: str) -> None:
    texts = read(isolated(text))
    assert texts.tags == ["bdi"]
    assert not any(unicodedata.category(character) in {"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"} for character in texts.text)
    assert not set(plain(text)) & set("<>\"'")
    isolated(text).encode()  # no lone surrogates


def test_what_can_be_seen_is_shown_as_it_is() -> None:
    for text in ("order-17", "Grüße <3", "שלום", "مرحبا", "日本語", "naïve & co", "a  b", "👍"):
        assert read(isolated(text)).text == text
    assert read(isolated("\u202egpj.exe\n")).text == "\\u202egpj.exe\\x0a"


def test_long_text_is_cut_and_says_so() -> None:
    cut = excerpt("x" * 1_000_000)
    assert len(cut.text) == 160 and cut.num_more == 999_840
    assert "and 999,840 more characters" in read(isolated(cut)).text
    assert len(isolated(cut)) < 500 and len(plain(cut)) < 500


def test_numbers_are_ids_too_and_nothing_is_told_as_empty() -> None:
    assert read(isolated(excerpt(17))).text == "17"
    assert read(isolated("")).text == "empty"
