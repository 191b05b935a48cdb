"""Small tokenizers in the Hugging Face layout, trained on a few lines when a test asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

_LINES = [
    "The quick brown fox jumps over the lazy dog, 1234 times.",
    'Hello world! {"name": "Ada", "age": 36} [1, 2, 3]',
    "Größe, naïve café, 漢字かな, привет мир, مرحبا 😀🎉",
    "def f(x):\n    return x + 1\n",
] * 4
CONTROL = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>"]


def _save(tokenizer: Tokenizer, folder: Path, chat_template: str | None, config: dict[str, Any]) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(named | config))
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)


def save_byte_level(folder: Path, chat_template: str | None = None, **config: Any) -> None:
    """Byte-level BPE as in GPT-2 and Llama 3, with control tokens that strip and a non-special added token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=CONTROL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    tokenizer.add_special_tokens([AddedToken("<|l|>", lstrip=True), AddedToken("<|r|>", rstrip=True)])
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False), AddedToken("é😀", special=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    _save(tokenizer, folder, chat_template, config)


def save_sentencepiece(folder: Path, kind: str, prepend: str, **config: Any) -> None:
    """SentencePiece look-alikes. kind: "bpe" or "unigram". prepend: "first", "always", "never" (Metaspace), or
    "legacy" (the Prepend normalizer)."""
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    alphabet_trainer: Any
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        alphabet_trainer = trainers.BpeTrainer(
            vocab_size=600, special_tokens=[*CONTROL, *byte_pieces], limit_alphabet=60, show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        alphabet_trainer = trainers.UnigramTrainer(
            vocab_size=450, special_tokens=[*CONTROL, *byte_pieces], unk_token="<unk>", show_progress=False
        )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    tokenizer.train_from_iterator(_LINES, alphabet_trainer)
    stored = json.loads(tokenizer.to_str())
    stored["model"]["byte_fallback"] = True
    # The trainer adds byte pieces as special tokens; in real files they are only vocabulary.
    stored["added_tokens"] = [entry for entry in stored["added_tokens"] if entry["content"] in CONTROL]
    tokenizer = Tokenizer.from_str(json.dumps(stored))
    replace = normalizers.Replace(" ", "▁")
    if prepend == "legacy":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
        tokenizer.pre_tokenizer = None  # type: ignore[assignment]
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    _save(tokenizer, folder, None, config)


def save_wordpiece(folder: Path) -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    _save(tokenizer, folder, None, {})
