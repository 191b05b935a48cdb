"""From terms to nodes of the native machine, with an explicit worklist, so depth costs no Python recursion.

Every term becomes one node; recursion in the schema is a reserved node that is defined later. All scalar alternatives
of a term are one lexeme. What the canonical form can say but the machine cannot hold yet is refused here, with the
schema position that asked for it.
"""

from __future__ import annotations

from typing import NoReturn

from safegen.errors import SchemaError
from safegen.grammars.json_schema.arrays import ArrayPiece
from safegen.grammars.json_schema.canonical import Algebra, Shape
from safegen.grammars.json_schema.numbers import NumberPiece, NumberSet, canonical_text, literal
from safegen.grammars.json_schema.objects import ObjectPiece
from safegen.grammars.json_schema.reader import Reader
from safegen.grammars.json_schema.strings import encodable
from safegen.grammars.json_schema.terms import Term
from safegen.grammars.options import Limits, SchemaOptions


class Lowering:
    def __init__(self, reader: Reader, algebra: Algebra, options: SchemaOptions, limits: Limits) -> None:
        self.reader = reader
        self.algebra = algebra
        self.builder = algebra.builder
        self.any_spelling = options.spelling == "any"
        self.limits = limits
        self._nodes: dict[Term, int | None] = {algebra.terms.false: None}
        self._pending: list[tuple[Term, Shape, int]] = []

    def root_node(self, term: Term, *, check_empty: bool = True) -> int:
        """The node of a term and of everything below it. Raises SchemaError, also when no text is legal."""
        node = self.node(term)
        while self._pending:
            owner, shape, reserved = self._pending.pop()
            self.algebra.deadline.check(owner.pointer)
            self.builder.define(reserved, self._structure(shape, owner))
        if node is None or (check_empty and self.builder.node_is_empty(node)):
            self._raise_unsatisfiable(term)
        return node

    def node(self, term: Term) -> int | None:
        """The node of a term, or None when it is plainly empty; structured ones are put off."""
        if term in self._nodes:
            return self._nodes[term]
        shape = self.reader.shape(term)
        node: int | None
        if shape.is_blank():
            node = None
        elif shape.arrays or shape.objects:
            node = self.builder.reserve()
            self._pending.append((term, shape, node))
        else:
            node = self.builder.lexeme(self._scalars(shape))
        self._nodes[term] = node
        return node

    # Scalars.

    def _scalars(self, shape: Shape) -> int:
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
        integer = piece.divisor is not None and piece.divisor.denominator == 1
        expr = builder.number(
            integer=integer,
            plain=integer and piece.plain and not self.any_spelling,
            low=None if piece.low is None else literal(piece.low),
            low_exclusive=piece.low_exclusive,
            high=None if piece.high is None else literal(piece.high),
            high_exclusive=piece.high_exclusive,
            multiple_of=None if piece.divisor is None or piece.divisor == 1 else literal(piece.divisor),
        )
        outside = [
            builder.complement(builder.number(integer=False, plain=False, multiple_of=literal(divisor)))
            for divisor in sorted(piece.not_multiples)
        ]
        return builder.intersect([expr, *outside]) if outside else expr

    # Structure.

    def _structure(self, shape: Shape, owner: Term) -> int:
        nodes = []
        if shape.null or shape.booleans or shape.numbers or shape.strings:
            nodes.append(self.builder.lexeme(self._scalars(shape)))
        for array in shape.arrays:
            resolved = [array] if not array.contains and array.unique is None else self.algebra.arrays.resolve(array)
            nodes += [self._array(piece) for piece in resolved]
        for piece in shape.objects:
            nodes += [self._object(one) for one in ([piece] if not piece.some else self.algebra.objects.resolve(piece))]
        if not nodes:
            return self.builder.lexeme(self.builder.empty())
        return nodes[0] if len(nodes) == 1 else self.builder.union(nodes)

    def _array(self, piece: ArrayPiece) -> int:
        if piece.unique is not None:
            self._refuse(piece.unique, "uniqueItems", "unique items cannot be enforced yet")
        for entry in piece.contains:
            self._refuse(entry.pointer, "contains", "this count of items that match a schema cannot be enforced yet")
        prefix: list[int] = []
        rest: int | None = None
        for place, term in enumerate((*piece.prefix, piece.rest)):
            if piece.high is not None and place >= piece.high:
                break
            node = self.node(term)
            if node is None:
                break
            if place < len(piece.prefix):
                prefix.append(node)
            else:
                rest = node
        return self.builder.array(prefix, rest, piece.low, piece.high)

    def _object(self, piece: ObjectPiece) -> int:
        for entry in piece.some:
            self._refuse(entry.pointer, None, "this condition on keys that are not listed cannot be enforced yet")
        required = frozenset(piece.required)
        properties: list[tuple[bytes, int | None, bool]] = []
        names = dict.fromkeys((*piece.names, *piece.required))
        # A name that only `required` lists comes after all that have a schema.
        for name in names:
            if encodable(name):
                term = self.algebra.objects.value_term(piece, name)
                properties.append((name.encode(), self.node(term), name in required))
        extras = []
        for keys, term in piece.classes:
            node = self.node(term)
            if node is not None:
                extras.append((keys, node))
        return self.builder.object(properties, extras, piece.low, piece.high)

    # Refusals.

    def _refuse(self, pointer: str, keyword: str | None, message: str) -> NoReturn:
        raise SchemaError(message, pointer=pointer, keyword=keyword)

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
        raise SchemaError(
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
