"""What `safegen gateway` adds to a request: the same requests to an upstream that answers at once, directly and through
the gateway, in turn, on this machine. All processes share its cores, so the figures are an upper bound.

`<kind>.c<N>.{direct,gateway}_ms` are medians over the rounds of the median latency with N requests in flight,
`overhead_ms` their difference, `gateway_per_s` requests a second; `document` is one JSON document, `stream` one of 64
events.

    python benchmarks/gateway.py --out FILE.json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import ROOT, environment, version, write_report

FAKE = ROOT / "tests" / "gateway" / "fake_upstream.py"
KINDS: dict[str, dict[str, Any]] = {"document": {"max_tokens": 8}, "stream": {"max_tokens": 64, "stream": True}}
ROUNDS, REQUESTS = 5, 200


@contextlib.contextmanager
def process(*command: str, until: str) -> Iterator[list[str]]:
    """Runs beside this one; its lines so far."""
    started = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(started.stdout or ()), daemon=True)  # a full pipe blocks
    reader.start()
    try:
        while not any(until in line for line in lines):
            assert started.poll() is None, lines
            time.sleep(0.01)
        yield lines
    finally:
        started.kill()
        started.wait()
        reader.join()


async def latencies_ms(url: str, body: dict[str, Any], in_flight: int, count: int) -> tuple[list[float], float]:
    """Of each request, and the seconds of all."""
    taken: list[float] = []
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=in_flight)
    async with httpx2.AsyncClient(timeout=60, limits=limits, trust_env=False) as http:

        async def client(number: int) -> None:
            for turn in range(count // in_flight):
                asked = {"model": "m", "messages": [{"role": "user", "content": f"{number} {turn}"}], **body}
                begun = time.perf_counter()
                answer = await http.post(f"{url}/chat/completions", json=asked)
                taken.append((time.perf_counter() - begun) * 1e3)
                assert answer.status_code == 200 and ("[DONE]" in answer.text) == bool(body.get("stream")), answer.text

        begun = time.perf_counter()
        await asyncio.gather(*(client(number) for number in range(in_flight)))
        return taken, time.perf_counter() - begun


def measure(direct: str, through: str) -> tuple[dict[str, float], list[dict[str, Any]]]:
    figures: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    for kind, body in KINDS.items():
        for in_flight in (1, 16):
            medians: dict[str, list[float]] = {"direct": [], "gateway": []}
            rates = []
            for turn in range(ROUNDS + 1):
                ways = [("direct", direct), ("gateway", through)]
                for way, url in ways if turn % 2 else reversed(ways):
                    taken, seconds = asyncio.run(latencies_ms(url, body, in_flight, REQUESTS))
                    if turn == 0:  # warm
                        continue
                    medians[way].append(statistics.median(taken))
                    rows.append({"kind": kind, "in_flight": in_flight, "way": way, "p50_ms": medians[way][-1]})
                    rates += [len(taken) / seconds] if way == "gateway" else []
            name, ms = f"{kind}.c{in_flight}", {way: statistics.median(each) for way, each in medians.items()}
            figures |= {f"{name}.{way}_ms": value for way, value in ms.items()}
            figures[f"{name}.overhead_ms"] = ms["gateway"] - ms["direct"]
            figures[f"{name}.gateway_per_s"] = statistics.median(rates)
    return figures, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON report")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, process(str(FAKE), "0", "fake", "0", until="ready") as lines:
        direct = f"http://127.0.0.1:{int(lines[-1].split()[1])}/v1"
        path = Path(folder) / "gateway.json"
        path.write_text(json.dumps({"upstreams": [{"name": "one", "url": direct, "models": ["m"]}]}))
        command = ("-m", "safegen.cli", "gateway", str(path), "--port", "0")
        with process(*command, until="startup complete") as log:
            through = next(line for line in log if " at http" in line).split(" at ")[1].strip()
            figures, rows = measure(direct, through)
    if arguments.out is not None:
        about = environment(httpx2=version("httpx2"), uvicorn=version("uvicorn"))
        write_report(arguments.out, about, figures, rows)
    print(f"{'kind':16} {'direct ms':>10} {'gateway ms':>11} {'adds ms':>8} {'per s':>7}")
    for name in (f"{kind}.c{in_flight}" for kind in KINDS for in_flight in (1, 16)):
        direct_ms, gateway_ms, adds_ms, per_s = (
            figures[f"{name}.{each}"] for each in ("direct_ms", "gateway_ms", "overhead_ms", "gateway_per_s")
        )
        print(f"{name:16} {direct_ms:10.2f} {gateway_ms:11.2f} {adds_ms:8.2f} {per_s:7.0f}")


if __name__ == "__main__":
    main()
