"""What the nodes of one builder were made from. Filled while a type is compiled, for a caller who wants to explain.

Compiling keeps none of this by itself: it is a second compilation's business, so types cost no memory for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from safegen.grammars.json_schema.documents import Document
    from safegen.grammars.json_schema.terms import Term
    from safegen.grammars.options import Limits, SchemaOptions


@dataclass(frozen=True, slots=True)
class SchemaOrigin:
    """One schema that was lowered. prefix: stands before its pointers. root: its term. terms: by node."""

    prefix: str
    document: Document
    options: SchemaOptions
    limits: Limits
    root: Term
    terms: dict[int, Term]


@dataclass(slots=True)
class Origins:
    """schemas: those lowered into the builder. start: the start rule of a grammar. rules: names of grammar rules by
    node. terminals: names of the terminals that a node stands for."""

    schemas: list[SchemaOrigin] = field(default_factory=list)
    start: str = ""
    rules: dict[int, str] = field(default_factory=dict)
    terminals: dict[int, tuple[str, ...]] = field(default_factory=dict)
