"""Jobs on Ray, as far as no cluster is needed: what is refused, what goes to workers, how chunks are fed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from safegen.engine.request import SamplingParams
from safegen.errors import RequestError
from safegen.guards import PII, Classifier, Custom, Guards, GuardView, MaxLength, Never, Secrets
from safegen.jobs.on_ray.cluster import cpus_each
from safegen.jobs.on_ray.shipment import pack, unpack
from safegen.jobs.recipe import Recipe
from safegen.llm import LLM
from safegen.loading import LoadOptions, reloader
from safegen.runtime import CallOptions
from safegen.speculation import Speculation
from safegen.types import Choice
from tests.jobs.test_flow import no_forbidden
from tests.support.job_fakes import FakeRuntime, fake_llm
from tests.support.sdk_fakes import make_runtime

ROOT = Path(__file__).parents[2]
ON_RAY: dict[str, Any] = {"engine": "ray", "num_workers": 2, "progress": "off"}
LABELS = Choice(["pos", "neg", "neutral"])


def test_the_feed_gives_the_same_stream_again_and_forgets_what_is_written() -> None:
    from safegen.jobs.on_ray.feed import WRITTEN, Feed

    async def story() -> list[Any]:
        feed = Feed()
        first = asyncio.create_task(feed.take(0))
        await feed.put(1, b"one")
        await feed.put(0, b"zero")
        seen: list[Any] = [await first, await feed.take(1), await feed.take(1)]
        await feed.written(1)
        await feed.put(2, b"two")
        seen += [await feed.take(0), await feed.take(1)]
        await feed.written(0)
        await feed.written(2)
        assert not feed._chunks
        assert not feed._written
        await feed.end()
        seen += [await feed.take(2), await feed.take(3)]
        stopped = asyncio.create_task(feed.stopped())
        await feed.stop()
        await stopped
        return [*seen, await feed.take(2)]

    assert asyncio.run(story()) == [b"zero", b"one", b"one", b"zero", WRITTEN, WRITTEN, None, None]


def test_a_missing_ray_is_named_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RequestError, match=r"pip install 'safegen\[ray\]'"):
        fake_llm().run_job(["a"], tmp_path / "out.jsonl", **ON_RAY)
    assert not list(tmp_path.iterdir())


def test_ray_is_not_imported_by_a_local_job(tmp_path: Path) -> None:
    code = (
        "import sys; from tests.support.job_fakes import fake_llm; "
        f"fake_llm().run_job(['a'], {str(tmp_path / 'out.jsonl')!r}, progress='off'); "
        "assert not {'ray', 'safegen.jobs.on_ray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_a_job_that_is_done_does_not_need_a_cluster(tmp_path: Path) -> None:
    fake_llm().run_job(["a", "b"], tmp_path / "out.jsonl", progress="off")
    report = fake_llm().run_job(["a", "b"], tmp_path / "out.jsonl", **ON_RAY, ray_address="nowhere:1")
    assert (report.rows, report.skipped) == (0, 2)


def hold(kind: str) -> dict[str, Any]:
    """Options that hold what cannot be sent."""
    lock = threading.Lock()

    def prompt(columns: Any) -> str:
        with lock:
            return str(columns)

    def find(view: Any) -> None:
        prompt(view)

    return {
        "prompt": {"prompt": prompt},
        "type_of": {"type_of": prompt},
        "guards": {"guards": Custom(find)},
        "audit": {"guards": Guards([Custom(no_forbidden)], audit=lambda records: None)},
        "compiled": {"type": fake_llm().compile(LABELS)},
    }[kind]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("prompt", "prompt cannot go to the workers of Ray: cannot pickle '_thread.lock'"),
        ("type_of", "type_of cannot go"),
        ("guards", "guards cannot go"),
        ("audit", "guards with audit="),
        ("compiled", "pass what it was compiled from"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(tmp_path: Path, kind: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        fake_llm().run_job(["a"], tmp_path / "out.jsonl", **hold(kind), **ON_RAY)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine": "spark"}, "engine='spark'"),
        ({"engine": "ray"}, "needs num_workers"),
        ({"engine": "ray", "num_workers": 0}, "num_workers=0"),
        ({"num_workers": 2}, "engine='ray' alone"),
        ({"ray_address": "auto"}, "engine='ray' alone"),
        ({"engine": "ray", "num_workers": 2, "prompt": "no place"}, "names no column"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        fake_llm().run_job(["a"], tmp_path / "out.jsonl", **options)
    assert not list(tmp_path.iterdir())


def test_rows_that_cannot_be_sent_are_refused(tmp_path: Path) -> None:
    class Held(dict[str, str]):
        lock: Any = None

    held = Held(text="b")
    held.lock = threading.Lock()
    rows = [{"text": "a"}, held]
    with pytest.raises(RequestError, match="rows 0 to 1 cannot go to the workers of Ray"):
        fake_llm().run_job(rows, tmp_path / "out.jsonl", **ON_RAY)


def test_a_client_of_ray_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(RequestError, match="run the job on a machine of the cluster"):
        fake_llm().run_job(["a"], tmp_path / "out.jsonl", **ON_RAY, ray_address="ray://head:10001")


def test_built_in_guards_go_to_workers_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    listed = [Never(phrases=["forbidden"], regexes=["a+b"]), PII(types=["EMAIL"]), Secrets(), MaxLength(characters=9)]
    guards = Guards([*listed, Classifier(path=str(tmp_path))], audit_key=b"sixteen bytes or more")
    runtime = FakeRuntime()
    call = CallOptions(guards=guards)
    recipe = Recipe(LABELS, "{text}", None, None, None, SamplingParams(), call, 0, is_openai=False)
    arrived = unpack(pack(runtime, recipe)).recipe.call.guards
    assert arrived.to_dict() == guards.to_dict()
    assert arrived.config == guards.config
    assert arrived.digests == guards.digests
    text = GuardView("mail a@b.example, forbidden")
    assert [guard.find(text) for guard in arrived.guards[:4]] == [guard.find(text) for guard in guards.guards[:4]]


def test_an_llm_that_cannot_be_loaded_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"LLM\.without_weights"):
        LLM.from_runtime(make_runtime()).run_job(["a"], tmp_path / "out.jsonl", **ON_RAY)


def test_cores_are_shared_so_that_every_worker_finds_a_place() -> None:
    assert [cpus_each([8], count) for count in (1, 2, 3, 8)] == [8, 4, 2, 1]
    assert cpus_each([8, 8], 3) == 4  # five would leave the third without a place
    assert cpus_each([16, 2], 3) == 5
    with pytest.raises(RequestError, match="num_workers=9"):
        cpus_each([8], 9)


def test_an_llm_without_weights_knows_what_a_loaded_one_knows() -> None:
    outline, loaded = LLM.without_weights(max_num_seqs=3), LLM(max_num_seqs=3)
    first, second = outline._runtime, loaded._runtime
    for name in ("fingerprint", "max_context", "max_num_seqs", "token_bytes"):
        assert getattr(first, name) == getattr(second, name), name
    assert first.count_tokens("How long is this?") == second.count_tokens("How long is this?")
    assert outline.stats().running == outline.stats().kv_blocks == 0
    assert outline.compile(LABELS).labels == ("pos", "neg", "neutral")
    loaded.close()
    outline.close()


def test_a_model_is_named_by_its_whole_path_to_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def named(model: Any, **options: Any) -> Any:
        return reloader(LoadOptions(model, **options)).args[0]  # type: ignore[attr-defined]

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SAFEGEN_MODEL", raising=False)
    (tmp_path / "a.gguf").touch()
    assert named("a.gguf").model == named(Path("a.gguf")).model == str(tmp_path / "a.gguf")
    assert named("org/name").model == "org/name"
    assert named(None).model is None
    speculation = Speculation(draft_model="a.gguf")
    assert named("org/name", speculation=speculation).speculation.draft_model == str(tmp_path / "a.gguf")
    monkeypatch.setenv("SAFEGEN_MODEL", "a.gguf")
    assert named(None).model == str(tmp_path / "a.gguf")
