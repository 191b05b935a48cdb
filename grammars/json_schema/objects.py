"""Canonical form of sets of objects: a union of pieces, closed under intersection and complement.

A piece gives every key a term for its value: listed names first, then classes, which are disjoint languages of keys
that together cover all others (a forbidden key has the term false). Beside that it has required names, a window of
counts, and `some`: conditions that some key of a language has a value of a term. `some` is what the complement of
"every key of this class is t" asks for, so it makes the form closed. `resolve` turns it into required names where
only listed names can fulfil it; what is left is for the caller to refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from safegen.grammars.json_schema.strings import Strings, StringSet, encodable
from safegen.grammars.json_schema.terms import Term, TermKind, TermTable

KeyClasses = tuple[tuple[int, Term], ...]
_LISTED_COUNTS = 16
_MANY_KEYS = 512


@dataclass(frozen=True, slots=True)
class Some:
    """Some key in the language `keys` has a value of `term`."""

    keys: int
    term: Term
    pointer: str


@dataclass(frozen=True, slots=True)
class Seen:
    """Keys that are evaluated, for unevaluatedProperties."""

    names: frozenset[str] = frozenset()
    keys: int | None = None


@dataclass(frozen=True, slots=True)
class ObjectPiece:
    classes: KeyClasses
    names: dict[str, Term] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    some: tuple[Some, ...] = ()
    seen: Seen = Seen()


class Objects:
    def __init__(self, strings: Strings, terms: TermTable) -> None:
        self.strings = strings
        self.builder = strings.builder
        self.terms = terms
        self.anything = ObjectPiece(((strings.anything, terms.true),))

    def value_term(self, piece: ObjectPiece, name: str) -> Term:
        """The term for the value of one key; a key that no text can spell has none."""
        term = piece.names.get(name) if encodable(name) else self.terms.false
        return self.class_term(piece.classes, name) if term is None else term

    def class_term(self, classes: KeyClasses, name: str) -> Term:
        if not encodable(name):
            return self.terms.false
        if len(classes) == 1 and classes[0][0] == self.strings.anything:
            return classes[0][1]
        encoded = name.encode()
        for keys, term in classes:
            if self.builder.matches_expr(keys, encoded):
                return term
        return self.terms.false

    def split(self, classes: KeyClasses, keys: int, within: Term) -> KeyClasses:
        """Classes with the term `within` added for the keys in the language `keys`."""
        if keys == self.strings.anything:
            return tuple((language, self.terms.all_of([term, within])) for language, term in classes)
        result: list[tuple[int, Term]] = []
        others = self.builder.complement(keys)
        for language, term in classes:
            if term is self.terms.false:
                result.append((language, term))
                continue
            inside = self.builder.intersect([language, keys])
            if self.builder.is_empty(inside):
                result.append((language, term))
                continue
            result.append((inside, self.terms.all_of([term, within])))
            outside = self.builder.intersect([language, others])
            if not self.builder.is_empty(outside):
                result.append((outside, term))
        return tuple(result)

    def meet(self, a: ObjectPiece, b: ObjectPiece) -> ObjectPiece | None:
        """Intersection of two pieces; None when it is plainly empty. Names keep the order of first appearance."""
        if a is self.anything or b is self.anything:
            return b if a is self.anything else a
        all_of = self.terms.all_of
        names = {name: all_of([term, self.value_term(b, name)]) for name, term in a.names.items()}
        for name, term in b.names.items():
            if name not in names:
                names[name] = all_of([self.class_term(a.classes, name), term])
        met = ObjectPiece(
            self._meet_classes(a.classes, b.classes),
            names,
            a.required if not b.required else tuple(dict.fromkeys(a.required + b.required)),
            max(a.low, b.low),
            a.high if b.high is None else b.high if a.high is None else min(a.high, b.high),
            a.some + tuple(entry for entry in b.some if entry not in a.some),
            self._meet_seen(a.seen, b.seen),
        )
        return None if self.is_plainly_empty(met) else met

    def _meet_classes(self, a: KeyClasses, b: KeyClasses) -> KeyClasses:
        if len(a) > len(b):
            a, b = b, a
        result: KeyClasses = b
        if len(a) == 1 and a[0][0] == self.strings.anything:
            return b if a[0][1] is self.terms.true else self.split(b, *a[0])
        for keys, term in a:
            if term is not self.terms.true:
                result = self.split(result, keys, term)
        return result

    def _meet_seen(self, a: Seen, b: Seen) -> Seen:
        if a.keys is None or b.keys is None or a.keys == b.keys:
            return Seen(a.names | b.names, b.keys if a.keys is None else a.keys)
        return Seen(a.names | b.names, self.builder.alternate([a.keys, b.keys]))

    def is_plainly_empty(self, piece: ObjectPiece) -> bool:
        false = self.terms.false
        if piece.high is not None and max(piece.low, len(piece.required)) > piece.high:
            return True
        return any(self.value_term(piece, name) is false for name in piece.required)

    def complement(self, piece: ObjectPiece, pointer: str) -> list[ObjectPiece]:
        """Pieces of all objects outside of this one. pointer: of the schema that negates, for new conditions."""
        terms, everything = self.terms, self.anything
        pieces = [replace(everything, names={name: terms.false}) for name in piece.required]
        for name, term in piece.names.items():
            if term is not terms.true:
                pieces.append(replace(everything, names={name: terms.negate(term)}, required=(name,)))
        for keys, term in piece.classes:
            if term is not terms.true:
                others = self.without_names(keys, piece.names)
                pieces.append(replace(everything, some=(Some(others, terms.negate(term), pointer),)))
        if piece.low:
            pieces.append(replace(everything, high=piece.low - 1))
        if piece.high is not None:
            pieces.append(replace(everything, low=piece.high + 1))
        for entry in piece.some:
            classes = self.split(everything.classes, entry.keys, terms.negate(entry.term))
            pieces.append(replace(everything, classes=classes))
        return pieces

    def without_absorbed(self, pieces: Sequence[ObjectPiece], *, keep_order: bool = False) -> tuple[ObjectPiece, ...]:
        """The same union without pieces that another one holds: every condition of that other one is theirs too.
        keep_order: only where that other one lists its names in the same order."""
        conditions = [self._conditions(piece) for piece in pieces]
        on_name: dict[str, set[object]] = {}
        for piece, own in zip(pieces, conditions):
            for name in piece.names:
                on_name.setdefault(name, set()).update(entry for entry in own if entry[:2] == ("name", name))
        implied = [
            own.union(*(on_name[name] for name, term in piece.names.items() if term is self.terms.false))
            for piece, own in zip(pieces, conditions)
        ]
        kept: list[int] = []
        for place in sorted(range(len(pieces)), key=lambda place: len(conditions[place])):
            holders = (other for other in kept if conditions[other] <= implied[place])
            if not any(not keep_order or self._same_order(pieces[other], pieces[place]) for other in holders):
                kept.append(place)
        return tuple(pieces[place] for place in sorted(kept))

    def _conditions(self, piece: ObjectPiece) -> frozenset[tuple[object, ...]]:
        """The piece as a conjunction."""
        found: set[tuple[object, ...]] = {("required", name) for name in piece.required}
        for name, term in piece.names.items():
            parts = term.parts if term.kind is TermKind.ALL_OF else (term,)
            found |= {("name", name, part) for part in parts if part is not self.terms.true}
        found |= {("some", entry.keys, entry.term) for entry in piece.some}
        if piece.classes != self.anything.classes:
            found.add(("classes", piece.classes, frozenset(piece.names)))
        found |= (
            {("low", low) for low in range(1, piece.low + 1)}
            if piece.low < _LISTED_COUNTS
            else {("low", "piece", piece.low)}
        )
        if piece.high is not None:
            found.add(("high", piece.high))
        found.add(("seen", piece.seen))
        return frozenset(found)

    def _same_order(self, holder: ObjectPiece, piece: ObjectPiece) -> bool:
        """Whether the names of the holder, but forbidden ones, are the first of the piece's."""
        mine = [name for name, term in holder.names.items() if term is not self.terms.false]
        theirs = [name for name in piece.names if holder.names.get(name) is not self.terms.false]
        return theirs[: len(mine)] == mine

    def without_names(self, keys: int, names: dict[str, Term]) -> int:
        listed = [name.encode() for name in names if encodable(name)]
        if not listed:
            return keys
        return self.builder.intersect([keys, self.builder.complement(self.builder.strings(listed))])

    def is_endless(self, keys: int) -> bool:
        """Whether a language of keys is never used up, for all that an answer can hold."""
        return keys == self.strings.anything or self.builder.count_up_to(keys, _MANY_KEYS) == _MANY_KEYS

    def resolve(self, piece: ObjectPiece) -> list[ObjectPiece]:
        """Equal pieces with as few `some` as can be."""
        pieces = [replace(piece, some=())]
        for entry in piece.some:
            pieces = [resolved for candidate in pieces for resolved in self._resolve_entry(candidate, entry)]
        return pieces

    def _resolve_entry(self, piece: ObjectPiece, entry: Some) -> list[ObjectPiece]:
        pieces = []
        listed = {name: self.value_term(piece, name) for name in (*piece.names, *piece.required)}
        for name, term in listed.items():
            if encodable(name) and self.builder.matches_expr(entry.keys, name.encode()):
                value = self.terms.all_of([term, entry.term])
                required = piece.required if name in piece.required else (*piece.required, name)
                one = replace(piece, names=piece.names | {name: value}, required=required)
                if not self.is_plainly_empty(one):
                    pieces.append(one)
        free = self.without_names(entry.keys, listed)
        for keys, term in piece.classes:
            wanted = self.terms.all_of([term, entry.term])
            if wanted is not self.terms.false and not self.builder.is_empty(self.builder.intersect([keys, free])):
                pieces.append(replace(piece, some=(*piece.some, entry)))
                break
        return pieces

    def with_seen(self, piece: ObjectPiece, unevaluated: Term) -> ObjectPiece | None:
        """Apply unevaluatedProperties: all keys not seen take the term too, and then all are seen."""
        seen = piece.seen
        builder = self.builder
        names = {}
        for name, term in piece.names.items():
            is_seen = name in seen.names or (
                seen.keys is not None and encodable(name) and builder.matches_expr(seen.keys, name.encode())
            )
            names[name] = term if is_seen else self.terms.all_of([term, unevaluated])
        rest = self.strings.anything if seen.keys is None else self.strings.within_text(builder.complement(seen.keys))
        classes = self.split(piece.classes, rest, unevaluated)
        applied = replace(piece, names=names, classes=classes, seen=Seen(seen.names, self.strings.anything))
        return None if self.is_plainly_empty(applied) else applied

    def restrict_names(self, piece: ObjectPiece, allowed: StringSet) -> ObjectPiece | None:
        """Apply propertyNames: keys outside of the set are forbidden."""
        false = self.terms.false
        names = {name: term if self.strings.contains(allowed, name) else false for name, term in piece.names.items()}
        if self.strings.is_empty(allowed):
            classes: KeyClasses = ((self.strings.anything, false),)
        else:
            content = self.strings.content(allowed)
            outside = self.strings.within_text(self.builder.complement(content))
            classes = self.split(piece.classes, outside, false)
        applied = replace(piece, names=names, classes=classes)
        return None if self.is_plainly_empty(applied) else applied
