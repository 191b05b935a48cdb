r"""The format "regex": the texts of ECMA-262 regular expressions under flag `u`, read by the machine's own leaf.

Of `\p{...}` the general categories are known. What else is left out is told in grammars/native/ecma_pattern.hpp; every
text in the language is a valid pattern.
"""

from __future__ import annotations

from functools import cache

from safegen.grammars.regex_lowering import RegexLowering

_SHORT = (
    *("L", "LC", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Ps"),
    *("Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp", "C", "Cc", "Cf", "Co", "Cn", "Cs"),
)
_LONG = ("Letter", "Mark", "Number", "Punctuation", "Symbol", "Separator", "Uppercase_Letter", "Lowercase_Letter")


@cache
def _properties() -> list[bytes]:
    categories = (*_SHORT, *_LONG)
    return [f"{prefix}{name}".encode() for prefix in ("", "gc=", "General_Category=") for name in categories]


def regex_expr(lower: RegexLowering) -> int:
    return lower.builder.ecma_pattern(_properties())
