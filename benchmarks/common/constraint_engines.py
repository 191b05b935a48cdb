"""One face over the constraint engines that are compared: compile a schema, walk it, fill a mask into one buffer.

Every engine runs on one thread and writes packed int32 rows into the caller's buffer. Caches across schemas are
emptied by `forget`; what belongs to a vocabulary alone (tries, slices, tokenizer tables) is built once and kept, for
each of them alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.vocabularies import BenchVocabulary
from tests.support.suites import SUITE_DOCUMENTS

ENGINES = ("safegen", "safegen_default", "llguidance", "xgrammar", "xgrammar_spec", "outlines")
PACKAGES = {
    "llguidance": "llguidance",
    "xgrammar": "xgrammar",
    "xgrammar_spec": "xgrammar",
    "outlines": "outlines-core",
}


class Refused(Exception):
    """The engine does not compile this schema. pointer, keyword: where it says why, if it does."""

    def __init__(self, reason: str, pointer: str | None = None, keyword: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.pointer, self.keyword = reason, pointer, keyword


@dataclass(slots=True)
class Walk:
    """One text against a compiled schema. fill: write the mask of the next token into the engine's `words`. advance:
    commit a token of the mask; False when the engine fails on it after all."""

    fill: Callable[[], object]
    advance: Callable[[int], bool]


class CompiledGrammar(Protocol):
    has_verified: bool

    def walk(self) -> Walk: ...


class Engine(Protocol):
    """words: [1, ceil(vocabulary / 32)] int32, the caller's buffer that every mask ends up in."""

    words: NDArray[np.int32]

    def forget(self) -> None:
        """Empty all caches that outlive a schema."""
        ...

    def compile(self, schema: Any, text: str, formats: str) -> CompiledGrammar:
        """schema: as parsed; text: its JSON. The engine reads the form it needs no conversion from. formats: of
        safegen's options; the other engines have their own way with formats. Raises Refused."""
        ...


def make_engine(name: str, vocabulary: BenchVocabulary) -> Engine:
    if name in ("safegen", "safegen_default"):
        return Safegen(vocabulary, every_spelling=name == "safegen")
    if name == "llguidance":
        return LLGuidance(vocabulary)
    if name == "outlines":
        return Outlines(vocabulary)
    return XGrammar(vocabulary, strict=name == "xgrammar")


def _buffer(vocabulary: BenchVocabulary) -> NDArray[np.int32]:
    return np.zeros((1, -(-len(vocabulary.token_bytes) // 32)), dtype=np.int32)


class Safegen:
    """every_spelling: all spellings and property orders (the verdict of a validator); else the defaults. Both with
    flexible whitespace."""

    def __init__(self, vocabulary: BenchVocabulary, *, every_spelling: bool) -> None:
        from safegen.grammars.constraint import MaskRows
        from safegen.grammars.vocabulary import Vocabulary

        self.words = _buffer(vocabulary)
        self._rows = MaskRows(self.words, len(vocabulary.token_bytes))
        self._vocabulary = Vocabulary(vocabulary.token_bytes, vocabulary.stop_ids)
        self._every_spelling = every_spelling

    def forget(self) -> None:
        """A compiled schema owns its caches; none outlives it."""

    def compile(self, schema: Any, text: str, formats: str) -> CompiledGrammar:
        from safegen.errors import SchemaError, UnsatisfiableSchema
        from safegen.grammars.json_schema import compile_json_schema
        from safegen.grammars.options import Limits, SchemaOptions

        if self._every_spelling:
            options = SchemaOptions("flexible", "any", "any", formats, SUITE_DOCUMENTS)  # type: ignore[arg-type]
        else:
            options = SchemaOptions("flexible", formats=formats)  # type: ignore[arg-type]
        try:
            compiled = compile_json_schema(schema, options, Limits())
            return _SafegenGrammar(self, compiled)
        except UnsatisfiableSchema:
            return _NoText()
        except SchemaError as error:
            raise Refused(error.reason, error.pointer, error.keyword) from error


class _NoText:
    """What safegen found no value for: a verdict on every text, told by a typed error."""

    has_verified = False

    def walk(self) -> Walk:
        return Walk(lambda: None, lambda token: False)


class _SafegenGrammar:
    def __init__(self, engine: Safegen, compiled: Any) -> None:
        from safegen.grammars.matcher import NativeConstraint

        self._rows = engine._rows
        self._start = NativeConstraint(compiled.program, engine._vocabulary)
        self.has_verified = any(finding.handling == "verified" for finding in compiled.findings)

    def walk(self) -> Walk:
        constraint, rows, no_draft = self._start.fork(), self._rows, ()
        # A retract says that a verified value was wrong.
        return Walk(lambda: constraint.fill(no_draft, rows), lambda token: constraint.advance((token,)) is None)


class LLGuidance:
    """Default options (strict: what it cannot enforce is refused). The matcher is reset between texts, which keeps its
    lexer states."""

    def __init__(self, vocabulary: BenchVocabulary) -> None:
        from llguidance import LLTokenizer
        from llguidance.tiktoken import lltokenizer_from_encoding

        size, stop_ids = len(vocabulary.token_bytes), list(vocabulary.stop_ids)
        self.words = _buffer(vocabulary)
        native = vocabulary.native_tokenizer
        self.tokenizer = (
            LLTokenizer(native, n_vocab=size, eos_token=stop_ids)
            if isinstance(native, str)
            else lltokenizer_from_encoding(native, n_vocab=size, eos_token=stop_ids)
        )

    def forget(self) -> None:
        """A matcher owns its caches; none outlives it."""

    def compile(self, schema: Any, text: str, formats: str) -> CompiledGrammar:
        from llguidance import LLMatcher

        matcher = LLMatcher(self.tokenizer, LLMatcher.grammar_from_json_schema(text), log_level=0)
        if matcher.is_error():
            raise Refused(matcher.get_error())
        return _LLGuidanceGrammar(self, matcher)


class _LLGuidanceGrammar:
    has_verified = False

    def __init__(self, engine: LLGuidance, matcher: Any) -> None:
        self._engine, self._matcher = engine, matcher
        self._pristine: Any = None

    def walk(self) -> Walk:
        if self._pristine is None:
            self._pristine = self._matcher.deep_copy()
        elif self._matcher.is_error() or not self._matcher.reset():
            self._matcher = self._pristine.deep_copy()
        matcher, words = self._matcher, self._engine.words
        pointer, num_bytes = words.ctypes.data, words.nbytes
        return Walk(lambda: matcher.unsafe_compute_mask_ptr(pointer, num_bytes), matcher.consume_token)


class XGrammar:
    """strict: its default, which closes every object and array; else what JSON Schema says ("spec")."""

    def __init__(self, vocabulary: BenchVocabulary, *, strict: bool) -> None:
        import xgrammar

        self.words = _buffer(vocabulary)
        tokens = [entry or b"" for entry in vocabulary.token_bytes]
        info = xgrammar.TokenizerInfo(tokens, stop_token_ids=list(vocabulary.stop_ids))
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self._strict = strict

    def forget(self) -> None:
        self._compiler.clear_cache()

    def compile(self, schema: Any, text: str, formats: str) -> CompiledGrammar:
        try:
            compiled = self._compiler.compile_json_schema(text, strict_mode=self._strict)
        except Exception as error:
            raise Refused(str(error)) from error
        return _XGrammarGrammar(self.words, compiled)


class _XGrammarGrammar:
    has_verified = False

    def __init__(self, words: NDArray[np.int32], compiled: Any) -> None:
        self._words, self._compiled = words, compiled

    def walk(self) -> Walk:
        import xgrammar

        matcher, words = xgrammar.GrammarMatcher(self._compiled), self._words
        return Walk(lambda: matcher.fill_next_token_bitmask(words), matcher.accept_token)


class Outlines:
    def __init__(self, vocabulary: BenchVocabulary) -> None:
        from outlines_core import Vocabulary  # type: ignore[import-untyped]

        self.words = _buffer(vocabulary)
        tokens: dict[bytes, list[int]] = {}
        for token_id, entry in enumerate(vocabulary.token_bytes):
            if entry and token_id not in vocabulary.stop_ids:
                tokens.setdefault(entry, []).append(token_id)
        self._vocabulary = Vocabulary(vocabulary.stop_ids[0], tokens)

    def forget(self) -> None:
        """An index is built anew for each schema."""

    def compile(self, schema: Any, text: str, formats: str) -> CompiledGrammar:
        from outlines_core import Index
        from outlines_core.json_schema import build_regex_from_schema  # type: ignore[import-untyped]

        try:
            index = Index(build_regex_from_schema(text), self._vocabulary)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | MemoryError):
                raise
            raise Refused(f"{type(error).__name__}: {error}") from error  # a Rust panic is a BaseException
        return _OutlinesGrammar(self.words, index)


class _OutlinesGrammar:
    has_verified = False

    def __init__(self, words: NDArray[np.int32], index: Any) -> None:
        self._words, self._index = words, index

    def walk(self) -> Walk:
        from outlines_core import Guide

        guide = Guide(self._index)
        arguments = (self._words.ctypes.data, self._words.size, self._words.itemsize)

        def advance(token: int) -> bool:
            guide.advance(token, return_tokens=False)
            return True

        return Walk(lambda: guide.write_mask_into(*arguments), advance)


def schema_text(schema: Any) -> str:
    return json.dumps(schema, ensure_ascii=False)
