"""Chunks of rows on their way into a Ray Data stream: an actor that keeps them, and a datasource that asks for them.

The stream is the same however often it is read: chunk n is the n-th block. One whose records are written already is
an empty block then, which nobody needs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow
import ray
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

WRITTEN = b""  # in place of a chunk whose records are written
NUMBER, CHUNK = "number", "chunk"


class Feed:
    """The actor. Chunks have numbers from 0 on; they come in any order and are kept until they are written."""

    def __init__(self) -> None:
        self._chunks: dict[int, bytes] = {}
        self._begun: Counter[int] = Counter()
        self._num_written = 0  # all below are written
        self._written: set[int] = set()  # those above
        self._is_ended = self._is_stopped = False
        self._news = asyncio.Condition()

    async def put(self, number: int, chunk: bytes) -> None:
        self._chunks[number] = chunk
        await self._tell()

    async def written(self, number: int) -> None:
        """The driver has its records."""
        self._chunks.pop(number, None)
        self._begun.pop(number, None)
        self._written.add(number)
        while self._num_written in self._written:
            self._written.remove(self._num_written)
            self._num_written += 1

    async def begun(self, number: int) -> int:
        """A worker begins a chunk. Returns how often that was so."""
        self._begun[number] += 1
        return self._begun[number]

    async def end(self) -> None:
        """All chunks were put, and are written."""
        self._is_ended = True
        await self._tell()

    async def stop(self) -> None:
        """What is not written is not wanted any more."""
        self._is_ended = self._is_stopped = True
        self._chunks.clear()
        await self._tell()

    async def stopped(self) -> None:
        """Returns after `stop`."""
        async with self._news:
            await self._news.wait_for(lambda: self._is_stopped)

    async def take(self, number: int) -> bytes | None:
        """A chunk, as soon as it is there; None after the last."""
        while True:
            if number in self._chunks:
                return self._chunks[number]
            if self._is_stopped:
                return None
            if number < self._num_written or number in self._written:
                return WRITTEN
            if self._is_ended:
                return None
            async with self._news:
                await self._news.wait()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


class FeedSource(Datasource):  # type: ignore[misc]
    """One read task, whose end is not known beforehand. A block is one row: the chunk and its number, so that Ray can
    neither cut nor join chunks."""

    def __init__(self, feed: Any) -> None:
        super().__init__()
        self._feed = feed

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_name(self) -> str:
        return "safegen"

    def get_read_tasks(self, parallelism: int, *unused: Any, **also_unused: Any) -> list[Any]:
        feed = self._feed

        def read() -> Iterator[Any]:
            number = 0
            while (chunk := ray.get(feed.take.remote(number))) is not None:
                yield pyarrow.table({NUMBER: [number], CHUNK: pyarrow.array([chunk], pyarrow.large_binary())})
                number += 1

        return [ReadTask(read, BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None))]
