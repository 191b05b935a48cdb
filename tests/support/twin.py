"""A slow twin of the native constraint machine, as an independent oracle: same `Builder` and `Program`, plain Python.

Exprs are derivatives of interned tuples (`twin_exprs`); structure is matched by naive recursive descent over all end
positions, where the native machine runs one automaton forward. The two share no code and no method.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from safegen._native import Predicate
from tests.support.twin_exprs import Exprs

_BLANKS = b" \t\n\r"

Node = tuple[Any, ...]


def _in_window(counts: Sequence[int], contains: Sequence[tuple[int, int | None]]) -> bool:
    return all(least <= n and (most is None or n <= most) for n, (least, most) in zip(counts, contains))


def items_differ(text: bytes) -> bool:
    """Whether the items of an array differ as JSON values; true of anything else."""
    value = json.loads(text, parse_float=Decimal)
    keys = [_value_key(item) for item in value] if isinstance(value, list) else []
    return len(set(keys)) == len(keys)


def _value_key(value: Any) -> object:
    if isinstance(value, list):
        return ("array", *map(_value_key, value))
    if isinstance(value, dict):
        return ("object", frozenset((name, _value_key(member)) for name, member in value.items()))
    return (value.__class__, value) if isinstance(value, (bool, str)) or value is None else value


class Builder:
    """Twin of safegen._native.Builder."""

    def __init__(
        self,
        *,
        max_states: int = 200_000,
        whitespace: int = 0,
        any_order: bool = False,
        any_spelling: bool = False,
        max_digits: int = 64,
        max_exponent_digits: int = 3,
        max_nesting: int = 512,
        deadline_s: float = 0.0,
    ) -> None:
        self.max_nesting = max_nesting
        self.exprs = exprs = Exprs(max_digits, max_exponent_digits)
        self.whitespace = whitespace
        self.any_order = any_order
        self.any_spelling = any_spelling
        self.nodes: list[Node | None] = []
        self.is_empty, self.is_nullable, self.matches_expr = exprs.is_empty, exprs.nullable, exprs.matches
        self.count_up_to, self.texts = exprs.count_up_to, exprs.texts
        self.concat, self.alternate, self.intersect = exprs.concat, exprs.alternate, exprs.intersect
        self.complement, self.repeat, self.strings = exprs.complement, exprs.repeat, exprs.strings
        self.literal, self.chars, self.byte_set = exprs.literal, exprs.chars, exprs.bytes_of
        self.json_string, self.ecma_pattern = exprs.json_string, exprs.ecma_pattern

    def empty(self) -> int:
        return self.exprs.empty

    def epsilon(self) -> int:
        return self.exprs.epsilon

    def any_text(self) -> int:
        return self.exprs.any_text

    def number(
        self,
        *,
        integer: bool,
        plain: bool,
        low: str | None = None,
        low_exclusive: bool = False,
        high: str | None = None,
        high_exclusive: bool = False,
        multiple_of: str | None = None,
        not_multiples_of: Sequence[str] = (),
    ) -> int:
        bounds = [None if text is None else Decimal(text) for text in (low, high, multiple_of)]
        excluded = tuple(map(Decimal, not_multiples_of))
        spec = (integer, plain, bounds[0], low_exclusive, bounds[1], high_exclusive, bounds[2], excluded)
        return self.exprs.intern(("number", spec, b""))

    def _node(self, node: Node | None) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def lexeme(self, expr: int) -> int:
        return self._node(("lexeme", expr))

    def union(self, nodes: Sequence[int]) -> int:
        return self._node(("union", tuple(nodes)))

    def sequence(self, nodes: Sequence[int]) -> int:
        return self._node(("sequence", tuple(nodes)))

    def array(
        self,
        prefix: Sequence[int],
        rest: int | None,
        low: int,
        high: int | None,
        *,
        unique: bool = False,
        pointer: str = "",
    ) -> int:
        array = self._node(("array", tuple(prefix), rest, low, high))
        return self._node(("checked", array, items_differ)) if unique else array

    def counted_array(
        self,
        prefix: Sequence[Sequence[tuple[int, int]]],
        rest: Sequence[tuple[int, int]],
        low: int,
        high: int | None,
        contains: Sequence[tuple[int, int | None]],
        *,
        listed: Sequence[tuple[int, int]] = (),
        unique: bool = False,
    ) -> int:
        """Each listed value has a bit: an item counts for its own, at most once."""
        own = {node: 1 << len(contains) + number for node, number in listed}
        places = tuple(tuple((node, bits | own.get(node, 0)) for node, bits in place) for place in (*prefix, rest))
        once = ((0, 1),) * (1 + max((number for _, number in listed), default=-1))
        array = self._node(("counted", places, low, high, (*contains, *once)))
        return self._node(("checked", array, items_differ)) if unique else array

    def distinct_array(self, values: Sequence[int], low: int, high: int | None) -> int:
        """Each value has a bit: an item counts for its own, at most once."""
        choices = tuple((value, 1 << bit) for bit, value in enumerate(values))
        return self._node(("counted", (choices,), low, high, ((0, 1),) * len(values)))

    def verified(self, inner: int, predicate: Predicate, *, pointer: str = "") -> int:
        return self._node(("checked", inner, predicate.holds))

    def object(
        self,
        properties: Sequence[tuple[bytes, int | None, bool]],
        extras: Sequence[tuple[int, int]],
        low: int,
        high: int | None,
        *,
        meets: Sequence[int] = (),
        conditions: int = 0,
    ) -> int:
        bits = [*meets, *[0] * (len(extras) - len(meets))]
        kinds = tuple((keys, value, met) for (keys, value), met in zip(extras, bits))
        return self._node(("object", tuple(properties), kinds, low, high, (1 << conditions) - 1))

    def reserve(self) -> int:
        return self._node(None)

    def define(self, reserved: int, node: int) -> None:
        if self.nodes[reserved] is not None:
            raise ValueError("defined twice")
        self.nodes[reserved] = ("union", (node,))

    def inhabited(self) -> set[int]:
        """Nodes that some finite text derives from, by a fixpoint from below."""
        alive: set[int] = set()
        while True:
            grown = {i for i, node in enumerate(self.nodes) if i in alive or (node and self._is_inhabited(node, alive))}
            if grown == alive:
                return alive
            alive = grown

    def _is_inhabited(self, node: Node, alive: set[int]) -> bool:
        match node:
            case ("lexeme", expr):
                return not self.exprs.is_empty(expr)
            case ("union", kids):
                return any(kid in alive for kid in kids)
            case ("sequence", kids):
                return all(kid in alive for kid in kids)
            case ("array", prefix, rest, low, high):
                places = [*prefix, *[rest] * max(0, low - len(prefix))][:low]
                return (high is None or low <= high) and all(kid in alive for kid in places)
            case ("counted", places, low, high, contains):
                return self._can_count(places, low, high, contains, alive)
            case ("checked", inner, _):
                return inner in alive
        _, properties, extras, low, high, wanted = node
        names = [name for name, _, _ in properties]
        if any(required and kid not in alive for _, kid, required in properties):
            return False
        covers = [{0}]  # conditions that so many extra members can meet together
        while wanted not in covers[-1]:
            covers.append({met | bits for met in covers[-1] for _, kid, bits in extras if kid in alive} | covers[-1])
            if covers[-1] == covers[-2]:
                return False
        needed = sum(required for _, _, required in properties) + len(covers) - 1
        if high is not None and max(needed, low) > high:
            return False
        count = sum(kid in alive for _, kid, _ in properties)
        if count >= low:
            return True
        keys = [keys for keys, kid, _ in extras if kid in alive]
        return self._can_name(keys, names, low - count)

    @staticmethod
    def _can_count(places: Any, low: int, high: int | None, contains: Any, alive: set[int]) -> bool:
        """Some number of items reaches all counts. Counts past the least needed are told apart only up to a most."""
        caps = [least if most is None else most + 1 for least, most in contains]
        states = {(0,) * len(contains)}
        length = 0
        seen: set[object] = set()
        while states:
            if length >= low and any(_in_window(counts, contains) for counts in states):
                return True
            key = (min(length, max(low, len(places))), frozenset(states))
            if length == high or key in seen:
                return False
            seen.add(key)
            choices = places[min(length, len(places) - 1)]
            states = {
                tuple(min(cap, count + (bits >> bit & 1)) for bit, (count, cap) in enumerate(zip(counts, caps)))
                for counts in states
                for kid, bits in choices
                if kid in alive
            }
            length += 1
        return False

    def _can_name(self, keys: list[int], taken: list[bytes], wanted: int) -> bool:
        """Whether `wanted` different keys exist outside of `taken`."""
        exprs = self.exprs
        taken = list(taken)
        for _ in range(wanted):
            free = exprs.intersect([exprs.alternate(keys), exprs.complement(exprs.strings(taken)), exprs.any_text])
            key = self._witness(free)
            if key is None:
                return False
            taken.append(key)
        return True

    def _witness(self, expr: int) -> bytes | None:
        frontier: list[tuple[int, bytes]] = [(expr, b"")]
        seen = {expr}
        while frontier:
            following: list[tuple[int, bytes]] = []
            for state, text in frontier:
                if self.exprs.nullable(state):
                    return text
                for byte in sorted(self.exprs.cuts(state)):
                    after = self.exprs.derive(state, byte)
                    if after not in seen and after != self.exprs.empty:
                        seen.add(after)
                        following.append((after, text + bytes([byte])))
            frontier = following
        return None

    def node_is_empty(self, node: int) -> bool:
        return node not in self.inhabited()

    def build(self, root: int) -> Program:
        return Program(self, root)


class Program:
    """Twin of safegen._native.Program: `matches` only."""

    def __init__(self, builder: Builder, root: int) -> None:
        self.builder = builder
        self.root = root

    def matches(self, text: bytes) -> bool:
        root = self.builder.nodes[self.root]
        if root is not None and root[0] != "lexeme" and _nesting(text) > self.builder.max_nesting:
            return False
        run = _Run(self.builder, text)
        return any(len(text) in run.blanks(end) for start in run.blanks(0) for end in run.ends(self.root, start))


def _nesting(text: bytes) -> int:
    """Arrays and objects inside one another in a JSON text."""
    depth = deepest = 0
    for bracket in re.findall(rb"[][{}]", re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text, flags=re.DOTALL)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


class _Run:
    """One text: for every (node, start) the set of ends."""

    def __init__(self, builder: Builder, text: bytes) -> None:
        self.builder = builder
        self.exprs = builder.exprs
        self.text = text
        self.memo: dict[tuple[int, int], frozenset[int]] = {}

    def blanks(self, start: int) -> list[int]:
        ends = [start]
        while len(ends) <= self.builder.whitespace and ends[-1] < len(self.text) and self.text[ends[-1]] in _BLANKS:
            ends.append(ends[-1] + 1)
        return ends

    def punctuation(self, starts: Iterable[int], byte: bytes) -> set[int]:
        """Ends of blanks, the byte, blanks."""
        found = {at for start in starts for at in self.blanks(start) if self.text[at : at + 1] == byte}
        return {end for at in found for end in self.blanks(at + 1)}

    def ends(self, node: int, start: int) -> frozenset[int]:
        known = self.memo.get((node, start))
        if known is None:
            self.memo[node, start] = frozenset()  # a node that starts with itself adds nothing here
            known = self.memo[node, start] = frozenset(self._ends(node, start))
        return known

    def _ends(self, node: int, start: int) -> Iterable[int]:
        match self.builder.nodes[node]:
            case ("lexeme", expr):
                return self.lexeme_ends(expr, start)
            case ("union", kids):
                return {end for kid in kids for end in self.ends(kid, start)}
            case ("sequence", kids):
                at = {start}
                for kid in kids:
                    at = {end for begin in at for end in self.ends(kid, begin)}
                return at
            case ("array", prefix, rest, low, high):
                return self.array_ends(prefix, rest, low, high, start)
            case ("counted", places, low, high, contains):
                return self.counted_ends(places, low, high, contains, start)
            case ("checked", inner, holds):
                return {end for end in self.ends(inner, start) if holds(self.text[start:end])}
            case ("object", properties, extras, low, high, wanted):
                return self.object_ends(properties, extras, low, high, wanted, start)
        raise ValueError("an undefined node")

    def lexeme_ends(self, expr: int, start: int) -> set[int]:
        ends = {start} if self.exprs.nullable(expr) else set()
        for at in range(start, len(self.text)):
            expr = self.exprs.derive(expr, self.text[at])
            if expr == self.exprs.empty:
                break
            if self.exprs.nullable(expr):
                ends.add(at + 1)
        return ends

    def array_ends(self, prefix: tuple[int, ...], rest: int | None, low: int, high: int | None, start: int) -> set[int]:
        if self.text[start : start + 1] != b"[":
            return set()
        at = set(self.blanks(start + 1))
        ends: set[int] = set()
        count = 0
        while at:
            if count >= low:
                ends |= {end + 1 for s in at for end in self.blanks(s) if self.text[end : end + 1] == b"]"}
            if count == high:
                break
            item = prefix[count] if count < len(prefix) else rest
            if item is None:
                break
            begins = at if count == 0 else self.punctuation(at, b",")
            at = {end for begin in begins for end in self.ends(item, begin)}
            count += 1
        return ends

    def counted_ends(self, places: Any, low: int, high: int | None, contains: Any, start: int) -> set[int]:
        if self.text[start : start + 1] != b"[":
            return set()
        states = {(at, (0,) * len(contains)) for at in self.blanks(start + 1)}
        ends: set[int] = set()
        length = 0
        while states:
            if length >= low:
                closing = {s for s, counts in states if _in_window(counts, contains)}
                ends |= {end + 1 for s in closing for end in self.blanks(s) if self.text[end : end + 1] == b"]"}
            if length == high:
                break
            choices = places[min(length, len(places) - 1)]
            states = {
                (end, tuple(count + (bits >> bit & 1) for bit, count in enumerate(counts)))
                for at, counts in states
                for begin in ([at] if length == 0 else self.punctuation([at], b","))
                for kid, bits in choices
                for end in self.ends(kid, begin)
            }
            length += 1
        return ends

    def object_ends(
        self,
        properties: tuple[tuple[bytes, int | None, bool], ...],
        extras: tuple[tuple[int, int, int], ...],
        low: int,
        high: int | None,
        wanted: int,
        start: int,
    ) -> set[int]:
        if self.text[start : start + 1] != b"{":
            return set()
        index = {name: i for i, (name, _, _) in enumerate(properties)}
        required = frozenset(name for name, _, needed in properties if needed)
        ends: set[int] = set()
        states: set[tuple[int, frozenset[bytes], int, int]] = {(at, frozenset(), 0, 0) for at in self.blanks(start + 1)}
        while states:
            following: set[tuple[int, frozenset[bytes], int, int]] = set()
            for at, seen, next_index, met in states:
                if required <= seen and len(seen) >= low and met == wanted:
                    ends |= {end + 1 for end in self.blanks(at) if self.text[end : end + 1] == b"}"}
                if high is not None and len(seen) >= high:
                    continue
                for begin in self.punctuation([at], b",") if seen else [at]:
                    for key_end, key, canonical in self.keys_at(begin):
                        place = index.get(key)
                        if key in seen or (place is not None and not canonical and not self.builder.any_spelling):
                            continue
                        if place is not None and not self.builder.any_order and place < next_index:
                            continue
                        after = (
                            next_index if self.builder.any_order else len(properties) if place is None else place + 1
                        )
                        for value, bits in self.values_of(key, place, properties, extras):
                            for value_at in self.punctuation([key_end], b":"):
                                ended = self.ends(value, value_at)
                                following |= {(end, seen | {key}, after, met | bits) for end in ended}
            states = following
        return ends

    def values_of(
        self,
        key: bytes,
        place: int | None,
        properties: tuple[tuple[bytes, int | None, bool], ...],
        extras: tuple[tuple[int, int, int], ...],
    ) -> list[tuple[int, int]]:
        """Value nodes of a key, with the bits of the conditions that each meets."""
        if place is not None:
            value = properties[place][1]
            return [] if value is None else [(value, 0)]
        return [(value, bits) for keys, value, bits in extras if self.exprs.matches(keys, key)]

    def keys_at(self, start: int) -> list[tuple[int, bytes, bool]]:
        """(end, decoded key, whether it has the canonical spelling) of the JSON string at `start`, if there is one."""
        any_string = self.exprs.json_string(self.exprs.any_text)
        found = []
        for end in self.lexeme_ends(any_string, start):
            spelled = self.text[start:end]
            decoded = json.loads(spelled)
            canonical = json.dumps(decoded, ensure_ascii=False).encode() == spelled
            found.append((end, decoded.encode(), canonical))
        return found
