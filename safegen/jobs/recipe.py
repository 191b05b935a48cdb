"""What makes a call of a row, as the caller gave it: it can be handed to another process, a `Planner` cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from safegen.engine.request import SamplingParams
from safegen.jobs.output_types import RowTypes, TypeOf
from safegen.jobs.plan import Planner
from safegen.jobs.prompts import PromptSource
from safegen.runtime import CallOptions, Runtime


@dataclass(frozen=True, slots=True)
class Recipe:
    """spec: the job's output type, not compiled. params: of every row but for its seed. call: the other options of
    every row. The rest as `LLM.run_job` has it."""

    spec: Any
    prompt: PromptSource
    type_of: TypeOf | None
    schema_column: str | None
    id_column: str | None
    params: SamplingParams
    call: CallOptions
    job_seed: int
    is_openai: bool

    def types(self, runtime: Runtime) -> RowTypes:
        """Raises SchemaError, GrammarError or RequestError."""
        return RowTypes(runtime.compile(self.spec), self.schema_column, self.type_of)

    def planner(self, runtime: Runtime) -> Planner:
        """Raises what `types` raises, and RequestError for a prompt that is none."""
        return Planner(
            self.types(runtime), self.prompt, self.params, self.call,
            job_seed=self.job_seed, id_column=self.id_column, is_openai=self.is_openai,
        )  # fmt: skip
