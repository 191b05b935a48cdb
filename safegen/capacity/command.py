"""`safegen plan`: the command around `plan`. Exit code 1 where the target cannot be had."""

from __future__ import annotations

import argparse
import json
import sys

from safegen.capacity.planning import DEVICES, plan

_INTEGERS = ("prompt_tokens", "output_tokens", "context", "cached_tokens", "concurrency", "kv_cache_memory",
             "block_size", "max_num_batched_tokens")  # fmt: skip
_NUMBERS = ("ttft_ms", "tpot_ms", "cost_per_hour", "tokens_per_forward")


def add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="as for generate; a folder with a config.json alone will do")
    parser.add_argument("--device", default="cpu", choices=DEVICES, help="cpu: this machine, measured now")
    told = {
        "prompt_tokens": "of a usual request (512)", "output_tokens": "of a usual answer (128)",
        "context": "tokens of the longest request and its answer", "cached_tokens": "of a prompt, found in the cache",
        "concurrency": "requests in flight; default: as many as make sense", "kv_cache_memory": "bytes",
        "ttft_ms": "first token within", "tpot_ms": "a token after the first within",
        "cost_per_hour": "of the device, in any currency", "tokens_per_forward": "with speculation, as measured (1)",
    }  # fmt: skip
    for name in (*_INTEGERS, *_NUMBERS):
        kind = int if name in _INTEGERS else float
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=told.get(name))
    parser.add_argument("--quantization", choices=["int8", "int4"])
    parser.add_argument("--kv-cache-dtype", default="auto", choices=["auto", "float16", "float32", "int8"])
    parser.add_argument("--json", action="store_true", help="print the plan as one JSON object")
    parser.set_defaults(command=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    if arguments.device == "cpu":
        print("measuring this CPU on a slice of the model", file=sys.stderr, flush=True)
    given = {name: getattr(arguments, name) for name in (*_INTEGERS, *_NUMBERS)}
    made = plan(
        arguments.model,
        device=arguments.device,
        quantization=arguments.quantization,
        kv_cache_dtype=arguments.kv_cache_dtype,
        **{name: value for name, value in given.items() if value is not None},
    )
    print(json.dumps(made.to_dict()) if arguments.json else made.table())
    return 0 if made.fits else 1


__all__ = ["add_plan"]
