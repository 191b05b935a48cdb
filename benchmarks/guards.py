"""Guards: what detectors find and what they err on, what they cost, and the same of Presidio and detect-secrets.

Personal data: precision and recall by type on every `pii*.jsonl.gz` of the data folder, with exact spans. Injection:
how many rows of each source of `injection*.jsonl.gz` are blocked by the defaults (rows of BIPIA are shown as a tool's
message, all others as a user's). Secrets: recall on keys of 42 forms drawn from a seed, and findings in code and prose
that hold none. Cost: CPU microseconds a guard takes for a text of the corpora and for a token of a stream, and
(`cost_pct_b16`) what all pattern guards together add to decoding at batch 16 with the default model. A peer that is not
installed is named as missing.

Figures: `<file stem>.<type>.{precision,recall,f1}`, `injection.<source>.blocked_pct`, `injection.benign.blocked_pct`,
`secrets.{recall,code_pct,prose_pct}`, `us_per_text.<guard>`, `us_per_token.<guard>`, `cost_pct_b16`,
`peers.<peer>.<figure>`.

    python benchmarks/guards.py --out FILE.json [--data DIR] [--skip-cost] [--skip-peers]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import data_folder, environment, version, write_report
from benchmarks.common.guard_corpora import BENIGN, PII_TYPES, Row, corpora, functions_of_code, secret_texts
from benchmarks.common.guard_peers import PRESIDIO_TYPES, detect_secrets, missing_peers, presidio
from safegen.guards.base import Guard, GuardView
from safegen.guards.injection import PromptInjection
from safegen.guards.invisible import InvisibleText
from safegen.guards.pii import PII
from safegen.guards.secrets import Secrets

SEEDS = range(100, 120)
BATCH, TOKENS = 16, 96
Span = tuple[str, int, int]
Figures = dict[str, float]


# --- personal data ----------------------------------------------------------------------------------------------------


def own_spans(guard: Guard, text: str) -> list[Span]:
    return [(match.rule, match.start, match.end) for match in guard.find(GuardView(text, stage="input"))]


def measure_pii(stem: str, rows: Sequence[Row], find: Callable[[str], list[Span]], names: dict[str, str]) -> Figures:
    """names: types of the corpus -> what the detector calls them. Types that the corpus lacks are left out."""
    counts: Counter[tuple[str, str]] = Counter()
    present = {kind for row in rows for kind, _, _ in row.spans if kind in names}
    back = {names[kind]: kind for kind in present}
    for row in rows:
        wanted = {span for span in row.spans if span[0] in names}
        given = {(back[rule], start, end) for rule, start, end in find(row.text) if rule in back}
        for verdict, spans in (("hit", wanted & given), ("missed", wanted - given), ("wrong", given - wanted)):
            counts.update((kind, verdict) for kind, _, _ in spans)
    figures = {}
    for kind in sorted(present):
        hit, missed, wrong = (counts[kind, verdict] for verdict in ("hit", "missed", "wrong"))
        recall, precision = hit / (hit + missed), hit / (hit + wrong) if hit + wrong else 0.0
        figures |= {f"{stem}.{kind}.recall": recall, f"{stem}.{kind}.precision": precision}
        figures[f"{stem}.{kind}.f1"] = 2 * recall * precision / (recall + precision) if hit else 0.0
    return figures


# --- injection and secrets --------------------------------------------------------------------------------------------


def measure_injection(rows: Sequence[Row], guard: Guard) -> Figures:
    blocked: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for row in rows:
        role = "tool" if row.source.startswith("BIPIA") else "user"
        names = [row.source, *(["benign"] if row.label in BENIGN else [])]
        is_blocked = bool(guard.find(GuardView(row.text, stage="input", role=role)))
        total.update(names)
        blocked.update(names if is_blocked else [])
    return {f"injection.{name}.blocked_pct": 100 * blocked[name] / total[name] for name in sorted(total)}


def measure_secrets(find: Callable[[str], list[str]], prose: Sequence[str]) -> Figures:
    """A key counts as found when the findings in its text cover it (less its padding) together."""
    texts, code = secret_texts(SEEDS), functions_of_code()
    hits = sum(_holds(find(text), key) for _, key, text in texts)
    return {
        "secrets.recall": hits / len(texts),
        "secrets.code_pct": 100 * sum(bool(find(text)) for text in code) / len(code),
        "secrets.prose_pct": 100 * sum(bool(find(text)) for text in prose) / max(1, len(prose)),
    }


def _holds(found: Sequence[str], key: str) -> bool:
    bare = key.removeprefix("https://").removeprefix("AccountKey=").rstrip("=")
    return any(bare in each or (len(each) >= 16 and each in key) for each in found)


# --- cost -------------------------------------------------------------------------------------------------------------


def measure_cost(guards: dict[str, Guard], texts: Sequence[str]) -> Figures:
    """CPU microseconds for a text, and for a token (four characters) of the same text as a stream."""
    figures = {}
    for name, guard in guards.items():
        start = time.process_time()
        for text in texts:
            guard.find(GuardView(text, stage="input"))
        figures[f"us_per_text.{name}"] = 1e6 * (time.process_time() - start) / len(texts)
        if guard.hold_bound is None:
            continue
        cuts = [text[:cut] for text in texts[:100] for cut in range(4, len(text), 4)]
        start = time.process_time()
        for cut in cuts:
            guard.frontier(cut)
        figures[f"us_per_token.{name}"] = 1e6 * (time.process_time() - start) / max(1, len(cuts))
    return figures


def measure_decoding() -> Figures:
    """What the pattern guards add to a batch of free text, in CPU time of the process; the best of three each."""
    from safegen import LLM

    prompts = [f"Write a short letter about {topic}." for topic in _TOPICS]
    seconds: dict[str, list[float]] = {"plain": [], "guarded": []}
    with LLM() as llm:
        for _ in range(3):
            for name in seconds:
                guards = [PII(on_fail="redact"), Secrets(on_fail="redact"), InvisibleText(on_fail="redact")]
                start = time.process_time()
                list(
                    llm.batch(prompts, max_tokens=TOKENS, temperature=0.0, guards=guards if name == "guarded" else None)
                )
                seconds[name].append(time.process_time() - start)
    plain, guarded = min(seconds["plain"]), min(seconds["guarded"])
    return {"cost_pct_b16": 100 * (guarded - plain) / plain, "decode_s_b16": plain}


_TOPICS = (
    "rain",
    "a lost bag",
    "rent",
    "bread",
    "a concert",
    "the sea",
    "a dog",
    "school",
    "a train",
    "tea",
    "a garden",
)
_TOPICS += ("snow", "a parcel", "a phone bill", "music", "the weekend")


# --- the run ----------------------------------------------------------------------------------------------------------


def measure_peers(missing: Sequence[str], pii: Sequence[tuple[str, list[Row]]], prose: Sequence[str]) -> Figures:
    figures: Figures = {}
    if "presidio-analyzer" not in missing:
        find = presidio()
        for stem, rows in pii:
            figures |= measure_pii(stem, rows, find, PRESIDIO_TYPES)
        figures = {f"peers.presidio.{name}": value for name, value in figures.items()}
    if "detect-secrets" not in missing:
        found = measure_secrets(detect_secrets(), prose)
        figures |= {f"peers.detect_secrets.{name}": value for name, value in found.items()}
    return figures


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the JSON report goes")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder of the corpora")
    parser.add_argument("--skip-cost", action="store_true", help="leave out decoding with the default model")
    parser.add_argument("--skip-peers", action="store_true")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    missing = missing_peers()
    pii = list(corpora(arguments.data, "pii"))
    injection = [row for _, rows in corpora(arguments.data, "injection") for row in rows]
    prose = [row.text for row in injection if row.label == "benign"]
    described = environment(
        peers={name: version(name) for name in ("presidio-analyzer", "detect-secrets") if name not in missing},
        missing=missing,
        data=arguments.data.name,
        corpora=[stem for stem, _ in pii],
        clock="CPU time of the process",
        seeds=[SEEDS.start, SEEDS.stop],
    )
    print(json.dumps(described, indent=2), flush=True)
    for package in missing:
        print(f"missing: {package} is not installed; pip install {package}", flush=True)
    guards: dict[str, Guard] = {
        "pii": PII(),
        "secrets": Secrets(),
        "invisible_text": InvisibleText(),
        "prompt_injection": PromptInjection(),
    }
    figures: Figures = {}
    for stem, rows in pii:
        figures |= measure_pii(stem, rows, lambda text: own_spans(guards["pii"], text), PII_TYPES)
    if injection:
        figures |= measure_injection(injection, guards["prompt_injection"])
    figures |= measure_secrets(
        lambda text: [text[start:end] for _, start, end in own_spans(guards["secrets"], text)], prose
    )
    figures |= measure_cost(guards, [row.text for _, rows in pii for row in rows] or functions_of_code()[:300])
    if not arguments.skip_peers:
        figures |= measure_peers(missing, pii, prose)
    if not arguments.skip_cost:
        figures |= measure_decoding()
    write_report(arguments.out, described, figures, [])
    for name, value in figures.items():
        print(f"{name:68} {value:10.3f}")


if __name__ == "__main__":
    main()
