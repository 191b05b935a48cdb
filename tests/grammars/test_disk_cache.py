"""The disk cache gives back what was put or nothing: through damage, forgery, other versions, other processes, full
disks. And what is read from it, automata of regexes, is believed nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from safegen import Limits, Regex, RequestError
from safegen.grammars import fsm
from safegen.grammars.array_file import pack_arrays, unpack_arrays
from safegen.grammars.disk_cache import DiskCache
from safegen.grammars.regex import compile_regex
from safegen.grammars.token_fsm import TokenFsm, Transitions
from safegen.runtime import disk_cache
from tests.support.sdk_fakes import make_llm
from tests.support.small_vocabulary import small_vocabulary

ROOT = Path(__file__).parents[2]
VOCABULARY = small_vocabulary()
PATTERN = r"a(bc)?|\d{2}-é+"


def opened(path: Path, *, max_bytes: int = 1 << 20, version: str = "1") -> DiskCache:
    return DiskCache(path / "cache", max_bytes=max_bytes, version=version)


def files(cache: DiskCache) -> list[Path]:
    return sorted(cache.directory.glob("*.cache"))


def test_what_was_put_is_given_back_also_to_a_later_process(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    assert cache.get("kind", "a") is None
    assert cache.put(b"value", "kind", "a") and cache.put(b"", "kind", "empty")
    for later in (cache, opened(tmp_path)):
        assert (later.get("kind", "a"), later.get("kind", "empty"), later.get("kind")) == (b"value", b"", None)
    cache.put(b"other", "kind", "a")
    assert opened(tmp_path).get("kind", "a") == b"other" and len(files(cache)) == 2


def test_keys_are_told_apart_by_every_part_and_by_the_version(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    keys = [("a", "b"), ("ab",), ("a", "", "b"), ("", "ab"), ("ab", ""), ("\ud800",), ("é",)]
    for number, key in enumerate(keys):
        assert cache.put(str(number).encode(), *key)
    assert [cache.get(*key) for key in keys] == [str(number).encode() for number in range(len(keys))]
    assert opened(tmp_path, version="2").get("a", "b") is None


@pytest.mark.parametrize("size", [0, 1, 200])
def test_every_change_of_a_byte_and_every_cut_is_a_miss_that_is_written_anew(tmp_path: Path, size: int) -> None:
    cache, payload = opened(tmp_path), random.Random(1).randbytes(size)
    cache.put(payload, "k")
    [path] = files(cache)
    whole = path.read_bytes()
    damaged = [whole[:at] for at in range(len(whole))] + [whole + b"x"]
    damaged += [whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :] for at in range(len(whole)) for bit in (1, 128)]
    for content in damaged:
        path.write_bytes(content)
        assert cache.get("k") is None
        assert not path.exists(), "what is of no use is removed"
    assert cache.put(payload, "k") and cache.get("k") == payload


def test_a_value_of_another_key_or_secret_is_a_forgery(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.put(b"for a", "a")
    cache.put(b"for b", "b")
    a, b = (cache._path((name,)) for name in "ab")
    a.write_bytes(b.read_bytes())
    assert cache.get("a") is None and cache.get("b") == b"for b"
    stranger = DiskCache(tmp_path / "other", max_bytes=1 << 20, version="1")
    stranger.put(b"forged", "b")
    b.write_bytes(stranger._path(("b",)).read_bytes())
    assert cache.get("b") is None
    (cache.directory / "secret").write_bytes(b"short")
    cache.put(b"x", "c")
    assert opened(tmp_path).get("c") is None  # a new secret: what the old one signed is a miss


@pytest.mark.parametrize("make", [
    lambda path: path.mkdir(),
    lambda path: path.symlink_to("/etc/passwd"),
    lambda path: path.symlink_to(path),
    os.mkfifo,
    lambda path: path.touch(mode=0o000),
], ids=["directory", "link", "loop", "pipe", "unreadable"])  # fmt: skip
def test_what_is_no_plain_file_is_a_miss_and_never_waited_for(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    cache = opened(tmp_path)
    make(cache._path(("k",)))
    started = time.monotonic()
    assert cache.get("k") is None
    cache.put(b"value", "k")
    assert cache.get("k") in (b"value", None)
    assert time.monotonic() - started < 2


def test_least_recently_used_values_go_when_the_bytes_pass_the_bound(tmp_path: Path) -> None:
    cache = opened(tmp_path, max_bytes=4_000)
    for number in range(3):
        cache.put(bytes(1_000), "k", str(number))
        os.utime(cache._path(("k", str(number))), (number, number))
    assert cache.get("k", "0") is not None  # used now
    cache.put(bytes(1_500), "k", "3")
    assert [number for number in range(4) if cache.get("k", str(number)) is not None] == [0, 2, 3]
    assert cache.num_bytes() <= 4_000
    assert not cache.put(bytes(4_000), "large") and cache.get("large") is None
    assert cache.get("k", "3") is not None


def test_left_temporary_files_are_removed_once_nobody_writes_them(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    old, new = cache.directory / ".x1.tmp", cache.directory / ".x2.tmp"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (1, 1))
    cache.put(b"value", "k")
    assert not old.exists() and new.exists()


def test_a_disk_that_takes_nothing_costs_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = opened(tmp_path)

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert not cache.put(b"value", "k") and cache.get("k") is None
    assert list(cache.directory.glob(".*.tmp")) == []
    monkeypatch.setattr("tempfile.mkstemp", full)
    assert not cache.put(b"value", "k")


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(RequestError, match="others can write") as caught:
        opened(tmp_path)
    assert caught.value.field == "SAFEGEN_CACHE_DIR"
    (tmp_path / "file").write_text("x")
    with pytest.raises(RequestError, match="cannot be used"):
        DiskCache(tmp_path / "file", max_bytes=1, version="1")


_WRITER = """
import sys
from safegen.grammars.disk_cache import DiskCache
cache = DiskCache(sys.argv[1], max_bytes=60_000, version="1")
wrong = 0
for number in range(300):
    key = str(number % 7)
    found = cache.get("k", key)
    wrong += found is not None and (len(set(found)) != 1 or len(found) != 9_000 + int(key))
    cache.put(bytes([int(sys.argv[2])]) * (9_000 + int(key)), "k", key)
print(wrong)
"""


def test_processes_share_a_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITER, str(tmp_path / "cache")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True, env=environment)
        for number in range(3)
    ]
    assert [process.communicate(timeout=100)[0].strip() for process in running] == ["0"] * 3
    assert all(process.returncode == 0 for process in running)
    assert opened(tmp_path).num_bytes() <= 60_000


# --- arrays -----------------------------------------------------------------------------------------------------------


def test_arrays_come_back_as_they_were() -> None:
    arrays: list[Any] = [np.arange(5, dtype=np.int32), np.zeros((2, 3), np.int64), np.array([], np.uint8)]
    found = unpack_arrays(pack_arrays(arrays))
    assert found is not None
    for given, back in zip(arrays, found):
        assert given.dtype == back.dtype and np.array_equal(given, back) and not back.flags.writeable


def test_bytes_that_are_no_arrays_are_none() -> None:
    content = pack_arrays([np.arange(5, dtype=np.int32), np.zeros((2, 3), np.int64)])
    assert all(unpack_arrays(content[:at]) is None for at in range(len(content)))
    assert unpack_arrays(content + b"x") is None
    huge = (1).to_bytes(4, "little") + bytes([0, 2]) + (2**63).to_bytes(8, "little") * 2
    empty = (1).to_bytes(4, "little") + bytes([0, 2]) + (2**64 - 1).to_bytes(8, "little") + bytes(8)
    assert unpack_arrays(huge) is None and unpack_arrays(empty) is None
    rng = random.Random(5)
    for _ in range(2_000):
        changed = bytearray(content)
        changed[rng.randrange(len(changed))] = rng.randrange(256)
        unpack_arrays(bytes(changed))  # None or arrays, never an error
        unpack_arrays(rng.randbytes(rng.randrange(60)))


# --- automata ---------------------------------------------------------------------------------------------------------


def compiled() -> fsm.FsmProgram:
    return fsm.compile_fsm(PATTERN, compile_regex(PATTERN), Limits())


def same(a: TokenFsm, b: TokenFsm) -> bool:
    return np.array_equal(a.dense(), b.dense()) and np.array_equal(a.masks, b.masks)


def test_an_automaton_is_made_once_and_then_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = opened(tmp_path)
    made = compiled().table(VOCABULARY, cache)
    monkeypatch.setattr(fsm, "token_fsm", lambda *_: pytest.fail("it was made again"))
    assert same(compiled().table(VOCABULARY, opened(tmp_path)), made)
    monkeypatch.undo()
    assert same(compiled().table(VOCABULARY), made)
    other = small_vocabulary(seed=1)
    assert compiled().table(other, cache).vocabulary is other and len(files(cache)) == 2


def test_a_packed_automaton_that_was_changed_is_refused_or_still_right() -> None:
    """A file that has the right digest and a wrong content, as a bug or a thief of the secret would write it."""
    made = compiled().table(VOCABULARY)
    content, rng, refused = made.transitions.packed(), random.Random(9), 0
    assert Transitions.unpacked(content, VOCABULARY) is not None
    for _ in range(1_500):
        changed = bytearray(content)
        for _ in range(rng.randrange(1, 3)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        found = Transitions.unpacked(bytes(changed), VOCABULARY)
        if found is None or TokenFsm.over(VOCABULARY, made.program, found).agrees() is not None:
            refused += 1
        else:
            table = TokenFsm.over(VOCABULARY, made.program, found)
            assert np.array_equal(np.unique(table.masks, axis=0), np.unique(made.masks, axis=0))
            assert fsm.FsmConstraint(table).shortest_completion()
    assert refused > 1_000


def test_a_well_formed_automaton_of_another_language_is_made_anew(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    wrong = fsm.compile_fsm("ab|ac", compile_regex("ab|ac"), Limits()).table(VOCABULARY)
    cache.put(wrong.transitions.packed(), "token fsm", fsm._FORMAT, VOCABULARY.fingerprint, PATTERN)
    right = compiled().table(VOCABULARY, cache)
    assert same(right, compiled().table(VOCABULARY))
    assert cache.get("token fsm", fsm._FORMAT, VOCABULARY.fingerprint, PATTERN) == right.transitions.packed()


def test_an_llm_keeps_automata_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAFEGEN_CACHE_DIR", raising=False)
    assert disk_cache(Limits()) is None  # nothing is written unless it is asked for
    monkeypatch.setenv("SAFEGEN_CACHE_DIR", str(tmp_path / "cache"))
    spec, texts = Regex(r"\d{2}-[a-f]{2}", fsm=True), []
    for _ in range(2):
        with make_llm() as llm:
            texts.append(llm.generate("x", spec, seed=3, temperature=1.0, max_tokens=16).unwrap())
    assert texts[0] == texts[1] and len(files(opened(tmp_path))) == 1
    made = disk_cache(Limits(disk_cache_bytes=12_345))
    assert made is not None and made.max_bytes == 12_345
    monkeypatch.setenv("SAFEGEN_CACHE_DIR", __file__)
    with pytest.raises(RequestError, match="cache directory"), make_llm():
        pass
    with pytest.raises(RequestError, match="cannot be used"):
        DiskCache(tmp_path / "\0", max_bytes=1, version="1")
