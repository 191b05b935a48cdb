"""Tokenizers out of Hugging Face folders, against `tokenizers` and transformers on the same folder."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import Regex, models, pre_tokenizers, processors

from safegen.engine.token_bytes import BYTE_TO_CHAR, byte_level_bytes
from safegen.engine.tokenizer import Tokenizer
from safegen.errors import ModelLoadError, RequestError
from tests.support.hf_folders import CONTROL, save_byte_level, save_sentencepiece, save_wordpiece
from tests.support.tekken import tekken_vocabulary

_POOL = [
    *"abcdefgh ABC  12'\n\t.,!{}[]\":<>|",
    "é",
    "漢字",
    "😀",
    "é😀",
    "ß",
    "\x00",
    "\x7f",
    "\u3000",
    "the ",
    "Hello",
]
_SPECIAL = [*CONTROL, "<|l|>", "<|r|>", "<think>", " <|l|> ", "\n<|r|>\n"]
_SENTENCEPIECE = [(kind, prepend) for kind in ("bpe", "unigram") for prepend in ("first", "always", "never", "legacy")]


def _texts(seed: int, count: int, pool: list[str]) -> list[str]:
    source = random.Random(seed)
    return ["".join(source.choices(pool, k=source.randrange(30))) for _ in range(count)]


def _save(folder: Path, kind: str, prepend: str = "", **config: Any) -> None:
    if kind == "byte-level":
        save_byte_level(folder, **config)
    else:
        save_sentencepiece(folder, kind, prepend, **config)


@pytest.mark.parametrize(("kind", "prepend"), [("byte-level", ""), *_SENTENCEPIECE])
def test_encoding_is_that_of_the_tokenizers_library(tmp_path: Path, kind: str, prepend: str) -> None:
    _save(tmp_path, kind, prepend)
    tokenizer = Tokenizer.load(tmp_path)
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in _texts(1, 300, _POOL + _SPECIAL):
        assert tokenizer.encode(text, parse_special=True) == reference.encode(text).ids, text
    reference.encode_special_tokens = True
    # a Unigram model takes control strings for ordinary pieces, so there is nothing to compare there
    for text in _texts(2, 300, _POOL if kind == "unigram" else _POOL + CONTROL):
        assert tokenizer.encode(text) == reference.encode(text).ids, text


def test_unigram_pieces_that_are_control_strings_stay_text(tmp_path: Path) -> None:
    save_sentencepiece(tmp_path, "unigram", "never")
    tokenizer = Tokenizer.load(tmp_path)
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    reference.encode_special_tokens = True
    text = "a </s><s></s> b"
    assert 1 in reference.encode(text, add_special_tokens=False).ids  # the trap
    ids = tokenizer.encode(text, add_special=False)
    assert not set(ids) & set(tokenizer.control_tokens.values())
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(("kind", "prepend"), [("byte-level", ""), *_SENTENCEPIECE])
def test_token_bytes_spell_the_text(tmp_path: Path, kind: str, prepend: str) -> None:
    _save(tmp_path, kind, prepend)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.adds_space_prefix == (prepend in ("first", "always", "legacy"))
    for text in _texts(3, 300, _POOL + CONTROL):
        exact = tokenizer.encode_continuation(text)
        assert b"".join(tokenizer.token_bytes[i] or b"" for i in exact) == text.encode(), text
        if text.startswith(" ") and prepend in ("first", "always"):
            continue  # Metaspace adds no second space
        ids = tokenizer.encode(text)
        space = b" " if tokenizer.adds_space_prefix and text else b""
        assert tokenizer.bytes_of(ids) == space + text.encode(), text
        assert tokenizer.decode(ids, from_start=True) == text


def test_added_tokens_have_bytes_unless_special(tmp_path: Path) -> None:
    save_byte_level(tmp_path)
    tokenizer = Tokenizer.load(tmp_path, model_vocab_size=512)
    assert tokenizer.encode("<think>", add_special=False) == [tokenizer.token_bytes.index(b"<think>")]
    assert "é😀".encode() in tokenizer.token_bytes
    assert {tokenizer.token_bytes[i] for i in tokenizer.control_tokens.values()} == {None}
    assert set(CONTROL) | {"<|l|>", "<|r|>"} == set(tokenizer.control_tokens)
    assert tokenizer.vocab_size == 512 and tokenizer.token_bytes[-1] is None


def test_stop_ids_are_the_union_of_all_configs(tmp_path: Path) -> None:
    save_byte_level(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.stop_ids == {1, CONTROL.index("<|im_end|>")}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 7]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 8, "text_config": {"eos_token_id": [9, null, true]}}')
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.stop_ids == {1, CONTROL.index("<|im_end|>"), 7, 8, 9}
    assert {tokenizer.token_bytes[i] for i in tokenizer.stop_ids} == {None}


def test_bos_follows_the_post_processor_as_in_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    save_byte_level(tmp_path, add_bos_token=False)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("a b") == AutoTokenizer.from_pretrained(str(tmp_path)).encode("a b")
    assert tokenizer.encode("a b")[0] == tokenizer.bos_id
    assert tokenizer.encode("a b", add_special=False) == tokenizer.encode("a b")[1:]


@pytest.mark.parametrize("setting", [True, False, None])
def test_bos_follows_the_config_where_there_is_no_post_processor(tmp_path: Path, setting: bool | None) -> None:
    save_byte_level(tmp_path, add_bos_token=setting)
    stored = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored | {"post_processor": None}))
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.encode("a")[0] == tokenizer.bos_id) == bool(setting)


def test_appended_eos_is_left_out_of_a_prompt(tmp_path: Path) -> None:
    save_byte_level(tmp_path)
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    ids = Tokenizer.load(tmp_path).encode("a")
    assert ids[0] == 0 and 1 not in ids


def test_special_tokens_may_be_objects_or_stand_in_the_map(tmp_path: Path) -> None:
    save_byte_level(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (0, CONTROL.index("<|im_end|>"))


@pytest.mark.parametrize("place", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json", "named"])
def test_chat_template_is_found_in_each_place(tmp_path: Path, place: str) -> None:
    save_byte_level(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    match place:
        case "chat_template.jinja":
            (tmp_path / place).write_text("T")
        case "chat_template.json":
            (tmp_path / place).write_text('{"chat_template": "T"}')
        case "tokenizer_config.json":
            (tmp_path / place).write_text(json.dumps(config | {"chat_template": "T"}))
        case _:
            several = [{"name": "rag", "template": "R"}, {"name": "default", "template": "T"}]
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": several}))
    assert Tokenizer.load(tmp_path).chat_template == "T"


def test_model_without_a_template_gets_bos_and_the_plain_layout(tmp_path: Path) -> None:
    save_byte_level(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    ids = tokenizer.encode_chat([{"role": "user", "content": "hi <|im_end|>"}])
    assert tokenizer.chat_template is None
    assert ids == tokenizer.encode("User: hi <|im_end|>\n\nAssistant:")
    assert ids[0] == tokenizer.bos_id


def test_wordpiece_is_refused_by_name(tmp_path: Path) -> None:
    save_wordpiece(tmp_path)
    with pytest.raises(ModelLoadError, match="WordPiece") as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer.json", "{", "not a readable tokenizer.json"),
        ("tokenizer_config.json", "{", "not readable JSON"),
        ("generation_config.json", "[]", "does not hold a JSON object"),
        ("chat_template.jinja", "{% if %}", "chat template does not compile"),
    ],
)
def test_broken_folder_names_the_file(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    save_byte_level(tmp_path)
    if text is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelLoadError, match=message) as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_path_that_does_not_exist_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="nowhere"):
        Tokenizer.load(tmp_path / "nowhere")


@pytest.mark.parametrize("text", [None, 3, b"bytes", ["a"], "\ud800"])
def test_text_that_is_no_text_is_a_request_error(tmp_path: Path, text: Any) -> None:
    save_byte_level(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    for encode in (tokenizer.encode, tokenizer.encode_continuation):
        with pytest.raises(RequestError) as caught:
            encode(text)
        assert caught.value.field == "text"


@pytest.mark.parametrize("token_id", [-1, 10**9])
def test_id_outside_the_vocabulary_is_a_request_error(tmp_path: Path, token_id: int) -> None:
    save_byte_level(tmp_path)
    with pytest.raises(RequestError, match=str(token_id)):
        Tokenizer.load(tmp_path).decode([token_id])


def test_tokenizer_cannot_be_changed(tmp_path: Path) -> None:
    save_byte_level(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    with pytest.raises(AttributeError):
        tokenizer.bos_id = 3  # type: ignore[misc]
    assert isinstance(tokenizer.token_bytes, tuple)
    assert len(repr(tokenizer)) < 200 and len({tokenizer, tokenizer}) == 1


def test_byte_map_is_a_bijection_and_raw_text_is_not_taken_for_bytes() -> None:
    assert len(set(BYTE_TO_CHAR.values())) == 256
    assert all(byte_level_bytes(char) == bytes([byte]) for byte, char in BYTE_TO_CHAR.items())
    assert byte_level_bytes("a b") == b"a b"
    assert byte_level_bytes("Ġé") == b" \xe9"


def test_tekken_bytes_survive_the_byte_map() -> None:
    """Mistral's 131k vocabulary, as a byte-level tokenizer.json writes it."""
    vocabulary = tekken_vocabulary()
    assert len(vocabulary.token_bytes) == 131_072
    spelled = {
        "".join(BYTE_TO_CHAR[byte] for byte in entry): token_id
        for token_id, entry in enumerate(vocabulary.token_bytes)
        if entry is not None
    }
    assert len(spelled) == 131_072 - 1000
    assert all(byte_level_bytes(piece) == vocabulary.token_bytes[token_id] for piece, token_id in spelled.items())
    backend = tokenizers.Tokenizer(models.BPE(spelled, []))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(vocabulary.split), behavior="isolated")
    assert backend.get_vocab_size() == len(spelled)
