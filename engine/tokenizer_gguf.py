"""A tokenizer from a GGUF file's own metadata (keys `tokenizer.ggml.*`), without any other file.

`tokenizer.ggml.model` names the kind: "gpt2" is byte-level BPE with the file's merges and a pre-tokenizer that
`tokenizer.ggml.pre` names; "llama" is SentencePiece BPE, which has scores instead of merges: a piece of the best score
is merged first, so the merges are every split of a piece into two pieces, in the order of the pieces' scores.
Token types: 1 normal, 2 unknown, 3 control, 4 user-defined (matched whole in any text), 5 unused, 6 byte.

A pre-tokenizer or kind that is not known is refused: cutting text in other places than the model was trained with
gives other ids and a silently worse model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from safegen.engine.control_tokens import ControlToken, ControlTokens
from safegen.engine.token_bytes import SPACE_MARK, byte_level_bytes, byte_piece_value, sentencepiece_bytes
from safegen.engine.tokenizer_parts import END_OF_TURN_STRINGS, TokenizerParts, build_backends
from safegen.errors import ModelLoadError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_KEY = "tokenizer.ggml."
_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_STRING_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
# Phi-3's control tokens swallow the whitespace after them; its GGUF files cannot say so.
_PHI3_KEEPS_SPACE = ("<unk>", "<s>", "<|endoftext|>")

_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2_SPLIT = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_HEAD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_CASED_TAIL = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_TEKKEN_SPLIT = rf"{_CASED_HEAD}|{_CASED_TAIL}|\p{{N}}|{_REST_WITH_SLASH}"
_GPT4O_SPLIT = rf"{_CASED_HEAD}{_CONTRACTIONS}?|{_CASED_TAIL}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_REST_WITH_SLASH}"

# Name -> the patterns that cut the text one after another; each match stands alone, so does what lies between.
PRE_TOKENIZERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "exaone4"), (_GPT2_SPLIT,)),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), (r"\p{N}", _GPT2_SPLIT)
    ),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "dbrx", "smaug-bpe"),
        (_LLAMA3_SPLIT,),
    ),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), (_QWEN2_SPLIT,)),
    "tekken": (_TEKKEN_SPLIT,),
    **dict.fromkeys(("gpt-4o", "llama4"), (_GPT4O_SPLIT,)),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_SPLIT, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
# A word that is a token is taken whole, even where the merges would not reach it.
_WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken"})
_ADDS_BOS = _WHOLE_WORDS_FIRST  # where the file does not say, as llama.cpp does
_NORMALIZES_NFC = frozenset({"qwen2", "deepseek-r1-qwen"})


def parts_from_gguf(metadata: Mapping[str, Any], source: str) -> TokenizerParts:
    """metadata: the file's key-value pairs, arrays as sequences. source: the file, for messages."""
    reader = _Reader(metadata, source)
    kind = reader.kind
    base = _byte_level(reader) if kind == "gpt2" else _sentencepiece(reader)
    control = ControlTokens(_control_tokens(reader))
    _add_tokens(base, reader)
    bos_id = reader.optional_id("bos_token_id")
    return TokenizerParts(
        backends=build_backends(base, source, prefix=" " if reader.adds_space and not reader.is_phi3 else ""),
        token_bytes=_token_bytes(reader),
        control=control,
        stop_ids=_stop_ids(reader),
        bos_id=bos_id,
        eos_id=reader.optional_id("eos_token_id"),
        prefix_ids=(bos_id,) if bos_id is not None and reader.adds_bos else (),
        special_strings={
            name: reader.tokens[token_id]
            for name, key in _STRING_KEYS.items()
            if (token_id := reader.optional_id(key)) is not None
        },
        chat_template=reader.chat_template,
    )


class _Reader:
    """The metadata, checked where it is read."""

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self._metadata = metadata
        self._source = source
        self.kind: Literal["gpt2", "llama"] = self._read_kind()
        self.tokens: list[str] = [str(token) for token in self._array("tokens")]
        if not self.tokens:
            raise self.error(f"{_KEY}tokens is empty")
        types = metadata.get(_KEY + "token_type")
        normal = np.full(len(self.tokens), _NORMAL)
        self.types: NDArray[np.int64] = normal if types is None else np.asarray(types, dtype=np.int64)
        if len(self.types) != len(self.tokens):
            raise self.error(f"{_KEY}token_type has {len(self.types)} entries for {len(self.tokens)} tokens")
        self.pre = str(metadata.get(_KEY + "pre", "default"))
        self.is_phi3 = metadata.get("general.architecture") == "phi3"

    def error(self, message: str, hint: str = "re-export or download the file again") -> ModelLoadError:
        return ModelLoadError(message, path=self._source, hint=hint)

    def _read_kind(self) -> Literal["gpt2", "llama"]:
        match self._metadata.get(_KEY + "model"):
            case "gpt2":
                return "gpt2"
            case "llama":
                return "llama"
            case other:
                raise self.error(
                    f"{_KEY}model is {other!r}; known are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece)",
                    "use a model of another family, or a Hugging Face folder with tokenizer.json",
                )

    def _array(self, name: str) -> Sequence[Any]:
        value = self._metadata.get(_KEY + name)
        if value is None or isinstance(value, str) or not hasattr(value, "__len__"):
            raise self.error(f"{_KEY}{name} is missing, or not an array")
        found: Sequence[Any] = value
        return found

    def merges(self) -> list[tuple[str, str]]:
        pairs = [tuple(str(merge).split(" ", 1)) for merge in self._array("merges")]
        for pair in pairs:
            if len(pair) != 2:
                raise self.error(f"{_KEY}merges holds {pair[0]!r}, which is not two pieces")
        return pairs  # type: ignore[return-value]

    def scores(self) -> NDArray[np.float64]:
        scores = np.asarray(self._array("scores"), dtype=np.float64)
        if len(scores) != len(self.tokens):
            raise self.error(f"{_KEY}scores has {len(scores)} entries for {len(self.tokens)} tokens")
        return scores

    def optional_id(self, name: str) -> int | None:
        value = self._metadata.get(_KEY + name)
        if value is None:
            return None
        if not 0 <= int(value) < len(self.tokens):
            raise self.error(f"{_KEY}{name} is {value}, but there are {len(self.tokens)} tokens")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        return bool(self._metadata.get(_KEY + name, default))

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Control and unknown tokens, and those that keys name: without token types there are no others."""
        typed = np.flatnonzero((self.types == _CONTROL) | (self.types == _UNKNOWN)).tolist()
        named = (self.optional_id(key) for key in ("bos_token_id", "unknown_token_id", *_STOP_KEYS))
        return frozenset(typed) | {token_id for token_id in named if token_id is not None}

    @property
    def adds_bos(self) -> bool:
        return self.flag("add_bos_token", self.kind == "llama" or self.pre in _ADDS_BOS)

    @property
    def adds_space(self) -> bool:
        return self.kind == "llama" and self.flag("add_space_prefix", True)

    @property
    def chat_template(self) -> str | None:
        template = self._metadata.get("tokenizer.chat_template")
        return None if template is None else str(template)


def _byte_level(reader: _Reader) -> tokenizers.Tokenizer:
    patterns = PRE_TOKENIZERS.get(reader.pre)
    if patterns is None:
        raise reader.error(
            f"{_KEY}pre is {reader.pre!r}, an unknown pre-tokenizer; known are {', '.join(sorted(PRE_TOKENIZERS))}",
            "use the model's Hugging Face folder with its tokenizer.json",
        )
    vocab = {token: token_id for token_id, token in enumerate(reader.tokens)}
    merges = reader.merges()
    try:
        model = models.BPE(vocab=vocab, merges=merges, ignore_merges=reader.pre in _WHOLE_WORDS_FIRST)
    except Exception as error:  # tokenizers raises bare exceptions: a merge of pieces that are no tokens
        raise reader.error(f"{_KEY}merges do not fit the tokens: {error}") from error
    base = tokenizers.Tokenizer(model)
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    base.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    if reader.pre in _NORMALIZES_NFC:
        base.normalizer = normalizers.NFC()
    return base


def _sentencepiece(reader: _Reader) -> tokenizers.Tokenizer:
    vocab = {token: token_id for token_id, token in enumerate(reader.tokens)}
    unknown = reader.optional_id("unknown_token_id")
    base = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=merges_from_scores(reader.tokens, reader.types, reader.scores()),
            unk_token=None if unknown is None else reader.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    to_mark = normalizers.Replace(" ", SPACE_MARK)
    # Phi-3's reference tokenizer puts a space on every piece between control tokens, the others on a text's beginning.
    every_piece = reader.is_phi3 and reader.adds_space
    base.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), to_mark]) if every_piece else to_mark
    return base


def merges_from_scores(
    tokens: Sequence[str], types: NDArray[np.int64], scores: NDArray[np.float64]
) -> list[tuple[str, str]]:
    """Every split of a normal or user-defined piece into two such pieces, best piece first, long left parts first."""
    is_user_defined = types == _USER_DEFINED
    mergeable = np.flatnonzero((types == _NORMAL) | is_user_defined)
    # A user-defined piece is matched whole: its score is a placeholder, and SentencePiece ranks it first.
    order = np.lexsort((-scores[mergeable], ~is_user_defined[mergeable]))
    pieces = {tokens[i] for i in mergeable.tolist()}
    merges: list[tuple[str, str]] = []
    for i in mergeable[order].tolist():
        piece = tokens[i]
        for cut in range(len(piece) - 1, 0, -1):
            left = piece[:cut]
            if left in pieces:
                right = piece[cut:]
                if right in pieces:
                    merges.append((left, right))
    return merges


def _control_tokens(reader: _Reader) -> list[ControlToken]:
    return [
        ControlToken(i, content, rstrip=reader.is_phi3 and content not in _PHI3_KEEPS_SPACE)
        for i in sorted(reader.control_ids)
        if (content := reader.tokens[i])
    ]


def _add_tokens(base: tokenizers.Tokenizer, reader: _Reader) -> None:
    """User-defined tokens are matched whole in any text. Control tokens are split off elsewhere."""
    user_defined = np.flatnonzero(reader.types == _USER_DEFINED).tolist()
    base.add_tokens(
        [
            AddedToken(reader.tokens[i], normalized=False, special=False)
            for i in user_defined
            if reader.tokens[i] and i not in reader.control_ids
        ]
    )


def _token_bytes(reader: _Reader) -> tuple[bytes | None, ...]:
    without = reader.control_ids | set(np.flatnonzero(reader.types == _UNUSED).tolist())
    byte_level = reader.kind == "gpt2"
    entries: list[bytes | None] = []
    for i, (token, kind) in enumerate(zip(reader.tokens, reader.types.tolist())):
        if i in without or not token:
            entries.append(None)
        elif byte_level:
            entries.append(token.encode("utf-8") if kind == _USER_DEFINED else byte_level_bytes(token))
        else:
            entries.append((byte_piece_value(token) if kind == _BYTE else None) or sentencepiece_bytes(token))
    return tuple(entries)


def _stop_ids(reader: _Reader) -> frozenset[int]:
    named = {token_id for key in _STOP_KEYS if (token_id := reader.optional_id(key)) is not None}
    return frozenset(named | {i for i in reader.control_ids if reader.tokens[i] in END_OF_TURN_STRINGS})
