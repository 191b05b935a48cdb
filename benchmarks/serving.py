"""Serving under load: a Poisson trace of mixed requests replayed through `AsyncLLM`, as an app with many users has it.

Half of the requests ask for free text, half for JSON of a schema; prompts have some 40 to 400 tokens. First the
capacity is measured: requests a second when all of a trace's requests are there at once. Then the trace is replayed at
shares of that capacity (or at the --rates given), each request streamed by a task of its own from the moment that it
arrives. All times are the client's, from the arrival to the text that it gets.

Figures, medians over the rounds (each with a trace of its own seed): `capacity_per_s`, and for each load, such as
`load75` (75 % of the capacity): `rate_per_s`, `ttft_ms.p50|p95|p99`, `tpot_ms.*`, `total_ms.*`, `goodput_pct` and
`goodput_per_s` (requests within the SLO: --slo-ttft-ms, --slo-tpot-ms), `requests_per_s`, `tokens_per_s`, `ok_pct`,
`client_late_ms`.

    python benchmarks/serving.py --out FILE.json [--quick] [--rates 2,4,8]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import data_folder, environment, version, write_report
from benchmarks.common.cpu_workload import DATA_FILE, DATA_LABEL, SCHEMA, decode_texts, json_texts, real_text
from safegen.load.replay import Asked, replay
from safegen.load.trace import Arrival, Slo, poisson_trace, trace_figures

SEED = 17
LOADS = (0.25, 0.5, 0.75, 1.0)
FREE_TOKENS, JSON_TOKENS = 64, 160
LONG_PROMPT_WORDS = (60, 120, 180)


def make_workload(data: Path, json_type: Any) -> list[Asked]:
    """As many free as JSON requests, as many short as long ones."""
    words = real_text(data).split()
    stories, orders = decode_texts()[:16], json_texts()
    long = [" ".join(words[place * 180 : place * 180 + LONG_PROMPT_WORDS[place % 3]]) for place in range(16)]
    free = [*stories, *(f"Summarize this e-mail:\n{text}" for text in long[:8]), *stories[:8]]
    constrained = [*orders, *(f"Read an order out of this e-mail, as JSON:\n{text}" for text in long)]
    return [
        *(Asked(prompt, None, FREE_TOKENS) for prompt in free),
        *(Asked(prompt, json_type, JSON_TOKENS) for prompt in constrained),
    ]


async def measure(arguments: argparse.Namespace) -> tuple[dict[str, float], list[dict[str, Any]]]:
    from safegen import AsyncLLM, JsonSchema

    slo = Slo(arguments.slo_ttft_ms / 1e3, arguments.slo_tpot_ms / 1e3)
    rows: list[dict[str, Any]] = []
    async with AsyncLLM(arguments.model, max_num_seqs=arguments.max_num_seqs) as llm:
        workload = make_workload(arguments.data, await llm.compile(JsonSchema(SCHEMA)))
        await replay(llm, workload, [Arrival(0.0, place) for place in (0, len(workload) - 1)], "warm")
        for number in range(arguments.rounds):
            trace = poisson_trace(1.0, arguments.requests, len(workload), SEED + number)
            rows.append(await measure_capacity(llm, workload, trace, number))
            rates = arguments.rates or [rows[-1]["figures"]["capacity_per_s"] * load for load in LOADS]
            for name, rate in zip(load_names(arguments.rates), rates):
                print(f"round {number + 1}: {name}, {rate:.2f} requests a second", flush=True)
                served = await replay(
                    llm,
                    workload,
                    [Arrival(arrival.at_s / rate, arrival.place) for arrival in trace],
                    f"{number} {name}",
                )
                figures = {"rate_per_s": rate, **trace_figures(served, slo)}
                rows.append({"round": number, "load": name, "figures": figures})
    return median_figures(rows), rows


async def measure_capacity(
    llm: Any, workload: Sequence[Asked], trace: Sequence[Arrival], number: int
) -> dict[str, Any]:
    print(f"round {number + 1}: capacity", flush=True)
    served = await replay(llm, workload, [Arrival(0.0, arrival.place) for arrival in trace], f"{number}")
    capacity = len(served) / max(each.last_s for each in served)
    return {"round": number, "load": "capacity", "figures": {"capacity_per_s": capacity}}


def load_names(rates: Sequence[float] | None) -> list[str]:
    """Names without dots, which separate the parts of a figure's name."""
    if rates is None:
        return [f"load{round(100 * load)}" for load in LOADS]
    return [f"rate{rate:g}".replace(".", "_") for rate in rates]


def median_figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for row in rows:
        prefix = "" if row["load"] == "capacity" else f"{row['load']}."
        for name, value in row["figures"].items():
            values.setdefault(prefix + name, []).append(value)
    return {name: statistics.median(numbers) for name, numbers in values.items()}


def print_table(figures: dict[str, float], names: Sequence[str]) -> None:
    print(f"\ncapacity: {figures['capacity_per_s']:.2f} requests a second")
    columns = [*(f"{kind}.{key}" for kind in ("ttft_ms", "tpot_ms") for key in ("p50", "p95", "p99"))]
    columns += ["goodput_pct", "goodput_per_s", "tokens_per_s"]
    print(f"{'load':10}{'per s':>8}" + "".join(f"{column:>14}" for column in columns))
    for name in names:
        cells = "".join(f"{figures.get(f'{name}.{column}', float('nan')):14.1f}" for column in columns)
        print(f"{name:10}{figures[f'{name}.rate_per_s']:8.2f}{cells}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data_folder(), help=f"the folder that holds {DATA_FILE}")
    parser.add_argument("--model", help="a model file or folder; default: the installed default model")
    parser.add_argument("--rates", type=_rates, help="requests a second, comma-separated; default: shares of capacity")
    parser.add_argument("--requests", type=int, default=200, help="requests of a trace")
    parser.add_argument("--rounds", type=int, default=3, help="each with a trace of its own")
    parser.add_argument("--max-num-seqs", type=int, default=32, help="sequences computed at once")
    parser.add_argument("--slo-ttft-ms", type=float, default=1000.0, help="first text within")
    parser.add_argument("--slo-tpot-ms", type=float, default=100.0, help="a token after the first within, on average")
    parser.add_argument("--quick", action="store_true", help="one round of 40 requests")
    parser.add_argument("--out", type=Path, help="write figures and rows to this JSON file")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.requests = 1, 40
    return arguments


def _rates(text: str) -> list[float]:
    rates = [float(part) for part in text.split(",")]
    if not all(rate > 0 for rate in rates):
        raise argparse.ArgumentTypeError(f"rates must be positive, got {text}")
    return rates


def main() -> None:
    from safegen.kernels import cpu

    arguments = parse_arguments()
    described = environment(
        isa=cpu.isa(),
        threads=cpu.num_threads(),
        torch=version("torch"),
        text=f"{DATA_FILE}, label {DATA_LABEL!r}",
        requests=arguments.requests,
        rounds=arguments.rounds,
        max_num_seqs=arguments.max_num_seqs,
        slo={"ttft_ms": arguments.slo_ttft_ms, "tpot_ms": arguments.slo_tpot_ms},
        seed=SEED,
    )
    print(json.dumps(described, indent=2), flush=True)
    figures, rows = asyncio.run(measure(arguments))
    write_report(arguments.out, described, figures, rows)
    print_table(figures, load_names(arguments.rates))


if __name__ == "__main__":
    main()
