"""Types of the native module. First part: constraint machine (grammars/native). Second: CPU kernels (kernels/cpu)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# --- constraint machine ---------------------------------------------------------------------------------------------

class LimitExceeded(Exception):
    """An automaton grew past its documented limit (states, depth or bytes)."""

class Violation(Exception):
    """advance() was given a token that the constraint does not allow."""

class Predicate:
    """A condition on the whole text of a value."""

    @staticmethod
    def matches(program: Program) -> Predicate: ...
    @staticmethod
    def unique_items() -> Predicate:
        """The items of an array differ as JSON values; true of anything else."""
    @staticmethod
    def none_of(predicate: Predicate) -> Predicate: ...
    @staticmethod
    def all_of(predicates: Sequence[Predicate]) -> Predicate: ...
    @staticmethod
    def any_of(predicates: Sequence[Predicate]) -> Predicate: ...
    @staticmethod
    def exactly_one_of(predicates: Sequence[Predicate]) -> Predicate: ...
    def holds(self, text: bytes) -> bool: ...

class LetterMap:
    """A folding of characters, see grammars/native/bans.hpp. letters: the code points that each folds to. ranges: (low,
    high, letter), ascending and disjoint; all other code points are of letter `other`. Raises ValueError."""

    def __init__(
        self, letters: Sequence[Sequence[int]], ranges: Sequence[tuple[int, int, int]], other: int
    ) -> None: ...

class Builder:
    """Builds a Program: regular languages over bytes ("exprs") and JSON structure over them ("nodes"); ids are ints.

    Exprs are hash-consed and simplified, so equal ones share an id. A spent builder (after build) raises.
    """

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
    ) -> None: ...
    # Regular languages over bytes.
    def empty(self) -> int: ...
    def epsilon(self) -> int: ...
    def any_text(self) -> int:
        """Every well-formed UTF-8 string."""
    def byte_set(self, ranges: Sequence[tuple[int, int]]) -> int: ...
    def chars(self, ranges: Sequence[tuple[int, int]]) -> int:
        """One code point out of inclusive ranges, as UTF-8 (surrogates are left out)."""
    def literal(self, text: bytes) -> int: ...
    def concat(self, parts: Sequence[int]) -> int: ...
    def alternate(self, parts: Sequence[int]) -> int: ...
    def intersect(self, parts: Sequence[int]) -> int: ...
    def complement(self, part: int) -> int:
        """Within all byte strings: intersect with any_text() for text."""
    def repeat(self, part: int, low: int, high: int | None) -> int:
        """Counted, never unrolled."""
    def strings(self, values: Sequence[bytes]) -> int:
        """A finite language; scales to 100,000 values."""
    def json_string(self, content: int) -> int:
        """Quoted JSON strings, in every legal spelling, whose *decoded* value lies in `content` (over UTF-8)."""
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
        """JSON number texts with low <= value <= high and value a multiple of multiple_of and of none of the (at most
        ten) not_multiples_of, whose common multiple with it is bounded (ValueError), compared as exact decimals
        (arguments are decimal literals such as "-1.5" or "3e2"). integer: the value must be an integer. plain: integers
        in the one canonical spelling only (no fraction, exponent or "-0"). Digits are bounded by max_digits and
        max_exponent_digits."""
    def ecma_pattern(self, properties: Sequence[bytes]) -> int:
        r"""Texts of regular expressions (ECMA-262, flag `u`). properties: what may stand in \p{...}. The language
        leaves out a few valid patterns, see grammars/native/ecma_pattern.hpp."""
    def without_phrases(
        self,
        letters: LetterMap,
        phrases: Sequence[Sequence[int]],
        *,
        word: bool = False,
        word_ranges: Sequence[tuple[int, int]] = (),
    ) -> int:
        """UTF-8 texts in whose folding no phrase stands. word: counts only between characters that lie in none of
        word_ranges, or at an end."""
    def folded(self, letters: LetterMap, expr: int) -> int:
        """UTF-8 texts whose folding lies in expr."""
    def is_empty(self, expr: int) -> bool: ...
    def is_nullable(self, expr: int) -> bool: ...
    def texts(self, expr: int, limit: int) -> list[bytes] | None:
        """All accepted texts; None when there are more than `limit`."""
    def count_up_to(self, expr: int, limit: int) -> int:
        """How many texts expr accepts, at most `limit`."""
    def count_states(self, expr: int, limit: int) -> int:
        """How many states its automaton over bytes has, at most `limit`."""
    def matches_expr(self, expr: int, text: bytes) -> bool: ...
    # Structure. A node denotes a language of JSON texts.
    def lexeme(self, expr: int) -> int: ...
    def union(self, nodes: Sequence[int]) -> int: ...
    def rule(self, nodes: Sequence[int]) -> int:
        """A union whose calls at one place of the text are shared: for the rules of context-free grammars, which may be
        recursive and ambiguous, but not left-recursive."""
    def sequence(self, nodes: Sequence[int]) -> int: ...
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
        """prefix: nodes of the first items; rest: node of further ones, None forbids them. low, high: item counts.

        unique: items must differ as JSON values. An item that repeats cannot be ended; where it cannot go on either,
        the matcher goes back to the item's start (see Matcher.advance). Free strings never need that.
        """
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
        """An array whose items are counted. For each of the first positions, and for the rest: the choices (value node,
        bits of the counts it adds to), which should be disjoint languages. contains: up to 4 (least, most) counts.
        listed: (value node, number of its value, from 0); of a value one item is legal, and no more. unique: other
        items must differ too, as in `array`."""
    def distinct_array(self, values: Sequence[int], low: int, high: int | None) -> int:
        """An array of different items out of a finite list: one node a value, each used at most once."""
    def verified(self, inner: int, predicate: Predicate, *, pointer: str = "") -> int:
        """inner, of which only texts count that satisfy the predicate once they are whole. Until its end the mask is
        that of inner; when the whole text fails, the matcher goes back to the node's start (see Matcher.advance)."""
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
        """properties: (decoded UTF-8 name, value node or None for a forbidden name, required), in the order they are
        to appear. extras: (expr over decoded key, value node), keys that are no declared property; the exprs must be
        disjoint; declared names and keys already seen are excluded by the machine. low, high: property counts.
        extras come after all declared properties, in any order (any_order: everything in any order).
        conditions: how many (at most 4) some extra member must meet, one each or several at once. meets: for each of
        the extras the bits of the conditions it meets; exprs that lead to different ones may then be equal."""
    def reserve(self) -> int:
        """A node to be defined later, for recursion."""
    def restricted(
        self,
        node: int,
        language: int,
        paths: Sequence[tuple[Sequence[tuple[str, bytes, int]], bool, bool]],
        *,
        json: bool,
    ) -> tuple[int, list[str], list[str]]:
        """The node with all its strings and keys (json), or all its lexemes, held to a language of decoded text. paths:
        (steps, of_keys, leaves_out), a step being (kind, name, index). Also returns the paths of the declared names
        that the language leaves out, and of the values of which it leaves nothing."""
    def define(self, reserved: int, node: int) -> None: ...
    def node_is_empty(self, node: int) -> bool:
        """No finite text derives from it. All reserved nodes must be defined."""
    def build(self, root: int) -> Program: ...

class Program:
    """An immutable compiled constraint, vocabulary-independent; thread-safe."""

    def matches(self, text: bytes) -> bool: ...
    def longest_prefix(self, text: bytes) -> int:
        """Bytes of text that some answer starts with."""
    def expected(self, text: bytes) -> bytes:
        """Bytes (sorted, unique) that may follow text; text must be a live prefix."""
    def frontier(
        self, text: bytes
    ) -> tuple[
        int,
        bool,
        list[tuple[str, list[tuple[list[int], int | None]], list[int], list[bytes], bool, bytes]],
        list[tuple[int, str]],
    ]:
        """Where text stops being the beginning of an answer, and what could have stood there: see
        safegen.grammars.frontier, which gives the parts names."""
    def fullness(self) -> float:
        """The largest share of a limit (states, memory, expressions) that is used up, 0 to 1; it grows with use."""
    def memory_bytes(self) -> int: ...

class Vocabulary:
    """Token bytes as a trie. None marks ids that a constraint never produces (special, control, padded)."""

    def __init__(self, token_bytes: Sequence[bytes | None], stop_ids: Sequence[int]) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def stop_ids(self) -> list[int]: ...
    def longest_match(self, text: bytes) -> list[int]:
        """Cover text with the fewest tokens; empty when it cannot be spelled."""

class MaskBuffer:
    """Mask rows in the caller's array, [rows, ceil(vocabulary / 32)] int32, C-contiguous; keeps the array alive."""

    def __init__(self, words: NDArray[np.int32]) -> None: ...

def fill_batch(
    matchers: Sequence[Matcher], drafts: Sequence[Sequence[int]], words: MaskBuffer, first_rows: Sequence[int]
) -> list[str | None]:
    """Matcher.fill of many, each from its first row on, on a few native threads: what went wrong with each, if at all.
    No matcher and no row may be in it twice."""

class Matcher:
    """Constraint state of one sequence."""

    def __init__(self, program: Program, vocabulary: Vocabulary, *, cache_bytes: int = 64 << 20) -> None: ...
    def fill(self, draft: Sequence[int], words: MaskBuffer | NDArray[np.int32]) -> int:
        """Mask rows for the next token and after each token of the draft; returns how many of these are legal."""
    def fill_next(self, words: MaskBuffer) -> int:
        """The first row alone; returns 0."""
    def advance(self, ids: Sequence[int]) -> tuple[int, bytes, str] | None:
        """Commit tokens. When a value as a whole fails, the matcher goes back: (tokens kept, bytes that must come next,
        schema pointer); later ids of the call are dropped and the failed text is excluded from then on."""
    def legal_prefix(self, prefix: Sequence[int], ids: Sequence[int]) -> int:
        """How many of ids a fork could be advanced by, one after the other, after the prefix; the first with which it
        goes back is the last of them. 0 where the prefix is not legal or goes back."""
    def settled(self) -> int:
        """How many of the tokens nothing takes back any more."""
    def forced(self) -> bytes: ...
    def can_end(self) -> bool: ...
    def is_complete(self) -> bool: ...
    def shortest_completion(self) -> list[int]: ...
    def text(self) -> bytes: ...
    def fork(self) -> Matcher: ...

# --- CPU kernels ----------------------------------------------------------------------------------------------------
# Arrays are what nanobind takes: a DLPack capsule (cheapest for torch tensors), a tensor, a numpy array. All must be
# contiguous, on the CPU, and fp32 unless said; results go to `out`. Mistakes raise ValueError naming the argument.
# safegen.kernels.cpu is the face for everybody else.

class CpuWeight:
    """A weight. data: uint8 [out_features, bytes per row]. form: "raw" uses it where it lies, and holds on to it;
    "packed" (GGUF blocks), "int8" and "int4" (floats) make a copy for integer products. order: int64 [in_features],
    which of the model's inputs comes where in a row of data; None is as they are."""

    def __init__(
        self,
        kind: str,
        data: Any,
        out_features: int,
        in_features: int,
        form: str = "raw",
        order: Any | None = None,
    ) -> None: ...
    @property
    def is_packed(self) -> bool: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def out_features(self) -> int: ...
    @property
    def in_features(self) -> int: ...

def cpu_linear(x: Any, weight: CpuWeight, bias: Any | None, out: Any) -> None:
    """x: [rows, in]; bias: [out]; out: [rows, out]."""

def cpu_embedding(ids: Any, weight: CpuWeight, out: Any) -> None:
    """ids: int64 [tokens]; out: [tokens, in]."""

def cpu_rms_norm(x: Any, weight: Any, eps: float, out: Any) -> None:
    """x, out: [rows, dim]; weight: [dim]."""

def cpu_rope(x: Any, cos: Any, sin: Any, position: Any, interleaved: bool, out: Any) -> None:
    """x, out: [tokens, heads, head_dim]; cos, sin: [max_position, rotary_dim / 2]; position: int32 [tokens]."""

def cpu_kv_write(
    key: Any, value: Any, key_cache: Any, value_cache: Any, key_scale: Any, value_scale: Any, slot: Any
) -> None:
    """key, value: [tokens, kv_heads, head_dim]; caches: [blocks, block_size, kv_heads, head_dim] float32, float16 or
    int8; scales: [blocks, block_size, kv_heads] beside int8, else None; slot: int32."""

def cpu_attention(
    q: Any,
    key: Any,
    value: Any,
    key_scale: Any,
    value_scale: Any,
    query_start: Any,
    context_len: Any,
    block_table: Any,
    position: Any,
    scale: float,
    window: int,
    softcap: float,
    out: Any,
) -> None:
    """q, out: [tokens, heads, head_dim]; key, value, scales: the cache; plan arrays int32. window, softcap: 0: none."""

def cpu_silu_mul(gate: Any, up: Any, out: Any) -> None: ...
def cpu_softcap(x: Any, cap: float, out: Any) -> None: ...
def cpu_gelu_mul(gate: Any, up: Any, out: Any) -> None: ...

class CpuDecoder:
    """A decoder's step in one call; safegen.kernels.cpu.decoder is its face and documents the arguments."""

    def __init__(
        self,
        embedding: CpuWeight,
        head: CpuWeight,
        head_bias: Any | None,
        norm: Any,
        eps: float,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        embedding_scale: float,
        logit_softcap: float,
    ) -> None: ...
    def add_layer(
        self,
        norms: Sequence[tuple[Any | None, float]],
        linears: Sequence[tuple[CpuWeight, Any | None]],
        rope: int,
        interleaved: bool,
        scale: float,
        window: int,
        silu: bool,
    ) -> None: ...
    def set_cache(self, caches: Sequence[tuple[Any, ...]]) -> None: ...
    def forward(
        self,
        ids: Any,
        position: Any,
        slot: Any,
        query_start: Any,
        context_len: Any,
        block_table: Any,
        sampled_rows: Any,
        ropes: Sequence[tuple[Any, Any]],
        masks: Any | None,
        restricted: Any | None,
        logits: Any,
        maxima: Any | None,
        num_layers: int = 0,
    ) -> None: ...
    def forward_ahead(
        self,
        ids: Any,
        position: Any,
        block_table: Any,
        ropes: Sequence[tuple[Any, Any]],
        vocab_size: int,
        settings: Sequence[tuple[float, int, float, float]],
        uniforms: Any,
        stop_ids: Sequence[int],
        logits: Any,
    ) -> list[list[int]]: ...

def cpu_isa() -> str: ...
def cpu_isas() -> list[str]: ...
def cpu_set_isa(name: str) -> None: ...
def cpu_threads() -> int: ...
def cpu_set_threads(threads: int) -> None: ...

# --- sampling -------------------------------------------------------------------------------------------------------
# safegen.kernels.sampling is the face for everybody else.

def cpu_sample(
    logits: NDArray[np.float32],
    vocab_size: int,
    words: NDArray[np.int32] | None,
    draws: Sequence[tuple[tuple[float, int, float, float], int, int | None, float]],
    maxima: NDArray[np.float32] | None = None,
) -> tuple[list[int], list[tuple[int, int, float]]]:
    """logits: [rows, >= vocab_size]. words: [mask rows, ceil(vocab_size / 32)]. draws, a list: ((temperature, top_k,
    top_p, min_p), row, mask row, uniform). maxima: [rows, blocks of 64 ids]. Returns an id a draw, and (place, fault,
    score) of the draws that failed, whose id means nothing; fault: 1 the mask is empty, 2 every legal logit is -inf, 3
    NaN or infinite."""

def cpu_uniform(seed: int, index: int, position: int, attempt: int) -> float:
    """The number in [0, 1) of these unsigned 64-bit words."""
