"""Without pyarrow, Parquet is refused with the line that installs it, before anything is written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from safegen.errors import RequestError
from tests.support.job_fakes import fake_llm


@pytest.mark.parametrize(("given", "output"), [("in.parquet", "out.jsonl"), (["a"], "out.parquet")])
def test_a_missing_pyarrow_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | list[str], output: str
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.parquet").write_bytes(b"PAR1")
    with pytest.raises(RequestError, match=r"pip install 'safegen\[parquet\]'"):
        fake_llm().run_job(given, output, progress="off")
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]
