"""Ray itself: found, connected to or started, and left as it was found.

A Ray that is initialised already is used and stays. Else `address`, or the variable RAY_ADDRESS, names a cluster; else
one is started on this machine for the job, without dashboard, and without a word to anybody (usage statistics are off).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from safegen.errors import JobWorkerError, RequestError

_OBJECT_STORE_BYTES = 1 << 30  # of a cluster that is started here; chunks of rows are all that lies in it
_OF_OWN_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}


def import_ray() -> Any:
    """The module ray, with ray.data. Raises RequestError with the pip line."""
    try:
        import ray
        import ray.data
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise RequestError("engine='ray' needs Ray: pip install 'safegen[ray]'", field="engine") from error
    return ray


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The module ray, connected. Raises RequestError, or JobWorkerError where there is no cluster to be had."""
    ray = import_ray()
    if ray.is_initialized():
        if address is not None:
            raise RequestError(
                "Ray is initialised in this process already; leave ray_address out to use that one",
                field="ray_address",
                value=address,
            )
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address.startswith("ray://"):
        raise RequestError(
            "ray:// is Ray's client, which is not served: run the job on a machine of the cluster, with "
            "ray_address='auto' or the address of its head",
            field="ray_address",
            value=address,
        )
    settings: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == "local":
        settings |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    try:
        with _environment(_OF_OWN_RAY if address == "local" else {}):
            ray.init(address=address, **settings)
    except Exception as error:  # Ray has no class for it
        raise JobWorkerError(
            f"there is no Ray at {address!r}: {error}", hint="check ray_address, and `ray status` there"
        ) from error
    try:
        with _quiet("ray.data"):
            yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """With these variables, as far as they are not set already."""
    added = [name for name in variables if name not in os.environ]
    os.environ.update({name: variables[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Of this logger, errors alone."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def cpus_each(machine_cpus: Sequence[int], num_workers: int) -> int:
    """The most CPUs that each worker can have, so that all of them find a place. machine_cpus: of each machine. Raises
    RequestError where there are more workers than CPUs."""
    for cpus in range(max(machine_cpus, default=0), 0, -1):
        if sum(machine // cpus for machine in machine_cpus) >= num_workers:
            return cpus
    raise RequestError(
        f"num_workers={num_workers}; the cluster has {sum(machine_cpus)} CPUs, and a worker needs one",
        field="num_workers",
        value=num_workers,
    )


def machines(ray: Any) -> list[int]:
    """CPUs of each machine that is alive."""
    return [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
