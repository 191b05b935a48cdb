"""The tests of the GPU kernels: interpreted ones (test_*.py) and ahead-of-time compiles (aot/), in two processes.

Triton decides when it is imported whether kernels are interpreted. So this process is the interpreted one, unless
SAFEGEN_TRITON_AOT=1 makes it the compiling one. `make test-kernels` starts both, at all sizes (SAFEGEN_KERNELS=1). In a
plain run of the suite what is marked `wide` is left out, and one test starts the compiling process for a few launches.
"""

from __future__ import annotations

import os

import pytest

COMPILES = os.environ.get("SAFEGEN_TRITON_AOT") == "1"
if COMPILES:
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    collect_ignore_glob = ["test_*.py"]
else:
    os.environ["TRITON_INTERPRET"] = "1"
    collect_ignore_glob = ["aot/test_*.py"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("SAFEGEN_KERNELS") == "1":
        return
    wide = [item for item in items if item.get_closest_marker("wide")]
    config.hook.pytest_deselected(items=wide)
    items[:] = [item for item in items if not item.get_closest_marker("wide")]
