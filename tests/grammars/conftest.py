"""Every front-end test runs on the native machine and on its slow twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from safegen import _native
from tests.support import twin

BuilderFactory = Callable[..., Any]
FACTORIES: dict[str, BuilderFactory] = {"native": _native.Builder, "twin": twin.Builder}


@pytest.fixture(params=list(FACTORIES))
def make_builder(request: pytest.FixtureRequest) -> BuilderFactory:
    return FACTORIES[request.param]
