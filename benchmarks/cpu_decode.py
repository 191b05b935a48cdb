"""CPU decoding beside llama.cpp and transformers, on the weights of one GGUF file, in one run.

    safegen        the public API on the file as it is
    llamacpp_q4_1  llama.cpp on the same file: one llama_decode for all sequences, the best of 1 and 2 threads and flash
                   attention on and off; JSON by its own schema converter and grammar sampler
    llamacpp_q4_0  the same on the file requantized by llama.cpp itself to Q4_0, which it repacks: its fastest path
    transformers   generate() on the dequantized weights, the better of fp32 and bf16; JSON by xgrammar's processor

Figures, medians over the rounds: `prefill512.<engine>`, `decode.b<N>.<engine>`, `json.b<N>.<engine>` (tokens a second;
decoding counts from the moment that each sequence has its first token), `ttft_ms.<engine>` (first token of a 512-token
prompt while 16 others decode), `rss_mb.<engine>` (peak over imports, 64 MiB of KV cache), `load_s.<engine>`,
`kl.<engine>` and `perplexity.<engine>` (against the dequantized fp32 model: safegen's kernels="reference", on 2,000
tokens: the rows of injection-dev.jsonl.gz with label "context", from the first on, in four windows of 500),
`bandwidth_fraction.b1` (packed weight bytes x steps a second / the best two-thread streaming read, measured in turns
of some tenths of a second; the median of all slices),
`outside_forward_pct.*` (share of safegen's wall time outside the forward) and `ratio.*`.

llama.cpp is looked for in the interpreter that --llamacpp-python names (`make bench-peers` builds one). Everything runs
in processes of its own, in alternating order; what is missing is named.

    python benchmarks/cpu_decode.py --out FILE.json [--quick] [--engines safegen,llamacpp_q4_1]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.common import data_folder, environment, write_report
from benchmarks.common.bandwidth import last_level_cache_bytes
from benchmarks.common.cpu_rounds import (
    TARGETS,
    EngineRounds,
    bandwidth_fraction,
    measure_names,
    ratio_figures,
    speed_figures,
    wanted,
)
from benchmarks.common.cpu_workload import DATA_FILE, DATA_LABEL, Workload, build
from benchmarks.common.divergence import mean_kl, perplexity
from benchmarks.peers.process import EngineProcess, TaskFailed

ENGINES = ("safegen", "llamacpp_q4_1", "llamacpp_q4_0", "transformers")
HINTS = {
    "llamacpp": "make bench-peers, or --llamacpp-python PATH of an interpreter that has llama-cpp-python",
    "transformers": "pip install 'transformers>=4.53' 'xgrammar>=0.2.9'",
}
KV_BYTES = 64 << 20
BANDWIDTH_THREADS, BANDWIDTH_SLICES = 2, 12


@dataclass
class Run:
    """One invocation: the engines found, and everything measured. bandwidth: bytes a second of each slice."""

    arguments: argparse.Namespace
    model: Path
    folder: Path
    workload: Workload
    engines: dict[str, EngineProcess] = field(default_factory=dict)
    rounds: dict[str, EngineRounds] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    bandwidth: list[float] = field(default_factory=list)
    fractions: list[float] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)


def find_engines(run: Run, names: Sequence[str]) -> None:
    """Probe each engine in its interpreter, and make the model that it is measured on."""
    for name in names:
        family = name.split("_")[0]
        python = run.arguments.llamacpp_python if family == "llamacpp" else sys.executable
        process = EngineProcess(name, family, python, str(run.model), run.folder)
        try:
            probed = process.run("probe")
            if name == "llamacpp_q4_0":
                process = replace(process, model=str(run.folder / "q4_0.gguf"))
            elif name == "transformers":
                process = replace(process, model=str(run.folder / "dequantized"))
            if process.model != str(run.model):
                process.run("prepare", source=str(run.model), destination=process.model)
        except TaskFailed as error:
            if family not in HINTS:
                raise
            run.missing[name] = f"{str(error).splitlines()[-1]}; fix: {HINTS[family]}"
            print(f"missing: {name}: {run.missing[name]}", flush=True)
            continue
        run.engines[name], run.versions[name] = process, probed["versions"]
        run.rounds[name] = EngineRounds(probed["settings"])


def measure_round(run: Run, number: int, measures: Sequence[str]) -> None:
    names = list(run.engines)
    for name in names if number % 2 == 0 else reversed(names):
        print(f"round {number + 1}: {name}", flush=True)
        try:
            measure_engine(run, name, measures)
        except TaskFailed as error:
            if name == "safegen":
                raise
            del run.engines[name], run.rounds[name]
            run.missing[name] = f"it failed: {error}"
            print(f"missing: {name}: {error}", flush=True)


def measure_engine(run: Run, name: str, measures: Sequence[str]) -> None:
    rounds, process = run.rounds[name], run.engines[name]
    wanted = {measure: rounds.next_settings(measure) for measure in measures}
    answer = process.run("speed", measures=wanted, repeats=run.arguments.repeats)
    rounds.add(answer["values"], answer["notes"])
    if name == "safegen":
        measure_bandwidth(run, process)
    setting = rounds.best_setting("decode.b16") or rounds.settings[0]
    measured = process.run("memory", setting=setting, kv_bytes=KV_BYTES)
    rounds.rss_mb.append(measured["rss_mb"])
    rounds.load_s.append(measured["load_s"])


def measure_bandwidth(run: Run, process: EngineProcess) -> None:
    """Decoding and reading in turns: neighbours take their part of the bandwidth for seconds at a time."""
    slices = process.run("bandwidth", setting="cpu", slices=BANDWIDTH_SLICES, threads=BANDWIDTH_THREADS)
    size = weight_bytes(run.model)
    for steps_per_s, bytes_per_s in zip(slices["steps_per_s"], slices["bytes_per_s"]):
        run.bandwidth.append(bytes_per_s)
        run.fractions.append(bandwidth_fraction(size, steps_per_s, bytes_per_s))


def weight_bytes(model: Path) -> int:
    """Bytes of all tensors as the file packs them; with a tied head each step reads every one of them."""
    from safegen.engine.gguf import GgufFile

    return sum(tensor.num_bytes for tensor in GgufFile(model).tensors.values())


def measure_quality(run: Run) -> dict[str, float]:
    """Mean KL against the fp32 reference, and perplexity, for each engine, for the formats that safegen has besides,
    and for the reference itself."""
    reference_file, other_file = run.folder / "reference.npy", run.folder / "other.npy"
    oracle = EngineProcess("safegen", "safegen", sys.executable, str(run.model), run.folder)
    print("quality: reference", flush=True)
    oracle.run("quality", setting="reference", logits=str(reference_file))
    reference = np.load(reference_file)
    figures = {"perplexity.reference": perplexity(reference, run.workload.windows)}
    for name, process, setting in quality_jobs(run, oracle):
        print(f"quality: {name}", flush=True)
        try:
            process.run("quality", setting=setting, logits=str(other_file))
        except TaskFailed as error:
            run.missing[f"quality of {name}"] = str(error).splitlines()[-1]
            continue
        logits = np.load(other_file)
        figures[f"kl.{name}"], figures[f"same_choice.{name}"] = mean_kl(reference, logits)
        figures[f"perplexity.{name}"] = perplexity(logits, run.workload.windows)
    return figures


def quality_jobs(run: Run, oracle: EngineProcess) -> list[tuple[str, EngineProcess, str]]:
    """(name, process, setting). The formats are those of safegen alone: other caches on the same file, llama.cpp's
    Q4_0 file, and quantization on load of the dequantized weights, as far as the peers' files are there."""
    jobs = [
        (name, process, run.rounds[name].best_setting("decode.b16") or run.rounds[name].settings[0])
        for name, process in run.engines.items()
    ]
    if "safegen" not in run.engines:
        return jobs
    jobs += [(f"safegen_kv_{dtype}", oracle, f"cpu,kv_cache_dtype={dtype}") for dtype in ("float32", "int8")]
    if "llamacpp_q4_0" in run.engines:
        jobs.append(("safegen_q4_0", replace(oracle, model=run.engines["llamacpp_q4_0"].model), "cpu"))
    if "transformers" in run.engines:
        dense = replace(oracle, model=run.engines["transformers"].model)
        jobs += [(f"safegen_{bits}", dense, f"cpu,quantization={bits}") for bits in ("int8", "int4")]
    return jobs


def collect_figures(run: Run, measures: Sequence[str]) -> None:
    figures = run.figures
    for name, rounds in run.rounds.items():
        figures |= speed_figures(name, rounds, measures)
    if run.fractions:
        figures["bandwidth_gb_per_s"] = statistics.median(run.bandwidth) / 1e9
        figures["bandwidth_fraction.b1"] = statistics.median(run.fractions)
    if "safegen" in run.rounds:
        for measure, by_setting in run.rounds["safegen"].notes.items():
            for notes in by_setting.values():
                if "outside_forward_pct" in notes:
                    figures[f"outside_forward_pct.{measure}"] = notes["outside_forward_pct"]
    figures |= ratio_figures(figures, [name for name in run.engines if name != "safegen"])


def report_rows(run: Run) -> list[dict[str, Any]]:
    """One row for each engine, measure and setting, with all its values."""
    return [
        {
            "engine": name,
            "measure": measure,
            "setting": setting,
            "is_best": setting == rounds.best_setting(measure),
            "values": values,
            "notes": rounds.notes.get(measure, {}).get(setting, {}),
        }
        for name, rounds in run.rounds.items()
        for measure, by_setting in rounds.values.items()
        for setting, values in by_setting.items()
    ]


def print_table(run: Run, measures: Sequence[str]) -> None:
    names, figures = list(run.engines), run.figures
    print("\nbest settings")
    for name, rounds in run.rounds.items():
        chosen = {measure: rounds.best_setting(measure) for measure in measures}
        print(f"  {name}: " + ", ".join(f"{measure} {setting}" for measure, setting in chosen.items()))
    print(f"\n{'':22}" + "".join(f"{name:>15}" for name in names))
    for row in (*measures, "rss_mb", "load_s", "kl", "same_choice", "perplexity"):
        cells = (figures.get(f"{row}.{name}") for name in names)
        print(f"{row:22}" + "".join(f"{'-' if cell is None else f'{cell:.4g}':>15}" for cell in cells))
    print(f"\n{'':42}{'':>10}{'wanted':>12}")
    for name, value in figures.items():
        if name in TARGETS or name.split(".")[0] in ("ratio", "bandwidth_gb_per_s", "outside_forward_pct"):
            print(f"{name:42}{value:10.3f}{wanted(name, value):>12}")
    others = [name.removeprefix("perplexity.") for name in figures if name.startswith("perplexity.")]
    for name in (name for name in others if name not in names):
        divergence = figures.get(f"kl.{name}")
        shown = "" if divergence is None else f", kl {divergence:.5f}"
        print(f"{name:42}perplexity {figures[f'perplexity.{name}']:.3f}{shown}")
    for name, hint in run.missing.items():
        print(f"missing: {name}: {hint}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data_folder(), help=f"the folder that holds {DATA_FILE}")
    parser.add_argument("--model", help="a GGUF file; default: the installed default model")
    parser.add_argument("--engines", default=",".join(ENGINES), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=3, help="each engine is started that often")
    parser.add_argument("--repeats", type=int, default=2, help="of each measure in a round")
    parser.add_argument("--quick", action="store_true", help="one round, fewer batch sizes and tokens")
    parser.add_argument("--skip-quality", action="store_true", help="no KL and perplexity")
    parser.add_argument(
        "--llamacpp-python",
        default=os.environ.get("SAFEGEN_LLAMACPP_PYTHON") or sys.executable,
        help="the interpreter that has llama-cpp-python (default: SAFEGEN_LLAMACPP_PYTHON, else this one)",
    )
    parser.add_argument("--out", type=Path, help="write figures and rows to this JSON file")
    arguments = parser.parse_args()
    unknown = set(arguments.engines.split(",")) - set(ENGINES)
    if unknown:
        parser.error(f"--engines: {', '.join(sorted(unknown))} is not one of {', '.join(ENGINES)}")
    if arguments.quick:
        arguments.rounds = arguments.repeats = 1
    return arguments


def main() -> None:
    from safegen.engine.locate import locate_model

    arguments = parse_arguments()
    model = Path(locate_model(arguments.model)).resolve()
    measures = measure_names(quick=arguments.quick)
    with tempfile.TemporaryDirectory(prefix="cpu_decode-") as name:
        folder = Path(name)
        run = Run(arguments, model, folder, build(model, arguments.data, quick=arguments.quick))
        run.workload.save(folder / "workload.json")
        find_engines(run, arguments.engines.split(","))
        described = environment(
            engines=run.versions,
            missing=run.missing,
            model=model.name,
            weight_bytes=weight_bytes(model),
            last_level_cache_bytes=last_level_cache_bytes(),
            quality_text=f"{DATA_FILE}, label {DATA_LABEL!r}",
            rounds=arguments.rounds,
            repeats=arguments.repeats,
            steps=run.workload.steps,
            seed="greedy decoding and fixed prompts: nothing is drawn",
        )
        print(json.dumps(described, indent=2), flush=True)
        for number in range(arguments.rounds):
            measure_round(run, number, measures)
        if not arguments.skip_quality:
            run.figures |= measure_quality(run)
    collect_figures(run, measures)
    write_report(arguments.out, described, run.figures, report_rows(run))
    print_table(run, measures)


if __name__ == "__main__":
    main()
