"""safegen: an LLM inside your own process whose answers are guaranteed.

Every public name is importable from here and is loaded on first use, so that `import safegen` costs a few
milliseconds: it imports neither torch nor pydantic. What is not in `__all__` may change without notice.
"""

from __future__ import annotations

from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

# The folders engine, kernels and grammars are installed inside this package; in a checkout they lie beside it.
if not (_Path(__file__).parent / "engine").exists():
    __path__.append(str(_Path(__file__).parent.parent))

__version__ = "0.1.0"

if TYPE_CHECKING:
    from safegen.async_llm import AsyncLLM
    from safegen.capacity.planning import Plan, plan
    from safegen.checking import Finding, check, matches
    from safegen.engine.request import SamplingParams
    from safegen.errors import (
        Cancelled,
        CapacityError,
        EngineClosed,
        EngineError,
        GrammarError,
        GuardBlocked,
        InvalidOutput,
        JobChanged,
        JobError,
        JobInputError,
        JobLocked,
        JobOutputError,
        JobWorkerError,
        ModelLoadError,
        QueueFull,
        Refused,
        RequestError,
        RowError,
        SafegenError,
        SchemaError,
        Truncated,
        UnsatisfiableSchema,
    )
    from safegen.events import DeltaEvent, FinalEvent, SnapshotEvent, StreamEvent
    from safegen.explaining import Blamed, Explanation, explain
    from safegen.guards import (
        PII,
        Allow,
        Anonymize,
        AuditRecord,
        Block,
        Canary,
        Charset,
        Classifier,
        Custom,
        Deanonymize,
        Guard,
        Guards,
        GuardView,
        InvisibleText,
        Language,
        Match,
        MaxLength,
        Never,
        PromptInjection,
        Refusal,
        Replace,
        Retry,
        Secrets,
        SystemPromptLeak,
    )
    from safegen.jobs.report import JobReport
    from safegen.limits import Limits
    from safegen.llm import LLM
    from safegen.load.testing import LoadReport, load_test
    from safegen.load.trace import Slo
    from safegen.observe.stats import Stats
    from safegen.output_type import OutputType
    from safegen.result import Result
    from safegen.speculation import Speculation
    from safegen.tools import ToolCall, ToolCalls, ToolFormat, Tools
    from safegen.types import Choice, Grammar, JsonSchema, Regex, Think

_MODULE_OF = {
    "Allow": "guards",
    "Anonymize": "guards",
    "AsyncLLM": "async_llm",
    "AuditRecord": "guards",
    "Blamed": "explaining",
    "Block": "guards",
    "Canary": "guards",
    "Cancelled": "errors",
    "CapacityError": "errors",
    "Charset": "guards",
    "Choice": "types",
    "Classifier": "guards",
    "Custom": "guards",
    "Deanonymize": "guards",
    "DeltaEvent": "events",
    "EngineClosed": "errors",
    "EngineError": "errors",
    "Explanation": "explaining",
    "FinalEvent": "events",
    "Finding": "checking",
    "Grammar": "types",
    "GrammarError": "errors",
    "Guard": "guards",
    "GuardBlocked": "errors",
    "GuardView": "guards",
    "Guards": "guards",
    "InvalidOutput": "errors",
    "InvisibleText": "guards",
    "JobChanged": "errors",
    "JobError": "errors",
    "JobInputError": "errors",
    "JobLocked": "errors",
    "JobOutputError": "errors",
    "JobReport": "jobs.report",
    "JobWorkerError": "errors",
    "JsonSchema": "types",
    "LLM": "llm",
    "Language": "guards",
    "Limits": "limits",
    "LoadReport": "load.testing",
    "Match": "guards",
    "MaxLength": "guards",
    "Never": "guards",
    "ModelLoadError": "errors",
    "OutputType": "output_type",
    "PII": "guards",
    "Plan": "capacity.planning",
    "PromptInjection": "guards",
    "QueueFull": "errors",
    "Refusal": "guards",
    "Refused": "errors",
    "Regex": "types",
    "Replace": "guards",
    "RequestError": "errors",
    "Result": "result",
    "Retry": "guards",
    "RowError": "errors",
    "SafegenError": "errors",
    "SamplingParams": "engine.request",
    "SchemaError": "errors",
    "Secrets": "guards",
    "Slo": "load.trace",
    "SnapshotEvent": "events",
    "Speculation": "speculation",
    "Stats": "observe.stats",
    "StreamEvent": "events",
    "SystemPromptLeak": "guards",
    "Think": "types",
    "ToolCall": "tools",
    "ToolCalls": "tools",
    "ToolFormat": "tools",
    "Tools": "tools",
    "Truncated": "errors",
    "UnsatisfiableSchema": "errors",
    "check": "checking",
    "explain": "explaining",
    "load_test": "load.testing",
    "matches": "checking",
    "plan": "capacity.planning",
}

__all__ = [
    "LLM",
    "PII",
    "Allow",
    "Anonymize",
    "AsyncLLM",
    "AuditRecord",
    "Blamed",
    "Block",
    "Canary",
    "Cancelled",
    "CapacityError",
    "Charset",
    "Choice",
    "Classifier",
    "Custom",
    "Deanonymize",
    "DeltaEvent",
    "EngineClosed",
    "EngineError",
    "Explanation",
    "FinalEvent",
    "Finding",
    "Grammar",
    "GrammarError",
    "Guard",
    "GuardBlocked",
    "GuardView",
    "Guards",
    "InvalidOutput",
    "InvisibleText",
    "JobChanged",
    "JobError",
    "JobInputError",
    "JobLocked",
    "JobOutputError",
    "JobReport",
    "JobWorkerError",
    "JsonSchema",
    "Language",
    "Limits",
    "LoadReport",
    "Match",
    "MaxLength",
    "ModelLoadError",
    "Never",
    "OutputType",
    "Plan",
    "PromptInjection",
    "QueueFull",
    "Refusal",
    "Refused",
    "Regex",
    "Replace",
    "RequestError",
    "Result",
    "Retry",
    "RowError",
    "SafegenError",
    "SamplingParams",
    "SchemaError",
    "Secrets",
    "Slo",
    "SnapshotEvent",
    "Speculation",
    "Stats",
    "StreamEvent",
    "SystemPromptLeak",
    "Think",
    "ToolCall",
    "ToolCalls",
    "ToolFormat",
    "Tools",
    "Truncated",
    "UnsatisfiableSchema",
    "check",
    "explain",
    "load_test",
    "matches",
    "plan",
]


def __getattr__(name: str) -> Any:
    module_name = _MODULE_OF.get(name)
    if module_name is None:
        raise AttributeError(f"module 'safegen' has no attribute {name!r}")
    value = getattr(_module(module_name), name)
    globals()[name] = value
    return value


def _module(name: str) -> Any:
    """One import statement a module, so that a reader (and a test) sees all imports there are."""
    match name:
        case "async_llm":
            from safegen import async_llm

            return async_llm
        case "capacity.planning":
            from safegen.capacity import planning

            return planning
        case "checking":
            from safegen import checking

            return checking
        case "engine.request":
            from safegen.engine import request

            return request
        case "errors":
            from safegen import errors

            return errors
        case "events":
            from safegen import events

            return events
        case "explaining":
            from safegen import explaining

            return explaining
        case "guards":
            from safegen import guards

            return guards
        case "jobs.report":
            from safegen.jobs import report

            return report
        case "limits":
            from safegen import limits

            return limits
        case "llm":
            from safegen import llm

            return llm
        case "load.testing":
            from safegen.load import testing

            return testing
        case "load.trace":
            from safegen.load import trace

            return trace
        case "observe.stats":
            from safegen.observe import stats

            return stats
        case "output_type":
            from safegen import output_type

            return output_type
        case "result":
            from safegen import result

            return result
        case "speculation":
            from safegen import speculation

            return speculation
        case "tools":
            from safegen import tools

            return tools
        case _:
            from safegen import types

            return types


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
