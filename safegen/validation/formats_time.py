"""Formats `date`, `time`, `date-time` (RFC 3339) and `duration` (RFC 3339, appendix A). Hand-written, one pass each."""

from __future__ import annotations

DIGITS = frozenset("0123456789")
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def two_digits(text: str, start: int) -> int:
    """The value of two ASCII digits at start, -1 when they are not there."""
    pair = text[start : start + 2]
    return int(pair) if len(pair) == 2 and pair[0] in DIGITS and pair[1] in DIGITS else -1


def is_date(text: str) -> bool:
    """full-date: YYYY-MM-DD with a day that exists (proleptic Gregorian calendar, year 0000 included)."""
    if len(text) != 10 or text[4] != "-" or text[7] != "-":
        return False
    century, year_of_century, month, day = (two_digits(text, start) for start in (0, 2, 5, 8))
    if min(century, year_of_century, month, day) < 0 or not 1 <= month <= 12:
        return False
    year = century * 100 + year_of_century
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 1 <= day <= _MONTH_DAYS[month - 1] + (month == 2 and is_leap)


def is_time(text: str) -> bool:
    """full-time: HH:MM:SS[.fraction] and an offset. Second 60 is legal exactly when it is 23:59:60 in UTC."""
    hour, minute, second = (two_digits(text, start) for start in (0, 3, 6))
    if text[2:3] != ":" or text[5:6] != ":" or not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second <= 60):
        return False
    rest = text[8:]
    if rest.startswith("."):
        after = rest[1:].lstrip("0123456789")
        if len(after) == len(rest) - 1:
            return False
        rest = after
    offset_minutes = _offset_minutes(rest)
    if offset_minutes is None:
        return False
    return second < 60 or (hour * 60 + minute - offset_minutes) % 1440 == 1439


def _offset_minutes(text: str) -> int | None:
    if text in ("Z", "z"):
        return 0
    hours, minutes = two_digits(text, 1), two_digits(text, 4)
    if len(text) != 6 or text[0] not in "+-" or text[3] != ":" or not (0 <= hours < 24 and 0 <= minutes < 60):
        return None
    return (hours * 60 + minutes) * (-1 if text[0] == "-" else 1)


def is_date_time(text: str) -> bool:
    return text[10:11] in ("T", "t") and is_date(text[:10]) and is_time(text[11:])


def is_duration(text: str) -> bool:
    """P and weeks alone, or years, months, days without a gap, then T and hours, minutes, seconds without a gap."""
    if not text.startswith("P"):
        return False
    date, separator, time = text[1:].partition("T")
    if separator and not _is_run(time, "HMS"):
        return False
    if not date:
        return bool(separator)
    return _is_run(date, "YMD") or (not separator and _is_run(date, "W"))


def _is_run(text: str, units: str) -> bool:
    """Numbers with units that follow one another without a gap, at least one."""
    expected = units
    while text:
        rest = text.lstrip("0123456789")
        if len(rest) == len(text) or not rest or rest[0] not in expected:
            return False
        if expected is not units and rest[0] != expected[0]:
            return False
        expected = expected[expected.index(rest[0]) + 1 :]
        text = rest[1:]
    return expected is not units
