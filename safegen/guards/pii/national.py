"""National identity numbers: a pattern, the checksum of python-stdnum, and for numbers whose checksum is weak or absent
also a word before them that names them.

What a pattern must keep: at most 26 octets, at most 6 letters before its first digit, word boundaries at both ends,
behind each separator a digit or one last letter, and four digits with at most one octet between two of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import stdnum.ar.cuit
import stdnum.au.tfn
import stdnum.be.nn
import stdnum.bg.egn
import stdnum.br.cpf
import stdnum.ca.sin
import stdnum.ch.ssn
import stdnum.cl.rut
import stdnum.cz.rc
import stdnum.de.idnr
import stdnum.dk.cpr
import stdnum.ee.ik
import stdnum.es.dni
import stdnum.es.nie
import stdnum.fi.hetu
import stdnum.fr.nir
import stdnum.gb.nhs
import stdnum.gb.utr
import stdnum.hr.oib
import stdnum.ie.pps
import stdnum.il.idnr
import stdnum.in_.aadhaar
import stdnum.in_.pan
import stdnum.iso7064.mod_11_2
import stdnum.it.codicefiscale
import stdnum.kr.rrn
import stdnum.mx.curp
import stdnum.nl.bsn
import stdnum.no.fodselsnummer
import stdnum.pl.pesel
import stdnum.pt.nif
import stdnum.ro.cnp
import stdnum.se.personnummer
import stdnum.tr.tckimlik
import stdnum.za.idnr

from safegen.guards.pattern_rules import Candidate, Rule
from safegen.guards.pii.context import Context, joined_after, joined_before
from safegen.guards.reading import compiled, overlapping

_MAX_LENGTH = 26
_GATE = r"\d[^\d]?\d[^\d]?\d[^\d]?\d"
_LIVE = (
    r"\b[A-Za-z]{0,6}[ \-:#]{0,2}"
    r"(?:\d[A-Za-z0-9]{0,18}(?:[ .\-/+]\d[A-Za-z0-9]{0,10}){0,7}(?:[ .\-/+][A-Za-z]?)?)?"
)


@dataclass(frozen=True, slots=True)
class Kind:
    """rule: its name. validator: the module of stdnum whose `is_valid` decides; None where no checksum exists. words:
    what names it. needs_word: no match without one of the words within 48 octets before it."""

    rule: str
    validator: ModuleType | None
    pattern: str
    words: str
    needs_word: bool = True


KINDS = (
    Kind("AR_CUIT", stdnum.ar.cuit, r"\d{2}-\d{8}-\d|\d{11}", r"cui[tl]"),
    Kind("AU_TFN", stdnum.au.tfn, r"\d{3} ?\d{3} ?\d{2,3}", r"tfn|tax file"),
    Kind(
        "BE_NATIONAL_NUMBER",
        stdnum.be.nn,
        r"\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}",
        r"rijksregister|registre national|nn",
        False,
    ),
    Kind("BG_EGN", stdnum.bg.egn, r"\d{10}", r"egn"),
    Kind("BR_CPF", stdnum.br.cpf, r"\d{3}\.\d{3}\.\d{3}-\d{2}", r"cpf", False),
    Kind("BR_CPF", stdnum.br.cpf, r"\d{11}", r"cpf"),
    Kind("CA_SIN", stdnum.ca.sin, r"\d{3}[ \-]?\d{3}[ \-]?\d{3}", r"sin|social insurance|nas|assurance sociale"),
    Kind("CH_AHV", stdnum.ch.ssn, r"756\.\d{4}\.\d{4}\.\d{2}|756\d{10}", r"ahv|avs", False),
    Kind("CL_RUT", stdnum.cl.rut, r"\d{1,2}\.\d{3}\.\d{3}-[\dKk]", r"ru[tn]", False),
    Kind(
        "CN_RESIDENT_ID",
        stdnum.iso7064.mod_11_2,
        r"[1-9]\d{5}(?:18|19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])\d{3}[\dXx]",
        r"id",
        False,
    ),
    Kind("CZ_BIRTH_NUMBER", stdnum.cz.rc, r"\d{6}/\d{3,4}", r"rodne cislo|rc|r\.c", False),
    Kind("DE_TAX_ID", stdnum.de.idnr, r"\d{2} ?\d{3} ?\d{3} ?\d{3}", r"idnr|steuer\w{0,24}|tax id|tin"),
    Kind("DK_CPR", stdnum.dk.cpr, r"\d{6}-?\d{4}", r"cpr|personnummer"),
    Kind("EE_ISIKUKOOD", stdnum.ee.ik, r"[1-8]\d{10}", r"isikukood|asmens kodas|personal code|id code"),
    Kind("ES_DNI", stdnum.es.dni, r"\d{8}[ \-]?[A-Za-z]", r"dni|nif", False),
    Kind("ES_NIE", stdnum.es.nie, r"[XYZxyz][ \-]?\d{7}[ \-]?[A-Za-z]", r"nie", False),
    Kind("FI_HETU", stdnum.fi.hetu, r"\d{6}[+\-A-FU-Y]\d{3}[0-9A-Y]", r"hetu", False),
    Kind(
        "FR_NIR",
        stdnum.fr.nir,
        r"[1-478] ?\d{2} ?\d{2} ?[0-9AB]{2,3} ?\d{2,3} ?\d{3} ?\d{2}",
        r"nir|securite sociale",
        False,
    ),
    Kind("GB_NHS", stdnum.gb.nhs, r"\d{3}[ \-]?\d{3}[ \-]?\d{4}", r"nhs"),
    Kind(
        "GB_NINO",
        None,
        r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D]",
        r"nino?|national insurance|insurance number",
        False,
    ),
    Kind("GB_UTR", stdnum.gb.utr, r"\d{10}", r"utr|taxpayer reference"),
    Kind("HR_OIB", stdnum.hr.oib, r"\d{11}", r"oib"),
    Kind("IE_PPS", stdnum.ie.pps, r"\d{7}[A-Wa-w][A-IWa-iw]?", r"pps[n]?", False),
    Kind("IL_ID", stdnum.il.idnr, r"\d{8}-?\d", r"teudat zehut|israeli id|id number|tz"),
    Kind("IN_AADHAAR", stdnum.in_.aadhaar, r"[2-9]\d{3}[ \-]?\d{4}[ \-]?\d{4}", r"aadhaa?r|uidai|uid"),
    Kind("IN_PAN", stdnum.in_.pan, r"[A-Z]{3}[ABCFGHLJPTK][A-Z]\d{4}[A-Z]", r"pan", False),
    Kind(
        "IT_CODICE_FISCALE",
        stdnum.it.codicefiscale,
        r"[A-Za-z]{6}\d{2}[A-Za-z]\d{2}[A-Za-z]\d{3}[A-Za-z]",
        r"fiscale",
        False,
    ),
    Kind("KR_RRN", stdnum.kr.rrn, r"\d{6}-[1-8]\d{6}", r"rrn", False),
    Kind("MX_CURP", stdnum.mx.curp, r"[A-Za-z]{4}\d{6}[HMhm][A-Za-z]{5}[0-9A-Za-z]\d", r"curp", False),
    Kind("NL_BSN", stdnum.nl.bsn, r"\d{9}|\d{4}\.\d{2}\.\d{3}", r"bsn|burgerservicenummer|sofi\w{0,9}"),
    Kind("NO_FODSELSNUMMER", stdnum.no.fodselsnummer, r"\d{6} ?\d{5}", r"fodselsnummer|personnummer|d-nummer", False),
    Kind("PL_PESEL", stdnum.pl.pesel, r"\d{11}", r"pesel"),
    Kind("PT_NIF", stdnum.pt.nif, r"[1-9]\d{2} ?\d{3} ?\d{3}", r"nif|contribuinte"),
    Kind("RO_CNP", stdnum.ro.cnp, r"[1-9]\d{12}", r"cnp|cod numeric"),
    Kind("SE_PERSONNUMMER", stdnum.se.personnummer, r"(?:19|20)?\d{6}[\-+]\d{4}", r"personnummer", False),
    Kind("SE_PERSONNUMMER", stdnum.se.personnummer, r"(?:19|20)?\d{10}", r"personnummer|personnr"),
    Kind("TR_TCKN", stdnum.tr.tckimlik, r"[1-9]\d{10}", r"tckn|t\.?c\.? ?kimlik|kimlik"),
    Kind("US_EIN", None, r"\d{2}-\d{7}", r"ein|employer identification"),
    Kind("US_PASSPORT", None, r"[A-Z]?\d{8,9}", r"passport"),
    Kind("ZA_ID", stdnum.za.idnr, r"\d{6} ?\d{4} ?\d{3}", r"id|identity|south african"),
    Kind("MEDICAL_RECORD", None, r"(?:MRN|mrn)[ \-:#]{0,2}\d{5,10}", r"mrn", False),
    Kind("MEDICAL_RECORD", None, r"\d{5,10}", r"mrn|medical record", True),
)


def make_rule(kind: Kind) -> Rule:
    pattern = compiled(rf"\b(?:{kind.pattern})\b")
    return Rule(kind.rule, _MAX_LENGTH, partial(_scan, kind, pattern, Context(kind.words)), _LIVE, _GATE, 2)


def _scan(kind: Kind, pattern: Any, words: Context, octets: bytes) -> Iterator[Candidate]:
    for match in overlapping(pattern, octets):
        start, end = match.span()
        if joined_before(octets, start) or joined_after(octets, end):
            continue
        named = words.before(octets, start)
        if (named or not kind.needs_word) and (kind.validator is None or _is_valid(kind.validator, match[0].decode())):
            yield start, end, 1.0 if named else 0.8


def _is_valid(validator: ModuleType, number: str) -> bool:
    try:
        return bool(validator.is_valid(number.upper()))
    except Exception:  # a validator that fails (some do, on places they lack) has not said that the number is none
        return True


RULES = tuple(make_rule(kind) for kind in KINDS)
