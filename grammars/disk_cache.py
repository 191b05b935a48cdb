"""What was costly to make, kept on disk: bytes by key, in a directory of the user's own.

Only ever a cache. A file that is cut short, damaged, not ours or of another version is a miss, and is written anew; a
full or read-only disk costs speed, never an answer. Nothing is unpickled: a value is bytes, and whoever asked for it
checks what they say.

- One file a value: `magic, length, digest, payload`. The digest is keyed BLAKE2b over the whole key and the payload,
  with a random secret that lies beside the files and that only the owner can read.
- A key names the kind of value, the version that made it and all it was made from, such as the vocabulary's
  fingerprint; the file's name is a hash of it.
- Files appear by an atomic rename, so processes may share a directory. The least recently used go when their bytes
  pass the bound; a value that is larger than the bound is not kept.
- A directory that others can write to is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import struct
import tempfile
import time
from pathlib import Path

from safegen.errors import RequestError

_MAGIC = b"safegen\x01"
_HEADER = struct.Struct("<8sQ32s")  # magic, bytes of the payload, digest
_SUFFIX = ".cache"
_SECRET_NAME = "secret"
_SECRET_BYTES = 32
_STALE_S = 3600.0  # a temporary file this old was left by a process that died
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class DiskCache:
    """Thread-safe, and safe beside other processes. version: of the program; values of another are never seen.

    Raises RequestError when `directory` cannot be made or used safely.
    """

    def __init__(self, directory: str | os.PathLike[str], *, max_bytes: int, version: str) -> None:
        self.directory = Path(directory)
        self.max_bytes = max_bytes
        self.version = version
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_owner()
            self._secret = self._read_secret()
        except (OSError, ValueError) as error:  # ValueError: a path that holds a NUL
            raise self._refused(f"cannot be used: {error}") from error

    def get(self, *key: str) -> bytes | None:
        """The value of a key, or None. A file that is not what `put` wrote is removed."""
        path = self._path(key)
        try:
            content = self._read(path)
        except FileNotFoundError:
            return None
        except OSError:
            content = None
        payload = None if content is None else self._payload(key, content)
        with contextlib.suppress(OSError):
            if payload is None:
                path.unlink()
            else:
                os.utime(path)
        return payload

    def put(self, payload: bytes, *key: str) -> bool:
        """Keep a value. False when it is too large, or when the disk takes nothing."""
        if _HEADER.size + len(payload) > self.max_bytes:
            return False
        path = self._path(key)
        try:
            handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=self.directory)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_HEADER.pack(_MAGIC, len(payload), self._digest(key, payload)))
                    file.write(payload)
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError:
            return False
        self._evict(path)
        return True

    def num_bytes(self) -> int:
        return sum(size for _, size, _ in self._files())

    # Files.

    def _path(self, key: tuple[str, ...]) -> Path:
        return self.directory / (hashlib.blake2b(self._joined(key), digest_size=20).hexdigest() + _SUFFIX)

    def _joined(self, key: tuple[str, ...]) -> bytes:
        """Unambiguous: every part with its length."""
        parts = [part.encode("utf-8", "surrogatepass") for part in (self.version, *key)]
        return b"".join(len(part).to_bytes(8, "little") + part for part in parts)

    def _digest(self, key: tuple[str, ...], payload: bytes) -> bytes:
        digest = hashlib.blake2b(self._joined(key), key=self._secret, digest_size=32, person=b"safegen cache")
        digest.update(payload)
        return digest.digest()

    def _read(self, path: Path) -> bytes | None:
        """The content of a regular file within the bound; no link is followed and no pipe waited for."""
        with os.fdopen(os.open(path, _OPEN_FLAGS), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or not _HEADER.size <= status.st_size <= self.max_bytes:
                return None
            return file.read(status.st_size + 1)

    def _payload(self, key: tuple[str, ...], content: bytes) -> bytes | None:
        if len(content) < _HEADER.size:
            return None
        magic, length, digest = _HEADER.unpack_from(content)
        payload = content[_HEADER.size :]
        if magic != _MAGIC or length != len(payload):
            return None
        return payload if hmac.compare_digest(digest, self._digest(key, payload)) else None

    def _files(self) -> list[tuple[float, int, Path]]:
        """(last use, bytes, path) of the values; temporary files that nobody writes any more are removed."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self.directory) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(_SUFFIX):
                        found.append((status.st_mtime, status.st_size, Path(entry.path)))
                    elif entry.name.endswith(".tmp") and time.time() - status.st_mtime > _STALE_S:
                        os.unlink(entry.path)
        return found

    def _evict(self, kept: Path) -> None:
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= self.max_bytes:
                return
            if path != kept:
                with contextlib.suppress(OSError):
                    path.unlink()
                total -= size

    # The directory.

    def _check_owner(self) -> None:
        status = self.directory.stat()
        if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
            raise self._refused("belongs to somebody else, or others can write to it (chmod go-w)")

    def _read_secret(self) -> bytes:
        """The secret beside the files; a new one where there is none or it is damaged, so that old files are misses."""
        path = self.directory / _SECRET_NAME
        for _ in range(3):
            with contextlib.suppress(FileNotFoundError), os.fdopen(os.open(path, _OPEN_FLAGS), "rb") as file:
                secret = file.read(_SECRET_BYTES + 1)
                if len(secret) == _SECRET_BYTES:
                    return secret
            handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=self.directory)
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(_SECRET_BYTES))
            os.replace(temporary, path)  # of two processes that begin together the later one's stays
        raise OSError(f"{path} cannot be read back")

    def _refused(self, reason: str) -> RequestError:
        return RequestError(f"the cache directory {str(self.directory)!r} {reason}", field="SAFEGEN_CACHE_DIR",
                            value=str(self.directory))  # fmt: skip
