"""What serve.py makes of its measurements, on made-up ones; its clients on a server that answers in a fixed way; and
all of it over engines that answer at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks import serve
from benchmarks.common.http_figures import best_settings, load_figures, overhead_figures, tokens_per_s, verdict
from benchmarks.common.http_load import Ask, closed_loop, documents
from benchmarks.peers.http_servers import LlamaCppServer, find_llamacpp
from safegen.load.trace import Arrival, Served, Slo

PEER = LlamaCppServer("llama-server", "/bin/llama-server", "version: 1")
TEXT = '{"customer":"Ana"}'


def served(sent_s: float, first_s: float, last_s: float, tokens: int, ok: bool = True) -> Served:
    return Served(Arrival(sent_s, 0), sent_s, first_s, last_s, tokens, ok, 40)


def test_figures_are_medians_of_the_best_setting_and_percentiles_of_all_rounds() -> None:
    loads = {
        ("safegen", "default", 16, "json"): [
            [served(0.0, 0.1, 1.0, 100), served(0.5, 0.7, 2.0, 300)],
            [served(0.0, 0.3, 1.0, 500)],
            [served(0.0, 0.2, 1.0, 900, ok=False)],
        ],
        ("llamacpp", "t1", 16, "json"): [[served(0.0, 0.5, 2.0, 200)]],
        ("llamacpp", "t2", 16, "json"): [[served(0.0, 0.5, 2.0, 100)]],
    }
    assert best_settings(loads)["llamacpp", 16, "json"] == "t1"
    figures = load_figures(loads, Slo(0.5, 0.1))
    assert figures["safegen.c16.json.tok_s"] == 500.0  # of 200, 500 and 900
    assert figures["llamacpp.c16.json.tok_s"] == 100.0
    assert figures["ratio.c16.json"] == 5.0
    assert figures["safegen.c16.json.ttft_ms_p50"] == pytest.approx(200.0)
    assert figures["safegen.c16.json.ttft_ms_p99"] == pytest.approx(300.0)
    assert figures["safegen.c16.json.tpot_ms_p99"] == pytest.approx(1e3 * 0.9 / 99)
    assert figures["safegen.c16.json.ok_pct"] == figures["safegen.c16.json.goodput_pct"] == 100.0  # the median
    assert figures["safegen.c16.json.prompt_tokens"] == 40.0


def test_tokens_count_from_the_first_request_to_the_last_answer() -> None:
    assert tokens_per_s([served(1.0, 1.1, 2.0, 30), served(1.5, 1.6, 3.0, 50)]) == 40.0


def test_the_cost_of_http_is_what_it_adds_to_a_step() -> None:
    turns = {
        ("inside", "free"): [100.0, 105.0, 500.0], ("http", "free"): [100.0, 90.0, 110.0],
        ("inside", "json"): [220.0], ("http", "json"): [200.0],
    }  # fmt: skip
    figures = overhead_figures(turns)
    assert figures["http_overhead.free_pct"] == pytest.approx(5.0)
    assert figures["http_overhead.json_pct"] == figures["http_overhead_pct"] == pytest.approx(10.0)
    assert overhead_figures({}) == {}


def test_a_target_that_is_missed_is_said() -> None:
    assert verdict("ratio.c16.json", 3.9) == ">= 4 MISSED"
    assert verdict("ratio.c16.json", 4.1) == ">= 4 ok"
    assert verdict("http_overhead_pct", 5.1) == "<= 5 MISSED"
    assert verdict("ratio.c1.free", 0.1) == ""


def test_both_engines_are_given_the_same_words_and_only_one_is_told_the_schema_in_its_own_format() -> None:
    ours, theirs = (serve.make_ask("json", 3, 256, peer, "the schema").body for peer in (None, PEER))
    assert theirs["messages"][0] == {"role": "system", "content": "the schema"}
    assert theirs["messages"][1:] == ours["messages"]
    assert ours["response_format"]["json_schema"]["schema"] == theirs["response_format"]["json_schema"]["schema"]
    free = [serve.make_ask("free", 3, 64, peer, "the schema").body for peer in (None, PEER)]
    assert free[0] == free[1] and free[0]["stream_options"] == {"include_usage": True}
    other = LlamaCppServer("llama_cpp.server", "python", "1")
    assert serve.make_ask("json", 3, 256, other, "").body["response_format"]["type"] == "json_object"


def test_an_answer_is_right_when_it_is_whole_and_valid() -> None:
    order = {
        "customer": "Ana", "city": "Riga", "priority": "low", "paid": True, "comment": "",
        "items": [{"name": "a", "quantity": 1}, {"name": "b", "quantity": 2}],
    }  # fmt: skip
    assert serve.is_valid(json.dumps(order), "stop")
    assert not serve.is_valid(json.dumps(order), "length")
    assert not serve.is_valid(json.dumps({**order, "priority": "none"}), "stop")
    assert not serve.is_valid("{", "stop")
    assert serve.is_text("once", "length") and not serve.is_text(" ", "stop")


def sse(*documents: dict[str, Any], end: bool = True) -> list[bytes]:
    lines = [f"data: {json.dumps(each)}\n\n".encode() for each in documents]
    return [*lines, b"data: [DONE]\n\n"] if end else lines


def choice(content: str | None, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": {"role": "assistant", "content": content}, "finish_reason": reason}]}


@contextlib.asynccontextmanager
async def answering(pieces: Sequence[bytes], seen: list[dict[str, Any]]) -> AsyncIterator[int]:
    """A server that sends these pieces of a chunked answer, 20 ms apart."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        seen.append(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in pieces:
            await asyncio.sleep(0.02)
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        writer.write(b"0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def asked(pieces: Sequence[bytes], count: int = 3) -> tuple[list[Served], list[dict[str, Any]]]:
    seen: list[dict[str, Any]] = []
    asks = [Ask({"number": number}, lambda text, reason: text == TEXT and reason == "stop") for number in range(count)]

    async def main() -> list[Served]:
        async with answering(pieces, seen) as port:
            return await closed_loop(port, asks, 2)

    return asyncio.run(main()), seen


def test_clients_time_the_first_text_and_count_what_the_server_counts() -> None:
    usage = {"choices": [], "usage": {"completion_tokens": 7, "prompt_tokens": 30}}
    found, seen = asked(sse(choice(None), choice(TEXT[:5]), choice(TEXT[5:]), choice(None, "stop"), usage))
    assert sorted(each["number"] for each in seen) == [0, 1, 2]
    assert [(each.ok, each.tokens, each.prompt_tokens) for each in found] == [(True, 7, 30)] * 3
    assert all(each.first_s is not None and 0.035 < each.first_s - each.sent_s < 0.09 for each in found)  # 2nd piece
    assert all(each.last_s - each.sent_s > 0.115 for each in found)
    assert found[2].sent_s > min(found[0].last_s, found[1].last_s) - 0.01  # two at a time


def test_without_counts_a_piece_is_a_token_and_a_cut_stream_is_not_right() -> None:
    found, _ = asked(sse(choice(TEXT[:5]), choice(TEXT[5:]), choice(None, "stop"), end=False), count=1)
    assert [(each.ok, each.tokens) for each in found] == [(False, 2)]
    assert list(documents(b"HTTP/1.1 400\r\n\r\n{}")) == []


def test_where_nothing_is_answered_the_run_ends_with_what_the_server_said() -> None:
    with pytest.raises(RuntimeError, match=r"no request was answered.*200 OK"):
        asked([b"data: nothing\n\n"])


def test_a_server_that_is_not_there_is_told_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_llamacpp(None, None) == "no llama-server, and no interpreter with llama-cpp-python"
    assert "does not run" in str(find_llamacpp(str(tmp_path / "nothing"), None))
    binary = tmp_path / "llama-server"
    binary.write_text("#!/bin/sh\necho version: 42 >&2\n")
    binary.chmod(0o755)
    found = find_llamacpp(None, str(tmp_path / "python"))
    assert found == LlamaCppServer("llama-server", str(binary), "version: 42")
    command = found.command("m.gguf", 1234, 2)
    assert command[command.index("-np") + 1] == "16" and command[command.index("-c") + 1] == str(16 * 1024)


@dataclass
class Fake:
    port: int
    process: None = None

    def in_process(self, bodies: list[dict[str, Any]]) -> dict[str, Any]:
        return {"seconds": 1.0, "tokens": [10] * len(bodies)}


def run_main(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *options: str) -> tuple[dict[str, Any], list[int]]:
    ports: list[int] = []

    @contextlib.contextmanager
    def fake_safegen(folder: Path, model: str, model_name: str) -> Iterator[Fake]:
        yield Fake(1)

    @contextlib.contextmanager
    def fake_llamacpp(self: Any, folder: Path, model: str, num_threads: int) -> Iterator[int]:
        yield 10 + num_threads

    async def loop(port: int, asks: Sequence[Ask], concurrency: int) -> list[Served]:
        ports.append(port)
        return [served(0.0, 0.1, 1.0 if port == 1 else 5.0, 10) for _ in asks]

    monkeypatch.setattr(serve, "safegen_server", fake_safegen)
    monkeypatch.setattr(LlamaCppServer, "started", fake_llamacpp)
    monkeypatch.setattr(serve, "closed_loop", loop)
    monkeypatch.setattr(serve, "usable_cpus", lambda: 2)
    monkeypatch.setattr("safegen.engine.locate.locate_model", lambda name: tmp_path / "model.gguf")
    monkeypatch.setattr(sys, "argv", ["serve.py", "--out", str(tmp_path / "out.json"), *options])
    serve.main()
    report: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    return report, ports


def test_figures_have_the_names_that_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(serve, "find_llamacpp", lambda binary, python: PEER)
    report, ports = run_main(monkeypatch, tmp_path, "--rounds", "2", "--turns", "1")
    figures = report["figures"]
    for engine in ("safegen", "llamacpp"):
        for clients in (1, 4, 16):
            for kind in ("free", "json"):
                assert {
                    f"{engine}.c{clients}.{kind}.{name}" for name in ("tok_s", "ttft_ms_p50", "ttft_ms_p99")
                } <= set(figures)
    assert figures["ratio.c16.json"] == pytest.approx(5.0)
    assert figures["http_overhead_pct"] == 0.0
    loads = 2 + 6  # two to warm up
    assert ports == [1] * loads + [11] * loads + [12] * loads + [11] * loads + [12] * loads + [1] * loads + [1] * 4
    assert report["environment"]["llamacpp"] == {"server": "llama-server", "version": "version: 1"}


def test_a_missing_peer_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "find_llamacpp", lambda binary, python: "there is none")
    report, ports = run_main(monkeypatch, tmp_path, "--quick")
    assert set(ports) == {1} and "ratio.c16.json" not in report["figures"]
    assert "not measured: llama.cpp's server: there is none; fix: make bench-server-peer" in capsys.readouterr().out
    assert report["environment"]["missing"] == {"llama.cpp's server": f"there is none; fix: {serve.HINT}"}
