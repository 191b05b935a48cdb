"""The import table: which folder may import what. Every import counts, inside functions and under TYPE_CHECKING too."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Rule:
    """What a folder may import. own: modules of safegen, by prefix. others: third-party packages, None is any."""

    own: tuple[str, ...]
    others: frozenset[str] | None


_RULES = {
    "kernels": Rule(("safegen.errors", "safegen.kernels", "safegen._native"), frozenset({"torch", "triton", "numpy"})),
    "grammars": Rule(
        ("safegen.errors", "safegen.grammars", "safegen._native"), frozenset({"numpy", "lark", "outlines_core"})
    ),
    "engine": Rule(
        ("safegen.errors", "safegen.engine", "safegen.kernels", "safegen.grammars.constraint"),
        frozenset({"torch", "numpy", "tokenizers", "jinja2", "safetensors", "huggingface_hub"}),
    ),
    "safegen": Rule(("safegen",), None),
    "examples": Rule(("safegen",), frozenset({"openai", "pydantic"})),
}
# What the prefix "safegen" is not meant to cover.
_FORBIDDEN = {
    "safegen": ("safegen.kernels", "safegen._native"),
    "examples": ("safegen.kernels", "safegen.engine", "safegen.grammars", "safegen._native"),
}
_NEVER = frozenset({"transformers", "pickle", "dill", "joblib", "imp"})
# The one file that runs other people's models: transformers, with no code and no pickles of theirs.
_MAY = {"safegen/guards/classifier.py": frozenset({"transformers"})}


def _imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import. `from a import b` counts as a.b, since b may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            target = node.args[0] if node.args else None
            name = target.value if isinstance(target, ast.Constant) else "<computed>"
            yield node.lineno, str(name)


def _within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def violations(folder: str, source: str) -> list[str]:
    """The imports in a file of `folder` that the table does not allow, as "line: name"."""
    rule, found = _RULES[folder], []
    for line, name in _imported(ast.parse(source)):
        top = name.split(".")[0]
        if top == "safegen":
            allowed = _within(name, rule.own) and not _within(name, _FORBIDDEN.get(folder, ()))
        elif top in _RULES or name.startswith((".", "<")) or top in _NEVER:
            allowed = False  # a folder by its checkout name, a relative or computed import, or a loader of code
        else:
            allowed = top in sys.stdlib_module_names or rule.others is None or top in rule.others
        if not allowed:
            found.append(f"{line}: {name}")
    return found


@pytest.mark.parametrize("folder", sorted(_RULES))
def test_imports_follow_the_table(folder: str) -> None:
    files = sorted((_ROOT / folder).rglob("*.py"))
    found = [
        f"{path.relative_to(_ROOT)}:{violation}"
        for path in files
        for violation in violations(folder, path.read_text(encoding="utf-8"))
        if violation.split(": ")[1].split(".")[0] not in _MAY.get(str(path.relative_to(_ROOT)), ())
    ]
    assert found == []
    if folder != "examples":
        assert files, f"{folder}/ is empty: the walk looks in the wrong place"


@pytest.mark.parametrize(
    ("folder", "source", "refused"),
    [
        ("kernels", "import safegen.engine.core", True),
        ("kernels", "def f():\n    from safegen.grammars import constraint", True),
        ("kernels", "from safegen import errors, _native", False),
        ("grammars", "import torch", True),
        ("grammars", "from safegen import engine", True),
        ("grammars", "import re, lark, numpy as np", False),
        ("engine", "from safegen.grammars.matcher import Matcher", True),
        ("engine", "from safegen.grammars import constraint", False),
        ("engine", "from safegen.grammars.constraint import Constraint", False),
        ("engine", "from safegen import _native", True),
        ("engine", "if TYPE_CHECKING:\n    from safegen.guards.base import Guard", True),
        ("engine", "from . import request", True),
        ("engine", "import engine.request", True),
        ("engine", "importlib.import_module(name)", True),
        ("safegen", "from safegen.kernels.api import Ops", True),
        ("safegen", "from safegen.engine.request import Request", False),
        ("safegen", "import transformers", True),
        ("examples", "from safegen.engine.core import Engine", True),
        ("examples", "from safegen import LLM", False),
    ],
)
def test_the_table_sees_every_form_of_import(folder: str, source: str, refused: bool) -> None:
    assert bool(violations(folder, source)) == refused


def _run(code: str, folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(_ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_import_safegen_leaves_heavy_packages_alone(tmp_path: Path) -> None:
    code = "import safegen, sys; print([name for name in ('torch', 'transformers', 'triton') if name in sys.modules])"
    assert _run(code, tmp_path) == "[]"


def test_a_users_own_modules_do_not_break_safegen(tmp_path: Path) -> None:
    for name in ("engine", "kernels", "grammars"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the user\\'s own file was imported')\n")
    code = (
        "import safegen, safegen.engine.request, safegen.grammars.constraint, sys; "
        "print([name for name in ('engine', 'kernels', 'grammars') if name in sys.modules])"
    )
    assert _run(code, tmp_path) == "[]"


def test_a_users_own_modules_stay_importable_beside_safegen(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text("ANSWER = 42\n")
    assert _run("import safegen.engine.request, engine; print(engine.ANSWER)", tmp_path) == "42"
