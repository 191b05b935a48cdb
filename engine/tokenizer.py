"""Text to token ids and token ids to exact bytes, for a GGUF file or a Hugging Face folder.

Three promises:
- `token_bytes[i]` are exactly the bytes that id i contributes to an output; None for ids that are no text.
- Text from outside never becomes a control token: "<|im_end|>" in a message is encoded as those ten characters. Only
  the chat template's own control strings, or a caller with `parse_special=True`, yield control ids.
- `stop_ids` is the one shared stop set of this model: what the tokenizer, the generation config, the model config and
  the well-known end-of-turn strings say, together.

The text of an output is the concatenation of its tokens' bytes, decoded (detokenizer.py). Immutable and thread-safe.
Not offered: adding tokens, padding, truncation, pairs, offsets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from safegen.engine.chat_template import ChatTemplate
from safegen.engine.control_tokens import ControlToken, ControlTokens
from safegen.engine.token_bytes import pad_to_model
from safegen.engine.tokenizer_parts import Backends, TokenizerParts
from safegen.errors import ModelLoadError, RequestError


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Build it with `load` (or `from_gguf_metadata`, for a file that is open already).

    token_bytes: one entry an id of the model's vocabulary. stop_ids: the shared stop set. bos_id, eos_id: None if the
    model has none. chat_template: the template's text, None if the model has none (a plain layout is used then).
    """

    token_bytes: Sequence[bytes | None] = field(repr=False)
    stop_ids: frozenset[int]
    bos_id: int | None
    eos_id: int | None
    chat_template: str | None = field(repr=False)
    _backends: Backends = field(repr=False)
    _control: ControlTokens = field(repr=False)
    _prefix_ids: tuple[int, ...] = field(repr=False)
    _template: ChatTemplate = field(repr=False)
    _never_from_text: frozenset[int] = field(repr=False)

    @classmethod
    def load(cls, path: str | Path, model_vocab_size: int | None = None) -> Tokenizer:
        """path: a GGUF file or a folder with tokenizer.json. model_vocab_size: logits a row of the model, where it
        differs from the tokenizer's vocabulary: ids beyond the tokenizer have no bytes, ids beyond the model are cut.

        Raises ModelLoadError that names the file, the key and the fix.
        """
        path = Path(path)
        if path.is_dir():
            from safegen.engine.tokenizer_hf import parts_from_folder

            return cls._from_parts(parts_from_folder(path), model_vocab_size, str(path))
        from safegen.engine.gguf import GgufFile

        return cls.from_gguf_metadata(GgufFile(path).metadata, str(path), model_vocab_size)

    @classmethod
    def from_gguf_metadata(
        cls, metadata: Mapping[str, Any], source: str, model_vocab_size: int | None = None
    ) -> Tokenizer:
        """As `load`, from the key-value pairs of a GGUF file. source: the file's name, for messages."""
        from safegen.engine.tokenizer_gguf import parts_from_gguf

        return cls._from_parts(parts_from_gguf(metadata, source), model_vocab_size, source)

    @classmethod
    def _from_parts(cls, parts: TokenizerParts, model_vocab_size: int | None, source: str) -> Tokenizer:
        if model_vocab_size is not None and model_vocab_size < 1:
            raise ModelLoadError(f"model_vocab_size is {model_vocab_size}", path=source, hint="pass the logits a row")
        token_bytes = pad_to_model(parts.token_bytes, model_vocab_size)
        inside = len(token_bytes)
        stop_ids = frozenset(i for i in parts.stop_ids if i < inside)
        if not stop_ids:
            raise ModelLoadError(
                "no stop token is known, so no output could end",
                path=source,
                hint="name eos_token in tokenizer_config.json, or eos_token_id in generation_config.json",
            )
        control = parts.control.below(inside)
        # The unknown token stands for text outside the vocabulary; every other control id is no text.
        unknown = control.by_content().get(parts.special_strings.get("unk_token", ""))
        # A stop id ends the output; it never contributes text.
        token_bytes = tuple(None if i in stop_ids else entry for i, entry in enumerate(token_bytes))
        return cls(
            token_bytes=token_bytes,
            stop_ids=stop_ids,
            bos_id=parts.bos_id,
            eos_id=parts.eos_id,
            chat_template=parts.chat_template,
            _backends=parts.backends,
            _control=control,
            _prefix_ids=parts.prefix_ids,
            _template=ChatTemplate(parts.chat_template, parts.special_strings, source=source),
            _never_from_text=control.ids - ({unknown} - stop_ids),
        )

    @property
    def vocab_size(self) -> int:
        """Entries of `token_bytes`: the model's vocabulary, padded ids included."""
        return len(self.token_bytes)

    @property
    def control_tokens(self) -> dict[str, int]:
        """The strings that stand for control ids in a template."""
        return self._control.by_content()

    @property
    def adds_space_prefix(self) -> bool:
        """Whether `encode` puts a space in front of a text's first word (SentencePiece's dummy prefix)."""
        return self._backends.adds_space

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest over token bytes and stop ids: equal where every constraint means the same."""
        digest = hashlib.sha256()
        lengths = [-1 if entry is None else len(entry) for entry in self.token_bytes]
        digest.update(np.asarray(lengths, dtype="<i8").tobytes())
        digest.update(b"".join(entry for entry in self.token_bytes if entry is not None))
        digest.update(np.asarray(sorted(self.stop_ids), dtype="<i8").tobytes())
        return digest.hexdigest()

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text from its beginning.

        add_special: put BOS in front if this tokenizer does so. parse_special: control strings in `text` become
        control ids; never set it for text from outside.
        """
        _check_text(text)
        pieces: list[str | ControlToken] = self._control.split(text) if parse_special else [text]
        prefix = list(self._prefix_ids) if add_special else []
        return prefix + self._encode_pieces(pieces)

    def encode_continuation(self, text: str) -> list[int]:
        """Token ids of text that continues other text: no BOS, no dummy space, no normalization, so that their bytes
        concatenate to `text` wherever the vocabulary covers it. This is how forced output text is tokenized."""
        _check_text(text)
        return self._plain(self._backends.exact, text)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **template_arguments: Any,
    ) -> list[int]:
        """Token ids of a conversation, laid out by the model's chat template. No text in the messages or arguments
        can become a control token. Raises RequestError for bad messages or arguments (chat_template.py lists both)."""
        pieces = self._template.render_pieces(
            messages, self._control, add_generation_prompt=add_generation_prompt, **template_arguments
        )
        prefix = [] if self._template.is_native else list(self._prefix_ids)
        return prefix + self._encode_pieces(pieces)

    def decode(self, ids: Iterable[int], *, from_start: bool = False) -> str:
        """The text of some ids; control ids contribute nothing, invalid bytes become U+FFFD.

        from_start: the ids are those of `encode(text)`; the dummy space it put in front is taken off again.
        """
        text = self.bytes_of(ids).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if from_start and self.adds_space_prefix else text

    def bytes_of(self, ids: Iterable[int]) -> bytes:
        """The concatenated bytes of some ids."""
        chunks: list[bytes] = []
        for token_id in ids:
            if not 0 <= token_id < len(self.token_bytes):
                raise RequestError(
                    f"token id {token_id} is outside the vocabulary of {self.vocab_size}", field="ids", value=token_id
                )
            chunks.append(self.token_bytes[token_id] or b"")
        return b"".join(chunks)

    def _encode_pieces(self, pieces: Iterable[str | ControlToken]) -> list[int]:
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            if isinstance(piece, ControlToken):
                ids.append(piece.id)
            elif index > 0:
                ids += self._plain(self._backends.later, piece)
            elif piece:
                ids += self._plain(self._backends.start, self._backends.prefix + piece)
        return ids

    def _plain(self, backend: tokenizers.Tokenizer, text: str) -> list[int]:
        """Ids of `text` as plain text. A Unigram vocabulary may hold control strings as ordinary pieces: there the text
        is cut inside each such string, so that no piece can match it."""
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        if self._control.ids.isdisjoint(ids):
            return ids
        for index, part in enumerate(self._control.cut(text)):
            view = self._backends.exact if index else backend
            ids = (ids if index else []) + view.encode(part, add_special_tokens=False).ids
        forged = self._never_from_text.intersection(ids)
        if forged:
            raise RequestError(f"the tokenizer makes control ids {sorted(forged)} of plain text", field="text")
        return ids


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise RequestError(f"text must be a str, got {type(text).__name__}", field="text", value=text)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"text holds a lone surrogate at character {error.start}, which no UTF-8 text can", field="text"
        ) from None
