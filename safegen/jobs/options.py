"""The options of a job, checked before anything is opened."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal, get_args

from safegen.engine.request import SamplingParams
from safegen.errors import RequestError
from safegen.jobs.output_types import TypeOf
from safegen.jobs.plan import RowPlanner
from safegen.jobs.prompts import PromptSource
from safegen.jobs.sources import Format
from safegen.runtime import CallOptions

OnChange = Literal["refuse", "keep", "restart"]
ProgressKind = Literal["auto", "bar", "lines", "off"]
EngineKind = Literal["local", "ray"]


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The keyword arguments of `LLM.run_job`; see there. call: those that every call has. planner: what reads rows and
    writes records in place of the job's own, such as the server's for its batches; `version` tells its settings."""

    prompt: PromptSource = None
    type_of: TypeOf | None = None
    schema_column: str | None = None
    id_column: str | None = None
    call: CallOptions = CallOptions()  # noqa: RUF009 - frozen
    format: Format | None = None
    resume: bool = True
    retry_failed: bool = False
    on_change: OnChange = "refuse"
    ordered: bool = False
    window: int | None = None
    max_row_bytes: int = 1 << 20
    rows_per_part: int = 10_000
    version: str | None = None
    progress: ProgressKind = "auto"
    report: str | os.PathLike[str] | None = None
    engine: EngineKind = "local"
    num_workers: int | None = None
    ray_address: str | None = None
    planner: RowPlanner | None = None

    def __post_init__(self) -> None:
        for name in ("resume", "retry_failed", "ordered"):
            if not isinstance(getattr(self, name), bool):
                raise self._wrong(name, "True or False")
        for name in ("schema_column", "id_column", "version", "ray_address"):
            if not isinstance(getattr(self, name), str | None):
                raise self._wrong(name, "a string or None")
        if not isinstance(self.report, str | os.PathLike | None):
            raise self._wrong("report", "a path or None")
        for name in ("window", "num_workers", "max_row_bytes", "rows_per_part"):
            value = getattr(self, name)
            if name in ("window", "num_workers") and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise self._wrong(name, "a number from 1 on")
        for name, kind in (("on_change", OnChange), ("progress", ProgressKind), ("engine", EngineKind)):
            if getattr(self, name) not in get_args(kind):
                raise self._wrong(name, f"one of {', '.join(get_args(kind))}")
        self._check_workers()
        if self.format == "openai" and self.prompt is not None:
            raise RequestError("a batch file holds its own messages; leave prompt out", field="prompt")

    def _check_workers(self) -> None:
        if self.engine == "ray" and self.num_workers is None:
            raise RequestError("engine='ray' needs num_workers: how many processes load the model", field="num_workers")
        for name in ("num_workers", "ray_address"):
            if self.engine != "ray" and getattr(self, name) is not None:
                raise self._wrong(name, "a value with engine='ray' alone")

    def _wrong(self, name: str, wanted: str) -> RequestError:
        value = getattr(self, name)
        return RequestError(f"{name}={value!r:.80}; it takes {wanted}", field=name, value=value)


def check_params(params: SamplingParams) -> None:
    """What a job cannot keep. Raises RequestError."""
    if params.logprobs is not None:
        raise RequestError("a job keeps no log-probabilities; leave logprobs out", field="logprobs")


def described_params(params: SamplingParams) -> dict[str, Any]:
    """All that decides an answer; the seed is the job's."""
    names = [name for name in SamplingParams.__dataclass_fields__ if name != "seed"]
    described = {name: getattr(params, name) for name in names}
    described["logit_bias"] = sorted(params.logit_bias.items())
    return described
