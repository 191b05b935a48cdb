"""Errors of the playground: as everywhere, and with the place in the type that is to blame, for the page to show."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from safegen.errors import GrammarError, SchemaError
from safegen.server.errors import ApiError


class PlacedError(ApiError):
    """place: of a SchemaError or a GrammarError, by its own names."""

    def __init__(self, error: ApiError, place: dict[str, Any]) -> None:
        super().__init__(
            error.status, error.message, kind=error.kind, param=error.param, code=error.code, headers=error.headers
        )
        self.place = place

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {**super().body["error"], "place": self.place}}


@contextlib.contextmanager
def telling_places() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        place = _place_of(error.__cause__)
        if place is None:
            raise
        raise PlacedError(error, place) from error


def _place_of(cause: BaseException | None) -> dict[str, Any] | None:
    if isinstance(cause, SchemaError):
        return {"reason": cause.reason, "pointer": cause.pointer, "keyword": cause.keyword, "hint": cause.hint}
    if isinstance(cause, GrammarError):
        return {"reason": cause.reason, "line": cause.line, "column": cause.column}
    return None
