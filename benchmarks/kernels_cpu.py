"""CPU kernels beside torch in fp32: the matrix products of one decoding step, and attention over a paged cache.

The shapes are those of SmolLM2-135M (30 layers, hidden 576, vocabulary 49,152), the weights random: Q4_1 layers and a
Q8_0 head for the kernels, the same values in fp32 for torch. Prefill (512 rows) leaves out the head, as an engine does.
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
        for sequences in (1, 16):
            figures[f"attention.sequences_{sequences}"] = timed(attention(engine, sequences))
    return figures


def attention(engine: str, sequences: int) -> Callable[[], object]:
    """One decoding step of one layer at CONTEXT tokens; torch gets its keys ready as dense tensors."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from safegen.kernels.api import AttentionPlan, KvLayer, ops

    q = torch.randn(sequences, HEADS, HEAD_DIM)
    if engine == "torch_fp32":
        key, value = (torch.randn(sequences, KV_HEADS, CONTEXT, HEAD_DIM) for _ in range(2))
        query = q[:, :, None]
        return lambda: scaled_dot_product_attention(query, key, value, enable_gqa=True)
    blocks = CONTEXT // BLOCK_SIZE
    cache = KvLayer(*(torch.randn(sequences * blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM) for _ in range(2)))
    table = torch.randperm(sequences * blocks, dtype=torch.int32).view(sequences, blocks)
    last = torch.full((sequences,), CONTEXT - 1, dtype=torch.int32)
    starts = torch.arange(sequences + 1, dtype=torch.int32)
    plan = AttentionPlan(starts, last + 1, table, table[:, -1] * BLOCK_SIZE + BLOCK_SIZE - 1, last, BLOCK_SIZE)
    native = ops("cpu")
    return lambda: native.paged_attention(q, cache, plan, scale=HEAD_DIM**-0.5)


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
    names = sorted({name.removesuffix(".ms").split(".", 1)[1] for name in figures if name.endswith(".ms")}, key=_order)
    rows: list[dict[str, object]] = []
    for name in names:
        ours, theirs = (figures[f"{engine}.{name}.ms"] for engine in ENGINES)
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
    figures = compare(arguments.threads)
    rows = table(figures)
    write_report(arguments.out, described, figures, rows)
    print(f"{'work':28}{'safegen ms':>12}{'torch fp32 ms':>15}{'speedup':>9}")
    for row in rows:
        print(f"{row['work']:28}{row['safegen_ms']:12.3f}{row['torch_fp32_ms']:15.3f}{row['speedup']:9.2f}")


if __name__ == "__main__":
    main()
