"""The server on two replicas of a Ray of this machine: the answers of one server, whichever of them gives them; nothing
is lost when they are replaced, and whoever of them dies comes back."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import OpenAI

from safegen.errors import EngineError, RequestError
from safegen.runtime import Runtime
from safegen.server.auth import ApiKey
from safegen.server.on_ray.deploy import APPLICATION, RayOptions, deploy, divided, take_down
from safegen.server.settings import ServerSettings
from tests.server.harness import ASK, KEY, served, settings, slow_runtime
from tests.support.ray_local import in_time, local_ray

STEP_S = 0.002
SEEDED = {**ASK, "seed": 7}
BODIES: list[dict[str, Any]] = [
    {**SEEDED, "max_tokens": 40},
    {**SEEDED, "response_format": {"type": "regex", "pattern": "[a-f]{12}"}},
    {**SEEDED, "response_format": {"type": "choice", "choices": ["red", "green"]}, "n": 2},
    {
        **SEEDED,
        "max_tokens": 200,
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "x",
                "strict": True,
                "schema": {
                    "type": "object",
                    "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 99}, "b": {"type": "boolean"}},
                    "required": ["a", "b"],
                    "additionalProperties": False,
                },
            },
        },
    },
]


@dataclass
class Cluster:
    ray: Any
    settings: ServerSettings
    port: int
    pids: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def http(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60)

    def openai(self) -> OpenAI:
        return OpenAI(api_key=KEY, base_url=f"{self.url}/v1", max_retries=0, timeout=60)

    def again(self, make: Callable[[], Runtime] | None = None, *, step_s: float = STEP_S, **options: Any) -> None:
        """Deploy once more."""
        chosen = {"port": self.port, "cpus": 0.5, **options}
        made = make or partial(make_model, str(self.pids), step_s)
        assert deploy(self.ray, made, self.settings, RayOptions(**chosen)) == self.port


def make_model(pids: str, step_s: float) -> Runtime:
    """Leaves the number of its process in the folder."""
    Path(pids, str(os.getpid())).touch()
    return slow_runtime(step_s)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    chosen = settings(
        data_dir=tmp_path_factory.mktemp("data"),
        keys=(ApiKey("team", hashlib.sha256(KEY.encode()).digest()),),
        drain_timeout_s=10.0,
    )
    pids = tmp_path_factory.mktemp("pids")
    with local_ray(num_cpus=4) as ray:
        port = deploy(ray, partial(make_model, str(pids), STEP_S), chosen, RayOptions(port=0, cpus=0.5))
        yield Cluster(ray, chosen, port, pids)
        take_down()


def counted(cluster: Cluster, metric: str) -> dict[str, int]:
    """Of each replica that answers, by its name. metric: its name in OpenMetrics, and a label that it must have."""
    name, _, label = metric.partition(" ")
    found: dict[str, int] = {}
    with cluster.http() as http:
        for _ in range(24):
            for line in http.get("/metrics").text.splitlines():
                replica = re.search('replica="([^"]+)"', line)
                if replica and line.startswith(f"safegen_{name}{{") and label in line:
                    found[replica[1]] = int(float(line.rsplit(" ", 1)[1]))
    return found


def replicas(cluster: Cluster) -> set[str]:
    """Those that answer."""
    return set(counted(cluster, "sequences_running"))


def test_answers_are_those_of_one_server_and_streams_spell_them(cluster: Cluster) -> None:
    alone: list[list[str]] = []

    async def ask(server: Any) -> None:
        for body in BODIES:
            answer = (await server.post("/v1/chat/completions", body)).json()
            alone.append([choice["message"]["content"] for choice in answer["choices"]])

    served(ask, slow_runtime(0.0))
    with cluster.http() as http, cluster.openai() as client:
        for body, contents in zip(BODIES * 3, alone * 3):
            answer = http.post("/v1/chat/completions", json=body).json()
            assert [choice["message"]["content"] for choice in answer["choices"]] == contents
            parts = [""] * len(contents)
            for chunk in client.chat.completions.create(**_for_client(body), stream=True):
                for choice in chunk.choices:
                    parts[choice.index] += choice.delta.content or ""
            assert parts == contents
    assert len(replicas(cluster)) == 2


def _for_client(body: dict[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in body.items() if name == "response_format"}
    return {**{name: value for name, value in body.items() if name not in own}, "extra_body": own}


def test_what_is_wrong_is_refused_in_the_same_shape(cluster: Cluster) -> None:
    with cluster.http() as http:
        unknown = http.post("/v1/chat/completions", json={**ASK, "temprature": 1})
        assert unknown.status_code == 400 and unknown.json()["error"]["param"] == "temprature"
        assert http.post("/v1/chat/completions", content=b"{").status_code == 400
        assert http.get("/nothing").status_code == 404
        ready = http.get("/ready", headers={"x-request-id": "mine"})
        assert ready.json() == {"status": "ok"} and ready.headers.get_list("x-request-id") == ["mine"]
        for path in ("/v1/models", "/v1/files", "/v1/batches"):
            refused = http.get(path, headers={"authorization": "Bearer wrong"})
            assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key", path
        large = http.post("/v1/chat/completions", content=b" " * (cluster.settings.max_body_bytes + 1))
        assert large.status_code == 413


def test_a_batch_is_seen_through_every_replica_and_answers_each_line_once(cluster: Cluster) -> None:
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": BODIES[1]}
        for number in range(30)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    with cluster.openai() as client:
        given = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=given.id, endpoint="/v1/chat/completions", completion_window="24h")
        in_time(lambda: client.batches.retrieve(batch.id).status == "completed")
        for _ in range(6):
            done = client.batches.retrieve(batch.id)
            assert done.request_counts is not None and done.request_counts.completed == len(lines)
        assert done.output_file_id is not None
        answers = client.files.content(done.output_file_id).text.splitlines()
    assert sorted(json.loads(line)["custom_id"] for line in answers) == sorted(line["custom_id"] for line in lines)


def test_a_client_that_leaves_is_cancelled_and_leaves_nothing_behind(cluster: Cluster) -> None:
    body = {**ASK, "stream": True, "max_tokens": 1500, "min_tokens": 1500}
    with cluster.http() as http:
        for _ in range(4):
            with http.stream("POST", "/v1/chat/completions", json=body) as answer:
                next(answer.iter_bytes())
    cancelled = 'sequences_finished_total reason="cancelled"'
    in_time(lambda: sum(counted(cluster, cancelled).values()) == 4, 20)
    assert set(counted(cluster, "sequences_running").values()) == {0}


class Load:
    """Clients that ask without a pause until the block ends. failures: what was no whole answer."""

    def __init__(self, cluster: Cluster, num_clients: int = 6) -> None:
        self._cluster = cluster
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(num_clients)
        self._num_clients = num_clients
        self.failures: list[str] = []
        self.num_right = 0

    def __enter__(self) -> Load:
        self._tasks = [self._pool.submit(self._ask) for _ in range(self._num_clients)]
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for task in self._tasks:
            task.result()
        self._pool.shutdown()

    def _ask(self) -> None:
        with self._cluster.http() as http:
            while not self._over.is_set():
                try:
                    answer = http.post("/v1/chat/completions", json=BODIES[1])
                    text = answer.json()["choices"][0]["message"]["content"] if answer.status_code == 200 else ""
                except (httpx2.HTTPError, ValueError) as error:
                    self.failures.append(repr(error))
                    continue
                if re.fullmatch("[a-f]{12}", text):
                    self.num_right += 1
                else:
                    self.failures.append(f"{answer.status_code} {answer.text[:200]}")


def test_an_update_replaces_all_replicas_and_loses_no_request(cluster: Cluster) -> None:
    before = replicas(cluster)
    with Load(cluster) as load:
        in_time(lambda: load.num_right > 5)
        cluster.again(step_s=1.5 * STEP_S)
        in_time(lambda: not before & replicas(cluster))
    assert load.failures == [] and load.num_right > 20
    assert len(replicas(cluster)) == 2


def test_a_replica_that_is_killed_comes_back_and_the_other_goes_on(cluster: Cluster) -> None:
    """What was in work on it is lost; all else is answered."""
    with Load(cluster) as load:
        in_time(lambda: load.num_right > 5)
        os.kill(_a_replica_process(cluster), signal.SIGKILL)
        reached = load.num_right + 30
        in_time(lambda: load.num_right > reached)
        in_time(lambda: len(replicas(cluster)) == 2)
    assert len(load.failures) <= 6, load.failures  # at most what each client had in work
    with cluster.http() as http:
        assert http.post("/v1/chat/completions", json=BODIES[1]).status_code == 200


def _a_replica_process(cluster: Cluster) -> int:
    """Ray names its processes by what they are."""
    mine = f"ray::ServeReplica:{APPLICATION}:".encode()
    pids = [int(name) for name in os.listdir(cluster.pids)]
    return next(pid for pid in pids if (path := Path(f"/proc/{pid}/cmdline")).exists() and mine in path.read_bytes())


def test_replicas_follow_the_requests_in_work(cluster: Cluster) -> None:
    scaling: dict[str, Any] = {"upscale_delay_s": 0.5, "downscale_delay_s": 600.0, "target_requests": 1.0}
    cluster.again(min_replicas=1, max_replicas=3, **scaling)
    with Load(cluster, 8) as load:
        in_time(lambda: len(replicas(cluster)) == 3)
    assert load.failures == []


@pytest.mark.parametrize(
    "given", [{"min_replicas": 3}, {"max_replicas": 0}, {"cpus": 0.0}, {"target_requests": -1.0}, {"gpus": -1.0}]
)
def test_options_that_cannot_be_are_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(given))):
        RayOptions(**given)


def test_limits_of_keys_are_shared_out_and_what_cannot_be_is_refused() -> None:
    key = ApiKey("team", b"x" * 32, requests_per_minute=60.0, max_concurrent=5)
    shared = divided(settings(keys=(key,)), 2).keys[0]
    assert (shared.requests_per_minute, shared.max_concurrent) == (30.0, 2)
    with pytest.raises(RequestError, match="max_concurrent=5"):
        divided(settings(keys=(key,)), 6)


def test_two_ports_of_one_proxy_are_refused(cluster: Cluster) -> None:
    with pytest.raises(RequestError, match="port"):
        cluster.again(port=cluster.port + 1)


def broken() -> Runtime:
    raise RequestError("no such model here", field="model")


def test_a_model_that_cannot_be_made_is_named(cluster: Cluster) -> None:
    """The last one on the cluster: its deployment has failed then."""
    with pytest.raises(EngineError, match="no such model here"):
        cluster.again(broken)


@pytest.mark.full
def test_the_command_serves_on_two_replicas_and_ends_on_sigterm() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SAFEGEN_MODEL"}
    popen = subprocess.Popen(
        [sys.executable, "-m", "safegen.cli", "serve", "--ray", "--port", "0", "--kv-cache-memory", str(64 << 20)],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment,
    )  # fmt: skip
    try:
        assert popen.stderr is not None
        url = next(found[0] for line in popen.stderr if (found := re.search(r"http://[0-9.]+:\d+(?=/v1)", line)))
        threading.Thread(target=popen.stderr.read, daemon=True).start()
        body = {**ASK, "model": "default", "max_tokens": 4}
        assert httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200
        popen.send_signal(signal.SIGTERM)
        assert popen.wait(60) == 0
    finally:
        popen.kill()
        popen.wait(30)
