"""A tokenizer from a Hugging Face folder: tokenizer.json, and the small JSON files beside it.

tokenizer.json is the tokenizer; tokenizer_config.json and special_tokens_map.json name its special tokens;
generation_config.json and config.json add stop ids; the chat template stands in
chat_template.jinja, chat_template.json or tokenizer_config.json, the first found. Only tokenizer.json must be there.

Served are vocabularies whose bytes are known exactly: byte-level BPE, and SentencePiece (BPE or Unigram) with its space
mark and byte fallback. What a WordPiece token contributes depends on its neighbours, so such tokenizers are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from safegen.engine.control_tokens import ControlToken, ControlTokens
from safegen.engine.token_bytes import SPACE_MARK, byte_level_bytes, byte_piece_value, sentencepiece_bytes
from safegen.engine.tokenizer_parts import END_OF_TURN_STRINGS, TokenizerParts, build_backends, component_states
from safegen.errors import ModelLoadError

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
_NEVER_TEXT = ("bos_token", "eos_token", "unk_token")


def parts_from_folder(folder: Path) -> TokenizerParts:
    base = _load_backend(folder)
    config = _read_json(folder / "tokenizer_config.json")
    named = _named_tokens(config, _read_json(folder / "special_tokens_map.json"))
    ids = {name: base.token_to_id(content) for name, content in named.items()}
    control_ids = _control_ids(base, ids)
    added: dict[int, AddedToken] = base.get_added_tokens_decoder()
    prefix_ids = _prefix_ids(base, config, ids.get("bos_token"))
    return TokenizerParts(
        backends=build_backends(base, str(folder)),
        token_bytes=_token_bytes(base, control_ids, folder),
        control=ControlTokens(
            ControlToken(i, added[i].content, added[i].lstrip, added[i].rstrip)
            if i in added
            else ControlToken(i, base.id_to_token(i) or "")
            for i in sorted(control_ids)
        ),
        stop_ids=_stop_ids(folder, base, control_ids, ids.get("eos_token")),
        bos_id=ids.get("bos_token"),
        eos_id=ids.get("eos_token"),
        prefix_ids=prefix_ids,
        special_strings=named,
        chat_template=_chat_template(folder, config),
    )


def _load_backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelLoadError(
            "there is no tokenizer.json",
            path=str(folder),
            hint="save one with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
        )
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare exceptions
        raise ModelLoadError(
            f"not a readable tokenizer.json: {error}", path=str(path), hint="download the file again"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an absent file is an empty one."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"not readable JSON: {error}", path=str(path), hint="download the file again") from error
    if not isinstance(value, dict):
        raise ModelLoadError("does not hold a JSON object", path=str(path), hint="download the file again")
    return value


def _named_tokens(config: dict[str, Any], token_map: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token, ...: name -> string. tokenizer_config.json goes before special_tokens_map.json."""
    named: dict[str, str] = {}
    for name in _NAMED:
        value = config.get(name, token_map.get(name))
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            named[name] = content
    return named


def _control_ids(base: tokenizers.Tokenizer, ids: dict[str, int | None]) -> frozenset[int]:
    added: dict[int, AddedToken] = base.get_added_tokens_decoder()
    named = (ids.get(name) for name in _NEVER_TEXT)
    special = (token_id for token_id, token in added.items() if token.special)
    unknown = getattr(base.model, "unk_token", None)
    unknown_id = None if unknown is None else base.token_to_id(unknown)
    return frozenset(i for i in (*special, *named, unknown_id) if i is not None)


def _prefix_ids(base: tokenizers.Tokenizer, config: dict[str, Any], bos_id: int | None) -> tuple[int, ...]:
    """What a text starts with: tokenizer.json's post-processor decides; where it has none, add_bos_token does.

    What a post-processor would append (EOS) is left out: a prompt has not ended.
    """
    if base.post_processor is None:
        return (bos_id,) if config.get("add_bos_token") is True and bos_id is not None else ()
    probe = base.encode("a", add_special_tokens=True)
    first_text = probe.special_tokens_mask.index(0) if 0 in probe.special_tokens_mask else 0
    return tuple(probe.ids[:first_text])


def _token_bytes(base: tokenizers.Tokenizer, control_ids: frozenset[int], folder: Path) -> tuple[bytes | None, ...]:
    added: dict[int, AddedToken] = base.get_added_tokens_decoder()
    spelling = _Spelling(base, folder)
    vocab: dict[str, int] = base.get_vocab(with_added_tokens=True)
    entries: list[bytes | None] = [None] * (max(vocab.values(), default=-1) + 1)
    for piece, token_id in vocab.items():
        if token_id in control_ids or not piece:
            continue
        entries[token_id] = piece.encode("utf-8") if token_id in added else spelling.bytes_of(piece)
    return tuple(entries)


class _Spelling:
    """How the vocabulary writes bytes, read off the decoder (off the pre-tokenizer where there is no decoder)."""

    def __init__(self, base: tokenizers.Tokenizer, folder: Path) -> None:
        leaves = component_states(base.decoder) or component_states(base.pre_tokenizer)
        kinds = {leaf["type"] for leaf in leaves}
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds or bool(getattr(base.model, "byte_fallback", False))
        self._space_mark = next(self._space_marks(leaves), None)
        if not self._byte_level and self._space_mark is None:
            raise ModelLoadError(
                f"the bytes of this tokenizer's tokens are not known (decoder: {', '.join(sorted(kinds)) or 'none'}, "
                f"model: {type(base.model).__name__})",
                path=str(folder / "tokenizer.json"),
                hint="use a model with a byte-level BPE or a SentencePiece tokenizer",
            )

    @staticmethod
    def _space_marks(leaves: list[dict[str, Any]]) -> Iterator[str]:
        for leaf in leaves:
            if leaf["type"] == "Metaspace":
                yield str(leaf.get("replacement", SPACE_MARK))
            elif leaf["type"] == "Replace" and leaf.get("content") == " ":
                yield str(leaf["pattern"].get("String", SPACE_MARK))

    def bytes_of(self, piece: str) -> bytes:
        if self._byte_level:
            return byte_level_bytes(piece)
        byte = byte_piece_value(piece) if self._byte_fallback else None
        return byte if byte is not None else sentencepiece_bytes(piece, self._space_mark or SPACE_MARK)


def _stop_ids(
    folder: Path, base: tokenizers.Tokenizer, control_ids: frozenset[int], eos_id: int | None
) -> frozenset[int]:
    config = _read_json(folder / "config.json")
    found: set[int] = set() if eos_id is None else {eos_id}
    for source in (_read_json(folder / "generation_config.json"), config, config.get("text_config") or {}):
        value = source.get("eos_token_id")
        for token_id in value if isinstance(value, list) else [value]:
            if isinstance(token_id, int) and not isinstance(token_id, bool) and token_id >= 0:
                found.add(token_id)
    return frozenset(found | {i for i in control_ids if base.id_to_token(i) in END_OF_TURN_STRINGS})


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"not readable text: {error}", path=str(path), hint="download it again") from error
    template = _read_json(folder / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(template, list):  # several by name
        by_name = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = by_name.get("default")
    return template if isinstance(template, str) else None
