"""How a fault is logged: what kind it is and where it arose, never its message, which may quote a prompt or an answer.

The exception itself, message and all, goes to the caller whose request it ended.
"""

from __future__ import annotations

import traceback


def told(error: BaseException) -> str:
    """The class and the stack, of the error and of what it came of."""
    parts: list[str] = []
    current: BaseException | None = error
    while current is not None and len(parts) < 8:
        parts.append(f"{type(current).__name__}\n{''.join(traceback.format_tb(current.__traceback__))}")
        current = current.__cause__ or current.__context__
    return "which came of ".join(parts)


__all__ = ["told"]
