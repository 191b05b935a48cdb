"""Grammars that come with safegen, in Lark syntax, by name.

    Grammar(library.load("sql_select"))

Each file says what it covers and gives examples, as JSON strings behind `// Example:`.
"""

from __future__ import annotations

import json
from pathlib import Path

from safegen.errors import GrammarError

__all__ = ["examples", "load", "names"]

_FOLDER = Path(__file__).parent
_EXAMPLE = "// Example: "


def names() -> list[str]:
    """Names of the grammars, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.lark"))


def load(name: str) -> str:
    """The text of a grammar; its start rule is `start`. Raises GrammarError for a name that is not there."""
    if name not in names():
        raise GrammarError(f"The library has no grammar {name!r}; it has {', '.join(names())}.")
    return (_FOLDER / f"{name}.lark").read_text(encoding="utf-8")


def examples(name: str) -> list[str]:
    """Texts of a grammar, from its file."""
    lines = load(name).split("\n")
    return [json.loads(line.removeprefix(_EXAMPLE)) for line in lines if line.startswith(_EXAMPLE)]
