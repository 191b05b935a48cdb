"""`safegen bench`: the command around `load_test`. Exit code 1 where the promise does not hold at every load."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from safegen.errors import RequestError
from safegen.load.trace import Slo


def add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="as for generate")
    parser.add_argument("--rates", metavar="R,R", type=_numbers(float), default=(), help="requests a second")
    parser.add_argument("--concurrency", metavar="N,N", type=_numbers(int), default=(), help="requests in flight")
    parser.add_argument("--arrivals", default="poisson", choices=["poisson", "fixed"], help="of rates")
    parser.add_argument("--requests", type=int, default=100, help="of each load (100)")
    parser.add_argument("--prompt-tokens", type=int, default=256, help="of made-up prompts, about (256)")
    parser.add_argument("--output-tokens", type=int, default=64, help="on average; of own prompts at most (64)")
    parser.add_argument("--input", metavar="FILE", help='own prompts: JSONL of strings, messages or {"prompt": ...}')
    parser.add_argument("--schema", metavar="FILE", help="answers are JSON of this schema")
    parser.add_argument("--ttft-ms", type=float, help="promise: first text within")
    parser.add_argument("--tpot-ms", type=float, help="promise: a token after the first within")
    parser.add_argument("--percentile", type=float, default=99.0, help="of requests that the promise is for (99)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--kv-cache-memory", type=int, help="bytes")
    parser.add_argument("--kernels", default="auto", choices=["auto", "cpu", "reference"])
    parser.add_argument("--quantization", choices=["int8", "int4"])
    parser.add_argument("--no-speculation", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument("--html", metavar="FILE", help="write a page: table, charts and the promise; needs nothing")
    parser.add_argument("--plot", metavar="FILE", help=".html (needs nothing), .png or .svg (need matplotlib)")
    parser.set_defaults(command=_bench)


def _numbers(kind: type[int] | type[float]) -> Any:
    def parse(text: str) -> tuple[float, ...]:
        return tuple(kind(part) for part in text.split(","))

    parse.__name__ = "list of numbers"  # argparse names it in its message
    return parse


def _bench(arguments: argparse.Namespace) -> int:
    from safegen.llm import LLM
    from safegen.load.report import check_plot
    from safegen.load.testing import load_test
    from safegen.load.workload import read_prompts
    from safegen.types import JsonSchema

    if not 0 < arguments.percentile <= 100:
        raise RequestError("--percentile lies in (0, 100]", field="--percentile", value=arguments.percentile)
    for field, path in (("--plot", arguments.plot), ("--html", arguments.html)):
        if path is not None:
            check_plot(path, field)  # before the work, not after it
    slo = Slo(_seconds(arguments.ttft_ms), _seconds(arguments.tpot_ms), arguments.percentile / 100)
    prompts = None if arguments.input is None else read_prompts(arguments.input)
    spec = None if arguments.schema is None else JsonSchema(_text(arguments.schema))
    rates, concurrency = arguments.rates, arguments.concurrency
    with LLM(
        arguments.model, kernels=arguments.kernels, quantization=arguments.quantization,
        kv_cache_memory=arguments.kv_cache_memory, max_num_seqs=arguments.max_num_seqs,
        speculation=False if arguments.no_speculation else "auto",
    ) as llm:  # fmt: skip
        report = load_test(
            llm, rates=rates, concurrency=concurrency if concurrency or rates else (1, 4, 16),
            arrivals=arguments.arrivals, num_requests=arguments.requests, prompt_tokens=arguments.prompt_tokens,
            output_tokens=arguments.output_tokens, prompts=prompts, type=spec, slo=slo, seed=arguments.seed,
            progress=lambda text: print(text, file=sys.stderr, flush=True),
        )  # fmt: skip
    print(json.dumps(report.to_dict()) if arguments.json else report.table())
    if arguments.plot is not None:
        report.save_plot(arguments.plot)
        print(f"plot: {arguments.plot}", file=sys.stderr)
    if arguments.html is not None:
        report.save_html(arguments.html)
        print(f"page: {arguments.html}", file=sys.stderr)
    return 0 if report.ok else 1


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {error}", field="--schema", value=path) from error


__all__ = ["add_bench"]
