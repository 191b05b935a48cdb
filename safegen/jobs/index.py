"""What has been seen and what is done, on disk: two tables of a temporary database that vanishes with the process.

Memory is bounded by the database's cache, however many rows there are. The journal is the truth; this is its index.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from safegen.errors import JobOutputError

_CACHE_KIB = 8192
_SETTINGS = ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_CACHE_KIB}", "temp_store=FILE")


class RowIndex:
    """Used by one thread."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        for setting in _SETTINGS:
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY, count INTEGER) WITHOUT ROWID")
        self._database.execute("CREATE TABLE done (key BLOB PRIMARY KEY) WITHOUT ROWID")
        self._database.execute("BEGIN")  # one long transaction: nothing here needs to survive
        self._has_done = False

    def occurrence(self, digest: bytes) -> int:
        """How many rows of this digest were asked for before."""
        found = self._execute(
            "INSERT INTO seen VALUES (?, 1) ON CONFLICT (digest) DO UPDATE SET count = count + 1 RETURNING count",
            digest,
        ).fetchone()
        return int(found[0]) - 1

    def add_done(self, key: str) -> bool:
        """Returns whether it is new."""
        self._has_done = True
        return self._execute("INSERT OR IGNORE INTO done VALUES (?)", bytes.fromhex(key)).rowcount == 1

    def is_done(self, keys: Iterable[str]) -> bool:
        """Whether a row is done that may go by any of these keys."""
        if not self._has_done:
            return False
        query = "SELECT 1 FROM done WHERE key = ?"
        return any(self._execute(query, bytes.fromhex(key)).fetchone() is not None for key in keys)

    def _execute(self, statement: str, value: bytes) -> sqlite3.Cursor:
        try:
            return self._database.execute(statement, (value,))
        except sqlite3.OperationalError as error:
            raise JobOutputError(
                f"the index of rows cannot grow: {error}",
                path="the temporary folder",
                hint="make room there, or name another in SQLITE_TMPDIR",
            ) from error

    def close(self) -> None:
        self._database.close()
