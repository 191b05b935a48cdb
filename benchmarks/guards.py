"""Guards: what detectors find and what they err on, what they cost, and the same of Presidio and detect-secrets.

Personal data: precision and recall by type on every `pii*.jsonl.gz` of the data folder, with exact spans. Injection:
how many rows of each source of `injection*.jsonl.gz` are blocked by the defaults (rows of BIPIA are shown as a tool's
message, all others as a user's). Secrets: recall on keys of 42 forms drawn from a seed, and findings in code and prose
that hold none. Cost: CPU microseconds a guard takes for a text of the corpora and for a token of a stream, and
(`cost_pct_b16`) the share of CPU decode time at batch 16 that all pattern guards together take with the default model
(`benchmarks.common.guard_cost`): the greater one of whole answers and of streams. Never: what 500 phrases cost to
compile and in each mask, over two vocabularies (`benchmarks.common.never_walks`). A peer that is not installed is named
as missing; `make bench-guard-peers` installs them for an interpreter of their own, which `--peers-python` (or
SAFEGEN_GUARD_PEERS_PYTHON) names.

Figures: `<file stem>.<type>.{precision,recall,f1}`, `injection.<source>.blocked_pct`, `injection.benign.blocked_pct`,
`secrets.{recall,code_pct,prose_pct}`, `us_per_text.<guard>`, `us_per_token.<guard>`, `cost_pct_b16`,
`cost_pct_b16.{whole,streamed}`, `never.compile_ms_500` (of the slowest fold), `never.added_us_p50`,
`never.added_us_p99.<kind>.<fold>.<vocabulary>` (and p50), `peers.<peer>.<figure>`.

    python benchmarks/guards.py --out FILE.json [--data DIR] [--rows N] [--skip-cost] [--skip-peers] [--skip-never]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import data_folder, environment, write_report
from benchmarks.common.guard_corpora import BENIGN, PII_TYPES, Row, corpora, functions_of_code, secret_texts
from benchmarks.common.guard_cost import measure_decoding
from benchmarks.common.guard_peers import PEERS, PRESIDIO_TYPES, PeerAnswer, ask_peers
from benchmarks.common.never_walks import SEED, banned_phrases, measure_never
from safegen.guards.base import Guard, GuardView
from safegen.guards.guards import Guards
from safegen.guards.injection import PromptInjection
from safegen.guards.invisible import InvisibleText
from safegen.guards.pii import PII
from safegen.guards.running import run_guards
from safegen.guards.secrets import Secrets
from safegen.guards.stream import AnswerShape, GuardStream

SEEDS = range(100, 120)
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


def measure_secrets(find: Callable[[str], list[str]], prose: Sequence[str], *, least: int = 16) -> Figures:
    """A key counts as found when a finding in its text covers it (less its padding) or is a part of it, of `least`
    characters."""
    texts, code = secret_texts(SEEDS), functions_of_code()
    hits = sum(_holds(find(text), key, least) for _, key, text in texts)
    return {
        "secrets.recall": hits / len(texts),
        "secrets.code_pct": 100 * sum(bool(find(text)) for text in code) / max(1, len(code)),
        "secrets.prose_pct": 100 * sum(bool(find(text)) for text in prose) / max(1, len(prose)),
    }


def texts_for_secrets(prose: Sequence[str]) -> list[str]:
    """Every text that `measure_secrets` asks about."""
    return [*(text for _, _, text in secret_texts(SEEDS)), *functions_of_code(), *prose]


def _holds(found: Sequence[str], key: str, least: int) -> bool:
    bare = key.removeprefix("https://").removeprefix("AccountKey=").rstrip("=")
    return any(bare in each or (len(each) >= least and each in key) for each in found)


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
        figures[f"us_per_token.{name}"] = stream_us(guard, "\n".join(texts[:200]))
    return figures


def stream_us(guard: Guard, text: str) -> float:
    """CPU microseconds a token, less what a stream without guards takes."""

    def spent(given: list[Guard]) -> float:
        entries = Guards(given).entries
        stream = GuardStream(entries, AnswerShape("text"), lambda asked, view: run_guards(asked, view, 60.0))
        start = time.process_time()
        for at in range(0, len(text), 4):
            stream.feed(text[at : at + 4])
        return time.process_time() - start

    redacting = type(guard)(on_fail="redact")
    spent([redacting])
    return 4e6 * (spent([redacting]) - spent([])) / len(text)


# --- the run ----------------------------------------------------------------------------------------------------------


def measure_peers(
    answers: dict[str, PeerAnswer], pii: Sequence[tuple[str, list[Row]]], prose: Sequence[str]
) -> Figures:
    figures: Figures = {}
    presidio, secrets = answers["presidio"], answers["detect_secrets"]
    if presidio.version is not None:
        found = dict(zip(_texts_of(pii), presidio.found))
        for stem, rows in pii:
            measured = measure_pii(stem, rows, lambda text: [(k, a, b) for k, a, b in found[text]], PRESIDIO_TYPES)
            figures |= {f"peers.presidio.{name}": value for name, value in measured.items()}
        figures["peers.presidio.us_per_text"] = presidio.us_per_text
    if secrets.version is not None:
        keys = dict(zip(texts_for_secrets(prose), secrets.found))
        measured = measure_secrets(keys.__getitem__, prose, least=1)  # it reports the prefix of some keys alone
        figures |= {f"peers.detect_secrets.{name}": value for name, value in measured.items()}
        figures["peers.detect_secrets.us_per_text"] = secrets.us_per_text
    return figures


def _texts_of(pii: Sequence[tuple[str, list[Row]]]) -> list[str]:
    return [row.text for _, rows in pii for row in rows]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the JSON report goes")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder of the corpora")
    parser.add_argument("--rows", type=int, help="at most so many of each corpus, drawn from a seed; default all")
    parser.add_argument("--skip-cost", action="store_true", help="leave out decoding with the default model")
    parser.add_argument("--skip-peers", action="store_true")
    parser.add_argument("--skip-never", action="store_true", help="leave out compiling and masks under bans")
    python = os.environ.get("SAFEGEN_GUARD_PEERS_PYTHON") or sys.executable
    parser.add_argument("--peers-python", default=python, help="interpreter that has the peers")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    pii = [(stem, some_of(rows, arguments.rows)) for stem, rows in corpora(arguments.data, "pii")]
    injection = some_of([row for _, rows in corpora(arguments.data, "injection") for row in rows], arguments.rows)
    prose = [row.text for row in injection if row.label == "benign"]
    asked = {"presidio": _texts_of(pii), "detect_secrets": texts_for_secrets(prose)}
    answers = {} if arguments.skip_peers else ask_peers(arguments.peers_python, asked)
    missing = [PEERS[name] for name, answer in answers.items() if answer.version is None]
    described = environment(
        peers={PEERS[name]: answer.version for name, answer in answers.items()},
        missing=missing,
        data=arguments.data.name,
        corpora=[stem for stem, _ in pii],
        clock="CPU time of the process",
        seeds=[SEEDS.start, SEEDS.stop, SEED],
        rows=arguments.rows or "all",
    )
    print(json.dumps(described, indent=2), flush=True)
    for package in missing:
        print(f"missing: {package} is not installed for {arguments.peers_python}: make bench-guard-peers", flush=True)
    figures = measure_detectors(pii, injection, prose)
    if answers:
        figures |= measure_peers(answers, pii, prose)
    if not arguments.skip_cost:
        figures |= measure_decoding()
    if not arguments.skip_never:
        texts = [row.text for _, rows in pii for row in rows[:40]] or functions_of_code()[:80]
        figures |= measure_never(banned_phrases(arguments.data), texts)
    write_report(arguments.out, described, figures, [])
    for name, value in figures.items():
        print(f"{name:68} {value:10.3f}")


def some_of(rows: list[Row], num_rows: int | None) -> list[Row]:
    if num_rows is None or num_rows >= len(rows):
        return rows
    return random.Random(SEEDS.start).sample(rows, num_rows)


def measure_detectors(pii: Sequence[tuple[str, list[Row]]], injection: Sequence[Row], prose: Sequence[str]) -> Figures:
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
    return figures | measure_cost(guards, _texts_of(pii) or functions_of_code()[:300])


if __name__ == "__main__":
    main()
