"""Serving over HTTP: `safegen serve`'s application beside llama.cpp's server, on the same GGUF file, in one run.

Closed loops of N clients ask for chat completions as streams, greedily: free text (64 tokens), and JSON of a schema
whose strings have bounded lengths. Every request has a number of its own in its text, so that nothing but the system
prompt is found in a prefix cache. Both engines get the same messages: safegen's server shows the schema to the model in
the system prompt, so llama.cpp's gets the very same system prompt. Each server runs in a process of its own and is warm
before its time counts; the order alternates between rounds.

llama.cpp's server is `llama-server` (`make bench-server-peer` compiles it for this very processor; else --llama-server,
or the path): 16 slots of 1,024 tokens, flash attention, continuous batching, prompt caching, the best of one and two
threads for each load. Without it `llama_cpp.server` of llama-cpp-python's extra `server` is taken, which answers one
request at a time; the environment says which of them was measured.

Figures: `<engine>.c<N>.{free,json}.*`: `tok_s` (tokens of all answers, as their server counts them, over the time from
the first request to the end of the last answer; the median of the rounds), `ttft_ms_p50|p99` and `tpot_ms_p50|p99`
(client's clock, all rounds together), `goodput_pct` (right answers within --slo-ttft-ms and --slo-tpot-ms), `ok_pct`
(right answers: for JSON those that the schema's validator takes), `requests_per_s`. `ratio.c<N>.{free,json}`: tok_s of
safegen over llama.cpp's.

`http_overhead_pct`: how much longer a step takes over HTTP. The same 16 requests are streamed at once over HTTP, and
through `AsyncLLM` inside the server's process on the same loaded model, in turns, all prompts cached: tokens a second
inside over those over HTTP, minus one, of medians. `http_overhead_pct` is the larger of `http_overhead.free_pct` and
`http_overhead.json_pct`. The clients of the HTTP turns share the machine's cores with the server, so what they cost is
in it.

    python benchmarks/serve.py --out FILE.json [--quick] [--llama-server PATH]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jsonschema import Draft202012Validator

from benchmarks.common import environment, version, write_report
from benchmarks.common.cpu_workload import SCHEMA, decode_texts, json_texts
from benchmarks.common.http_figures import (
    KINDS,
    Loads,
    Turns,
    best_settings,
    load_figures,
    overhead_figures,
    tokens_per_s,
    verdict,
)
from benchmarks.common.http_load import Ask, closed_loop
from benchmarks.peers.base import usable_cpus
from benchmarks.peers.http_servers import (
    SLOT_TOKENS,
    SLOTS,
    LlamaCppServer,
    SafegenServer,
    find_llamacpp,
    safegen_server,
)
from safegen.load.trace import Slo

MODEL_NAME = "default"
FREE_TOKENS, JSON_TOKENS, OVERHEAD_TOKENS = 64, 256, 128
REQUESTS_PER_CLIENT = {1: 4, 4: 4, 16: 3}
HINT = "make bench-server-peer, or --llama-server PATH"
_VALIDATOR = Draft202012Validator(SCHEMA)


@dataclass
class Run:
    """One invocation, and everything measured. llamacpp: why there is none where it is a string. shown: what the model
    is told about the schema. numbers: of requests that have not been asked yet."""

    arguments: argparse.Namespace
    model: str
    folder: Path
    llamacpp: LlamaCppServer | str
    shown: str
    loads: Loads = field(default_factory=dict)
    turns: Turns = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))


def is_valid(text: str, reason: str | None) -> bool:
    try:
        return reason == "stop" and _VALIDATOR.is_valid(json.loads(text))
    except ValueError:
        return False


def is_text(text: str, reason: str | None) -> bool:
    return bool(text.strip()) and reason in ("stop", "length")


def make_ask(kind: str, number: int, max_tokens: int, peer: LlamaCppServer | None, shown: str) -> Ask:
    """peer: llama.cpp's server, which is told the schema in words by us. shown: those words."""
    texts = json_texts() if kind == "json" else decode_texts()
    messages = [{"role": "user", "content": f"Request {number}: {texts[number % len(texts)]}"}]
    body: dict[str, Any] = {
        "model": MODEL_NAME, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.0,
        "max_tokens": max_tokens,
    }  # fmt: skip
    if kind == "json" and peer is not None:
        messages.insert(0, {"role": "system", "content": shown})
        body["response_format"] = peer.response_format(SCHEMA)
    elif kind == "json":
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "order", "schema": SCHEMA}}
    return Ask({**body, "messages": messages}, is_valid if kind == "json" else is_text)


def make_asks(run: Run, kind: str, numbers: Sequence[int], peer: LlamaCppServer | None) -> list[Ask]:
    max_tokens = JSON_TOKENS if kind == "json" else FREE_TOKENS
    return [make_ask(kind, number, max_tokens, peer, run.shown) for number in numbers]


def measure_loads(run: Run, number: int) -> None:
    plan = {
        (concurrency, kind): [next(run.numbers) for _ in range(concurrency * REQUESTS_PER_CLIENT[concurrency])]
        for concurrency in run.arguments.concurrency
        for kind in KINDS
    }
    engines = ["safegen"] if isinstance(run.llamacpp, str) else ["safegen", "llamacpp"]
    for engine in engines if number % 2 == 0 else reversed(engines):
        try:
            measure_engine(run, engine, number, plan)
        except (OSError, RuntimeError, ValueError) as error:
            if engine == "safegen":
                raise
            run.missing[engine], run.llamacpp = f"it failed: {error}", str(error)
            print(f"missing: {engine}: {error}", flush=True)


def measure_engine(run: Run, engine: str, number: int, plan: dict[tuple[int, str], list[int]]) -> None:
    if engine == "safegen":
        with safegen_server(run.folder, run.model, MODEL_NAME) as server:
            measure_server(run, (engine, "default"), server.port, number, plan, None)
        return
    assert not isinstance(run.llamacpp, str)
    for num_threads in run.arguments.llamacpp_threads:
        with run.llamacpp.started(run.folder, run.model, num_threads) as port:
            measure_server(run, (engine, f"t{num_threads}"), port, number, plan, run.llamacpp)


def measure_server(
    run: Run,
    name: tuple[str, str],
    port: int,
    number: int,
    plan: dict[tuple[int, str], list[int]],
    peer: LlamaCppServer | None,
) -> None:
    for kind in KINDS:  # warm: slots, caches and the compiled schema
        asyncio.run(closed_loop(port, make_asks(run, kind, range(-SLOTS, 0), peer), SLOTS))
    for (concurrency, kind), numbers in plan.items():
        served = asyncio.run(closed_loop(port, make_asks(run, kind, numbers, peer), concurrency))
        run.loads.setdefault((*name, concurrency, kind), []).append(served)
        rate = tokens_per_s(served)
        print(f"round {number + 1}: {name[0]} {name[1]}, {concurrency:2} clients, {kind}: {rate:.1f} tok/s", flush=True)


def measure_overhead(run: Run) -> None:
    """In turns, inside and over HTTP, on one loaded model; the first turn of each is not counted."""
    asks = {
        kind: [make_ask(kind, number, OVERHEAD_TOKENS, None, run.shown) for number in range(SLOTS)] for kind in KINDS
    }
    with safegen_server(run.folder, run.model, MODEL_NAME) as server:
        for number in range(run.arguments.turns + 1):
            for kind in KINDS:
                found = one_turn(server, asks[kind], is_http_first=number % 2 == 1)
                if number:
                    for where, rate in found.items():
                        run.turns.setdefault((where, kind), []).append(rate)
                    shown = ", ".join(f"{where} {rate:.1f}" for where, rate in sorted(found.items()))
                    print(f"turn {number}: {kind}: {shown} tok/s", flush=True)


def one_turn(server: SafegenServer, asks: Sequence[Ask], *, is_http_first: bool) -> dict[str, float]:
    """Tokens a second over HTTP and inside. Raises RuntimeError where the two do not give as many tokens."""
    rates, tokens = dict[str, float](), dict[str, list[int]]()
    for where in ("http", "inside") if is_http_first else ("inside", "http"):
        if where == "http":
            served = asyncio.run(closed_loop(server.port, asks, len(asks)))
            rates[where], tokens[where] = tokens_per_s(served), [each.tokens for each in served]
        else:
            told = server.in_process([ask.body for ask in asks])
            rates[where], tokens[where] = sum(told["tokens"]) / told["seconds"], told["tokens"]
    if tokens["http"] != tokens["inside"]:
        raise RuntimeError(f"the same requests gave {tokens['http']} tokens over HTTP, and {tokens['inside']} inside")
    return rates


def report_rows(run: Run) -> list[dict[str, Any]]:
    best = best_settings(run.loads)
    rows: list[dict[str, Any]] = [
        {
            "engine": engine, "setting": setting, "concurrency": concurrency, "kind": kind,
            "is_best": best[engine, concurrency, kind] == setting,
            "tok_s": [tokens_per_s(served) for served in rounds],
            "ok_pct": [100 * sum(each.ok for each in served) / len(served) for served in rounds],
        }
        for (engine, setting, concurrency, kind), rounds in run.loads.items()
    ]  # fmt: skip
    return rows + [{"turns": where, "kind": kind, "tok_s": rates} for (where, kind), rates in run.turns.items()]


def print_table(figures: dict[str, float], missing: dict[str, str]) -> None:
    columns = ("tok_s", "ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "tpot_ms_p99", "goodput_pct", "ok_pct")
    print(f"\n{'':22}" + "".join(f"{column:>13}" for column in columns))
    for prefix in (name.removesuffix(".tok_s") for name in figures if name.endswith(".tok_s")):
        cells = (figures.get(f"{prefix}.{column}") for column in columns)
        print(f"{prefix:22}" + "".join(f"{'-' if cell is None else f'{cell:.1f}':>13}" for cell in cells))
    print()
    for name, value in figures.items():
        if name.startswith(("ratio.", "http_overhead")):
            print(f"{name:26}{value:9.2f}  {verdict(name, value)}")
    for name, why in missing.items():
        print(f"not measured: {name}: {why}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file; default: the installed default model")
    parser.add_argument("--rounds", type=int, default=3, help="each server is started that often")
    parser.add_argument("--turns", type=int, default=25, help="inside and over HTTP; medians of 7 scatter by 2 %%")
    parser.add_argument("--quick", action="store_true", help="one round of 16 clients, three turns, two threads")
    parser.add_argument("--slo-ttft-ms", type=float, default=1000.0, help="first text within")
    parser.add_argument("--slo-tpot-ms", type=float, default=100.0, help="a token after the first within, on average")
    parser.add_argument("--llama-server", default=os.environ.get("SAFEGEN_LLAMA_SERVER") or None, help="its binary")
    parser.add_argument(
        "--llamacpp-python",
        default=os.environ.get("SAFEGEN_LLAMACPP_PYTHON") or None,
        help="an interpreter with llama-cpp-python; llama-server is looked for beside it",
    )
    parser.add_argument("--out", type=Path, help="write figures and rows to this JSON file")
    arguments = parser.parse_args()
    arguments.concurrency = tuple(REQUESTS_PER_CLIENT)
    arguments.llamacpp_threads = sorted({1, min(2, usable_cpus())})
    if arguments.quick:
        arguments.rounds, arguments.turns, arguments.concurrency = 1, 3, (16,)
        arguments.llamacpp_threads = arguments.llamacpp_threads[-1:]
    return arguments


def shown_schema() -> str:
    """What safegen's server tells the model about the schema."""
    from safegen import JsonSchema
    from safegen.output_type import compile_type

    return str(compile_type(JsonSchema(SCHEMA)).shown)


def main() -> None:
    from safegen.engine.locate import locate_model

    arguments = parse_arguments()
    model = Path(locate_model(arguments.model)).resolve()
    llamacpp = find_llamacpp(arguments.llama_server, arguments.llamacpp_python)
    described = environment(
        safegen=version("safegen"), torch=version("torch"), uvicorn=version("uvicorn"), model=model.name,
        llamacpp=None if isinstance(llamacpp, str) else {"server": llamacpp.kind, "version": llamacpp.version},
        llamacpp_threads=arguments.llamacpp_threads, slots=SLOTS, slot_tokens=SLOT_TOKENS, rounds=arguments.rounds,
        turns=arguments.turns, requests_per_client=REQUESTS_PER_CLIENT, max_tokens=[FREE_TOKENS, JSON_TOKENS],
        slo={"ttft_ms": arguments.slo_ttft_ms, "tpot_ms": arguments.slo_tpot_ms},
        seed="greedy decoding and fixed prompts: nothing is drawn",
    )  # fmt: skip
    print(json.dumps(described, indent=2), flush=True)
    with tempfile.TemporaryDirectory(prefix="serve-") as name:
        run = Run(arguments, str(model), Path(name), llamacpp, shown_schema())
        if isinstance(llamacpp, str):
            run.missing["llama.cpp's server"] = f"{llamacpp}; fix: {HINT}"
        for number in range(arguments.rounds):
            measure_loads(run, number)
        measure_overhead(run)
    slo = Slo(arguments.slo_ttft_ms / 1e3, arguments.slo_tpot_ms / 1e3)
    figures = load_figures(run.loads, slo) | overhead_figures(run.turns)
    described["missing"] = run.missing
    write_report(arguments.out, described, figures, report_rows(run))
    print_table(figures, run.missing)


if __name__ == "__main__":
    main()
