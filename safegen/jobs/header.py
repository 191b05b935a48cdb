"""The configurations under which an output was written, in a small file beside it.

The first one is that of the job that began it. A job of another configuration is refused with the names of what has
changed, unless it is told to keep the rows that are done (its own configuration is added, and a row that is done under
any of them is done) or to start over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safegen.errors import JobChanged, JobOutputError
from safegen.jobs.durable import replace_file
from safegen.jobs.keys import config_digest

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Config:
    """description: all that decides a row's answer beside the row, as data."""

    description: dict[str, Any]

    @property
    def digest(self) -> str:
        return config_digest(self.description)


def read_header(path: Path) -> list[dict[str, Any]]:
    """The configurations, each {"digest", "description"}; none where there is no file. Raises JobOutputError for a
    file of something else."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise JobOutputError(f"it cannot be read: {error}", path=str(path)) from error
    try:
        header = json.loads(text)
        if header["format"] != _FORMAT:
            raise JobOutputError(f"it was written by another version (format {header['format']})", path=str(path))
        return [{"digest": str(each["digest"]), "description": dict(each["description"])} for each in header["configs"]]
    except (ValueError, KeyError, TypeError) as error:
        raise JobOutputError(
            "it is no record of a job's configuration", path=str(path), hint="move the output and this file away"
        ) from error


def write_header(path: Path, configs: list[dict[str, Any]]) -> None:
    text = json.dumps({"format": _FORMAT, "configs": configs}, indent=1, default=str) + "\n"
    replace_file(path, lambda temporary: _write(temporary, text))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def check_unchanged(path: Path, configs: list[dict[str, Any]], config: Config) -> None:
    """Raises JobChanged that names what is different from the last configuration."""
    if not configs or any(each["digest"] == config.digest for each in configs):
        return
    before, now = configs[-1]["description"], json.loads(json.dumps(config.description, default=str))
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    raise JobChanged(
        f"the output was begun with another {', '.join(names) or 'configuration'}",
        path=str(path),
        hint="on_change='keep' keeps the rows that are done and answers the others anew, 'restart' starts over; or "
        "name another output",
    )
