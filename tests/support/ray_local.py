"""A Ray of this machine for tests, and the wait for what comes in its own time."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def local_ray(num_cpus: int) -> Iterator[Any]:
    """The module ray, initialised; it must still be so at the end."""
    import ray

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
    ray.init(address="local", num_cpus=num_cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield ray
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def in_time(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.005)
