"""CPU kernels beside torch in fp32: the matrix products of one decoding step, and attention over a paged cache.

The shapes are those of SmolLM2-135M (30 layers, hidden 576, vocabulary 49,152), the weights random: Q4_1 layers and a
Q8_0 head for the kernels, the same values in fp32 for torch. Prefill (512 rows) leaves out the head, as an engine does.
Attention is that of all layers, each with a cache of its own: one token of 1 and 16 sequences at 512 tokens of context,
and a prompt of 512; the kernels over every type of cache, torch over dense fp32. kv_error is what rounding the cache
costs: the distance of a head's output from that over float32, relative to its norm, mean over random heads.
Each engine runs in a process of its own, twice, in alternating order; figures are medians over the repeats of both.

    python benchmarks/kernels_cpu.py --out FILE.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import environment, version, write_report

SEED = 7
ENGINES = ("safegen", "torch_fp32")
LAYERS, HIDDEN, INTERMEDIATE, KV, VOCABULARY = 30, 576, 1536, 192, 49152
LAYER_SHAPES = [
    (HIDDEN, HIDDEN),  # query, key, value, output
    (KV, HIDDEN),
    (KV, HIDDEN),
    (HIDDEN, HIDDEN),
    (INTERMEDIATE, HIDDEN),  # gate, up, down
    (INTERMEDIATE, HIDDEN),
    (HIDDEN, INTERMEDIATE),
]
ROWS = (1, 4, 16, 64, 512)
CONTEXT, HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 512, 9, 3, 64, 16
KV_DTYPES = ("float16", "float32", "int8")
ATTENTION = {"decode_1": (1, 1), "decode_16": (16, 1), "prefill_512": (1, CONTEXT)}  # sequences, tokens of each
REPEATS_S = 1.5  # time spent on each figure in each process, at least three repeats


def timed(work: Callable[[], object]) -> list[float]:
    """Seconds of repeated runs after one that warms up."""
    work()
    seconds: list[float] = []
    end = time.perf_counter() + REPEATS_S
    while len(seconds) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds


def measure(engine: str, threads: int) -> dict[str, list[float]]:
    """Seconds by figure name, in this process."""
    import torch
    from torch.nn.functional import linear

    from safegen.kernels import cpu
    from safegen.kernels.api import Weight, ops
    from safegen.kernels.quant import dequantize

    torch.manual_seed(SEED)
    torch.set_num_threads(threads)
    cpu.set_num_threads(threads)
    native = ops("cpu")

    def product(kind: str, shape: tuple[int, int]) -> Callable[[torch.Tensor], torch.Tensor]:
        block_bytes, half_bytes = {"q4_1": (20, 4), "q8_0": (34, 2)}[kind]
        raw = torch.randint(0, 256, (shape[0], shape[1] // 32, block_bytes), dtype=torch.uint8)
        raw[..., :half_bytes] = (torch.randn(*raw.shape[:2], half_bytes // 2) * 0.02).half().view(torch.uint8)
        blocks = raw.flatten(1)
        if engine == "torch_fp32":
            dense = dequantize(kind, blocks)
            return lambda x: linear(x, dense)
        weight = native.prepare(Weight(kind, shape, blocks))
        return lambda x: native.linear(x, weight)

    layers = [(shape[1], product("q4_1", shape)) for _ in range(LAYERS) for shape in LAYER_SHAPES]
    head = (HIDDEN, product("q8_0", (VOCABULARY, HIDDEN)))
    figures: dict[str, list[float]] = {}
    with torch.inference_mode():
        for rows in ROWS:
            x = {width: torch.randn(rows, width) for width in (HIDDEN, INTERMEDIATE)}
            products = layers if rows == max(ROWS) else [*layers, head]
            figures[f"linears.rows_{rows}"] = timed(lambda: [call(x[width]) for width, call in products])  # noqa: B023
        for work, (sequences, tokens) in ATTENTION.items():
            if engine == "torch_fp32":
                figures[f"attention.{work}"] = timed(torch_attention(sequences, tokens))
                continue
            for dtype in KV_DTYPES:
                figures[f"attention.{dtype}.{work}"] = timed(paged_attention(dtype, sequences, tokens))
    return figures


def torch_attention(sequences: int, tokens: int) -> Callable[[], object]:
    """The last `tokens` of each sequence over dense keys and values, which torch gets ready; all layers."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    query = torch.randn(sequences, HEADS, tokens, HEAD_DIM)
    shape = (2, sequences, KV_HEADS, CONTEXT, HEAD_DIM)
    layers = [torch.randn(shape) for _ in range(LAYERS)]
    return lambda: [
        scaled_dot_product_attention(query, key, value, is_causal=tokens > 1, enable_gqa=True) for key, value in layers
    ]


def paged_attention(dtype: str, sequences: int, tokens: int) -> Callable[[], list[torch.Tensor]]:
    """The same over shuffled blocks of a cache of that type."""
    import torch

    from safegen.kernels.api import AttentionPlan, KvLayer, ops

    native, blocks = ops("cpu"), CONTEXT // BLOCK_SIZE
    q = torch.randn(sequences * tokens, HEADS, HEAD_DIM)
    table = torch.randperm(sequences * blocks, dtype=torch.int32).view(sequences, blocks)
    starts = torch.arange(sequences + 1, dtype=torch.int32)
    whole = torch.arange(sequences * CONTEXT, dtype=torch.int32)
    length = torch.full((sequences,), CONTEXT, dtype=torch.int32)
    write = AttentionPlan(starts * CONTEXT, length, table, whole, whole % CONTEXT, BLOCK_SIZE)
    position = torch.arange(CONTEXT - tokens, CONTEXT, dtype=torch.int32).repeat(sequences)
    plan = AttentionPlan(starts * tokens, length, table, position, position, BLOCK_SIZE)
    *shapes, scale_shape = KvLayer.shapes(sequences * blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    layers = []
    for _ in range(LAYERS):
        key, value = (torch.zeros(shape, dtype=getattr(torch, dtype)) for shape in shapes)
        scales = [torch.zeros(scale_shape) for _ in range(2)] if dtype == "int8" else [None, None]
        layers.append(KvLayer(key, value, *scales))
        native.kv_write(*torch.randn(2, sequences * CONTEXT, KV_HEADS, HEAD_DIM), layers[-1], write)
    return lambda: [native.paged_attention(q, layer, plan, scale=HEAD_DIM**-0.5) for layer in layers]


def kv_errors() -> dict[str, float]:
    """Mean relative error of a head's output over a cache of each narrow type."""
    import torch

    outputs = {}
    for dtype in KV_DTYPES:
        torch.manual_seed(SEED)
        outputs[dtype] = torch.stack(paged_attention(dtype, 1, CONTEXT)())
    exact = outputs.pop("float32")
    return {
        f"kv_error.{dtype}": float(((output - exact).norm(dim=-1) / exact.norm(dim=-1)).mean())
        for dtype, output in outputs.items()
    }


def run_engine(engine: str, threads: int) -> dict[str, list[float]]:
    command = [sys.executable, __file__, "--engine", engine, "--threads", str(threads)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures: dict[str, list[float]] = json.loads(output)
    return figures


def compare(threads: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {}
    for engine in (*ENGINES, *reversed(ENGINES)):
        for name, values in run_engine(engine, threads).items():
            seconds.setdefault(f"{engine}.{name}", []).extend(values)
    figures: dict[str, float] = {}
    for name, values in seconds.items():
        median = statistics.median(values)
        figures[f"{name}.ms"] = median * 1e3
        if ".rows_" in name:
            figures[f"{name}.tokens_per_s"] = int(name.rsplit("_", 1)[1]) / median
    return figures


def table(figures: dict[str, float]) -> list[dict[str, object]]:
    """One row a work of ours; torch's side of attention is the same for every type of cache."""
    names = [name.removesuffix(".ms").removeprefix("safegen.") for name in figures if name.endswith(".ms")]
    rows: list[dict[str, object]] = []
    for name in sorted((name for name in names if not name.startswith("torch_fp32.")), key=_order):
        kind, *_, work = name.split(".")
        ours, theirs = figures[f"safegen.{name}.ms"], figures[f"torch_fp32.{kind}.{work}.ms"]
        rows.append({"work": name, "safegen_ms": ours, "torch_fp32_ms": theirs, "speedup": theirs / ours})
    return rows


def _order(name: str) -> tuple[str, int]:
    kind, size = name.rsplit("_", 1)
    return kind, int(size)


def main() -> None:
    from safegen.kernels import cpu

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--threads", type=int, default=cpu.num_threads(), help="threads of each engine")
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        print(json.dumps(measure(arguments.engine, arguments.threads)))
        return
    described = environment(threads=arguments.threads, isa=cpu.isa(), torch=version("torch"), seed=SEED)
    print(json.dumps(described, indent=2))
    figures = compare(arguments.threads) | kv_errors()
    rows = table(figures)
    write_report(arguments.out, described, figures, rows)
    print(f"{'work':28}{'safegen ms':>12}{'torch fp32 ms':>15}{'speedup':>9}")
    for row in rows:
        print(f"{row['work']:28}{row['safegen_ms']:12.3f}{row['torch_fp32_ms']:15.3f}{row['speedup']:9.2f}")
    for name, error in figures.items():
        if name.startswith("kv_error."):
            print(f"{name:28}{error:12.2e}")


if __name__ == "__main__":
    main()
