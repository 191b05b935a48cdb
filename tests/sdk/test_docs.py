"""Every Python block of the README and the documentation runs, page by page, on the default model."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from safegen.cli import _parser
from safegen.limits import Limits
from safegen.llm import LLM

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_blocks_of_a_page_run_in_order(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType(f"doc_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec", dont_inherit=True), module.__dict__)
    module.__dict__["llm"].close()
    shown = capsys.readouterr().out
    assert shown
    if page.name == "README.md":  # its comments say what comes out
        status, person = shown.splitlines()
        assert status == "ok"
        assert person.startswith("name=")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or os.path.exists(page.parent / target), target


def test_commands_that_are_shown_exist() -> None:
    shown = [line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()]
    commands = [line.split()[1] for line in shown if line.startswith("safegen ")]
    assert commands
    for command in commands:
        assert command in _parser().format_help()


def test_every_constructor_option_and_limit_is_documented() -> None:
    page = (ROOT / "docs" / "engine-settings.md").read_text()
    for name in LLM.__init__.__annotations__:
        assert name == "return" or f"`{name}`" in page, name
    documented = " ".join(kind.__doc__ or "" for kind in Limits.__mro__)
    for name in Limits.__dataclass_fields__:
        assert name in documented, name
