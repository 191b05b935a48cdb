"""`LLM`: a model inside this process, for plain (blocking) code. Any number of threads may share one.

The class is a thin face: it checks nothing and decides nothing. `safegen.runtime` holds the rules, `safegen.drive` the
waiting; `AsyncLLM` stands on the same two.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from safegen.drive import drive, drive_batch
from safegen.engine.request import SamplingParams
from safegen.limits import Limits
from safegen.loading import Device, Kernels, KvCacheDtype, LoadOptions, Quantization, load_runtime
from safegen.observe.openmetrics import metrics_text
from safegen.observe.stats import Stats, stats_of
from safegen.output_type import OutputType
from safegen.prompt import Prompt
from safegen.result import Result
from safegen.runtime import CallOptions, Runtime
from safegen.stream import Stream
from safegen.tools import ToolCalls, Tools
from safegen.types import Choice, Regex

if TYPE_CHECKING:
    from safegen.jobs.options import EngineKind, OnChange, ProgressKind
    from safegen.jobs.output_types import TypeOf
    from safegen.jobs.prompts import PromptSource
    from safegen.jobs.report import JobReport
    from safegen.jobs.sources import Format

T = TypeVar("T")


class LLM:
    """A loaded model. Use it as a context manager, or `close()` it; it also closes when it is collected.

    model: a GGUF file, a Hugging Face folder, or a hub id in the local cache; None takes the environment variable
    SAFEGEN_MODEL, else the installed default model. kernels: "auto" and "cpu" are the native kernels, "reference" is
    plain torch in dequantized fp32, "triton" the GPU's. device: "auto" and "cpu" are the CPU, "cuda" is a GPU.
    quantization: "int8" or "int4" packs float weights on load, None keeps them as the file has them; blocks of GGUF
    files stay what they are. kv_cache_memory: bytes of the KV cache, None takes a share of what is free.
    kv_cache_dtype: how it keeps keys and values; "auto" is "float16" on the native kernels, "float32" on the reference;
    "int8" has a scale for each token's head. block_size: tokens a cache block. max_num_seqs: sequences computed at
    once. max_num_batched_tokens: tokens computed a step. enable_prefix_caching: reuse the cache of equal prompt
    beginnings. speculation: "auto", False or a Speculation: who guesses tokens ahead, which saves forwards and changes
    no output; a call may leave it out or narrow it. guards: what no prompt may hold and no answer may say: a Guards, a
    guard or a list of them; a call may add more, never drop any. deterministic: bitwise equal results in company; on
    CPU that is always so. limits: see Limits. gpu_memory_utilization: share of a GPU's memory that all of this may
    take, where kv_cache_memory does not say. tensor_parallel_size: processes of this machine that share every layer of
    the model; with device="cuda" each has a GPU of its own.

    Raises ModelLoadError (no model, or one that cannot be used), CapacityError (the cache cannot hold a block) and
    RequestError (an option out of range).
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        kernels: Kernels = "auto",
        device: Device = "auto",
        quantization: Quantization | None = None,
        kv_cache_memory: int | None = None,
        kv_cache_dtype: KvCacheDtype = "auto",
        block_size: int = 16,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
        enable_prefix_caching: bool = True,
        speculation: Any = "auto",
        guards: Sequence[Any] = (),
        deterministic: bool = False,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        gpu_memory_utilization: float = 0.9,
        tensor_parallel_size: int = 1,
    ) -> None:
        options = LoadOptions(
            model, kernels, device, quantization, kv_cache_memory, kv_cache_dtype, block_size, max_num_seqs,
            max_num_batched_tokens, enable_prefix_caching, speculation, guards, deterministic, limits,
            gpu_memory_utilization, tensor_parallel_size,
        )  # fmt: skip
        self._runtime = load_runtime(options)

    @classmethod
    def without_weights(cls, model: str | os.PathLike[str] | None = None, **options: Any) -> LLM:
        """An LLM that takes no memory for weights or cache and computes nothing: for `run_job(..., engine="ray")`,
        whose workers load the model with these very arguments. They are those of `LLM`; what it raises, too."""
        from safegen.outline import load_outline

        return cls.from_runtime(load_outline(LoadOptions(model, **options)))

    @classmethod
    def from_runtime(cls, runtime: Runtime) -> LLM:
        """An LLM over a runtime that is loaded already, such as that of another LLM or of a test."""
        llm = cls.__new__(cls)
        llm._runtime = runtime
        return llm

    @overload
    def generate(self, prompt: Prompt, type: None = None, **options: Any) -> Result[str]: ...
    @overload
    def generate(self, prompt: Prompt, type: OutputType[T], **options: Any) -> Result[T]: ...
    @overload
    def generate(self, prompt: Prompt, type: Regex | Choice, **options: Any) -> Result[str]: ...
    @overload
    def generate(self, prompt: Prompt, type: Tools, **options: Any) -> Result[ToolCalls]: ...
    @overload
    def generate(self, prompt: Prompt, type: type[T], **options: Any) -> Result[T]: ...
    @overload
    def generate(self, prompt: Prompt, type: Any, **options: Any) -> Result[Any]: ...

    def generate(
        self,
        prompt: Prompt,
        type: Any = None,
        *,
        params: SamplingParams | None = None,
        guards: Any = None,
        speculation: Any = None,
        show_schema: bool = True,
        cache_salt: str | None = None,
        **sampling: Any,
    ) -> Result[Any]:
        """One answer.

        prompt: a string or chat messages. type: what may come out, None is free text. params: a SamplingParams;
        **sampling: its fields by name (temperature=0.7, max_tokens=256, seed=1, ...), which win over params.
        show_schema: tell the model the type in its system prompt. cache_salt: requests share cached prompt beginnings
        only with requests of the same salt. guards: for this call, besides those of the LLM.

        Raises RequestError, SchemaError, GrammarError, CapacityError or EngineClosed for a call that cannot be
        served. Whatever happens after that is the Result's status.
        """
        options = CallOptions(params, guards, speculation, show_schema, cache_salt, sampling)
        return drive(self._runtime, [self._runtime.work(prompt, type, options)])[0]

    @overload
    def stream(self, prompt: Prompt, type: None = None, **options: Any) -> Stream[str]: ...
    @overload
    def stream(self, prompt: Prompt, type: OutputType[T], **options: Any) -> Stream[T]: ...
    @overload
    def stream(self, prompt: Prompt, type: Regex | Choice, **options: Any) -> Stream[str]: ...
    @overload
    def stream(self, prompt: Prompt, type: Tools, **options: Any) -> Stream[ToolCalls]: ...
    @overload
    def stream(self, prompt: Prompt, type: type[T], **options: Any) -> Stream[T]: ...
    @overload
    def stream(self, prompt: Prompt, type: Any, **options: Any) -> Stream[Any]: ...

    def stream(
        self,
        prompt: Prompt,
        type: Any = None,
        *,
        params: SamplingParams | None = None,
        guards: Any = None,
        speculation: Any = None,
        show_schema: bool = True,
        cache_salt: str | None = None,
        **sampling: Any,
    ) -> Stream[Any]:
        """As `generate`, event by event: `with llm.stream(...) as events: for event in events: ...`.

        Leaving the block early cancels the request. Raises what `generate` raises.
        """
        options = CallOptions(params, guards, speculation, show_schema, cache_salt, sampling)
        return Stream(self._runtime, self._runtime.stream(prompt, type, options))

    def batch(
        self,
        rows: Sequence[Any],
        type: Any = None,
        *,
        params: SamplingParams | None = None,
        guards: Any = None,
        speculation: Any = None,
        show_schema: bool = True,
        cache_salt: str | None = None,
        **sampling: Any,
    ) -> list[Result[Any]]:
        """Many answers at once, in the order of the rows.

        rows: prompts, or (prompt, type) pairs; type is that of the rows that name none. Never raises for a row: one
        that cannot be served has status "refused" and its error. A full queue is waited for.
        """
        options = CallOptions(params, guards, speculation, show_schema, cache_salt, sampling)
        return drive_batch(self._runtime, rows, type, options)

    def run_job(
        self,
        input: Any,
        output: str | os.PathLike[str],
        type: Any = None,
        *,
        prompt: PromptSource = None,
        type_of: TypeOf | None = None,
        schema_column: str | None = None,
        id_column: str | None = None,
        params: SamplingParams | None = None,
        guards: Any = None,
        speculation: Any = None,
        show_schema: bool = True,
        cache_salt: str | None = None,
        format: Format | None = None,
        resume: bool = True,
        retry_failed: bool = False,
        on_change: OnChange = "refuse",
        ordered: bool = False,
        window: int | None = None,
        max_row_bytes: int = 1 << 20,
        rows_per_part: int = 10_000,
        version: str | None = None,
        progress: ProgressKind = "auto",
        report: str | os.PathLike[str] | None = None,
        engine: EngineKind = "local",
        num_workers: int | None = None,
        ray_address: str | None = None,
        **sampling: Any,
    ) -> JobReport:
        """Answer every row of a file, each exactly once, however often the process is killed and the job run again.

        input: a .jsonl, .csv, .tsv (each also .gz) or .parquet file, a folder of .parquet files, or an iterable of
        dicts or strings that gives the same rows each time. format: what the file is, where its name does not say;
        "openai" is OpenAI's batch file format. output: a .jsonl file, or a .parquet folder of part files of
        rows_per_part rows. type: of every answer; of a row, type_of(columns) or the JSON Schema in schema_column says
        another. prompt: a template with places such as {text} that name columns, chat messages of templates, a
        function of the columns, or None: the column messages, prompt or text. id_column: None takes id or custom_id.

        resume: go on with an output that exists. retry_failed: answer the rows anew that are not "ok". on_change: what
        to do when the output was begun with another type, prompt, model, guard or setting: "refuse", "keep" the rows
        that are done, or "restart". version: a text of your own that counts as such a setting. ordered: write records
        in the input's order. window: rows in flight, None is twice max_num_seqs. max_row_bytes: longer rows are error
        rows. progress: "auto" is a bar on a terminal, else a line every ten seconds. report: a .html file for a page on
        how it went, written also when the job fails. seed (in params or by name): of the job; each row draws with a
        seed of its own.

        engine: "ray" has the rows answered by num_workers processes of a Ray cluster, each of which loads the model:
        the same records, as exactly once; see docs/jobs.md. ray_address: of the cluster; None takes the Ray that this
        process has initialised, else what RAY_ADDRESS names, else starts one on this machine for the job.

        Never raises for a row: its record has a status and an error. Raises JobError (input, output or workers cannot
        be used; what was written is kept), RequestError, SchemaError, GrammarError or EngineClosed for the job as a
        whole.
        """
        from safegen.jobs.options import JobOptions
        from safegen.jobs.run import run_job

        call = CallOptions(params, guards, speculation, show_schema, cache_salt, sampling)
        options = JobOptions(
            prompt, type_of, schema_column, id_column, call, format, resume, retry_failed, on_change, ordered, window,
            max_row_bytes, rows_per_part, version, progress, report, engine, num_workers, ray_address,
        )  # fmt: skip
        return run_job(self._runtime, input, output, type, options)

    def compile(self, type: Any, *, guards: Any = None) -> OutputType[Any]:
        """Compile an output type once, for use in any number of calls and threads. guards: whose `Never` it is held to,
        besides those of the LLM. Raises SchemaError, GrammarError."""
        return self._runtime.compile(type, guards)

    def stats(self) -> Stats:
        """What this LLM does and has done: queue, cache, rates, latencies, totals. Any thread; it disturbs nothing."""
        return stats_of(self._runtime.engine_stats(), self._runtime.meter)

    def metrics_text(self, labels: Mapping[str, str] | None = None) -> str:
        """The same as OpenMetrics text, to be served as `safegen.observe.openmetrics.CONTENT_TYPE`.

        labels: put on every sample, such as {"model": "small"}. Raises RequestError for a name that cannot be one.
        """
        return metrics_text(self._runtime.engine_stats(), self._runtime.meter, labels)

    def close(self, *, drain: bool = False, timeout_s: float | None = 30.0) -> None:
        """Give everything back. Requests in flight end with status "cancelled"; drain=True finishes them first."""
        self._runtime.close(drain=drain, timeout_s=timeout_s)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
