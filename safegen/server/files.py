"""Files that clients upload for batches, and those that batches write. Each key sees its own alone.

The content of a file lies beside its document, under the file's id: nothing that a client says becomes a path.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

from safegen.server.errors import ApiError
from safegen.server.shapes import new_id
from safegen.server.stored import Documents

_MAX_NAME_CHARACTERS = 255
_LEAST_FILE_BYTES = 4096  # that a file counts as, so that empty ones are bounded too


class Files:
    """max_stored_bytes: of all files of one key. Methods that touch the disk block."""

    def __init__(self, folder: Path, max_stored_bytes: int) -> None:
        self.documents = Documents(folder, "file")
        self._folder = folder
        self._max_stored_bytes = max_stored_bytes
        self._adding = threading.Lock()

    def content(self, identity: str) -> Path:
        return self._folder / f"{identity}.jsonl"

    def add(self, source: BinaryIO, name: str, purpose: str, owner: str) -> dict[str, Any]:
        """Keep a copy of a file. Raises ApiError 400 where the key has no room left, JobOutputError."""
        identity = new_id("file-")
        path = self.content(identity)
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                target.flush()
                os.fsync(target.fileno())
                num_bytes = target.tell()
            with self._adding:
                self._check_room(owner, num_bytes)
                return self._tell(identity, num_bytes, name, purpose, owner)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def adopt(self, path: Path, name: str, owner: str) -> dict[str, Any]:
        """A file that a batch has written becomes a file of its key; it is moved. Its id is made of its name, so that
        doing it again after a crash makes no second one."""
        identity = f"file-{hashlib.sha256(name.encode()).hexdigest()[:32]}"
        os.replace(path, self.content(identity))
        return self._tell(identity, self.content(identity).stat().st_size, name, "batch_output", owner)

    def remove(self, identity: str, owner: str) -> None:
        """Raises ApiError 404."""
        self.documents.find(identity, owner)
        self.documents.remove(identity)
        self.content(identity).unlink(missing_ok=True)

    def _check_room(self, owner: str, num_bytes: int) -> None:
        mine = [each["shown"] for each in self.documents.all() if each["owner"] == owner]
        held = sum(max(_LEAST_FILE_BYTES, shown["bytes"]) for shown in mine)
        if held + num_bytes > self._max_stored_bytes:
            message = f"the files of this key take {held:,} of {self._max_stored_bytes:,} bytes; delete some first"
            raise ApiError(400, message, param="file", code="storage_limit_exceeded")

    def _tell(self, identity: str, num_bytes: int, name: str, purpose: str, owner: str) -> dict[str, Any]:
        shown = {
            "id": identity, "object": "file", "bytes": num_bytes, "created_at": int(time.time()),
            "filename": _plain_name(name), "purpose": purpose, "status": "processed",
        }  # fmt: skip
        self.documents.write({"owner": owner, "shown": shown})
        return shown


def _plain_name(name: str) -> str:
    """As it is shown; never used as a path."""
    plain = "".join(char if char.isprintable() else "_" for char in name.encode(errors="replace").decode())
    return plain[:_MAX_NAME_CHARACTERS] or "file.jsonl"
