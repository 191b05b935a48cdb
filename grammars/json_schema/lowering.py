"""From terms to nodes of the native machine, with an explicit worklist, so depth costs no Python recursion.

Every term becomes one node; recursion in the schema is a reserved node that is defined later. All scalar alternatives
of a term are one lexeme. A term whose shape is a superset only, or says more than the machine can hold, becomes a
verified node: what can be held, and a predicate over the whole text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import NoReturn

from safegen._native import Predicate
from safegen.errors import SchemaError, UnsatisfiableSchema
from safegen.grammars.json_schema.array_nodes import MAX_COUNT, MAX_COUNTS, ArrayNodes
from safegen.grammars.json_schema.canonical import Algebra, Shape
from safegen.grammars.json_schema.enumeration import Enumeration
from safegen.grammars.json_schema.keyword_syntax import CHECKS
from safegen.grammars.json_schema.numbers import (
    NumberPiece,
    NumberSet,
    canonical_text,
    common_multiple,
    is_multiple,
    literal,
)
from safegen.grammars.json_schema.object_nodes import ObjectNodes
from safegen.grammars.json_schema.reader import Reader
from safegen.grammars.json_schema.terms import Term
from safegen.grammars.json_schema.verification import NotExact
from safegen.grammars.options import Limits, SchemaOptions


class Lowering:
    """predicate_of: whether a whole text is one of a term's. shares_nodes: terms of the same shape have one node, which
    does not tell them apart. verified: what is not held in the mask, by pointer and
    keyword, each with a note."""

    def __init__(
        self,
        reader: Reader,
        algebra: Algebra,
        options: SchemaOptions,
        limits: Limits,
        predicate_of: Callable[[Term], Predicate],
        *,
        shares_nodes: bool = True,
    ) -> None:
        self.reader = reader
        self.algebra = algebra
        self.builder = algebra.builder
        self.any_spelling = options.spelling == "any"
        self.limits = limits
        self.predicate_of = predicate_of
        self.verified: dict[tuple[str, str], str] = {}
        self.worked_on = ""  # pointer of the term that was looked at last
        enumeration = Enumeration(algebra.objects, reader.shape)
        self._arrays = ArrayNodes(algebra.builder, algebra.objects, enumeration, self.node, self._note_verified)
        self._objects = ObjectNodes(algebra.builder, algebra.objects, self.node)
        self._nodes: dict[Term, int | None] = {algebra.terms.false: None}
        self._shared: dict[int, int] | None = {} if shares_nodes else None  # by id of a shape, which the reader keeps
        self._pending: list[tuple[Term, Shape, int]] = []

    def root_node(self, term: Term, *, check_empty: bool = True) -> int:
        """The node of a term and of everything below it. Raises SchemaError, also when no text is legal."""
        node = self._with_all_below(term)
        if node is None or (check_empty and self.builder.node_is_empty(node)):
            self._raise_unsatisfiable(term)
        return node

    def exact_root_node(self, term: Term) -> int:
        """The node of a term, perhaps without texts. Raises NotExact when it would be a verified node itself; items
        and members may be."""
        if self._held(self.reader.shape(term))[1]:
            raise NotExact
        node = self._with_all_below(term)
        return self.builder.lexeme(self.builder.empty()) if node is None else node

    def _with_all_below(self, term: Term) -> int | None:
        node = self.node(term)
        while self._pending:
            owner, shape, reserved = self._pending.pop()
            self.worked_on = owner.pointer
            self.algebra.deadline.check(owner.pointer)
            self.builder.define(reserved, self._structure(shape, owner))
        return node

    def node(self, term: Term) -> int | None:
        """The node of a term, or None when it is plainly empty; structured ones are put off."""
        if term in self._nodes:
            return self._nodes[term]
        self.worked_on = term.pointer
        shape = self.reader.shape(term)
        node: int | None = None
        if self._shared is not None and not shape.loose:
            node = self._shared.get(id(shape))
            if node is None and (node := self._new_node(shape, term)) is not None:
                self._shared[id(shape)] = node
        else:
            node = self._new_node(shape, term)
        self._nodes[term] = node
        return node

    def _new_node(self, shape: Shape, term: Term) -> int | None:
        if shape.arrays or shape.objects or shape.loose:
            node = self.builder.reserve()
            self._pending.append((term, shape, node))
            return node
        return None if shape.is_blank() else self.builder.lexeme(self._scalars(shape, term))

    def terms_by_node(self) -> dict[int, Term]:
        return {node: term for term, node in self._nodes.items() if node is not None}

    # Scalars.

    def _scalars(self, shape: Shape, owner: Term) -> int:
        try:
            return self._scalar_expr(shape)
        except ValueError as error:  # a number that the machine cannot compare with
            hint = "Bring it within the digits and exponents of Limits(max_exponent_digits=...)."
            keyword = "multipleOf" if "multiple_of" in str(error) else None
            raise SchemaError(str(error), pointer=owner.pointer, keyword=keyword, hint=hint) from error

    def _scalar_expr(self, shape: Shape) -> int:
        builder = self.builder
        parts = []
        words = [b"null"] if shape.null else []
        words += [b"true" if value else b"false" for value in shape.booleans]
        if words:
            parts.append(builder.literal(words[0]) if len(words) == 1 else builder.strings(words))
        if shape.numbers:
            parts += self._numbers(shape.numbers)
        if shape.strings:
            parts += self.algebra.strings.lexeme(shape.strings, self.any_spelling)
        return parts[0] if len(parts) == 1 else builder.alternate(parts)

    def _numbers(self, numbers: NumberSet) -> list[int]:
        builder = self.builder
        parts = [self._number(part) for piece in numbers.pieces for part in piece.intervals()]
        if not numbers.listed:
            return parts
        if self.any_spelling:
            for value in numbers.listed:
                text = literal(value)
                parts.append(builder.number(integer=False, plain=False, low=text, high=text))
        else:
            texts = (canonical_text(value, self.limits.max_digits) for value in numbers.listed)
            parts.append(builder.strings([text.encode() for text in texts]))
        return parts

    def _number(self, piece: NumberPiece) -> int:
        builder = self.builder
        if piece.digits is not None:
            return self._number_by_text(piece)
        try:
            return self._number_without(piece, sorted(_least_divisors(piece.not_multiples)))
        except ValueError:  # too many divisors for one automaton, or too large ones
            outside = [
                builder.complement(builder.number(integer=False, plain=False, multiple_of=literal(divisor)))
                for divisor in sorted(piece.not_multiples)
            ]
            return builder.intersect([self._number_without(piece, []), *outside])

    def _number_without(self, piece: NumberPiece, not_multiples: list[Fraction], *, digits_alone: bool = False) -> int:
        integer = piece.divisor is not None and piece.divisor.denominator == 1
        return self.builder.number(
            integer=integer,
            plain=digits_alone or (integer and piece.plain and not self.any_spelling),
            low=None if piece.low is None else literal(piece.low),
            low_exclusive=piece.low_exclusive,
            high=None if piece.high is None else literal(piece.high),
            high_exclusive=piece.high_exclusive,
            multiple_of=None if piece.divisor is None or piece.divisor == 1 else literal(piece.divisor),
            not_multiples_of=[literal(divisor) for divisor in not_multiples],
        )

    def _number_by_text(self, piece: NumberPiece) -> int:
        """Draft 4's integers are those written with digits alone; "-0" is one where every spelling is legal."""
        builder = self.builder
        zero = [builder.literal(b"-0")] if self.any_spelling else []
        whole = Fraction(1) if piece.divisor is None else common_multiple(piece.divisor, Fraction(1))
        if piece.digits and not piece.not_multiples:  # one automaton: what the exponents of others do is not asked
            number = self._number_without(replace(piece, divisor=whole, plain=True), [], digits_alone=True)
            return builder.alternate([number, *zero]) if zero and piece.contains(0) else number
        written = builder.alternate([builder.number(integer=True, plain=True), *zero])
        value = self._number(replace(piece, digits=None, plain=False))
        return builder.intersect([value, written if piece.digits else builder.complement(written)])

    # Structure.

    def _structure(self, shape: Shape, owner: Term) -> int:
        held, loose_at = self._held(shape)
        nodes = []
        if shape.null or shape.booleans or shape.numbers or shape.strings:
            nodes.append(self.builder.lexeme(self._scalars(shape, owner)))
        nodes += [self._arrays.node(piece) for piece in held.arrays]
        nodes += [self._objects.node(piece) for piece in held.objects]
        if not nodes:
            return self.builder.lexeme(self.builder.empty())
        node = nodes[0] if len(nodes) == 1 else self.builder.union(nodes)
        if not loose_at:
            return node
        for pointer, note in loose_at.items():
            self._note_verified(*_blamed(pointer), note)
        return self.builder.verified(node, self.predicate_of(owner), pointer=owner.pointer)

    def _held(self, shape: Shape) -> tuple[Shape, dict[str, str]]:
        """The arrays and objects of a shape that the machine can hold, and where they are a superset for that."""
        loose_at = dict.fromkeys(self.reader.loose_at, "alternatives past max_alternatives") if shape.loose else {}
        arrays, objects = [], []
        for array in shape.arrays:
            resolved = [array] if not array.contains and array.unique is None else self.algebra.arrays.resolve(array)
            for piece in resolved:
                kept = tuple(entry for entry in piece.contains if max(entry.low, entry.high or 0) <= MAX_COUNT)
                for entry in piece.contains:
                    if entry not in kept[:MAX_COUNTS]:
                        loose_at[f"{entry.pointer}/contains"] = "more counts than an array can hold"
                arrays.append(replace(piece, contains=kept[:MAX_COUNTS]))
        for piece_ in shape.objects:
            for one in [piece_] if not piece_.some else self.algebra.objects.resolve(piece_):
                held, others = self._objects.held(one) if one.some else (one, [])
                for condition in others:
                    loose_at[condition.pointer] = "more conditions on keys than an object can hold"
                objects.append(held)
        return Shape(arrays=tuple(arrays), objects=tuple(objects)), loose_at

    def _note_verified(self, pointer: str, keyword: str, note: str) -> None:
        self.verified[pointer, keyword] = note

    def _raise_unsatisfiable(self, root: Term) -> NoReturn:
        """Blame the deepest place that alone makes the root empty."""
        term = root
        visited: set[Term] = set()
        while term not in visited:
            visited.add(term)
            inner = self._empty_member(term)
            if inner is None:
                break
            term = inner
        raise UnsatisfiableSchema(
            "no value satisfies the schema" if term is root else "no value satisfies the schema at this place",
            pointer=term.pointer,
            hint="Compare the keywords that meet there, also through $ref and allOf.",
        )

    def _empty_member(self, term: Term) -> Term | None:
        shape = self.reader.shape(term)
        if len(shape.arrays) + len(shape.objects) != 1:
            return None
        members: list[Term] = []
        if shape.objects:
            piece = shape.objects[0]
            members += [self.algebra.objects.value_term(piece, name) for name in piece.required]
        else:
            array = shape.arrays[0]
            members += [array.item(place) for place in range(min(array.low, len(array.prefix) + 1))]
        for member in members:
            node = self._nodes.get(member)
            if member.pointer and member in self._nodes and (node is None or self.builder.node_is_empty(node)):
                return member
        return None


def _least_divisors(divisors: frozenset[Fraction]) -> list[Fraction]:
    """Those that are no multiple of another one: who is no multiple of them is none of the others either."""
    return [one for one in divisors if not any(other != one and is_multiple(one, other) for other in divisors)]


def _blamed(place: str) -> tuple[str, str]:
    """(pointer of the schema object, keyword) of a place that ends in a keyword, perhaps with an index or a name."""
    pointer, _, token = place.rpartition("/")
    if token in CHECKS and not pointer.endswith("/properties"):
        return pointer, token
    outer, _, keyword = pointer.rpartition("/")
    return (outer, keyword) if keyword in CHECKS else (place, "")
