"""One schema document: its resources, anchors and references, and the check of every keyword value in it.

`Document` walks all schema positions once, with its own stack. It checks keyword values against the dialect of their
resource, registers `$id` and anchors, and notes what is worth telling (`notes`). A `$schema` counts where a resource
begins, by the identifier of the draft around it. References are resolved inside the
document, the documents handed in with it and the drafts' metaschemas: nothing is ever fetched. A reference may also
point at a place that is no schema position; what lies there is then walked as a schema when it is first used. The
pointer of a place in another document starts with that document's URI.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from safegen.errors import SchemaError
from safegen.grammars.json_schema import keyword_syntax
from safegen.grammars.json_schema.dialects import DRAFT_2020, Dialect, dialect_of
from safegen.grammars.json_schema.loader import escape_token
from safegen.grammars.json_schema.metaschemas import metaschema
from safegen.grammars.json_schema.terms import Base

SchemaValue = dict[str, Any] | bool
_ANNOTATIONS = frozenset(
    (
        *("$schema", "$vocabulary", "$comment", "$defs", "definitions", "title", "description", "default", "examples"),
        *("readOnly", "writeOnly", "deprecated", "contentEncoding", "contentMediaType", "contentSchema"),
        *("$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "id"),
    )
)
_ALL_WORDS = (frozenset(keyword_syntax.CHECKS) | {"const"}) - _ANNOTATIONS
_BY_LOWER_CASE = {word.lower(): word for word in sorted(_ALL_WORDS)}
_BY_LETTERS = {"".join(sorted(word)): word for word in _BY_LOWER_CASE}


@lru_cache(maxsize=4096)
def _close_word(word: str) -> str | None:
    """The keyword that a word is perhaps a slip of. Vendors' own words are many and recur, so answers are kept."""
    swapped = _BY_LETTERS.get("".join(sorted(word.lower())))
    if swapped is not None and sum(a != b for a, b in zip(word.lower(), swapped)) <= 2:
        return _BY_LOWER_CASE[swapped]
    close = get_close_matches(word.lower(), _BY_LOWER_CASE, 1, 0.9)
    return _BY_LOWER_CASE[close[0]] if close else None


def _joined(base_uri: str, reference: str, pointer: str, keyword: str) -> str:
    try:
        urlsplit(reference)  # which urljoin leaves out where there is no base
        return urljoin(base_uri, reference)
    except ValueError as error:
        raise SchemaError(f"{reference!r} is not a URI reference: {error}", pointer=pointer, keyword=keyword) from error


class Document:
    """others: further documents by URI, read when a reference first leads there. collect: keep going at a problem and
    gather it in `problems`, instead of raising it."""

    def __init__(
        self, root: SchemaValue, others: Mapping[str, SchemaValue] | None = None, *, collect: bool = False
    ) -> None:
        self.root = root
        self.others = {uri.removesuffix("#"): schema for uri, schema in (others or {}).items()}
        self.collect = collect
        self.problems: list[SchemaError] = []
        self.occurrences: list[tuple[str, str]] = []  # (pointer, keyword) of every assertion and applicator
        self.notes: list[tuple[str, str, str]] = []  # (pointer, keyword, what a reader should know)
        self.dialects: dict[str, Dialect] = {}
        self.resources: dict[str, tuple[SchemaValue, str]] = {}
        self.anchors: dict[tuple[str, str], tuple[SchemaValue, str]] = {}
        self.dynamic_anchors: dict[str, set[str]] = {}  # by resource that has some; "" is its $recursiveAnchor
        self.tracks_evaluation = False
        self._ambiguous: set[tuple[str, str]] = set()  # (URI, anchor or "") of names that two schemas have
        self._own_uris: dict[str, str] = {}  # of documents that were read under another URI
        self._walked: set[int] = set()
        self._resolved: dict[tuple[str, Base], tuple[SchemaValue, str, Base]] = {}  # until more is walked
        self._noted: set[tuple[str, str]] = set()
        self.root_uri = ""
        if isinstance(root, dict):
            self.dialects[""] = dialect_of(root, "", DRAFT_2020)
            self.root_uri = self.base_of(root, "")
            self.dialects[self.root_uri] = self.dialects[""]
        self.resources[""] = self.resources[self.root_uri] = (root, "")
        self.walk(root, "", "")
        self.root_base = self._within(Base(""), self.root_uri)

    # Walking.

    def dialect(self, base_uri: str) -> Dialect:
        return self.dialects.get(base_uri) or self.dialects.get("") or DRAFT_2020

    def base_of(self, schema: SchemaValue, base_uri: str, place: str = "") -> str:
        """URI of the resource that `schema`, found inside the resource `base_uri`, belongs to. place: its pointer."""
        if not isinstance(schema, dict):
            return base_uri
        dialect = self.dialect(base_uri)
        identifier = schema.get(dialect.id_keyword)
        if not isinstance(identifier, str) or identifier.startswith("#"):
            return base_uri
        if "$ref" in schema and not dialect.ref_siblings:
            return base_uri
        return _joined(base_uri, identifier, place, dialect.id_keyword).removesuffix("#")

    def walk(self, schema: SchemaValue, pointer: str, base_uri: str) -> None:
        self._resolved.clear()
        stack = [(schema, pointer, base_uri)]
        while stack:
            current, place, base = stack.pop()
            if not isinstance(current, dict) or id(current) in self._walked:
                continue
            self._walked.add(id(current))
            if "$id" in current or "id" in current:
                base = self._enter_resource(current, place, base)
            dialect = self.dialect(base)
            self._check(current, place, dialect)
            if "$anchor" in current or "$dynamicAnchor" in current or "$recursiveAnchor" in current:
                self._register_anchors(current, place, base, dialect)
            if "$ref" in current and not dialect.ref_siblings:
                # Its siblings are ignored, yet definitions beside a reference are still places to point at.
                inner = {word: current[word] for word in ("definitions",) if word in current}
                found = keyword_syntax.subschemas(inner, dialect)
            else:
                found = keyword_syntax.subschemas(current, dialect)
            stack += [(sub, place + path, base) for sub, path in found][::-1]  # visited as they are written

    def _enter_resource(self, schema: dict[str, Any], place: str, base: str) -> str:
        dialect = self.dialect(base)
        identifier = schema.get(dialect.id_keyword)
        if isinstance(identifier, str) and identifier.startswith("#") and len(identifier) > 1:
            self.anchors.setdefault((base, identifier[1:]), (schema, place))
        uri = self.base_of(schema, base, place)
        if uri != base:
            self.dialects.setdefault(uri, dialect_of(schema, place, dialect))
            first, _ = self.resources.setdefault(uri, (schema, place))
            if first is not schema and first is not self.root:
                self._ambiguous.add((uri, ""))
        return uri

    def _register_anchors(self, schema: dict[str, Any], place: str, base: str, dialect: Dialect) -> None:
        for word in ("$anchor", "$dynamicAnchor"):
            name = schema.get(word)
            if word not in dialect.keywords or not isinstance(name, str):
                continue
            first, _ = self.anchors.setdefault((base, name), (schema, place))
            if first is not schema:
                self._ambiguous.add((base, name))
            if word == "$dynamicAnchor":
                self.dynamic_anchors.setdefault(base, set()).add(name)
        is_recursive = schema.get("$recursiveAnchor") is True and "$recursiveAnchor" in dialect.keywords
        if is_recursive and self.resources.get(base, (None,))[0] is schema:
            self.dynamic_anchors.setdefault(base, set()).add("")

    def _check(self, schema: dict[str, Any], place: str, dialect: Dialect) -> None:
        known = dialect.keywords
        alone = "$ref" in schema and not dialect.ref_siblings
        for word, value in schema.items():
            if word in known:
                bad = keyword_syntax.problem(word, value, dialect)
                if bad is not None:
                    self._report(f"{word} {bad}", place, word)
                    if self.collect:
                        self._walked.discard(id(schema))
                if word not in _ANNOTATIONS:
                    self.occurrences.append((place, word))
                    if alone and word != "$ref":
                        self.notes.append((place, word, f"beside $ref it constrains nothing in {dialect.name}"))
                if word.startswith("unevaluated"):
                    self.tracks_evaluation = True
            elif word not in _ANNOTATIONS:
                self._note_unknown(word, place, dialect)

    def note(self, place: str, word: str, text: str) -> None:
        """Something a reader should know of a keyword, said once."""
        if (place, word) not in self._noted:
            self._noted.add((place, word))
            self.notes.append((place, word, text))

    def _note_unknown(self, word: str, place: str, dialect: Dialect) -> None:
        if word == "nullable":
            self.notes.append((place, word, 'an annotation of OpenAPI 3.0; write type: [..., "null"] to allow null'))
        elif word in _ALL_WORDS:
            self.notes.append((place, word, f"not a keyword of {dialect.name}: it constrains nothing"))
        elif meant := _close_word(word):
            self.notes.append((place, word, f"not a keyword: it constrains nothing; did you mean {meant!r}?"))

    def _report(self, message: str, pointer: str, keyword: str) -> None:
        error = SchemaError(message, pointer=pointer, keyword=keyword)
        if not self.collect:
            raise error
        self.problems.append(error)

    # References.

    def enter(self, schema: SchemaValue, base: Base) -> Base:
        """The base inside of `schema`, which was found in the resource of `base`."""
        uri = self.base_of(schema, base.uri)
        return base if uri == base.uri else self._within(base, uri)

    def _within(self, base: Base, uri: str) -> Base:
        is_new = uri in self.dynamic_anchors and uri not in base.scope
        return Base(uri, (*base.scope, uri) if is_new else base.scope)

    def resolve(self, reference: str, base: Base, pointer: str, keyword: str) -> tuple[SchemaValue, str, Base]:
        """(schema, pointer, base) that a reference names. Raises SchemaError."""
        target = self._resolved.get((reference, base))
        if target is None:
            target = self._resolved[reference, base] = self._resolve(reference, base, pointer, keyword)
        return target

    def _resolve(self, reference: str, base: Base, pointer: str, keyword: str) -> tuple[SchemaValue, str, Base]:
        address, _, fragment = reference.partition("#")
        uri = _joined(base.uri, address, pointer, keyword) if address else base.uri
        resource = self.resources.get(uri) or self._read_other(uri)
        if resource is None:
            raise SchemaError(
                f"the reference {reference!r} leads outside of this document, and nothing is fetched",
                pointer=pointer,
                keyword=keyword,
                hint=f"Put the schema under $defs, or pass it as JsonSchema(..., documents={{{uri!r}: schema}}).",
            )
        uri = self._own_uris.get(uri, uri)
        found, place, found_uri = self._find(resource, uri, fragment, reference, (pointer, keyword))
        return found, place, self._within(base, found_uri)

    def resolve_dynamically(
        self, reference: str, target: tuple[SchemaValue, str, Base], base: Base
    ) -> tuple[SchemaValue, str, Base]:
        """What $dynamicRef and $recursiveRef name, given what a plain reference would: where that is a dynamic anchor,
        the one of the same name in the outermost resource that evaluation came through."""
        schema, _, found = target
        name = unquote(reference.partition("#")[2])
        if name and not (isinstance(schema, dict) and schema.get("$dynamicAnchor") == name):
            return target
        if name not in self.dynamic_anchors.get(found.uri, ()):
            return target
        for uri in base.scope:
            if name in self.dynamic_anchors[uri]:
                outer, place = self.anchors[uri, name] if name else self.resources[uri]
                return outer, place, self._within(base, uri)
        return target

    def _read_other(self, uri: str) -> tuple[SchemaValue, str] | None:
        """Take in a document that was handed in, or a metaschema."""
        schema = self.others.get(uri)
        if schema is None:
            schema = metaschema(uri)
        if schema is None:
            return None
        dialect = dialect_of(schema, f"{uri}#", self.dialect(self.root_uri)) if isinstance(schema, dict) else DRAFT_2020
        self.dialects[uri] = dialect
        own = self._own_uris[uri] = self.base_of(schema, uri)
        self.dialects.setdefault(own, dialect)
        self.resources[uri] = self.resources[own] = (schema, f"{uri}#")
        self.walk(schema, f"{uri}#", own)
        return self.resources[uri]

    def _find(
        self, resource: tuple[SchemaValue, str], uri: str, fragment: str, reference: str, blame: tuple[str, str]
    ) -> tuple[SchemaValue, str, str]:
        """(schema, pointer, URI of its resource) of a fragment in a resource."""
        schema, place = resource
        pointer, keyword = blame
        fragment = unquote(fragment)
        if (uri, "") in self._ambiguous or (uri, fragment) in self._ambiguous:
            raise SchemaError(f"two schemas have the name of {reference!r}", pointer=pointer, keyword=keyword)
        if not fragment:
            found, found_place, base = schema, place, uri
        elif fragment.startswith("/"):
            found, found_place, base = self._follow(schema, place, uri, fragment, reference, (pointer, keyword))
        else:
            anchored = self.anchors.get((uri, fragment))
            if anchored is None:
                raise SchemaError(f"no schema has the anchor {fragment!r}", pointer=pointer, keyword=keyword)
            found, found_place = anchored
            base = uri
        base = self.base_of(found, base) if found is not schema else base
        if isinstance(found, dict) and id(found) not in self._walked:
            self.walk(found, found_place, base)
        return found, found_place, base

    def _follow(
        self, schema: Any, place: str, base: str, fragment: str, reference: str, blame: tuple[str, str]
    ) -> tuple[SchemaValue, str, str]:
        current, step = schema, keyword_syntax.Step.SCHEMA
        for raw in fragment.split("/")[1:]:
            if step is keyword_syntax.Step.SCHEMA and current is not schema:
                base = self.base_of(current, base)
            token = raw.replace("~1", "/").replace("~0", "~")
            step = keyword_syntax.step_into(step, token)
            if isinstance(current, dict) and token in current:
                current = current[token]
            elif isinstance(current, list) and token.isdecimal() and int(token[:9]) < len(current):
                current = current[int(token)]
            else:
                raise SchemaError(f"the reference {reference!r} points at nothing", pointer=blame[0], keyword=blame[1])
            if isinstance(current, list) and step is keyword_syntax.Step.SCHEMA:  # `items` of the older drafts
                step = keyword_syntax.Step.HOLDER
            place = f"{place}/{escape_token(token)}"
        if not isinstance(current, (dict, bool)):
            raise SchemaError(
                f"the reference {reference!r} points at a {type(current).__name__}, not a schema",
                pointer=blame[0],
                keyword=blame[1],
            )
        return current, place, base
