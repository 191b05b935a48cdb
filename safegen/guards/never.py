"""`Never`: what must not be said cannot be sampled.

At the decoding stage a `Never` is no check of finished text: its automaton is intersected with the type that an answer
is held to, on decoded values, so no token that would complete a phrase is ever legal, however it is spelled in tokens,
escapes, ligatures or look-alikes, and no legal token leads where only a phrase could follow. A type of which nothing
is left is refused when it is compiled, with the field's name. Overlong forms and lone surrogates are no text at all.

In the other stages `find` scans text that is there: of phrases that end at one place the longest, in time linear in the
text, and the leftmost longest matches of a regex. A regex such as `a|[ab]*c`, of which each short match has to look far
ahead for a longer one, may take time quadratic in the text; it is given up after `timeout_s` (5 s by default), which
counts as a guard that failed. Match spans are those of the text as it is, not of its fold.

With `word`, symbols that fold to letters (™) are read in two ways: all of them as letters, and all as symbols, with
which no word goes on. A phrase counts that either reading finds.

What it does not promise: paraphrase, other encodings (base64, leet beyond the look-alikes), and text that only several
fields together spell.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from safegen.errors import GrammarError, RequestError
from safegen.grammars.bans import Ban, BanPath, Phrases, Search, Step
from safegen.grammars.regex_syntax import parse_regex
from safegen.grammars.regex_tree import Kind, Pattern
from safegen.guards.base import Guard, GuardView, Match, Stage
from safegen.guards.folded_regex import fold_tree, re2_text, sets_of
from safegen.guards.folding import FOLDS, Fold, folding, is_word
from safegen.guards.letters import phrase_letters, set_letters
from safegen.guards.scopes import Scope, parse_scope

__all__ = ["Never"]

_MAX_PHRASES, _MAX_PHRASE_CHARS = 100_000, 1_000
_REGEX_SECONDS = 5.0
_NO_PHRASE = "\ud800"  # what a symbol is that is read as one: stands in no phrase
_MAX_DEPTH, _MAX_CHARS, _MAX_COUNT = 200, 10_000, 10_000


class Never(Guard):
    """Phrases and regexes that an answer cannot hold.

    phrases: texts. regexes: in ECMA-262 syntax as far as RE2 has it: no look-around, no back-references. fold: what
    counts as the same text: "exact", "case", "compat" (case, NFKD, marks and invisible characters dropped) or
    "skeleton" (look-alikes, too). word: a phrase counts only where no letter, mark, number or connector touches it.
    where: in JSON, the fields; default all string values and keys. The other settings are those of every guard.

    Raises RequestError for a phrase of which the fold leaves nothing, and for a regex that cannot be served.
    """

    default_stages: ClassVar[tuple[Stage, ...]] = ("decoding",)
    inline: ClassVar[bool] = True

    def __init__(
        self,
        *,
        phrases: Sequence[str] = (),
        regexes: Sequence[str] = (),
        fold: Fold = "compat",
        word: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if self.on_fail == "log":  # nothing is banned: what decoding would have been kept from is looked for afterwards
            self.stages = tuple(dict.fromkeys("output" if stage == "decoding" else stage for stage in self.stages))
        self.phrases, self.regexes = _texts("phrases", phrases), _texts("regexes", regexes)
        if fold not in FOLDS:
            raise RequestError(f"fold={fold!r} is not one of {', '.join(map(repr, FOLDS))}", field="fold", value=fold)
        if not isinstance(word, bool):
            raise RequestError(f"word={word!r} is not True or False", field="word", value=word)
        if not self.phrases and not self.regexes:
            raise RequestError("Never needs phrases or regexes", field="phrases", value=phrases)
        self.fold: Fold = fold
        self.word = word
        self._folding = folding(fold)
        self._folded = tuple(dict.fromkeys(map(self._folded_phrase, self.phrases)))
        self._trees = tuple(map(self._tree, self.regexes))
        self._scopes = tuple(parse_scope(path) for path in self.where or ())
        longest = max(map(len, self._folded), default=0)
        # Characters that fold to nothing may stand within a phrase in any number.
        self.max_match = None if self.regexes or self._folding.dropped else longest
        self.look_ahead = self.look_behind = int(word)

    def find(self, view: GuardView) -> Sequence[Match]:
        folded, offsets = self._folding.with_offsets(view.text)
        spans = list(self._regexes_in(folded))
        if self._folded and self._may_hold.search(folded):
            spans += self._phrases_in(folded, view.final)
            if self.word and not self._folding.symbols.isdisjoint(view.text):
                is_symbol = [char in self._folding.symbols for char in view.text]
                read = "".join(_NO_PHRASE if is_symbol[at] else char for char, at in zip(folded, offsets, strict=True))
                spans += self._phrases_in(read, view.final)
        return [Match(offsets[start], offsets[end - 1] + 1, rule) for start, end, rule in dict.fromkeys(spans)]

    def folded(self, text: str) -> str:
        """What phrases and regexes are looked for in."""
        return self._folding.text(text)

    @property
    def reach(self) -> int | None:
        """Characters of folded text that decide about a match from its start on; None with regexes."""
        return None if self.regexes else max(map(len, self._folded), default=0) + 1

    def may_hold(self, text: str) -> bool:
        """Whether `find` finds something, but for word boundaries; quicker than that."""
        folded = self._folding.text(text)
        if self._folded and self._may_hold.search(folded):
            return True
        return any(pattern.search(folded) is not None for pattern in self._patterns)

    def automaton(self, scope: str) -> Ban | None:
        """The ban that decoding is held to; None where the decoding stage is left out. It names its own scope."""
        return self.ban if "decoding" in self.stages and self.on_fail != "log" else None

    @cached_property
    def ban(self) -> Ban:
        parts: list[Phrases | Search] = []
        if self._folded:
            table, words = phrase_letters(self._folding, self._folded, word=self.word)
            phrases = tuple(tuple(map(ord, phrase)) for phrase in self._folded)
            parts.append(Phrases(table, phrases, self.word, words if self.word else ()))
            if self.word and (symbols := self._folding.symbols):
                table, words = phrase_letters(self._folding, self._folded, word=True, symbols=symbols)
                parts.append(Phrases(table, phrases, True, words))
        for tree in self._trees:
            letters, among = set_letters(self._folding, sets_of(tree))
            parts.append(Search(letters, _mapped(tree, among)))
        return Ban(self.name, tuple(parts), tuple(map(_ban_path, self._scopes)))

    def _folded_phrase(self, phrase: str) -> str:
        folded = self._folding.text(phrase)
        if not folded or len(phrase) > _MAX_PHRASE_CHARS or any("\ud800" <= char <= "\udfff" for char in phrase):
            wanted = f"1 to {_MAX_PHRASE_CHARS:,} characters of text, of which fold={self.fold!r} leaves some"
            raise RequestError(
                f"a phrase of {len(phrase):,} characters cannot be banned: it takes {wanted}", field="phrases"
            )
        return folded

    def _tree(self, pattern: str) -> Pattern:
        try:
            parsed = parse_regex(pattern, max_depth=_MAX_DEPTH, max_chars=_MAX_CHARS, max_count=_MAX_COUNT)
            tree = fold_tree(parsed, self._folding)
            _re2(re2_text(tree))  # edited text is scanned for what decoding was held to
            return tree
        except (GrammarError, RequestError) as error:
            raise RequestError(f"regexes={pattern!r:.80}: {error}", field="regexes", value=pattern) from error

    def _phrases_in(self, folded: str, final: bool) -> Iterator[tuple[int, int, str]]:
        """Half-open spans of the folded text, with their rule."""
        last_end = 0
        for start, end in _occurrences(folded, self._trie):
            if end > last_end and (not self.word or _stands_alone(folded, start, end, final)):
                last_end = end
                yield start, end, "phrase"

    def _regexes_in(self, folded: str) -> Iterator[tuple[int, int, str]]:
        ends = time.monotonic() + (self.timeout_s or _REGEX_SECONDS)
        for pattern in self._patterns:
            for found in pattern.finditer(folded):
                if found.end() > found.start():
                    yield found.start(), found.end(), "regex"
                if time.monotonic() > ends:
                    raise TimeoutError("regexes whose matches look far ahead take too long on this text")

    @cached_property
    def _may_hold(self) -> Any:
        return _re2("|".join(map(re.escape, self._folded)))

    @cached_property
    def _patterns(self) -> list[Any]:
        return [_re2(re2_text(tree)) for tree in self._trees]

    @cached_property
    def _trie(self) -> _Trie:
        return _Trie(self._folded)


class _Trie:
    """The automaton of Aho and Corasick (1975). lengths: of the phrases that end at each node, the longest first."""

    def __init__(self, phrases: Sequence[str]) -> None:
        self.edges: list[dict[str, int]] = [{}]
        self.fail = [0]
        self.lengths: list[tuple[int, ...]] = [()]
        for phrase in phrases:
            node = 0
            for char in phrase:
                node = self.edges[node].setdefault(char, len(self.edges))
                if node == len(self.edges):
                    self.edges.append({})
                    self.fail.append(0)
                    self.lengths.append(())
            self.lengths[node] = (len(phrase),)
        order = [0]
        for node in order:
            for char, kid in self.edges[node].items():
                order.append(kid)
                if node:
                    self.fail[kid] = self.step(self.fail[node], char)
                    self.lengths[kid] += self.lengths[self.fail[kid]]

    def step(self, node: int, char: str) -> int:
        while char not in self.edges[node]:
            if node == 0:
                return 0
            node = self.fail[node]
        return self.edges[node][char]


def _occurrences(text: str, trie: _Trie) -> Iterator[tuple[int, int]]:
    node = 0
    for end, char in enumerate(text, 1):
        node = trie.step(node, char)
        for length in trie.lengths[node]:
            yield end - length, end


def _stands_alone(text: str, start: int, end: int, final: bool) -> bool:
    if start > 0 and is_word(text[start - 1]):
        return False
    return not is_word(text[end]) if end < len(text) else final


def _re2(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = 64 << 20
    options.longest_match = True
    options.dot_nl = True
    options.never_nl = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise RequestError(f"the regex cannot be served: {error}", field="regexes") from error


def _texts(field: str, listed: Iterable[str]) -> tuple[str, ...]:
    is_list = isinstance(listed, Iterable) and not isinstance(listed, str | Mapping)
    given = (*listed,) if is_list else ("",)
    for each in given:
        if not isinstance(each, str) or not each:
            wrong = each if is_list else listed
            raise RequestError(
                f"{field}={wrong!r:.120}: Never takes a list of texts that are not empty", field=field, value=wrong
            )
    if len(given) > _MAX_PHRASES:
        raise RequestError(f"{len(given):,} {field} are more than {_MAX_PHRASES:,}", field=field)
    return given


def _mapped(tree: Pattern, among: Any) -> Pattern:
    """The tree over the characters that letters fold to."""
    from dataclasses import replace

    if tree.kind is Kind.CHARS:
        return replace(tree, ranges=among(tree.ranges))
    return replace(tree, parts=tuple(_mapped(part, among) for part in tree.parts))


def _ban_path(scope: Scope) -> BanPath:
    steps: list[Step] = []
    for selector in scope.selectors:
        if selector.deep:
            steps.append(Step("below"))
        if selector.name is None:
            steps.append(Step("any"))
        elif isinstance(selector.name, int):
            steps.append(Step("index", item=selector.name))
        else:
            steps.append(Step("name", selector.name.encode()))
    if not scope.of_keys:
        steps.append(Step("below"))
    return BanPath(tuple(steps), scope.of_keys, scope.leaves_out)
