"""Read bandwidth of the machine: the best streaming read of a buffer that no cache holds.

Several readers are tried, since which one saturates the memory depends on the machine: two loops of C (four streams at
once, and one), compiled here if there is a compiler, and numpy's sum. Each thread reads its own part, without the GIL.
On a shared machine the bandwidth is not one number: neighbours take their part of it for seconds at a time. What is
compared with it has to be measured in turns with it, slice by slice.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Reader = Callable[[Words], object]

_SOURCE = """
#include <stddef.h>
#include <stdint.h>
uint64_t sum(const uint64_t *words, size_t count) {
  uint64_t a = 0, b = 0, c = 0, d = 0;
  const size_t quarter = count / 4;
  for (size_t i = 0; i < quarter; i++) {
    a += words[i]; b += words[quarter + i]; c += words[2 * quarter + i]; d += words[3 * quarter + i];
  }
  return a + b + c + d;
}
uint64_t sum_in_order(const uint64_t *words, size_t count) {
  uint64_t a = 0;
  for (size_t i = 0; i < count; i++) a += words[i];
  return a;
}
"""
_SMALLEST_BUFFER_BYTES = 256 << 20


def last_level_cache_bytes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """The largest cache of the first core; 0 where the system does not say."""
    largest = 0
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    for file in root.glob("index*/size"):
        text = file.read_text().strip()
        largest = max(largest, int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text))
    return largest


class BandwidthReader:
    """Reads a buffer at least four times the last-level cache, again and again: `with BandwidthReader(2) as reader`."""

    def __init__(self, threads: int) -> None:
        self._num_bytes = max(_SMALLEST_BUFFER_BYTES, 4 * last_level_cache_bytes())
        words = np.ones(self._num_bytes // 8, dtype=np.uint64)
        self._parts = np.array_split(words, threads)
        self._pool = ThreadPoolExecutor(threads)
        self._folder = tempfile.TemporaryDirectory()
        self._readers: dict[str, Reader] = {"numpy": np.sum, **_compiled(Path(self._folder.name))}

    def __enter__(self) -> BandwidthReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown()
        self._folder.cleanup()

    def by_reader(self, seconds: float) -> dict[str, float]:
        """Bytes a second by reader, each the best of repeated passes of `seconds` in all."""
        return {name: self._best(reader, seconds) for name, reader in self._readers.items()}

    def best(self, seconds: float) -> float:
        """Bytes a second of the best pass of any reader."""
        return max(self.by_reader(seconds / len(self._readers)).values())

    def _best(self, reader: Reader, seconds: float) -> float:
        best, end = float("inf"), time.perf_counter() + seconds
        while True:
            start = time.perf_counter()
            list(self._pool.map(reader, self._parts))
            now = time.perf_counter()
            best = min(best, now - start)
            if now >= end:
                return self._num_bytes / best


def _compiled(folder: Path) -> dict[str, Reader]:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return {}
    (folder / "read.c").write_text(_SOURCE)
    command = [compiler, "-O3", "-march=native", "-funroll-loops", "-shared", "-fPIC", "-o", "read.so", "read.c"]
    if subprocess.run(command, cwd=folder, capture_output=True).returncode:
        return {}
    library = ctypes.CDLL(str(folder / "read.so"))
    return {f"c_{name}": _foreign(getattr(library, name)) for name in ("sum", "sum_in_order")}


def _foreign(function: Callable[..., object]) -> Reader:
    return lambda words: function(ctypes.c_void_p(words.ctypes.data), ctypes.c_size_t(words.size))
