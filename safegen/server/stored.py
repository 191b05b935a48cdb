"""Documents on disk: one small JSON file each, replaced as a whole, kept in memory too; each belongs to a key's name.

What was written is there after a crash; a file that cannot be read at the start is named and ends the start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safegen.errors import RequestError
from safegen.jobs.durable import replace_file, sync_folder
from safegen.server.errors import ApiError

_ID = re.compile(r"[a-z]+[-_][0-9a-f]{32}")
Stored = dict[str, Any]


class Documents:
    """kind: what they are called in errors. A document is {"owner": ..., "shown": {"id": ..., ...}, ...}."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self._kind = kind
        self._kept: dict[str, Stored] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            paths = sorted(folder.glob("*.json"))
            for path in paths:
                stored = json.loads(path.read_text(encoding="utf-8"))
                self._kept[stored["shown"]["id"]] = stored
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RequestError(
                f"data_dir={str(folder)!r} cannot be used: {type(error).__name__}: {error}", field="data_dir"
            ) from error

    def all(self) -> Iterable[Stored]:
        return list(self._kept.values())

    def find(self, identity: str, owner: str) -> Stored:
        """Raises ApiError 404, also for what belongs to another key."""
        found = self._kept.get(identity) if _ID.fullmatch(identity) else None
        if found is None or found["owner"] != owner:
            raise ApiError(404, f"there is no {self._kind} {identity!r:.80}", param="id", code="not_found")
        return found

    def write(self, stored: Stored) -> None:
        """Blocking. Raises JobOutputError; what was there before is there then."""
        identity = stored["shown"]["id"]
        text = json.dumps(stored)
        replace_file(self.folder / f"{identity}.json", lambda path: _write(path, text))
        self._kept[identity] = stored

    def remove(self, identity: str) -> None:
        """Blocking."""
        self._kept.pop(identity, None)
        (self.folder / f"{identity}.json").unlink(missing_ok=True)
        sync_folder(self.folder)

    def page(self, owner: str, after: str | None, limit: int, *, newest_first: bool) -> dict[str, Any]:
        """A list in OpenAI's shape. Raises ApiError 400 for an `after` that there is not."""
        mine = [stored["shown"] for stored in self.all() if stored["owner"] == owner]
        mine.sort(key=lambda shown: (shown["created_at"], shown["id"]), reverse=newest_first)
        if after is not None:
            places = [number for number, shown in enumerate(mine) if shown["id"] == after]
            if not places:
                raise ApiError(400, "after names nothing in the list", param="after", code="invalid_value")
            mine = mine[places[0] + 1 :]
        page = mine[:limit]
        return {
            "object": "list",
            "data": page,
            "has_more": len(mine) > limit,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
        }


def _write(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
