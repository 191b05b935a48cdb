"""safegen: an LLM inside your own process whose answers are guaranteed."""

from __future__ import annotations

from pathlib import Path as _Path

# The folders engine, kernels and grammars are installed inside this package; in a checkout they lie beside it.
if not (_Path(__file__).parent / "engine").exists():
    __path__.append(str(_Path(__file__).parent.parent))

__version__ = "0.1.0"
