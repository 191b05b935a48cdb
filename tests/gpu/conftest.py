"""Tests on a real GPU: `make test-gpu`. Without one they are skipped; the same code is proven on the CPU by
tests/kernels/triton (interpreted kernels) and tests/engine/gpu (the runner on a fake device)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from safegen.engine.models.loader import load_model
from safegen.engine.runner import ModelRunner
from safegen.kernels.reference import ReferenceOps
from tests.engine.checkpoints import tiny_model

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="there is no CUDA device"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny_model("llama", num_hidden_layers=2).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def plain(folder: Path) -> ModelRunner:
    return ModelRunner(load_model(folder, ReferenceOps()), ReferenceOps())
