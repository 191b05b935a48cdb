"""Guards: what must not come in or out. Every name loads on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from safegen.guards.audit import AuditRecord
    from safegen.guards.base import Allow, Block, Edit, Guard, GuardView, Match, Replace, Retry
    from safegen.guards.canary import Canary
    from safegen.guards.charset import Charset
    from safegen.guards.classifier import Classifier
    from safegen.guards.custom import Custom
    from safegen.guards.guards import Guards
    from safegen.guards.injection import PromptInjection
    from safegen.guards.invisible import InvisibleText
    from safegen.guards.language import Language
    from safegen.guards.length import MaxLength
    from safegen.guards.never import Never
    from safegen.guards.pii import PII
    from safegen.guards.prompt_leak import SystemPromptLeak
    from safegen.guards.refusal import Refusal
    from safegen.guards.registry import register
    from safegen.guards.secrets import Secrets
    from safegen.guards.vault import Anonymize, Deanonymize

# Names of guard classes, which are type names in configuration too. A new guard is added here, in _MODULE_OF, in
# __all__ and (when its module is new) in _module.
GUARD_NAMES = frozenset(
    {
        "Anonymize",
        "Canary",
        "Charset",
        "Classifier",
        "Deanonymize",
        "InvisibleText",
        "Language",
        "MaxLength",
        "Never",
        "PII",
        "PromptInjection",
        "Secrets",
        "SystemPromptLeak",
    }
)

_MODULE_OF = {
    "Allow": "base",
    "Anonymize": "vault",
    "AuditRecord": "audit",
    "Block": "base",
    "Canary": "canary",
    "Charset": "charset",
    "Classifier": "classifier",
    "Custom": "custom",
    "Deanonymize": "vault",
    "Edit": "base",
    "Guard": "base",
    "GuardView": "base",
    "Guards": "guards",
    "InvisibleText": "invisible",
    "Language": "language",
    "Match": "base",
    "MaxLength": "length",
    "Never": "never",
    "PII": "pii",
    "PromptInjection": "injection",
    "Refusal": "refusal",
    "Replace": "base",
    "Retry": "base",
    "Secrets": "secrets",
    "SystemPromptLeak": "prompt_leak",
    "register": "registry",
}

__all__ = [
    "PII",
    "Allow",
    "Anonymize",
    "AuditRecord",
    "Block",
    "Canary",
    "Charset",
    "Classifier",
    "Custom",
    "Deanonymize",
    "Edit",
    "Guard",
    "GuardView",
    "Guards",
    "InvisibleText",
    "Language",
    "Match",
    "MaxLength",
    "Never",
    "PromptInjection",
    "Refusal",
    "Replace",
    "Retry",
    "Secrets",
    "SystemPromptLeak",
    "register",
]


def __getattr__(name: str) -> Any:
    module_name = _MODULE_OF.get(name)
    if module_name is None:
        raise AttributeError(f"module 'safegen.guards' has no attribute {name!r}")
    value = getattr(_module(module_name), name)
    globals()[name] = value
    return value


def _module(name: str) -> Any:
    """One import statement a module, so that a reader (and a test) sees all imports there are."""
    match name:
        case "audit":
            from safegen.guards import audit

            return audit
        case "canary":
            from safegen.guards import canary

            return canary
        case "charset":
            from safegen.guards import charset

            return charset
        case "classifier":
            from safegen.guards import classifier

            return classifier
        case "injection":
            from safegen.guards import injection

            return injection
        case "invisible":
            from safegen.guards import invisible

            return invisible
        case "language":
            from safegen.guards import language

            return language
        case "length":
            from safegen.guards import length

            return length
        case "never":
            from safegen.guards import never

            return never
        case "prompt_leak":
            from safegen.guards import prompt_leak

            return prompt_leak
        case "custom":
            from safegen.guards import custom

            return custom
        case "guards":
            from safegen.guards import guards as guard_set

            return guard_set
        case "pii":
            from safegen.guards import pii

            return pii
        case "refusal":
            from safegen.guards import refusal

            return refusal
        case "secrets":
            from safegen.guards import secrets

            return secrets
        case "vault":
            from safegen.guards import vault

            return vault
        case "registry":
            from safegen.guards import registry

            return registry
        case _:
            from safegen.guards import base

            return base


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
