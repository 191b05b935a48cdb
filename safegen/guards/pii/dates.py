"""Dates of birth: a date in digits or words with "born", "birthday", "DOB" or their kin of other languages before it.

Other dates are no personal data. Ages and years alone are not matched.
"""

from __future__ import annotations

from collections.abc import Iterator

from safegen.guards.pattern_rules import Candidate, Rule
from safegen.guards.pii.context import Context, joined_after, joined_before
from safegen.guards.reading import compiled, overlapping

_BORN = Context(
    r"born|birth|birthday|birthdate|dob|d\.o\.b|geboren|geb|geburtsdatum|geburtstag|naissance|nee? le|nacid[oa]"
    r"|nacimiento|nascita|nat[oa] il|nascid[oa]|nascimento|geboortedatum|fodt|fodd|urodzon[ya]",
    within=56,
)
_MONTH = (
    r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|sept|oct|nov|dec|january|february|march|april|june|july|august|september"
    r"|october|november|december|januar|februar|marz|maerz|mai|juni|juli|oktober|dezember|enero|febrero|marzo|abril|mayo"
    r"|junio|julio|agosto|septiembre|octubre|noviembre|diciembre|janvier|fevrier|mars|avril|juin|juillet|aout|septembre"
    r"|octobre|novembre|decembre)"
)
_DATE = compiled(
    r"\b(?:\d{1,2}[./\- ]\d{1,2}[./\- ](?:19|20)?\d{2}|(?:19|20)\d{2}[./\-]\d{1,2}[./\-]\d{1,2}"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?[. \-]{{1,2}}(?:(?:of|de) )?{_MONTH}[.,]?[ \-](?:de )?(?:19|20)?\d{{2}}"
    rf"|{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?,? (?:19|20)?\d{{2}})\b",
    ignore_case=True,
)
_LIVE = (
    r"\b\d[\d./\- ]{0,12}"
    r"|\b\d{1,2}[A-Za-z]{0,2}[. \-]{0,2}(?:[A-Za-z]{0,2} )?[A-Za-z]{0,10}[.,]?[ \-]?(?:[A-Za-z]{0,2} ?)?\d{0,4}"
    r"|\b[A-Za-z]{1,10}\.? ?(?:\d{1,2}[A-Za-z]{0,2},? ?\d{0,4})?"
)


def scan(octets: bytes) -> Iterator[Candidate]:
    for match in overlapping(_DATE, octets):
        start, end = match.span()
        if not joined_before(octets, start) and not joined_after(octets, end) and _BORN.before(octets, start):
            yield start, end, 0.9


RULE = Rule(
    "DATE_OF_BIRTH", 36, scan, _LIVE + r"|\b[A-Za-z]{1,10}\.? ?\d{1,2}[A-Za-z]{0,2},? ?\d{1,4}[./\-]?", look_ahead=2
)
