"""What a page says of a job that is no count: what it was, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from safegen.engine.request import SamplingParams
from safegen.jobs.header import Config
from safegen.jobs.options import described_params
from safegen.jobs.outputs import OutputPaths
from safegen.jobs.sources import Source
from safegen.runtime import Runtime


@dataclass(frozen=True, slots=True)
class State:
    """error: the class of what ended a run that was interrupted or has failed; message: if it may be told."""

    name: Literal["running", "done", "interrupted", "failed"]
    error: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class About:
    """What is known of a job before it runs. settings: names and values. num_configs: configurations of the output."""

    output: str
    source: str
    source_format: str
    model: str
    fingerprint: str
    type_kind: str
    digest: str
    header: str
    settings: Sequence[tuple[str, str]] = ()
    num_configs: int = 1
    begun: datetime = field(default_factory=lambda: datetime.now(UTC))


def about_job(runtime: Runtime, source: Source, paths: OutputPaths, config: Config, num_configs: int) -> About:
    described = config.description
    return About(
        output=str(paths.path),
        source=source.name,
        source_format=source.format,
        model=runtime.model_name,
        fingerprint=runtime.fingerprint,
        type_kind=str(described["type"]["type"]["kind"]),
        digest=config.digest,
        header=paths.header.name,
        settings=tuple(_settings(described)),
        num_configs=num_configs,
    )


def _settings(described: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What differs from the defaults and holds no text of the user's."""
    defaults = described_params(SamplingParams())
    params = described["params"]
    found = [(name, str(params[name])) for name in params if params[name] != defaults[name] and name != "stop"]
    found.append(("seed", str(described["seed"])))
    columns = described["type"]
    if columns["schema_column"] is not None or columns["type_of"] is not None:
        found.append(("types", "by row"))
    if described["guards"] is not None:
        found.append(("guards", "yes"))
    if not described["show_schema"]:
        found.append(("schema shown", "no"))
    return found
