"""Who calls: API keys, kept as digests and compared in constant time.

A key is known by its SHA-256 alone; every comparison looks at all keys, so the time it takes tells nothing. A key's
name is what logs, files and batches know it by. Its cache salt is derived from it: prompts of different keys never
share blocks of the prefix cache, so how fast a prompt is answered tells nothing about what others have asked.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safegen.errors import RequestError
from safegen.server.errors import ApiError

KEYS_VARIABLE = "SAFEGEN_API_KEYS"
MIN_KEY_CHARACTERS = 16
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FIELDS = frozenset({"name", "key", "key_env", "key_sha256", "requests_per_minute", "max_concurrent"})


@dataclass(frozen=True, slots=True)
class ApiKey:
    """digest: SHA-256 of the key, never the key. requests_per_minute, max_concurrent: of this key; None is no limit."""

    name: str
    digest: bytes = field(repr=False)
    requests_per_minute: float | None = None
    max_concurrent: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise RequestError(
                f"the name of an API key is up to 64 letters, digits, '.', '_' or '-', got {self.name!r:.80}",
                field="name",
                value=self.name,
            )
        rate, most = self.requests_per_minute, self.max_concurrent
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1e9):
            raise RequestError(f"requests_per_minute of {self.name!r} is a number above 0", field="requests_per_minute")
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise RequestError(f"max_concurrent of {self.name!r} is a number from 1 on", field="max_concurrent")

    @property
    def cache_salt(self) -> str:
        return hmac.new(self.digest, b"safegen cache salt", hashlib.sha256).hexdigest()


ANONYMOUS = ApiKey("anonymous", b"")


class Keyring:
    """All keys of a server. No keys: everybody is `ANONYMOUS`. Raises RequestError for a name or key given twice."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = tuple(keys)
        if len({key.name for key in self._keys}) != len(self._keys):
            raise RequestError("two API keys have the same name", field="name")
        if len({key.digest for key in self._keys}) != len(self._keys):
            raise RequestError("one API key is given under two names", field="key")

    @property
    def is_open(self) -> bool:
        return not self._keys

    def named(self, name: str) -> ApiKey | None:
        """The key of that name, such as that of a batch from before a restart."""
        return ANONYMOUS if self.is_open else next((key for key in self._keys if key.name == name), None)

    def authenticate(self, authorization: str | None) -> ApiKey:
        """The key behind an Authorization header. Raises ApiError 401."""
        if self.is_open:
            return ANONYMOUS
        scheme, _, given = (authorization or "").partition(" ")
        digest = key_digest(given.strip())
        found: ApiKey | None = None
        for key in self._keys:  # all of them, whatever is found
            if hmac.compare_digest(key.digest, digest):
                found = key
        if found is None or scheme.lower() != "bearer":
            raise ApiError(
                401,
                "no valid API key was given; send it as 'Authorization: Bearer KEY'",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return found


def key_digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def load_keys(path: str | os.PathLike[str] | None, environment: Mapping[str, str] = os.environ) -> tuple[ApiKey, ...]:
    """Keys from a YAML (or JSON) file and from SAFEGEN_API_KEYS ("name=key,name=key"). Raises RequestError.

    The file holds `keys:`, a list of mappings: name, one of key_sha256 (hex), key_env (a variable that holds the key)
    and key, and the limits of ApiKey.
    """
    keys = [] if path is None else _keys_of_file(Path(path), environment)
    for entry in filter(None, (part.strip() for part in environment.get(KEYS_VARIABLE, "").split(","))):
        name, found, key = entry.partition("=")
        if not found:
            raise RequestError(f"{KEYS_VARIABLE} holds name=key pairs, separated by commas", field=KEYS_VARIABLE)
        keys.append(ApiKey(name.strip(), _checked_digest(name.strip(), key.strip())))
    return tuple(keys)


def _keys_of_file(path: Path, environment: Mapping[str, str]) -> list[ApiKey]:
    import yaml  # type: ignore[import-untyped]

    try:
        parsed: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {error}", field="api_keys", value=str(path)) from error
    except yaml.YAMLError as error:  # its message may quote a key
        raise RequestError(f"{path} is no YAML", field="api_keys", value=str(path)) from error
    listed = parsed.get("keys") if isinstance(parsed, Mapping) else None
    if not isinstance(listed, list) or not listed or set(parsed) != {"keys"}:
        raise RequestError(f"{path} holds a list under 'keys', and nothing else", field="api_keys", value=str(path))
    return [_key_of_entry(path, number, entry, environment) for number, entry in enumerate(listed)]


def _key_of_entry(path: Path, number: int, entry: Any, environment: Mapping[str, str]) -> ApiKey:
    where = f"{path}: keys[{number}]"
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise RequestError(f"{where} is a mapping with a name", field="api_keys")
    unknown = sorted(str(name) for name in entry if name not in _FIELDS)
    if unknown:
        raise RequestError(f"{where} has the unknown field {unknown[0]!r}", field="api_keys", value=unknown[0])
    given = [name for name in ("key", "key_env", "key_sha256") if entry.get(name) is not None]
    if len(given) != 1 or not isinstance(entry[given[0]], str):
        raise RequestError(f"{where} needs exactly one of key_sha256, key_env and key, a string", field="api_keys")
    digest = _entry_digest(where, entry, given[0], environment)
    return ApiKey(entry["name"], digest, entry.get("requests_per_minute"), entry.get("max_concurrent"))


def _entry_digest(where: str, entry: Mapping[str, Any], kind: str, environment: Mapping[str, str]) -> bytes:
    if kind == "key_sha256":
        try:
            digest = bytes.fromhex(entry[kind])
        except ValueError:
            digest = b""
        if len(digest) != hashlib.sha256().digest_size:
            raise RequestError(f"{where}: key_sha256 is 64 hexadecimal digits", field="key_sha256")
        return digest
    if kind == "key_env":
        if entry[kind] not in environment:
            raise RequestError(f"{where}: the variable {entry[kind]!r} is not set", field="key_env", value=entry[kind])
        return _checked_digest(entry["name"], environment[entry[kind]])
    return _checked_digest(entry["name"], entry[kind])


def _checked_digest(name: str, key: str) -> bytes:
    if len(key) < MIN_KEY_CHARACTERS:
        raise RequestError(f"the API key {name!r} has fewer than {MIN_KEY_CHARACTERS} characters", field="key")
    return key_digest(key)
