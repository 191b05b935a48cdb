r"""The formats of JSON Schema 2020-12 as regular languages over the decoded text, written as ECMA-262 regexes.

Sources: RFC 3339 (dates and times; leap seconds only where the time in UTC is 23:59:60), RFC 4122, 5321, 6531, 1123,
2673, 4291, 3986, 3987, 6570, 6901 and ISO 8601 durations as in RFC 3339 appendix A. Of three formats a part is held, so
that what is held is always valid: hostnames whose labels have no hyphens in the third and fourth place, or are A-labels
("xn--...") of up to 20 letters and digits with one more letter of Latin-1, as all others need the tables of IDNA;
`idn-hostname` and `regex` as their modules have them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from safegen.grammars.json_schema.idn_hostname_format import idn_hostname_expr
from safegen.grammars.json_schema.regex_format import regex_expr
from safegen.grammars.regex_lowering import RegexLowering
from safegen.grammars.regex_syntax import parse_regex
from safegen.grammars.regex_tree import Pattern

# From year 1 on, as calendars in programs have it (Python's among them): RFC 3339 could write a year 0000.
_YEAR = r"(?:[1-9]\d{3}|0(?:[1-9]\d\d|0(?:[1-9]\d|0[1-9])))"
_LEAP = r"(?:0[48]|[2468][048]|[13579][26])"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    r"|02-(?:0[1-9]|1\d|2[0-8]))"
    rf"|(?:\d\d{_LEAP}|{_LEAP}00)-02-29)"
)
_OFFSET = r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_TIME = rf"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?{_OFFSET}"


_LEAP_UTC = r"23:59:60(?:\.\d+)?[Zz]"

_SECONDS = r"\d+S"
_MINUTES = rf"\d+M(?:{_SECONDS})?"
_CLOCK = rf"T(?:\d+H(?:{_MINUTES})?|{_MINUTES}|{_SECONDS})"
_DAYS = r"\d+D"
_MONTHS = rf"\d+M(?:{_DAYS})?"
_DURATION = rf"P(?:\d+W|(?:\d+Y(?:{_MONTHS})?|{_MONTHS}|{_DAYS})(?:{_CLOCK})?|{_CLOCK})"

_UUID = r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"

_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_H16 = r"[0-9A-Fa-f]{1,4}"
_LS32 = rf"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = "(?:" + "|".join(
    [
        rf"(?:{_H16}:){{6}}{_LS32}",
        rf"::(?:{_H16}:){{5}}{_LS32}",
        rf"(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}",
        rf"(?:(?:{_H16}:){{0,1}}{_H16})?::(?:{_H16}:){{3}}{_LS32}",
        rf"(?:(?:{_H16}:){{0,2}}{_H16})?::(?:{_H16}:){{2}}{_LS32}",
        rf"(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}",
        rf"(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}",
        rf"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}",
        rf"(?:(?:{_H16}:){{0,6}}{_H16})?::",
    ]
) + ")"  # fmt: skip

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_LABELS = rf"{_LABEL}(?:\.{_LABEL})*"
# A label of three characters or less, or without two hyphens in the third and fourth place.
_PLAIN_LABEL = (
    r"[A-Za-z0-9](?:[A-Za-z0-9-]?[A-Za-z0-9])?"
    r"|[A-Za-z0-9][A-Za-z0-9-](?:[A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])[A-Za-z0-9-]{0,58}[A-Za-z0-9]"
    r"|[A-Za-z0-9][A-Za-z0-9-][A-Za-z0-9-][A-Za-z0-9]"
)
_LATIN_1_LETTERS = "ßàáâãäåæçèéêëìíîïðñòóôõöøùúûüýþÿ"
_MAX_BASIC_CHARS = 20

_ATEXT = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_ADDRESS = rf"\[(?:{_IPV4}|IPv6:{_IPV6})\]"
_EMAIL = rf"(?:{_ATEXT}+(?:\.{_ATEXT}+)*|{_QUOTED})@(?:{_LABELS}|{_ADDRESS})"
_BEYOND = r"\u0080-\u{10FFFF}"
_IDN_ATEXT = _ATEXT.replace("[", "[" + _BEYOND, 1)
_IDN_QUOTED = _QUOTED.replace("[ !", "[" + _BEYOND + " !", 1)
_IDN_LABEL = _LABEL.replace("[A-Z", "[" + _BEYOND + "A-Z")
_IDN_EMAIL = rf"(?:{_IDN_ATEXT}+(?:\.{_IDN_ATEXT}+)*|{_IDN_QUOTED})@(?:{_IDN_LABEL}(?:\.{_IDN_LABEL})*|{_ADDRESS})"

_UCS = "".join(
    [r"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF"]
    + [rf"\u{{{plane:X}0000}}-\u{{{plane:X}FFFD}}" for plane in range(1, 14)]
).replace(r"\u{E0000}", r"\u{E1000}")
_PRIVATE = r"\uE000-\uF8FF\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}"


def _uri(extra: str, query_extra: str, *, relative: bool) -> str:
    """RFC 3986 (extra = "") or RFC 3987."""
    escaped = r"%[0-9A-Fa-f]{2}"
    plain = rf"A-Za-z0-9._~!$&'()*+,;=\-{extra}"
    segment_char = rf"(?:[{plain}:@]|{escaped})"
    future = rf"[Vv][0-9A-Fa-f]+\.[{plain.replace(extra, '') if extra else plain}:]+"
    host = rf"(?:\[(?:{_IPV6}|{future})\]|(?:[{plain}]|{escaped})*)"
    authority = rf"(?:(?:[{plain}:]|{escaped})*@)?{host}(?::\d*)?"
    path = rf"(?:/{segment_char}*)*"
    rooted = rf"/(?:{segment_char}+{path})?"
    tail = rf"(?:\?(?:[{plain}:@/?{query_extra}]|{escaped})*)?(?:#(?:[{plain}:@/?]|{escaped})*)?"
    absolute = rf"[A-Za-z][A-Za-z0-9+.\-]*:(?://{authority}{path}|{rooted}|{segment_char}+{path}|){tail}"
    if not relative:
        return absolute
    first = rf"(?:[{plain}@]|{escaped})+"
    return rf"{absolute}|(?://{authority}{path}|{rooted}|{first}{path}|){tail}"


_VAR_CHAR = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})"
_VAR_SPEC = rf"{_VAR_CHAR}(?:\.?{_VAR_CHAR})*(?::[1-9]\d{{0,3}}|\*)?"
_TEMPLATE_LITERAL = rf"[!#$&'(-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]|%[0-9A-Fa-f]{{2}}"
_URI_TEMPLATE = rf"(?:{_TEMPLATE_LITERAL}|\{{[+#./;?&=,!@|]?{_VAR_SPEC}(?:,{_VAR_SPEC})*\}})*"

_POINTER = r"(?:/(?:[^~/]|~[01])*)*"

_PATTERNS: dict[str, str] = {
    "date": _DATE,
    "duration": _DURATION,
    "uuid": _UUID,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "email": _EMAIL,
    "idn-email": _IDN_EMAIL,
    "uri": _uri("", "", relative=False),
    "uri-reference": _uri("", "", relative=True),
    "iri": _uri(_UCS, _PRIVATE, relative=False),
    "iri-reference": _uri(_UCS, _PRIVATE, relative=True),
    "uri-template": _URI_TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:[+-](?:0|[1-9]\d*))?(?:#|{_POINTER})",
}


@cache
def _parsed(pattern: str) -> Pattern:
    return parse_regex(pattern)


def _leap_times(lower: RegexLowering) -> int:
    """Leap seconds with an offset: hours that agree with 23 in UTC, and minutes that agree with 59. Each couples one
    pair of fields; the carry between them is told by the offset's minutes."""
    builder = lower.builder
    concat, alternate, literal = builder.concat, builder.alternate, builder.literal
    minute, some_minute, two = (lower.full(_parsed(text)) for text in (r"[0-5]\d", r"0[1-9]|[1-5]\d", r"\d\d"))
    second = lower.full(_parsed(r":60(?:\.\d+)?"))
    middle = concat([literal(b":"), minute, second])
    plus, minus = concat([literal(b"+"), two, literal(b":")]), concat([literal(b"-"), two, literal(b":")])
    hours, minutes = [], []
    for hour in range(24):
        west = concat([literal(b"-%02d:" % (23 - hour)), minute])
        later = concat([literal(b"+%02d:" % hour), some_minute])
        offset = alternate([literal(b"+%02d:00" % ((hour + 1) % 24)), later, west])
        hours.append(concat([literal(b"%02d" % hour), middle, offset]))
    for number in range(60):
        east = concat([plus, literal(b"%02d" % ((number + 1) % 60))])
        offset = alternate([east, concat([minus, literal(b"%02d" % (59 - number))])])
        minutes.append(concat([literal(b"%02d" % number), second, offset]))
    return builder.intersect([alternate(hours), concat([two, literal(b":"), alternate(minutes)])])


def _time(lower: RegexLowering) -> int:
    everyday = [lower.full(_parsed(_TIME)), lower.full(_parsed(_LEAP_UTC))]
    return lower.builder.alternate([*everyday, _leap_times(lower)])


def _date_time(lower: RegexLowering) -> int:
    return lower.builder.concat([lower.full(_parsed(_DATE)), lower.full(_parsed("[Tt]")), _time(lower)])


@cache
def _punycode_tails(num_basic: int) -> list[bytes]:
    """What Punycode writes after `num_basic` basic characters for one letter among them. It tells letter and place, and
    depends on the number of the others alone."""
    basic = "a" * num_basic
    labels = (basic[:at] + letter + basic[at:] for letter in _LATIN_1_LETTERS for at in range(num_basic + 1))
    return [label.encode("punycode").rpartition(b"-")[2] for label in labels]


def _hostname_label(lower: RegexLowering) -> int:
    builder = lower.builder
    labels = [lower.full(_parsed(_PLAIN_LABEL))]
    for num_basic in range(1, _MAX_BASIC_CHARS + 1):
        start = lower.full(_parsed(rf"xn--[a-z0-9]{{{num_basic}}}-"))
        labels.append(builder.concat([start, builder.strings(_punycode_tails(num_basic))]))
    return builder.alternate(labels)


def _hostname(lower: RegexLowering) -> int:
    builder, label = lower.builder, _hostname_label(lower)
    names = builder.concat([label, builder.repeat(builder.concat([builder.literal(b"."), label]), 0, None)])
    return builder.intersect([names, lower.full(_parsed("[!-~]{1,253}"))])


def _idn_hostname(lower: RegexLowering) -> int:
    return idn_hostname_expr(lower, _hostname_label(lower))


_COMPOSED: dict[str, Callable[[RegexLowering], int]] = {
    "idn-hostname": _idn_hostname,
    "time": _time,
    "date-time": _date_time,
    "hostname": _hostname,
    "regex": regex_expr,
}

KNOWN = frozenset(_PATTERNS) | frozenset(_COMPOSED)


def format_expr(name: str, lower: RegexLowering) -> int:
    """The language of a known format over decoded text."""
    composed = _COMPOSED.get(name)
    return composed(lower) if composed is not None else lower.full(_parsed(_PATTERNS[name]))
