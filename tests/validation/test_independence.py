"""The judge shares no code with what it judges, and costs nothing to those who do not use it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import safegen.validation

_PACKAGE = Path(safegen.validation.__file__).parent


def test_the_validator_shares_no_code_with_the_constraint_machine() -> None:
    own = set()
    for path in _PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                own.add(node.module or "")
            elif isinstance(node, ast.Import):
                own |= {alias.name for alias in node.names}
    ours = {name for name in own if name.startswith("safegen")}
    assert {name for name in ours if not name.startswith("safegen.validation")} == {"safegen.errors"}
    others = {name.partition(".")[0] for name in own - ours} - set(sys.stdlib_module_names)
    assert others == {"jsonschema", "jsonschema_specifications", "lark", "referencing"}


def test_user_patterns_never_reach_a_backtracking_engine() -> None:
    """`re` is used on fixed patterns, compiled when the module is imported, and on sets of one character."""
    uses = [
        (path.name, node.attr)
        for path in _PACKAGE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "re"
    ]
    assert {attribute for _, attribute in uses} <= {"compile", "ASCII", "DOTALL", "IGNORECASE"}
    program = (
        "import re, safegen.validation as v\n"
        "def fail(*a, **k): raise SystemExit('re was used on a pattern of the schema')\n"
        "schema = {'pattern': '(a+)+$', 'patternProperties': {'^b': {}}, 'unevaluatedProperties': False}\n"
        "check = v.SchemaValidator(schema)\n"
        "re.search = re.match = re.fullmatch = re.compile = fail\n"
        "assert check.outcome('\"' + 'a' * 3000 + 'b\"').status == 'invalid'\n"
        "assert check.outcome('{\"b\": 1}').status == 'valid'\n"
        "assert check.outcome('{\"c\": 1}').status == 'invalid'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
