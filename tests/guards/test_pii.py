"""PII: what is found, what is left alone, and the figures on the corpora that the project promises."""

from __future__ import annotations

from collections import Counter

import pytest

from safegen.errors import RequestError
from safegen.guards.base import GuardView
from safegen.guards.pii import NATIONAL_TYPES, PATTERN_TYPES, PII
from tests.support.suites import corpus_rows

_GUARD = PII()


def found(text: str, guard: PII = _GUARD) -> list[tuple[str, str]]:
    return [(match.rule, text[match.start : match.end]) for match in guard.find(GuardView(text))]


FOUND = [
    ("write to jane.doe+x@mail.example.co.uk.", "EMAIL", "jane.doe+x@mail.example.co.uk"),
    ("?email=jane%40example.com&x=1", "EMAIL", "jane%40example.com"),
    ("jane [at] example [dot] com!", "EMAIL", "jane [at] example [dot] com"),
    ("at jаnе@ехample.com now", "EMAIL", "jаnе@ехample.com"),
    ("ｊａｎｅ＠ｅｘａｍｐｌｅ．ｃｏｍ", "EMAIL", "ｊａｎｅ＠ｅｘａｍｐｌｅ．ｃｏｍ"),
    ("ja\u200bne@exam\u00adple.com", "EMAIL", "ja\u200bne@exam\u00adple.com"),
    ("+1 (329) 988-4927 2023", "PHONE", "+1 (329) 988-4927"),
    ("(898)666-3621x0135,", "PHONE", "(898)666-3621x0135"),
    ("tel +46 (0)157 548 89.", "PHONE", "+46 (0)157 548 89"),
    ("Bureau 01.84.17.61.18?", "PHONE", "01.84.17.61.18"),
    ("Can someone call me on 9472 7916?", "PHONE", "9472 7916"),
    ("card 4111 1111 1111 1111 12/27", "CREDIT_CARD", "4111 1111 1111 1111"),
    ("3782-822463-10005", "CREDIT_CARD", "3782-822463-10005"),
    ("debit card 503802053770", "CREDIT_CARD", "503802053770"),
    ("an DE89 3704 0044 0532 0130 00 BITTE", "IBAN", "DE89 3704 0044 0532 0130 00"),
    ("gb82west12345698765432", "IBAN", "gb82west12345698765432"),
    ("id 911-74-7559.", "SSN", "911-74-7559"),
    ("SSN lS2-64-6269", "SSN", "lS2-64-6269"),
    ("social security 123 45 6789", "SSN", "123 45 6789"),
    ("１２３－４５－６７８９", "SSN", "１２３－４５－６７８９"),
    ("client_ip=41.176.181.243|", "IP_ADDRESS", "41.176.181.243"),
    ("from 2001:db8::ff00:42:8329, twice", "IP_ADDRESS", "2001:db8::ff00:42:8329"),
    ("eth0 00:1A:2b:3C:4d:5E up", "MAC_ADDRESS", "00:1A:2b:3C:4d:5E"),
    ("https://root:hunter2@example.com/", "URL_CREDENTIALS", "root:hunter2"),
    ("She was born on 9/20/1968.", "DATE_OF_BIRTH", "9/20/1968"),
    ("geboren am 3. März 1971 in Ulm", "DATE_OF_BIRTH", "3. März 1971"),
    ("DOB: March 12, 1988", "DATE_OF_BIRTH", "March 12, 1988"),
    ("1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2", "CRYPTO_ADDRESS", "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2"),
    ("bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq", "CRYPTO_ADDRESS", "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq"),
    ("0x52908400098527886E0F7030069857D2E4169EE7", "CRYPTO_ADDRESS", "0x52908400098527886E0F7030069857D2E4169EE7"),
    ("mit 12345678Z", "ES_DNI", "12345678Z"),
    ("RSSMRA85T10A562S", "IT_CODICE_FISCALE", "RSSMRA85T10A562S"),
    ("131052-308T", "FI_HETU", "131052-308T"),
    ("880320-0016", "SE_PERSONNUMMER", "880320-0016"),
    ("AHV 756.9217.0769.85", "CH_AHV", "756.9217.0769.85"),
    ("cpf 390.533.447-05", "BR_CPF", "390.533.447-05"),
    ("BSN 111222333", "NL_BSN", "111222333"),
    ("PESEL 44051401359", "PL_PESEL", "44051401359"),
    ("NHS number 943 476 5919", "GB_NHS", "943 476 5919"),
    ("Aadhaar 2341 2341 2346", "IN_AADHAAR", "2341 2341 2346"),
    ("85.07.30-033.28", "BE_NATIONAL_NUMBER", "85.07.30-033.28"),
    ("11010219840406970X", "CN_RESIDENT_ID", "11010219840406970X"),
    ("National Insurance QQ123456C AB123456C", "GB_NINO", "AB123456C"),
    ("SIN 123-456-782", "CA_SIN", "123-456-782"),
    ("Steuer-ID 36 574 261 809", "DE_TAX_ID", "36 574 261 809"),
    ("chart MRN-7113591", "MEDICAL_RECORD", "MRN-7113591"),
]


@pytest.mark.parametrize(("text", "rule", "what"), FOUND, ids=[f"{rule}-{what}"[:40] for _, rule, what in FOUND])
def test_each_kind_is_found_as_a_whole_and_nothing_beside_it(text: str, rule: str, what: str) -> None:
    assert found(text) == [(rule, what)]


@pytest.mark.parametrize(
    "text",
    [
        "version 1.2.3.4 and v10.0.0.1",
        "1.2.3.4.5 is an outline, 127.0.0.1 nobody",
        "at 12:34:56 call std::vector or a::b",
        "4111 1111 1111 1112 is no card",
        "order 4853645434159861234567890",
        "GB82 WEST 1234 5698 7654 33",
        "The treaty was signed on 9/20/1968 in 1968.",
        "user@localhost @handle a@b @",
        "pi is 3.14159265358979 and e is 2.718281828459045",
        "lives at 17031 2202 Rissik St Apt. 050",
        "In 2019 there were 1,234,567 of 7-8 kinds, 10 000 000 more",
        "uuid 123e4567-e89b-12d3-a456-426614174000",
        "ISBN 978-3-16-148410-0",
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
    ],
)
def test_what_only_looks_like_personal_data_is_left_alone(text: str) -> None:
    assert found(text) == []


def test_overlapping_findings_leave_nothing_of_either_in_clear() -> None:
    text = "a@b.co@c.org"
    covered = {at for match in _GUARD.find(GuardView(text)) for at in range(match.start, match.end)}
    assert covered == set(range(len(text)))


def test_only_the_wanted_types_are_sought() -> None:
    text = "jane@example.com, 123-45-6789, 12345678Z"
    assert found(text, PII(types=["SSN"])) == [("SSN", "123-45-6789")]
    assert found(text, PII(types="NATIONAL_ID")) == [("ES_DNI", "12345678Z")]
    assert len(NATIONAL_TYPES) >= 30 and set(NATIONAL_TYPES) < set(PATTERN_TYPES)


def test_an_allowed_text_is_no_finding() -> None:
    assert found("ask Help@Example.com or jo@example.com", PII(allow=["help@example.com"])) == [
        ("EMAIL", "jo@example.com")
    ]


@pytest.mark.parametrize(("types", "value"), [(["EMAL"], "EMAL"), ([], [])])
def test_a_wrong_type_is_refused_by_name(types: list[str], value: object) -> None:
    with pytest.raises(RequestError) as caught:
        PII(types=types)
    assert caught.value.field == "types" and caught.value.value in (value, ())


def test_a_guard_is_made_again_from_its_data() -> None:
    guard = PII(types=["SSN", "EMAIL"], allow=["x@y.org"], on_fail="redact")
    assert PII.from_dict(guard.to_dict()).to_dict() == guard.to_dict()


_TYPES = {
    "EMAIL_ADDRESS": "EMAIL",
    "PHONE_NUMBER": "PHONE",
    "US_SSN": "SSN",
    "SOCIAL_SECURITY_NUMBER": "SSN",
    "IP_ADDRESS": "IP_ADDRESS",
    "CREDIT_CARD": "CREDIT_CARD",
    "IBAN_CODE": "IBAN",
}


@pytest.mark.parametrize(("stem", "recall", "precision"), [("pii-adversarial-dev", 0.98, 0.95), ("pii-dev", 0.9, 0.9)])
def test_recall_and_precision_on_the_corpora(stem: str, recall: float, precision: float) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for row in corpus_rows(stem):
        gold = {(_TYPES[s["type"]], s["start"], s["end"]) for s in row["spans"] if s["type"] in _TYPES}
        mine = {(m.rule, m.start, m.end) for m in _GUARD.find(GuardView(row["text"])) if m.rule in _TYPES.values()}
        for kind, spans in (("hit", gold & mine), ("missed", gold - mine), ("wrong", mine - gold)):
            counts.update((rule, kind) for rule, _, _ in spans)
    rules = {rule for rule, kind in counts if kind != "wrong"}
    assert len(rules) >= 4
    for rule in rules:
        hit = counts[rule, "hit"]
        assert hit / (hit + counts[rule, "missed"]) >= recall, rule
        assert hit / (hit + counts[rule, "wrong"]) >= precision, rule


def test_a_finding_does_not_depend_on_what_stands_elsewhere() -> None:
    text = "the printer is aa:bb:cc:dd:ee:ff now"
    assert found(text) == found(f"{text}, since 7")[:1] == [("MAC_ADDRESS", "aa:bb:cc:dd:ee:ff")]
