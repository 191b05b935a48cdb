"""The `format` keyword: exact checks of every format that JSON Schema names, in linear time.

The checks are hand-written from the RFC grammars (`formats_time`, `formats_net`, `formats_uri`, `idna`) and use no
backtracking regular expressions. A format that is not in the table is unknown; what that means is the caller's choice
(see `schema_validator`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from safegen.validation.ecma_syntax import is_ecma_regex
from safegen.validation.formats_net import (
    is_email,
    is_hostname,
    is_idn_email,
    is_idn_hostname,
    is_ipv4,
    is_ipv6,
    is_uuid,
)
from safegen.validation.formats_time import is_date, is_date_time, is_duration, is_time
from safegen.validation.formats_uri import (
    is_iri,
    is_iri_reference,
    is_json_pointer,
    is_relative_json_pointer,
    is_uri,
    is_uri_reference,
    is_uri_template,
)

FORMATS: Mapping[str, Callable[[str], bool]] = MappingProxyType(
    {
        "date": is_date,
        "date-time": is_date_time,
        "duration": is_duration,
        "email": is_email,
        "hostname": is_hostname,
        "idn-email": is_idn_email,
        "idn-hostname": is_idn_hostname,
        "ipv4": is_ipv4,
        "ipv6": is_ipv6,
        "iri": is_iri,
        "iri-reference": is_iri_reference,
        "json-pointer": is_json_pointer,
        "regex": is_ecma_regex,
        "relative-json-pointer": is_relative_json_pointer,
        "time": is_time,
        "uri": is_uri,
        "uri-reference": is_uri_reference,
        "uri-template": is_uri_template,
        "uuid": is_uuid,
    }
)
