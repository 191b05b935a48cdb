"""Deploying the replicas: on a Ray of this machine for as long as the command runs, or on a cluster, which keeps them.

Deploying again what runs already, with other settings, is a rolling update: Ray Serve starts a new replica before it
drains an old one, as far as the cluster has room.
"""

from __future__ import annotations

import argparse
import math
import signal
import socket
import threading
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from safegen.errors import EngineError, RequestError
from safegen.jobs.on_ray.cluster import connected
from safegen.server.command import announce
from safegen.server.on_ray.replica import MakeModel, Replica, ReplicaRecipe
from safegen.server.recipe import ModelRecipe
from safegen.server.settings import ServerSettings

APPLICATION, BATCHES = "safegen", "safegen-batches"
_BATCHES_PATH = "/-/batches"
_MORE_THAN_PENDING = 64  # requests that reach a full replica, so that its own 429 is what they get
_HEALTH_EVERY_S, _HEALTH_WITHIN_S = 2.0, 30.0
_MAX_STARTS = 2  # of a replica, before the deployment has failed


@dataclass(frozen=True, slots=True)
class RayOptions:
    """min_replicas, max_replicas: equal for a fixed number. target_requests: in work, of each replica, by which their
    number is chosen. upscale_delay_s, downscale_delay_s: how long that must hold. cpus: of each, None shares out what
    the cluster has. address: of a running cluster, None is one of this machine. Raises RequestError."""

    host: str = "127.0.0.1"
    port: int = 8000
    min_replicas: int = 2
    max_replicas: int = 2
    target_requests: float = 16.0
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0
    cpus: float | None = None
    gpus: float = 0.0
    address: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise RequestError(
                f"min_replicas={self.min_replicas}, max_replicas={self.max_replicas}; they take 1 <= min <= max",
                field="min_replicas",
                value=self.min_replicas,
            )
        positive = {"target_requests": self.target_requests, "cpus": 1.0 if self.cpus is None else self.cpus}
        for name, value in positive.items():
            if not 0 < value < math.inf:
                raise RequestError(f"{name}={value!r}; it takes a number above 0", field=name, value=value)
        others = {"upscale_delay_s": self.upscale_delay_s, "downscale_delay_s": self.downscale_delay_s}
        for name, value in {**others, "gpus": self.gpus}.items():
            if not 0 <= value < math.inf:
                raise RequestError(f"{name}={value!r}; it takes a number from 0 on", field=name, value=value)

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> RayOptions:
        fixed, least, most = arguments.replicas, arguments.min_replicas, arguments.max_replicas
        if fixed is not None and (least is not None or most is not None):
            raise RequestError("--replicas is a fixed number: leave out --min-replicas and --max-replicas", field="ray")
        if fixed is not None or (least is None and most is None):
            least = most = 2 if fixed is None else fixed
        elif most is None:
            raise RequestError("--min-replicas comes with --max-replicas", field="ray")
        return cls(
            arguments.host, arguments.port, 1 if least is None else least, most,
            arguments.target_requests, arguments.upscale_delay, arguments.downscale_delay, arguments.cpus_per_replica,
            arguments.gpus_per_replica, arguments.ray_address,
        )  # fmt: skip


def serve_on_ray(recipe: ModelRecipe, settings: ServerSettings, options: RayOptions) -> int:
    """Deploy. On a Ray of its own: until SIGTERM or SIGINT, then drain and end it; on a cluster: return, it goes on."""
    import_serve()
    if isinstance(recipe.guards, dict) and recipe.guards.get("audit") is not None:
        raise RequestError(
            "guards with audit: write to a place of one process; leave it out with --ray", field="guards"
        )
    divided(settings, options.max_replicas)
    with connected(options.address) as ray:
        port = deploy(ray, recipe.make, settings, options)
        announce(settings, options.host, port)
        if options.address is None:
            wait_for_signal()
            take_down()
    return 0


def import_serve() -> Any:
    """The module ray.serve. Raises RequestError with the pip line."""
    try:
        from ray import serve
    except ImportError as error:
        raise RequestError("--ray needs Ray Serve: pip install 'safegen[server,ray]'", field="ray") from error
    return serve


def deploy(ray: Any, make_model: MakeModel, settings: ServerSettings, options: RayOptions) -> int:
    """Returns the port once all replicas are ready. Ray is connected. Raises EngineError with what a replica raised."""
    serve = import_serve()
    port = _start_proxy(serve, options)
    has_batches = settings.data_dir is not None
    cpus = options.cpus if options.cpus is not None else _share(ray, options.max_replicas + has_batches)
    try:
        if has_batches:
            of_batches = ReplicaRecipe(make_model, settings, cpus)
            serve.run(
                _deployment(serve, settings, options, cpus, is_alone=True).bind(of_batches),
                name=BATCHES, route_prefix=_BATCHES_PATH,
            )  # fmt: skip
        at = f"http://{_reached(options.host)}:{port}{_BATCHES_PATH}" if has_batches else None
        recipe = ReplicaRecipe(make_model, divided(settings, options.max_replicas), cpus, at)
        serve.run(
            _deployment(serve, settings, options, cpus, is_alone=False).bind(recipe), name=APPLICATION, route_prefix="/"
        )
        if not has_batches and BATCHES in serve.status().applications:
            serve.delete(BATCHES)
    except RuntimeError as error:
        raise EngineError(f"the replicas do not start: {_reason(serve) or error}") from error
    return port


def divided(settings: ServerSettings, num_replicas: int) -> ServerSettings:
    """Of one replica: the limits of keys are shared out, so that together they never pass what a key has. Raises
    RequestError for what cannot be shared."""
    keys = []
    for key in settings.keys:
        most, rate = key.max_concurrent, key.requests_per_minute
        if most is not None and most < num_replicas:
            raise RequestError(
                f"the key {key.name!r} has max_concurrent={most}, which {num_replicas} replicas cannot share",
                field="max_concurrent",
                value=most,
            )
        keys.append(
            replace(
                key,
                max_concurrent=None if most is None else most // num_replicas,
                requests_per_minute=None if rate is None else rate / num_replicas,
            )
        )
    return replace(settings, keys=tuple(keys))


def take_down() -> None:
    """The applications end: requests in work are finished as far as the drain allows."""
    serve = import_serve()
    serve.delete(APPLICATION)
    serve.shutdown()


def wait_for_signal() -> None:
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, end)
    ended.wait()


def _start_proxy(serve: Any, options: RayOptions) -> int:
    """The port that the cluster's proxy has; one that runs already keeps its own."""
    running = _proxy_port(serve)
    if running is None:
        running = options.port or _free_port(options.host)
        serve.start(http_options={"host": options.host, "port": running, "keep_alive_timeout_s": 15})
    elif options.port not in (0, running):
        raise RequestError(
            f"port={options.port}; the cluster's proxy listens at {running}, and only `serve shutdown` changes that",
            field="port",
            value=options.port,
        )
    return running


def _proxy_port(serve: Any) -> int | None:
    from ray.serve.context import _get_global_client

    client = _get_global_client(raise_if_no_controller_running=False)
    return None if client is None else int(client.http_config.port)


def _deployment(serve: Any, settings: ServerSettings, options: RayOptions, cpus: float, *, is_alone: bool) -> Any:
    scaling: dict[str, Any] = {"num_replicas": 1 if is_alone else options.max_replicas}
    if not is_alone and options.min_replicas < options.max_replicas:
        scaling = {
            "autoscaling_config": {
                "min_replicas": options.min_replicas,
                "max_replicas": options.max_replicas,
                "target_ongoing_requests": options.target_requests,
                "upscale_delay_s": options.upscale_delay_s,
                "downscale_delay_s": options.downscale_delay_s,
            }
        }
    return serve.deployment(serve.ingress()(Replica)).options(
        name=BATCHES if is_alone else APPLICATION,
        max_ongoing_requests=settings.max_pending + _MORE_THAN_PENDING,
        graceful_shutdown_timeout_s=settings.drain_timeout_s,
        graceful_shutdown_wait_loop_s=0.2,
        max_constructor_retry_count=_MAX_STARTS,
        logging_config={"enable_access_log": False},  # the application writes its own
        health_check_period_s=_HEALTH_EVERY_S,
        health_check_timeout_s=_HEALTH_WITHIN_S,
        ray_actor_options={"num_cpus": cpus, "num_gpus": options.gpus},
        **scaling,
    )


def _share(ray: Any, num_replicas: int) -> float:
    """CPUs of each: a whole number where there are as many CPUs as replicas."""
    share = float(ray.cluster_resources().get("CPU", 1.0)) / num_replicas
    return float(math.floor(share)) if share >= 1 else math.floor(100 * share) / 100


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as made:
        return int(made.getsockname()[1])


def _reached(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)


def _reason(serve: Any) -> str:
    """What the last line of a failed deployment says."""
    deployments = [each for app in serve.status().applications.values() for each in app.deployments.values()]
    messages = [each.message.strip() for each in deployments if each.message.strip()]
    return messages[0].splitlines()[-1] if messages else ""
