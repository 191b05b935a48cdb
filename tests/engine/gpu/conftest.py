"""A tiny checkpoint, and the plain runner over it that others are compared with."""

from __future__ import annotations

from pathlib import Path

import pytest

from safegen.engine.models.loader import load_model
from safegen.engine.runner import ModelRunner
from safegen.kernels.reference import ReferenceOps
from tests.engine.checkpoints import tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny_model("llama", num_hidden_layers=2).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def plain(folder: Path) -> ModelRunner:
    return ModelRunner(load_model(folder, ReferenceOps()), ReferenceOps())
