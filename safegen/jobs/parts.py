"""Output as Parquet: a folder of numbered part files, each complete or absent, that dataset readers take as a table.

Records go to a journal in the folder first (its name begins with "_", so readers pass it by); when it holds
rows_per_part of them they become the next part, by a rename, and the journal is emptied. A crash between the two
leaves rows in both, which the next start takes out of the journal. Values, errors and audit records are columns of
JSON text: their shapes differ from row to row. Needs the extra `parquet`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safegen.errors import JobOutputError
from safegen.jobs.durable import replace_file
from safegen.jobs.journal import Journal
from safegen.jobs.parquet_rows import import_pyarrow

_JSON_COLUMNS = ("id", "value", "error", "audit", "choices", "alternatives")
_TEXT_COLUMNS = ("key", "status", "text", "thinking")
_USAGE_COLUMNS = ("prompt_tokens", "completion_tokens", "cached_tokens")


class PartFiles:
    """The output of one job. `records` first, then `open`."""

    def __init__(self, folder: Path, rows_per_part: int) -> None:
        self._arrow = import_pyarrow()
        self._folder = folder
        self._rows_per_part = rows_per_part
        self._journal = Journal(folder / "_journal.jsonl")
        self._waiting: list[dict[str, Any]] = []  # the journal's records

    def records(self) -> Iterator[dict[str, Any]]:
        """key, id, status, error and usage of every record, once each."""
        found = list(self._journal.records())
        waiting = {record["key"]: record for record in found}
        for part in self._parts():
            for record in self._read(part, ["key", "id", "status", "error", *_USAGE_COLUMNS]):
                waiting.pop(record["key"], None)
                record["error"] = None if record["error"] is None else json.loads(record["error"])
                record["usage"] = {name: record.pop(name) for name in _USAGE_COLUMNS}
                yield record
        self._waiting = list(waiting.values())
        if len(waiting) < len(found):  # a crash came between a part and the emptying of the journal
            self._journal.rewrite(lambda record: record["key"] in waiting)
        yield from self._waiting

    def _parts(self) -> list[Path]:
        return sorted(self._folder.glob("part-*.parquet"), key=lambda part: (len(part.name), part.name))

    def _read(self, part: Path, columns: list[str] | None = None) -> list[dict[str, Any]]:
        try:
            return list(self._arrow.parquet.read_table(part, columns=columns, partitioning=None).to_pylist())
        except (OSError, self._arrow.ArrowException) as error:
            raise JobOutputError(f"it cannot be read: {error}", path=str(part), hint="move it away") from error

    def rewrite(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Keep the records for which `keep(record)` is true; part by part."""
        for part in self._parts():
            rows = self._read(part)
            kept = [row for row in rows if keep(row)]
            if len(kept) < len(rows):
                self._write_part(part, kept)
        self._journal.rewrite(keep)
        self._waiting = [record for record in self._waiting if keep(record)]

    def open(self) -> None:
        self._journal.open()

    def append(self, record: dict[str, Any]) -> None:
        self._journal.append(record)
        self._waiting.append(record)
        if len(self._waiting) >= self._rows_per_part:
            self._roll()

    def flush(self, *, sync: bool = False) -> None:
        self._journal.flush(sync=sync)

    def finish(self) -> None:
        """Every record into a part file."""
        if self._waiting:
            self._roll()

    def close(self) -> None:
        self._journal.close()

    def _roll(self) -> None:
        self._journal.flush(sync=True)
        parts = self._parts()
        number = int(parts[-1].stem.removeprefix("part-")) + 1 if parts else 0
        self._write_part(self._folder / f"part-{number:05d}.parquet", [_row(record) for record in self._waiting])
        self._journal.clear()
        self._waiting.clear()

    def _write_part(self, path: Path, rows: list[dict[str, Any]]) -> None:
        arrow = self._arrow
        table = arrow.Table.from_pylist(rows, schema=self._schema())

        def write(temporary: Path) -> None:
            try:
                arrow.parquet.write_table(table, temporary)
            except arrow.ArrowException as error:
                raise OSError(None, str(error)) from error

        replace_file(path, write)

    def _schema(self) -> Any:
        text, number = self._arrow.string(), self._arrow.int64()
        fields = [(name, text) for name in (*_JSON_COLUMNS, *_TEXT_COLUMNS)]
        fields += [(name, number) for name in ("row", *_USAGE_COLUMNS)]
        return self._arrow.schema([*fields, ("total_ms", self._arrow.float64())])


def _row(record: dict[str, Any]) -> dict[str, Any]:
    row = {name: record.get(name) for name in (*_TEXT_COLUMNS, "row", "total_ms")}
    row |= record["usage"]
    for name in _JSON_COLUMNS:
        value = record.get(name)
        row[name] = value if name == "id" and isinstance(value, str) else _json(value)
    return {name: _encodable(value) for name, value in row.items()}


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _encodable(value: Any) -> Any:
    """Lone surrogates, which UTF-8 has no bytes for, as escapes."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
