"""What answers and times hang on, beside the model: for the small print of a page."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import safegen


def versions() -> list[tuple[str, str]]:
    """Names and versions; the machine's kind last."""
    found = [("safegen", safegen.__version__), ("Python", platform.python_version())]
    for package in ("torch", "tokenizers"):
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return [*found, ("Machine", f"{platform.system()} {platform.machine()}")]
