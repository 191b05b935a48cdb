"""Formats: verdicts beyond those of the public suite, and bounded work on hostile texts."""

from __future__ import annotations

import random
import time

import pytest

from safegen.validation.formats import FORMATS

_EXAMPLES: dict[str, tuple[list[str], list[str]]] = {
    "date": (
        ["2024-02-29", "0000-01-01", "2000-02-29"],
        ["2023-02-29", "1900-02-29", "2024-13-01", "2024-1-01", "২024-01-01"],
    ),
    "time": (
        ["23:59:60Z", "00:59:60+01:00", "12:00:00.123456789z", "00:00:00-23:59"],
        [
            "23:59:60+01:00",
            "12:00:00",
            "12:00:00.Z",
            "12:00:00+24:00",
            "12:00:61Z",
            "24:00:00Z",
            "12:00:00 Z",
            "12:00Z",
        ],
    ),
    "date-time": (
        ["2024-02-29t12:00:00z", "2016-12-31T23:59:60Z"],
        ["2024-02-30T12:00:00Z", "2024-02-29", "T12:00:00Z"],
    ),
    "duration": (
        ["P1Y2M3DT4H5M6S", "PT0S", "P4W", "P1M", "PT1H5M"],
        ["P", "PT", "P1Y1D", "PT1H1S", "P1W1D", "P1WT1H", "P1S", "1Y"],
    ),
    "email": (
        ["a@b", "a.b+c@x-y.example", r'"a\"b"@x.org', "a@[IPv6:::1]", "a@[ipv6:::1]"],
        [
            "a@",
            "@b",
            "a@b.",
            "a@-b",
            "a@b_c",
            '"a"b@c',
            "a@[::1]",
            "a@[1.2.3]",
            "a@[tag:x]",
            "é@b",
            "a@é.org",
            "a@b c",
            'a"b"@c',
        ],
    ),
    "idn-email": (["é@é.org", '"é é"@x'], ["é@", "é@-é", "é é@x"]),
    "hostname": (
        ["a", "a.b-c.1", "xn--9n2bp8q"],
        ["", "a.", "-a", "a_b", "é", "a" * 64, "xn--a", ".".join(["a" * 63] * 4)],
    ),
    "idn-hostname": (["é.org", "straße", "a.b"], ["É.org", "e\u0301.org", "a\u200db", "a..b", "é" * 64]),
    "ipv4": (
        ["0.0.0.0", "255.255.255.255"],
        ["1.2.3", "1.2.3.4.5", "256.0.0.1", "01.2.3.4", "1.2.3.4 ", "১.2.3.4", "1.2.3."],
    ),
    "ipv6": (
        ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::ffff:1.2.3.4", "1:2:3:4:5:6:1.2.3.4"],
        [
            "",
            ":",
            ":::",
            "1:2:3:4:5:6:7",
            "1:2:3:4:5:6:7:8:9",
            "1::2::3",
            "1:2:3:4::5:6:7:8",
            "::1%eth0",
            "12345::",
            "1.2.3.4",
            "1.2.3.4::",
            ":1:2:3:4:5:6:7",
            "::1.2.3.4:5",
        ],
    ),
    "uri": (
        [
            "http://a/b?c#d",
            "urn:x:y",
            "a:",
            "mailto:a@b",
            "http://[::1]:80/",
            "http://u:p@h/%41",
            "http://a?b/c?d",
            "x://",
        ],
        [
            "",
            "a",
            "//a",
            "http://a b",
            "http://a/%4",
            "http://a/%zz",
            "1a:b",
            "http://[::1",
            "http://a:b",
            "a:[",
            "a:\\b",
            "a:é",
            "http://a/\n",
            "a:b#c#d",
            "http://[v.a]/",
            "http://[1.2.3.4]/",
        ],
    ),
    "uri-reference": (["", "a", "//a", "/a:b", "?q", "#f", "./a:b", "a/b:c"], ["a b", "1a:b", ":a", "%", "^"]),
    "iri": (["http://é/ü?\ue000#ö"], ["http://a/\ue000", "é", "http://a/\ufffe", "http://\u00ad\u0080"]),
    "iri-reference": (["é", "é/b:c"], ["é:b", "\\", "a\ue000"]),
    "uri-template": (
        ["{a}", "{+a,b:3,c*}", "a{/b}c{?d.e}", "{!a}", "é"],
        ["{", "}", "{a", "{a:}", "{a*:3}", "{a b}", "{{a}}", "<", "{a**}"],
    ),
    "uuid": (
        ["123E4567-e89b-12d3-a456-426614174000"],
        ["123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"],
    ),
    "json-pointer": (["", "/", "/a~0b~1", "/é"], ["a", "/~", "/~2"]),
    "relative-json-pointer": (
        ["0", "1/a", "10#", "0+1", "1-10/a", "0-0#"],
        ["", "-1", "01", "1#/a", "1a", "0+", "0+01", "0+1+1", "0+1a"],
    ),
    "regex": (
        ["a(b|c)*", r"(a)\1", r"\k<a>(?<a>b)", "(?i:a)"],
        ["(", r"\1", r"\k<b>(?<a>b)", r"\k", r"\-", "a{2,1}", "(?#a)"],
    ),
}


def test_every_format_has_examples() -> None:
    assert _EXAMPLES.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_formats_decide_exactly(name: str) -> None:
    accepted, refused = _EXAMPLES[name]
    assert [text for text in accepted if not FORMATS[name](text)] == []
    assert [text for text in refused if FORMATS[name](text)] == []


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"regex"}))
def test_formats_answer_any_text_in_linear_time(name: str) -> None:
    rng = random.Random(11)
    alphabet = '0123456789abzAZ.:-/@[]{}%~#?+"\\\n é\u200d\u0660\u05d0\uffff\U0010ffff'
    for _ in range(2000):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 12)))
        assert FORMATS[name](text) in (True, False)
    started = time.perf_counter()
    for text in (
        "a" * 50_000,
        "1." * 25_000,
        ":" * 50_000,
        '"' + "\\a" * 25_000,
        "{a}" * 15_000,
        "é" * 10_000,
        "P" + "1Y" * 9999,
    ):
        FORMATS[name](text)
    assert time.perf_counter() - started < 2
