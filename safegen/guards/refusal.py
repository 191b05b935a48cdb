"""`Refusal`: what a caller gets in place of a value when a guard stopped the request and `on_block=Refusal` is set.

So an application has one of two typed shapes, `T | Refusal`, and no exception to catch. The message names the guard and
its rule, never the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Refusal:
    """code: "input" or "output", where it was stopped. guard, rule, path: by whom, for what, and where."""

    code: Literal["input", "output"]
    guard: str
    rule: str
    path: str
    message: str
