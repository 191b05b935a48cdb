"""Drafts out of what was seen before: the tokens that followed the longest earlier match of the last ones.

Answers copy: values from the prompt, keys from the record before, code from code. The last tokens of a sequence are
looked for in its own prompt and output; of the longest matches the latest is taken, and what followed it is proposed,
which may run into the match itself (so a loop is proposed as often as there is room). A token with a space in front
matches the same token without, since a value in quotes begins without the space that it has in a sentence. One-hot, cut
at the first token that the constraint forbids.

Where a copied value ends, the text goes on but the answer closes: in place of the first punctuation that follows (or of
what is forbidden) the token is proposed that has closed values of this field most often (closers.py), so that forced
text can follow in the same draft. Where the value has ended for good, what follows is forced, and nothing is added.

Requests that share their outputs have a *corpus*, in which matches are looked for too: the earlier outputs of requests
of the same type and cache salt. Batch jobs over one schema repeat themselves. Corpora are bounded in number, each by
its tokens. They are opt-in, since the time that an answer takes then tells something about the answers of others.

How good a guess is depends on the length of its match, and on whether it begins a value, so acceptance is measured by
these (estimate.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from collections.abc import Sequence as Ids

from safegen.engine.sequence import Sequence
from safegen.engine.speculate.base import NO_DRAFT, Ask, Draft, legal_prefix
from safegen.engine.speculate.closers import Closers, Standing

_MAX_MATCH = 8  # tokens; longer matches are no better
_MAX_CANDIDATES = 32  # places looked at, the latest first
_CHANCES = (0.0, 0.25, 0.45, 0.65, 0.75, 0.8, 0.85, 0.88, 0.9)  # by match length, to begin with
_MAX_CORPORA = 64
_CLOSER, _CLOSER_CHANCE = "closer", 0.5
_NEXT_CHANCE = 0.85  # of a token whose forerunners were right
CorpusKey = tuple[int, str | None]
_MAX_CORPUS_TOKENS = 65_536


class _Index:
    """Tokens, what they match as, and the places after each of them. num_retracts: of the sequence when it was last
    looked at. standing: of its output (closers.py)."""

    __slots__ = ("_same", "ids", "keys", "num_retracts", "places", "standing")

    def __init__(self, same: dict[int, int]) -> None:
        self._same = same
        self.ids: list[int] = []
        self.keys: list[int] = []
        self.places: dict[int, list[int]] = {}
        self.num_retracts = 0
        self.standing = Standing()

    def extend(self, ids: Ids[int]) -> None:
        places, place, same, keys = self.places, len(self.ids), self._same, self.keys
        self.ids.extend(ids)
        for token_id in ids:
            place += 1
            key = same.get(token_id, token_id)
            keys.append(key)
            known = places.get(key)
            if known is None:
                places[key] = [place]
            else:
                known.append(place)

    def longest(self, tail: Ids[int], before: int) -> tuple[int, int]:
        """(length of the longest match of the end of `tail`, given as keys, and the place after it): the latest one,
        which ends before place `before`; (0, 0) if there is none."""
        best_length, best_place = 0, 0
        keys, num_tried = self.keys, 0
        for place in reversed(self.places.get(tail[-1], ())):
            if place >= before:
                continue
            length = 1
            while length < len(tail) and length < place and keys[place - 1 - length] == tail[-1 - length]:
                length += 1
            if length > best_length:
                best_length, best_place = length, place
            num_tried += 1
            if best_length == len(tail) or num_tried == _MAX_CANDIDATES:
                break
        return best_length, best_place


class NgramDrafter:
    """Keeps an index of each sequence it was asked for, and the outputs of those that share them. token_bytes: of every
    id; without them no token stands for another, and nothing is closed."""

    name = "ngram"
    is_costly = False
    is_forced = False

    def __init__(self, token_bytes: Ids[bytes | None] = ()) -> None:
        self._same = _without_space(token_bytes)
        self._closers = Closers(token_bytes)
        self._indexes: dict[Sequence, _Index] = {}
        self._corpora: OrderedDict[CorpusKey, _Index] = OrderedDict()

    def propose(self, asks: Ids[Ask]) -> Ids[Draft]:
        return [self._propose(ask) for ask in asks]

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended: its output joins its corpus."""
        if sequence in self._indexes:
            self._index_of(sequence)  # how its last value was closed
            del self._indexes[sequence]
        key = self._corpus_key(sequence)
        if key is None or not sequence.num_output_tokens:
            return
        corpus = self._corpora.get(key)
        if corpus is None or len(corpus.ids) > _MAX_CORPUS_TOKENS:
            corpus = self._corpora[key] = _Index(self._same)
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
        index, same = self._index_of(ask.sequence), self._same
        tail = index.keys[-_MAX_MATCH:]
        if ask.prefix:
            tail = [*tail, *[same.get(token_id, token_id) for token_id in ask.prefix]][-_MAX_MATCH:]
        length, place = index.longest(tail, len(index.ids) + bool(ask.prefix))
        found = _following(index.ids, place, ask.prefix, ask.room) if length else ()
        key = self._corpus_key(ask.sequence) if self._corpora else None
        corpus = None if key is None else self._corpora.get(key)
        is_own = True
        if corpus is not None and length < len(tail):
            other_length, place = corpus.longest(tail, len(corpus.ids))
            if other_length > length:
                length, found, is_own = other_length, tuple(corpus.ids[place : place + ask.room]), False
        if not found:
            return NO_DRAFT
        after_close = self._closers.is_closing(tail[-1])
        field = self._closers.after(ask.prefix, index.standing).field if ask.prefix else index.standing.field
        if not self._may_pay(ask, found[0], length, after_close, field):
            return NO_DRAFT
        num_legal = legal_prefix(ask.sequence.constraint, ask.prefix, found)
        ids = self._closers.close(ask, found, num_legal, field) if is_own else found[:num_legal]
        kinds: list[Hashable] = [(min(length, 4), min(at, 3), after_close) for at in range(len(ids))]
        chances = [_CHANCES[min(length, _MAX_MATCH)], *[_NEXT_CHANCE] * (len(ids) - 1)][: len(ids)]
        if ids and ids != found[: len(ids)]:
            kinds[-1], chances[-1] = (_CLOSER, len(ids) > 1, field), _CLOSER_CHANCE
        return Draft(ids, None, tuple(chances), tuple(kinds))

    def _may_pay(self, ask: Ask, token_id: int, length: int, after_close: bool, field: int) -> bool:
        """Whether the token found, or one that closes the value in its place, may be worth its row. Most are not where
        a batch is large, and then there is no need to ask the constraint."""
        worth, constrained = ask.worth, ask.sequence.constraint is not None
        if worth is None:
            return True
        kind, closer = (min(length, 4), 0, after_close), (_CLOSER, False, field)
        if worth.pays(kind, _CHANCES[min(length, _MAX_MATCH)]) or (constrained and worth.pays(closer, _CLOSER_CHANCE)):
            return True
        worth.left_out(closer if constrained and self._closers.is_ending(token_id) else kind)
        return False

    def _index_of(self, sequence: Sequence) -> _Index:
        index = self._indexes.get(sequence)
        if index is None or index.num_retracts != sequence.num_retracts:
            index = self._indexes[sequence] = _Index(self._same)
            index.num_retracts = sequence.num_retracts
        start = len(index.ids)
        new = sequence.token_ids(start, sequence.num_tokens)
        index.extend(new)
        if start >= sequence.num_prompt_tokens:
            ids = index.ids[start - 1 :]
            index.standing = self._closers.count(sequence.request.type_key, ids, index.standing)
        return index


def _following(ids: list[int], place: int, prefix: tuple[int, ...], room: int) -> tuple[int, ...]:
    """What comes after a place, on into the prefix and into itself."""
    num_ids, num_known = len(ids), len(ids) + len(prefix)
    found = ids[place : place + room]
    for at in range(place + len(found), place + room):
        if at < num_ids:
            found.append(ids[at])
        elif at < num_known:
            found.append(prefix[at - num_ids])
        else:
            found.append(found[at - num_known])
    return tuple(found)


def _without_space(token_bytes: Ids[bytes | None]) -> dict[int, int]:
    """Tokens that begin with a space -> the same without it."""
    bare = {piece: token_id for token_id, piece in enumerate(token_bytes) if piece and not piece.startswith(b" ")}
    spaced = ((token_id, piece) for token_id, piece in enumerate(token_bytes) if piece and piece.startswith(b" "))
    return {token_id: bare[piece[1:]] for token_id, piece in spaced if piece[1:] in bare}
