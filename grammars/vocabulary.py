"""The vocabulary a constraint decodes over: token bytes as a native trie, and the one stop set."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from safegen._native import Vocabulary as NativeVocabulary


class Vocabulary:
    """Immutable; shared by all constraints of a model.

    token_bytes: one entry an id up to the model's (padded) vocabulary size; None marks ids a constraint never produces
    (special, control, unused, padded). stop_ids: ids that end an answer.
    """

    __slots__ = ("fingerprint", "native", "size", "stop_ids", "token_bytes")

    def __init__(self, token_bytes: Sequence[bytes | None], stop_ids: Iterable[int]) -> None:
        self.stop_ids = frozenset(stop_ids)
        self.native = NativeVocabulary(token_bytes, sorted(self.stop_ids))
        self.size = len(token_bytes)
        self.token_bytes = token_bytes
        digest = hashlib.blake2b(digest_size=16)
        for token in token_bytes:
            digest.update(b"\xff" if token is None else len(token).to_bytes(4, "little") + token)
        digest.update(repr(sorted(self.stop_ids)).encode())
        self.fingerprint = digest.hexdigest()
