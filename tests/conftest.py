"""Fixtures shared by all tests, and the count of tests that could not run for want of a corpus.

`make test` sets SAFEGEN_DATA and SAFEGEN_CASES; `make test-full` also SAFEGEN_FULL=1. Where a corpus is absent its
tests are skipped, and without a browser those of pages; the summary line `corpus-skips: N` says how many, which .ci/run
takes for a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Browser, find_chromium

_ABSENT = "corpus absent: "


def _folder(variable: str) -> Path:
    value = os.environ.get(variable)
    if not value or not Path(value).is_dir():
        pytest.skip(f"{_ABSENT}{variable} names no folder (got {value!r})")
    return Path(value)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The public corpora."""
    return _folder("SAFEGEN_DATA")


@pytest.fixture(scope="session")
def cases_dir() -> Path:
    """The constraint cases."""
    return _folder("SAFEGEN_CASES")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium; pages are looked at in it."""
    command = find_chromium()
    if command is None:
        pytest.skip(f"{_ABSENT}no chromium on the path (apt-get install chromium, or set SAFEGEN_CHROMIUM)")
    with Browser(command) as opened:
        yield opened


@pytest.fixture(scope="session")
def full() -> bool:
    """Whether this is `make test-full`: larger sizes, more seeds."""
    return os.environ.get("SAFEGEN_FULL") == "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("SAFEGEN_FULL") == "1":
        return
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="runs in `make test-full`"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(_ABSENT in str(report.longrepr) for report in skipped)
    terminalreporter.write_line(f"corpus-skips: {count}")
