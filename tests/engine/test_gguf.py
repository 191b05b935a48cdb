"""The GGUF reader agrees with the `gguf` package, and no corruption gets past it as anything but ModelLoadError."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from safegen.engine.gguf import GgufFile, is_gguf
from safegen.errors import ModelLoadError

TOKENS = ["<s>", "a", "", "é", "日本", " b"]


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "sample.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("sample.count", 7)
    writer.add_float32("sample.ratio", 0.5)
    writer.add_bool("sample.flag", True)
    writer.add_string("sample.text", "naïve")
    writer.add_token_list(TOKENS)
    writer.add_array("sample.scores", [1.5, -2.0])
    writer.add_array("sample.flags", [True, False])
    rng = np.random.default_rng(0)
    writer.add_tensor("dense", rng.normal(size=(3, 5)).astype(np.float32))
    quantized = gguf.quants.quantize(rng.normal(size=(4, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("blocks", quantized, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("half", rng.normal(size=(8,)).astype(np.float16))
    writer.add_tensor("other", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_has_python_types_and_lazy_strings(sample: Path) -> None:
    metadata = GgufFile(sample).metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["sample.count"] == 7 and type(metadata["sample.count"]) is int
    assert metadata["sample.ratio"] == 0.5 and metadata["sample.flag"] is True
    assert metadata["sample.text"] == "naïve"
    tokens = metadata["tokenizer.ggml.tokens"]
    assert list(tokens) == TOKENS and len(tokens) == 6 and tokens[3] == "é" and tokens[1:3] == ["a", ""]
    assert np.array_equal(metadata["sample.scores"], [1.5, -2.0])
    assert np.array_equal(metadata["sample.flags"], [True, False])


def test_tensors_lie_where_the_gguf_package_finds_them(sample: Path) -> None:
    ours = GgufFile(sample)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(sample).tensors}
    assert set(ours.tensors) == set(theirs)
    for name, tensor in ours.tensors.items():
        assert tensor.kind.upper() == theirs[name].tensor_type.name
        assert tensor.shape == tuple(int(n) for n in theirs[name].shape[::-1])
        assert ours.raw(name).tobytes() == theirs[name].data.tobytes()


def test_writing_to_a_view_never_reaches_the_file(sample: Path) -> None:
    before = sample.read_bytes()
    GgufFile(sample).raw("dense")[:] = 255
    assert sample.read_bytes() == before


def test_every_truncation_is_a_model_load_error(sample: Path) -> None:
    whole = sample.read_bytes()
    needed = max(tensor.offset + tensor.num_bytes for tensor in GgufFile(sample).tensors.values())
    for length in range(needed - 1, -1, -7):
        sample.write_bytes(whole[:length])
        with pytest.raises(ModelLoadError) as caught:
            GgufFile(sample)
        assert caught.value.path == str(sample) and caught.value.hint


def test_no_flipped_byte_of_the_header_raises_anything_else(sample: Path) -> None:
    whole = sample.read_bytes()
    header_end = whole.index(b"other") + 32
    rng = np.random.default_rng(1)
    refused = 0
    for position in range(header_end):
        mutated = bytearray(whole)
        mutated[position] ^= int(rng.integers(1, 256))
        sample.write_bytes(mutated)
        try:
            file = GgufFile(sample)
            for name in file.tensors:
                file.raw(name).sum()
            list(file.metadata.get("tokenizer.ggml.tokens", ()))  # type: ignore[arg-type]
        except ModelLoadError:
            refused += 1
    assert refused > header_end // 3


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def edit(whole: bytes) -> bytes:
        assert whole.count(old) >= 1 and len(old) == len(new)
        return whole.replace(old, new, 1)

    return edit


def info(name: bytes, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    """A tensor info as it lies in the file; dims innermost first."""
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return struct.pack("<Q", len(name)) + name + shape + struct.pack("<IQ", kind, offset)


CORRUPTIONS = {
    "not a GGUF file": replaced(b"GGUF", b"GGML"),
    "GGUF version 9": lambda whole: whole[:4] + struct.pack("<I", 9) + whole[8:],
    "a big-endian file": lambda whole: whole[:4] + struct.pack(">I", 3) + whole[8:],
    r"claims \d+ tensors": lambda whole: whole[:8] + struct.pack("<Q", 1 << 60) + whole[16:],
    r"claims \d+ metadata entries": lambda whole: whole[:16] + struct.pack("<Q", 1 << 40) + whole[24:],
    r"'tokenizer.ggml.tokens' claims 4294967295 entries": replaced(
        b"tokens" + struct.pack("<IIQ", 9, 8, 6), b"tokens" + struct.pack("<IIQ", 9, 8, 0xFFFFFFFF)
    ),
    "'sample.flag' appears twice": replaced(b"sample.text", b"sample.flag"),
    "array of value type 9": replaced(b"scores" + struct.pack("<II", 9, 6), b"scores" + struct.pack("<II", 9, 9)),
    "unknown value type 77": replaced(b"ratio" + struct.pack("<I", 6), b"ratio" + struct.pack("<I", 77)),
    "dense: tensor type Q2_K is not served": replaced(info(b"dense", (5, 3), 0, 0), info(b"dense", (5, 3), 10, 0)),
    "blocks: shape .* does not divide into q4_1": replaced(
        info(b"blocks", (64, 4), 3, 64), info(b"blocks", (65, 4), 3, 64)
    ),
    "dense: offset 8 is no multiple": replaced(info(b"dense", (5, 3), 0, 0), info(b"dense", (5, 3), 0, 8)),
    "blocks: the tensor overlaps": replaced(info(b"blocks", (64, 4), 3, 64), info(b"blocks", (64, 4), 3, 32)),
    "dense: the file is truncated": replaced(info(b"dense", (5, 3), 0, 0), info(b"dense", (5, 1 << 40), 0, 0)),
    "half: 0 dimensions": replaced(
        struct.pack("<Q", 4) + b"half" + struct.pack("<I", 1), struct.pack("<Q", 4) + b"half" + struct.pack("<I", 0)
    ),
    "dense: the tensor is listed twice": replaced(struct.pack("<Q", 5) + b"other", struct.pack("<Q", 5) + b"dense"),
}


@pytest.mark.parametrize("message", CORRUPTIONS)
def test_a_corrupt_file_is_refused_with_its_place(sample: Path, message: str) -> None:
    corrupt = CORRUPTIONS[message](sample.read_bytes())
    sample.write_bytes(corrupt)
    with pytest.raises(ModelLoadError, match=message):
        GgufFile(sample)


def test_a_part_of_a_split_model_is_refused_with_the_merge_command(tmp_path: Path) -> None:
    path = tmp_path / "part.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match=r"one of 3 parts .* --merge"):
        GgufFile(path)


def test_missing_path_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no-such\.gguf: cannot be opened: No such file"):
        GgufFile(tmp_path / "no-such.gguf")
    with pytest.raises(ModelLoadError, match="cannot be opened: Is a directory"):
        GgufFile(tmp_path)


def test_magic_alone_decides_what_is_a_gguf_file(sample: Path, tmp_path: Path) -> None:
    (tmp_path / "other.gguf").write_bytes(b"nope")
    assert is_gguf(sample) and not is_gguf(tmp_path / "other.gguf")
