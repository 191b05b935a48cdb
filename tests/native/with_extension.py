"""Runs pytest over another build of the native extension: `with_extension.py _native.so [pytest arguments]`.

The module is put where `import safegen._native` looks first, so that the build in safegen/ stays as it is.
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


if __name__ == "__main__":
    use_extension(sys.argv[1])
    sys.exit(pytest.main(sys.argv[2:]))
