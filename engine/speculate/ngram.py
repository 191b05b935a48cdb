"""Drafts out of what was seen before: the tokens that followed the longest earlier match of the last ones.

Answers copy: values from the prompt, keys from the record before, code from code. The last tokens of a sequence are
looked for in its own prompt and output; of the longest matches the latest is taken, and what followed it is proposed,
which may run into the match itself (so a loop is proposed as often as there is room). One-hot, cut at the first token
that the constraint forbids.

Requests that share their outputs have a *corpus*, in which matches are looked for too: the earlier outputs of requests
of the same type and cache salt. Batch jobs over one schema repeat themselves. Corpora are bounded in number, each by
its tokens.
It is opt-in, since the time that an answer takes then tells something about the answers of others.

How good a guess is depends on the length of its match, so acceptance is measured by that (estimate.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Ids

from safegen.engine.sequence import Sequence
from safegen.engine.speculate.base import NO_DRAFT, Ask, Draft, legal_prefix

_MAX_MATCH = 8  # tokens; longer matches are no better
_MAX_CANDIDATES = 32  # places looked at, the latest first
_CHANCES = (0.0, 0.25, 0.45, 0.6, 0.7, 0.75, 0.8, 0.8, 0.85)  # by match length, to begin with
_MAX_CORPORA = 64
CorpusKey = tuple[int, str | None]
_MAX_CORPUS_TOKENS = 65_536


class _Index:
    """Tokens, and the places after each of them. num_retracts: of the sequence when it was last looked at."""

    __slots__ = ("ids", "num_retracts", "places")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.places: dict[int, list[int]] = {}
        self.num_retracts = 0

    def extend(self, ids: Ids[int]) -> None:
        places, place = self.places, len(self.ids)
        self.ids.extend(ids)
        for token_id in ids:
            place += 1
            known = places.get(token_id)
            if known is None:
                places[token_id] = [place]
            else:
                known.append(place)

    def longest(self, tail: Ids[int], before: int) -> tuple[int, int]:
        """(length of the longest match of the end of `tail`, place after it): the latest one, which ends before place
        `before`; (0, 0) if there is none."""
        best_length, best_place = 0, 0
        ids, num_tried = self.ids, 0
        for place in reversed(self.places.get(tail[-1], ())):
            if place >= before:
                continue
            length = 1
            while length < len(tail) and length < place and ids[place - 1 - length] == tail[-1 - length]:
                length += 1
            if length > best_length:
                best_length, best_place = length, place
            num_tried += 1
            if best_length == len(tail) or num_tried == _MAX_CANDIDATES:
                break
        return best_length, best_place


class NgramDrafter:
    """Keeps an index of each sequence it was asked for, and the outputs of those that share them."""

    name = "ngram"
    is_costly = False

    def __init__(self) -> None:
        self._indexes: dict[Sequence, _Index] = {}
        self._corpora: OrderedDict[CorpusKey, _Index] = OrderedDict()

    def propose(self, asks: Ids[Ask]) -> Ids[Draft]:
        return [self._propose(ask) for ask in asks]

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended: its output joins its corpus."""
        self._indexes.pop(sequence, None)
        key = self._corpus_key(sequence)
        if key is None or not sequence.num_output_tokens:
            return
        corpus = self._corpora.get(key)
        if corpus is None or len(corpus.ids) > _MAX_CORPUS_TOKENS:
            corpus = self._corpora[key] = _Index()
        self._corpora.move_to_end(key)
        corpus.extend(sequence.output_ids(0, sequence.num_output_tokens))
        if len(self._corpora) > _MAX_CORPORA:
            self._corpora.popitem(last=False)

    @staticmethod
    def _corpus_key(sequence: Sequence) -> CorpusKey | None:
        request = sequence.request
        if not request.shares_output or request.type_key is None:
            return None
        return request.type_key, request.cache_salt

    def _propose(self, ask: Ask) -> Draft:
        index = self._index_of(ask.sequence)
        tail = (*index.ids[-_MAX_MATCH:], *ask.prefix)[-_MAX_MATCH:]
        length, place = index.longest(tail, len(index.ids) if not ask.prefix else len(index.ids) + 1)
        found = _following(index.ids, place, ask.prefix, ask.room) if length else ()
        key = self._corpus_key(ask.sequence)
        corpus = None if key is None else self._corpora.get(key)
        if corpus is not None and length < len(tail):
            other_length, place = corpus.longest(tail, len(corpus.ids))
            if other_length > length:
                length, found = other_length, tuple(corpus.ids[place : place + ask.room])
        num_legal = legal_prefix(ask.sequence.constraint, ask.prefix, found) if found else 0
        if not num_legal:
            return NO_DRAFT
        lengths = [min(length + at, _MAX_MATCH) for at in range(num_legal)]
        return Draft(found[:num_legal], None, tuple(_CHANCES[each] for each in lengths), tuple(lengths))

    def _index_of(self, sequence: Sequence) -> _Index:
        index = self._indexes.get(sequence)
        if index is None or index.num_retracts != sequence.num_retracts:
            index = self._indexes[sequence] = _Index()
            index.num_retracts = sequence.num_retracts
        index.extend(sequence.token_ids(len(index.ids), sequence.num_tokens))
        return index


def _following(ids: list[int], place: int, prefix: tuple[int, ...], room: int) -> tuple[int, ...]:
    """What comes after a place, on into the prefix and into itself."""
    found: list[int] = []
    num_ids, num_known = len(ids), len(ids) + len(prefix)
    for at in range(place, place + room):
        if at < num_ids:
            found.append(ids[at])
        elif at < num_known:
            found.append(prefix[at - num_ids])
        else:
            found.append(found[at - num_known])
    return tuple(found)
