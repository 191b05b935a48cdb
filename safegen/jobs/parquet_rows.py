"""Parquet files as a stream of rows, a batch of rows at a time. Needs the extra `parquet` (pyarrow)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safegen.errors import JobInputError, RequestError
from safegen.jobs.rows import Row, row_of

_ROWS_AT_ONCE = 256


def import_pyarrow() -> Any:
    """The modules pyarrow and pyarrow.parquet. Raises RequestError with the pip line."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise RequestError("Parquet needs pyarrow: pip install 'safegen[parquet]'", field="format") from error
    return pyarrow


def parquet_files(path: Path) -> list[Path]:
    """The file, or those of a folder by name; names that begin with "_" or "." are no data, as elsewhere."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.glob("*.parquet") if not file.name.startswith(("_", ".")))
    if not files:
        raise JobInputError("the folder holds no *.parquet file", path=str(path))
    return files


class ParquetRows:
    """position: rows that were read. total: all there are."""

    def __init__(self, path: Path, max_row_bytes: int) -> None:
        self._pyarrow = import_pyarrow()
        self._files = parquet_files(path)
        self._max_row_bytes = max_row_bytes
        self.position = 0
        self.total = sum(self._opened(file).metadata.num_rows for file in self._files)

    def _opened(self, file: Path) -> Any:
        try:
            return self._pyarrow.parquet.ParquetFile(file)
        except (OSError, self._pyarrow.ArrowException) as error:
            raise JobInputError(f"it cannot be read as Parquet: {error}", path=str(file)) from error

    def __iter__(self) -> Iterator[Row]:
        for file in self._files:
            parquet = self._opened(file)
            try:
                for batch in parquet.iter_batches(batch_size=_ROWS_AT_ONCE):
                    for content in batch.to_pylist():
                        yield row_of(self.position, content, self._max_row_bytes, f"row {self.position}")
                        self.position += 1
            except (OSError, self._pyarrow.ArrowException) as error:
                raise JobInputError(f"it cannot be read after row {self.position}: {error}", path=str(file)) from error
            finally:
                parquet.close()
