"""`safegen plan` against `safegen bench` on this machine: is what is predicted what comes?

Each round plans for the model (which measures the kernels on a slice of it) and then puts it under load in closed
loops, without speculation, on made-up prompts that share nothing; the plan is told the prompts' and answers' mean
lengths. A prediction is made before its load is run, from nothing that the load has shown.

Figures, medians over the rounds, at each number of requests in flight: `predicted.c<N>.tokens_per_s`, `measured.c<N>.*`
and `ratio.c<N>.*` (predicted / measured) for `tokens_per_s`, `tpot_ms` and `ttft_ms` (medians), and
`within_30_pct`, the share of the ratios of tokens_per_s in 0.7 .. 1.3.

    python benchmarks/capacity.py --out FILE.json [--quick]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import environment, version, write_report

SEED = 23
CONCURRENCY = (1, 4, 16, 32)
TARGET = 0.3
_FIGURES = {"tokens_per_s": "steady_tokens_per_s", "tpot_ms": "tpot_ms.p50", "ttft_ms": "ttft_ms.p50"}


def measure_round(arguments: argparse.Namespace, number: int) -> list[dict[str, Any]]:
    from safegen import LLM, load_test, plan

    made = plan(
        arguments.model, prompt_tokens=arguments.prompt_tokens, output_tokens=arguments.output_tokens,
        concurrency=max(arguments.concurrency),
    )  # fmt: skip
    predicted = {point.concurrency: point for point in made.points}
    with LLM(arguments.model, speculation=False) as llm:
        report = load_test(
            llm, concurrency=arguments.concurrency, num_requests=arguments.requests,
            prompt_tokens=arguments.prompt_tokens, output_tokens=arguments.output_tokens, seed=SEED + number,
            progress=lambda text: print(f"round {number + 1}: {text}", flush=True),
        )  # fmt: skip
    rows = []
    for point in report.points:
        chosen = predicted[point.concurrency]
        row: dict[str, Any] = {"round": number, "concurrency": point.concurrency, "figures": dict(point.figures)}
        for name, key in _FIGURES.items():
            row[name] = {"predicted": getattr(chosen, name), "measured": point.figures[key]}
        rows.append(row)
    return rows


def figures_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    figures: dict[str, float] = {}
    ratios = []
    for concurrency in sorted({row["concurrency"] for row in rows}):
        for name in _FIGURES:
            pairs = [row[name] for row in rows if row["concurrency"] == concurrency]
            label = f"c{concurrency}.{name}"
            for kind in ("predicted", "measured"):
                figures[f"{kind}.{label}"] = statistics.median(pair[kind] for pair in pairs)
            ratio = statistics.median(pair["predicted"] / pair["measured"] for pair in pairs)
            figures[f"ratio.{label}"] = ratio
            if name == "tokens_per_s":
                ratios.append(ratio)
    figures["within_30_pct"] = 100 * sum(abs(ratio - 1) <= TARGET for ratio in ratios) / len(ratios)
    return figures


def print_table(figures: dict[str, float], concurrency: tuple[int, ...]) -> None:
    print(f"\n{'in flight':>10}" + "".join(f"{name:>16}{'measured':>12}{'ratio':>8}" for name in _FIGURES))
    for each in concurrency:
        cells = "".join(
            f"{figures[f'predicted.c{each}.{name}']:16.1f}{figures[f'measured.c{each}.{name}']:12.1f}"
            f"{figures[f'ratio.c{each}.{name}']:8.2f}"
            for name in _FIGURES
        )
        print(f"{each:10d}{cells}")
    print(f"tokens a second within 30 %: {figures['within_30_pct']:.0f} % of the loads (wanted: 100 %)")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model file or folder; default: the installed default model")
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=48, help="of a load, at least three each in flight")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of 16 requests at 1, 4 and 16 in flight")
    parser.add_argument("--out", type=Path, help="write figures and rows to this JSON file")
    arguments = parser.parse_args()
    arguments.concurrency = CONCURRENCY
    if arguments.quick:
        arguments.rounds, arguments.requests, arguments.concurrency = 1, 16, CONCURRENCY[:3]
    return arguments


def main() -> None:
    from safegen.kernels import cpu

    arguments = parse_arguments()
    described = environment(
        isa=cpu.isa(), threads=cpu.num_threads(), torch=version("torch"), rounds=arguments.rounds,
        requests=arguments.requests, prompt_tokens=arguments.prompt_tokens, output_tokens=arguments.output_tokens,
        seed=SEED,
    )  # fmt: skip
    print(json.dumps(described, indent=2), flush=True)
    rows = [row for number in range(arguments.rounds) for row in measure_round(arguments, number)]
    figures = figures_of(rows)
    write_report(arguments.out, described, figures, rows)
    print_table(figures, arguments.concurrency)


if __name__ == "__main__":
    main()
