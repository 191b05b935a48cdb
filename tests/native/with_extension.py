"""Runs pytest over another build of the native extension: `with_extension.py _native.so PER_FILE [pytest arguments]`.

The module is put where `import safegen._native` looks first, so that the build in safegen/ stays as it is. Of each test
file at most PER_FILE tests run, evenly spread and always the same; 0 runs them all.
"""

from __future__ import annotations

import importlib.util
import sys

import pytest


def use_extension(path: str) -> None:
    spec = importlib.util.spec_from_file_location("safegen._native", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no extension module")
    module = importlib.util.module_from_spec(spec)
    sys.modules["safegen._native"] = module
    spec.loader.exec_module(module)


class EvenlySpread:
    """A pytest plugin that keeps at most per_file tests of each file."""

    def __init__(self, per_file: int) -> None:
        self._per_file = per_file

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        by_file: dict[object, list[pytest.Item]] = {}
        for item in items:
            by_file.setdefault(item.path, []).append(item)
        items[:] = [item for tests in by_file.values() for item in self._spread(tests)]

    def _spread(self, tests: list[pytest.Item]) -> list[pytest.Item]:
        if not self._per_file or len(tests) <= self._per_file:
            return tests
        return [tests[place * len(tests) // self._per_file] for place in range(self._per_file)]


if __name__ == "__main__":
    use_extension(sys.argv[1])
    sys.exit(pytest.main(sys.argv[3:], plugins=[EvenlySpread(int(sys.argv[2]))]))
