"""`AsyncLLM`: the same model, rules and results as `LLM`, for code in an event loop.

Generation runs on the engine's thread, compiling and validating on worker threads; the event loop only waits.
Cancelling a task cancels its request. One AsyncLLM may be used from several loops.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from safegen.drive import Stop, drive_async, drive_batch
from safegen.engine.request import SamplingParams
from safegen.limits import Limits
from safegen.loading import Device, Kernels, KvCacheDtype, LoadOptions, Quantization, load_runtime
from safegen.observe.openmetrics import metrics_text
from safegen.observe.stats import Stats, stats_of
from safegen.output_type import OutputType
from safegen.prompt import Prompt
from safegen.result import Result
from safegen.runtime import CallOptions, Runtime
from safegen.stream import AsyncStream
from safegen.tools import ToolCalls, Tools
from safegen.types import Choice, Regex

if TYPE_CHECKING:
    from safegen.jobs.options import EngineKind, OnChange, ProgressKind
    from safegen.jobs.output_types import TypeOf
    from safegen.jobs.prompts import PromptSource
    from safegen.jobs.report import JobReport
    from safegen.jobs.sources import Format

T = TypeVar("T")


class AsyncLLM:
    """A loaded model, awaitable. The arguments are those of `LLM`; loading itself blocks."""

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
    def from_runtime(cls, runtime: Runtime) -> AsyncLLM:
        """An AsyncLLM over a runtime that is loaded already."""
        llm = cls.__new__(cls)
        llm._runtime = runtime
        return llm

    @overload
    async def generate(self, prompt: Prompt, type: None = None, **options: Any) -> Result[str]: ...
    @overload
    async def generate(self, prompt: Prompt, type: OutputType[T], **options: Any) -> Result[T]: ...
    @overload
    async def generate(self, prompt: Prompt, type: Regex | Choice, **options: Any) -> Result[str]: ...
    @overload
    async def generate(self, prompt: Prompt, type: Tools, **options: Any) -> Result[ToolCalls]: ...
    @overload
    async def generate(self, prompt: Prompt, type: type[T], **options: Any) -> Result[T]: ...
    @overload
    async def generate(self, prompt: Prompt, type: Any, **options: Any) -> Result[Any]: ...

    async def generate(
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
        """One answer; see `LLM.generate`. Cancelling the awaiting task cancels the request."""
        options = CallOptions(params, guards, speculation, show_schema, cache_salt, sampling)
        return await drive_async(self._runtime, self._runtime.work(prompt, type, options))

    @overload
    def stream(self, prompt: Prompt, type: None = None, **options: Any) -> AsyncStream[str]: ...
    @overload
    def stream(self, prompt: Prompt, type: OutputType[T], **options: Any) -> AsyncStream[T]: ...
    @overload
    def stream(self, prompt: Prompt, type: Regex | Choice, **options: Any) -> AsyncStream[str]: ...
    @overload
    def stream(self, prompt: Prompt, type: Tools, **options: Any) -> AsyncStream[ToolCalls]: ...
    @overload
    def stream(self, prompt: Prompt, type: type[T], **options: Any) -> AsyncStream[T]: ...
    @overload
    def stream(self, prompt: Prompt, type: Any, **options: Any) -> AsyncStream[Any]: ...

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
    ) -> AsyncStream[Any]:
        """As `generate`, event by event: `async with llm.stream(...) as events: async for event in events: ...`.

        What the call itself has wrong is raised on entering. Leaving the block early cancels the request.
        """
        options = CallOptions(params, guards, speculation, show_schema, cache_salt, sampling)
        return AsyncStream(self._runtime, prompt, type, options)

    async def batch(
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
        """Many answers at once, in the order of the rows; see `LLM.batch`. Cancelling the task cancels the rows."""
        options = CallOptions(params, guards, speculation, show_schema, cache_salt, sampling)
        stop = Stop()
        try:
            return await asyncio.to_thread(drive_batch, self._runtime, rows, type, options, stop)
        finally:
            stop.request()

    async def run_job(
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
        """See `LLM.run_job`, whose arguments and promises these are. Cancelling the task stops the job: when that is
        done, the output is closed and complete as far as it goes, and the same call goes on with it."""
        from safegen.jobs.options import JobOptions
        from safegen.jobs.run import run_job

        call = CallOptions(params, guards, speculation, show_schema, cache_salt, sampling)
        options = JobOptions(
            prompt, type_of, schema_column, id_column, call, format, resume, retry_failed, on_change, ordered, window,
            max_row_bytes, rows_per_part, version, progress, report, engine, num_workers, ray_address,
        )  # fmt: skip
        stop = Stop()
        job = asyncio.create_task(asyncio.to_thread(run_job, self._runtime, input, output, type, options, stop))
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            stop.request()
            await asyncio.wait([job])  # it lets go of the output
            if not job.cancelled():
                job.exception()  # seen: it is Cancelled, or there is nobody to tell it to
            raise

    async def compile(self, type: Any, *, guards: Any = None) -> OutputType[Any]:
        """Compile an output type once, for use in any number of calls. Raises SchemaError, GrammarError."""
        return await asyncio.to_thread(self._runtime.compile, type, guards)

    def stats(self) -> Stats:
        """What this LLM does and has done: queue, cache, rates, latencies, totals. Any thread; it disturbs nothing."""
        return stats_of(self._runtime.engine_stats(), self._runtime.meter)

    def metrics_text(self, labels: Mapping[str, str] | None = None) -> str:
        """The same as OpenMetrics text, to be served as `safegen.observe.openmetrics.CONTENT_TYPE`.

        labels: put on every sample, such as {"model": "small"}. Raises RequestError for a name that cannot be one.
        """
        return metrics_text(self._runtime.engine_stats(), self._runtime.meter, labels)

    async def close(self, *, drain: bool = False, timeout_s: float | None = 30.0) -> None:
        """Give everything back. Requests in flight end with status "cancelled"; drain=True finishes them first."""
        await asyncio.to_thread(self._runtime.close, drain=drain, timeout_s=timeout_s)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
