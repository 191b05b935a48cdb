"""Which keywords are to blame when a text leaves a schema: for explanations, after the machine has found the place.

The machine knows the byte and the values that were open there, not the keyword: keywords are merged before anything
runs. So each keyword that holds at an open value is compiled by itself (with the companions it cannot be read
without), every spelling, order and whitespace allowed, and asked whether it alone refuses the text so far, or else the
value as it stands in the text as a whole. Those that do are to blame. Where none does alone (a minimum and a maximum
with nothing between), those without which the rest would go on are. A branch of anyOf or oneOf is blamed when it came
as far as any.

Only ever run on a text that was rejected. All of it together is bounded by the compile deadline; what comes later is
not told apart any more, which costs precision, never a wrong place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, NamedTuple

from safegen._native import LimitExceeded, Program
from safegen.errors import SchemaError, UnsatisfiableSchema
from safegen.grammars.json_schema import schema_builder, verification_of
from safegen.grammars.json_schema.canonical import Algebra, Deadline
from safegen.grammars.json_schema.documents import SchemaValue
from safegen.grammars.json_schema.lowering import Lowering
from safegen.grammars.json_schema.reader import Reader
from safegen.grammars.json_schema.terms import Base, Position, Term, TermKind, TermTable
from safegen.grammars.origins import SchemaOrigin

_MAX_ATOMS = 256
_MAX_LEFT_OUT = 32  # atoms among which a combination is looked for
_MAX_BRANCHES = 64
_MAX_STATES = 50_000  # of each question
_MAX_PROGRAM_BYTES = 64 << 20  # of all that are kept for a next question
_COMPANIONS = {
    "additionalProperties": ("properties", "patternProperties"),
    "items": ("prefixItems",),
    "additionalItems": ("items",),
    "contains": ("minContains", "maxContains"),
    "then": ("if",),
    "else": ("if",),
}
_FLAGS = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}  # booleans in draft 4
_NO_ASSERTION = frozenset(
    ("$defs", "definitions", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$id", "id", "$schema")
) | frozenset(("if", "minContains", "maxContains"))
_BLANKS_AND_ENDS = b" \t\r\n,]}"


class Place(NamedTuple):
    """pointer: of the schema object; keyword: the one there that is to blame, "" if the object as a whole is."""

    pointer: str
    keyword: str


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong in an open value. value: its text so far. byte: what came next; b"" is the end of the text.
    whole: all of its text, None where that has no end."""

    value: bytes
    byte: bytes
    whole: bytes | None = None

    @property
    def ends_value(self) -> bool:
        """The value is a scalar that is said to be whole here."""
        if self.value[:1] in (b"{", b"["):
            return False
        in_string = self.value[:1] == b'"' and not _is_closed(self.value)
        return not in_string and (not self.byte or self.byte in _BLANKS_AND_ENDS)


@dataclass(frozen=True, slots=True)
class Atom:
    """A keyword with its companions. branches: schemas one of which must hold for it, where that can be said."""

    place: Place
    term: Term
    branches: tuple[Term, ...] = ()


class Blame:
    """Of one schema. Not thread-safe; for one explanation."""

    def __init__(self, origin: SchemaOrigin) -> None:
        self.document = origin.document
        self.limits = replace(origin.limits, max_states=min(origin.limits.max_states, _MAX_STATES))
        self.options = replace(origin.options, whitespace="flexible", property_order="any", spelling="any")
        self.deadline = Deadline(origin.limits)
        self.terms = TermTable()
        self._programs: dict[Term, Program | None] = {}
        self._kept: list[SchemaValue] = []  # schemas made here live as long as their ids are keys

    def is_json(self, fault: Fault) -> bool:
        """Whether any schema at all would let the value go on so."""
        return not self._refuses(self.terms.true, fault)

    def places(self, terms: Iterable[Term], fault: Fault) -> list[Place]:
        """Whom to blame among the terms that a value has, one of which it must be; empty when it is none of them."""
        own = [_rebuilt(term, self.terms) for term in terms]
        if any(self._refuses(term, fault) is False for term in own):
            return []
        return list(dict.fromkeys(place for term in own for place in self._blamed(term, fault)))

    def positions(self, terms: Iterable[Term]) -> list[Place]:
        """Where the terms come from, keywords left open."""
        pending, found = list(terms)[::-1], dict[Place, None]()
        while pending:
            term = pending.pop()
            if term.kind is TermKind.ALL_OF:
                pending += term.parts[::-1]
            elif term.kind not in (TermKind.TRUE, TermKind.FALSE):
                found[_place(term)] = None
        return list(found)

    def _blamed(self, term: Term, fault: Fault) -> list[Place]:
        refused = self._refuses(term, fault)
        if refused is False:
            return []
        atoms = list(self._atoms(term))
        alone = [atom for atom in atoms if self._refuses(atom.term, fault)]
        if not alone and fault.whole is not None:
            alone = [atom for atom in atoms if self._takes(atom.term, fault.whole) is False]
        if alone:
            return [place for atom in alone for place in self._refined(atom, fault)]
        if 2 <= len(atoms) <= _MAX_LEFT_OUT:
            needed = [atom.place for atom in atoms if self._refuses(self._all_but(atom, atoms), fault) is False]
            if needed:
                return needed
        if refused is None:
            return []
        return [atom.place for atom in atoms] or self.positions([term])

    def _all_but(self, left_out: Atom, atoms: list[Atom]) -> Term:
        return self.terms.all_of([atom.term for atom in atoms if atom is not left_out])

    def _refined(self, atom: Atom, fault: Fault) -> list[Place]:
        """Of alternatives, the ones that came as far as any; the keyword itself when one of them would go on."""
        branches = atom.branches
        if not branches or not all(self._refuses(branch, fault) for branch in branches):
            return [atom.place]
        reached = [self._reach(branch, fault) or 0 for branch in branches]
        best = [branch for branch, reach in zip(branches, reached) if reach == max(reached)]
        found = [place for branch in best for place in self._blamed(branch, fault)]
        return found or [atom.place]

    # Atoms.

    def _atoms(self, term: Term) -> Iterator[Atom]:
        """The conditions whose conjunction the term is: keywords, through allOf and references."""
        pending, seen, made = [term], set[Term](), 0
        while pending and made < _MAX_ATOMS:
            at = pending.pop()
            if at in seen:
                continue
            seen.add(at)
            if at.kind is TermKind.ALL_OF:
                pending += at.parts[::-1]
            elif at.kind is TermKind.POSITION:
                assert at.position is not None
                inner, atoms = self._keywords(at.position)
                pending += inner[::-1]
                made += len(atoms)
                yield from atoms
            elif at.kind is not TermKind.TRUE:
                made += 1
                yield Atom(_place(at), at)

    def _keywords(self, position: Position) -> tuple[list[Term], list[Atom]]:
        """(terms that must hold as well, atoms) of one schema object."""
        schema, pointer, base = position.schema, position.pointer, position.base
        assert isinstance(schema, dict)
        dialect = self.document.dialect(base.uri)
        words = [word for word in schema if word in dialect.keywords and word not in _NO_ASSERTION]
        if "$ref" in schema and not dialect.ref_siblings:
            words = ["$ref"]
        inner, atoms = list[Term](), list[Atom]()
        for word in words:
            if word in ("$ref", "$dynamicRef", "$recursiveRef"):
                inner.append(self._target(word, schema[word], pointer, base))
            elif word == "allOf":
                inner += self._listed(schema, word, pointer, base)
            else:
                atoms.append(self._keyword(word, position))
        return inner, atoms

    def _keyword(self, word: str, position: Position) -> Atom:
        schema, pointer, base = position.schema, position.pointer, position.base
        assert isinstance(schema, dict)
        if word.startswith("unevaluated"):
            piece = schema  # it depends on every other keyword
        else:
            names = [*_COMPANIONS.get(word, ()), word]
            if isinstance(schema.get(_FLAGS.get(word, "")), bool):
                names.append(_FLAGS[word])
            piece = {name: schema[name] for name in names if name in schema}
            self._kept.append(piece)
        branches = self._listed(schema, word, pointer, base) if word in ("anyOf", "oneOf") else []
        if word in ("then", "else"):
            branches = [self._term(schema[word], f"{pointer}/{word}", base)]
        term = self.terms.position(piece, pointer, base)
        return Atom(Place(pointer, word), term, tuple(branches if len(branches) <= _MAX_BRANCHES else ()))

    def _target(self, word: str, reference: str, pointer: str, base: Base) -> Term:
        target = self.document.resolve(reference, base, pointer, word)
        if word != "$ref":
            target = self.document.resolve_dynamically(reference, target, base)
        return self._term(*target)

    def _listed(self, schema: dict[str, Any], word: str, pointer: str, base: Base) -> list[Term]:
        return [self._term(part, f"{pointer}/{word}/{index}", base) for index, part in enumerate(schema[word])]

    def _term(self, schema: SchemaValue, pointer: str, base: Base) -> Term:
        return self.terms.position(schema, pointer, self.document.enter(schema, base))

    # Asking.

    def _refuses(self, term: Term, fault: Fault) -> bool | None:
        """None where it cannot be told: what passes a limit by itself is not blamed."""
        if fault.ends_value:
            takes = self._takes(term, fault.value)
            return None if takes is None else not takes
        reach = self._reach(term, fault)
        return None if reach is None else reach < len(fault.value) + 1

    def _takes(self, term: Term, value: bytes) -> bool | None:
        try:
            program = self._program(term)
            return None if program is None else program.matches(value)
        except LimitExceeded:
            return None

    def _reach(self, term: Term, fault: Fault) -> int | None:
        """How many bytes the term lets the text go."""
        try:
            program = self._program(term)
            return None if program is None else program.longest_prefix(fault.value + fault.byte)
        except LimitExceeded:
            return None

    def _program(self, term: Term) -> Program | None:
        """None where it passes a limit by itself."""
        if term not in self._programs:
            kept = (program.memory_bytes() for program in self._programs.values() if program is not None)
            if sum(kept) > _MAX_PROGRAM_BYTES:
                self._programs.clear()
            try:
                self.deadline.check("")
                self._programs[term] = self._compiled(term)
            except (SchemaError, LimitExceeded, RecursionError):
                self._programs[term] = None
        return self._programs[term]

    def _compiled(self, term: Term) -> Program:
        left_s = max(self.deadline.at - monotonic(), 1e-9)
        builder = schema_builder(self.options, replace(self.limits, compile_deadline_s=left_s))
        algebra = Algebra(builder, self.limits, self.deadline)
        reader = Reader(self.document, algebra, self.options, self.limits)
        verification = verification_of(self.document, self.options, self.limits, self.deadline)
        lowering = Lowering(reader, algebra, self.options, self.limits, verification.predicate)
        try:
            return builder.build(lowering.root_node(_rebuilt(term, algebra.terms), check_empty=False))
        except UnsatisfiableSchema:
            nothing = schema_builder(self.options, self.limits)
            return nothing.build(nothing.lexeme(nothing.empty()))


def _place(term: Term) -> Place:
    """A listed value is blamed by the keyword that lists it; an array of different items lists those of its items."""
    if term.kind is not TermKind.VALUE:
        return Place(term.pointer, "")
    outer, _, word = term.pointer.rpartition("/")
    return Place(outer, word) if word in ("const", "enum") else Place(term.pointer, "uniqueItems")


def _is_closed(string: bytes) -> bool:
    """Whether the text of a JSON string, which is a right beginning of one, has its closing quote."""
    body = string[1:]
    if not body.endswith(b'"'):
        return False
    backslashes = len(body) - 1 - len(body[:-1].rstrip(b"\\"))
    return backslashes % 2 == 0


def _rebuilt(term: Term, table: TermTable) -> Term:
    """The term in another table. Schemas are the same objects, so equal terms meet."""
    match term.kind:
        case TermKind.TRUE:
            return table.true
        case TermKind.FALSE:
            return table.false
        case TermKind.POSITION:
            assert term.position is not None
            return table.position(term.position.schema, term.position.pointer, term.position.base)
        case TermKind.VALUE:
            return table.value(term.value, term.pointer)
        case TermKind.ALL_OF:
            return table.all_of([_rebuilt(part, table) for part in term.parts])
        case TermKind.ANY_OF:
            return table.any_of([_rebuilt(part, table) for part in term.parts])
        case _:
            return table.negate(_rebuilt(term.parts[0], table))
