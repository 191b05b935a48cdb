"""The public surface: what `safegen` exports, what importing it costs, and what a missing name says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import safegen

ROOT = Path(__file__).parents[2]


def run_python(code: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_all_is_sorted_and_every_name_is_there() -> None:
    assert safegen.__all__ == sorted(safegen.__all__, key=lambda name: (not name.isupper(), name))
    assert set(safegen.__all__) == set(safegen._MODULE_OF)
    for name in safegen.__all__:
        assert getattr(safegen, name) is not None
    assert set(safegen.__all__) <= set(dir(safegen))


def test_every_name_comes_from_the_module_that_is_said_to_hold_it() -> None:
    code = "import safegen, json; print(json.dumps([getattr(safegen, n) is not None for n in safegen.__all__]))"
    assert all(json.loads(run_python(code)))


def test_no_public_name_is_that_of_a_module() -> None:
    modules = {path.stem for path in (ROOT / "safegen").iterdir()} | {"engine", "grammars", "kernels"}
    assert not modules & set(safegen.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Grammer"):
        _ = safegen.Grammer


def test_import_takes_under_100_ms_and_neither_torch_nor_pydantic() -> None:
    code = (
        "import sys, time; start = time.process_time(); import safegen; took = time.process_time() - start; "
        "heavy = {'torch', 'transformers', 'pydantic', 'numpy', 'jsonschema', 'tokenizers'} & set(sys.modules); "
        "print(took * 1000, *heavy)"
    )
    milliseconds, *heavy = run_python(code).split()
    assert not heavy
    assert float(milliseconds) < 100


def test_types_checks_and_results_need_no_torch() -> None:
    code = (
        "import sys, safegen; from safegen import *; "
        "assert safegen.matches(int, '7') and safegen.check(int); "
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    assert run_python(code).split() == ["False", "False"]
