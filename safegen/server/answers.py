"""A call's answers as events, in the order in which they may be shown.

Where guards look at answers, every request takes the path of a stream, so that a message is what its stream shows, also
where it is stopped in the middle. Where a guard may ask for an answer again nobody sees it come: a stream is then sent
in one piece, as what was shown cannot be taken back. Without guards an answer that is not streamed comes in one piece,
which spares the event loop its tokens; the text is the same, since both come out of one `TextStream`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from safegen.async_llm import AsyncLLM
from safegen.errors import SafegenError
from safegen.events import DeltaEvent, FinalEvent, SnapshotEvent
from safegen.output_type import OutputType
from safegen.prompt import Prompt
from safegen.runtime import Runtime
from safegen.server.admission import Lease
from safegen.server.errors import api_error
from safegen.server.translate import Call
from safegen.stream import AsyncStream

T = TypeVar("T")
ShownEvent = DeltaEvent | FinalEvent[Any]


class Answers:
    """The way from calls to the engine. runtime: of a loaded model. compile_threads: output types compiled at once."""

    def __init__(self, runtime: Runtime, compile_threads: int) -> None:
        self.runtime = runtime
        self._llm = AsyncLLM.from_runtime(runtime)
        self._compilers = ThreadPoolExecutor(compile_threads, thread_name_prefix="safegen-compile")
        guards = runtime.guards(None)
        output = [] if guards is None else [guard for guard in guards.guards if set(guard.stages) - {"input"}]
        self.may_retry = any(guard.on_fail == "retry" for guard in output)
        self._is_watched = bool(output)
        self._has_bans = guards is not None and guards.bans() is not None

    async def compiled(self, call: Call, lease: Lease) -> Any:
        """The output type of a call; under bans its spec, whose type the model's own cache has then. Raises ApiError
        400 that names the field."""
        return self.held(call, await self.compiled_type(call, lease))

    def held(self, call: Call, output_type: OutputType[Any] | None) -> Any:
        """What to ask the model for, of a call whose type is compiled."""
        return call.spec if self._has_bans else output_type

    async def compiled_type(self, call: Call, lease: Lease) -> OutputType[Any] | None:
        """None: free text. Raises as `compiled`."""
        if call.spec is None:
            return None
        try:
            return await self.on_compiler(lease, lambda: self.runtime.compile(call.spec))
        except SafegenError as error:
            raise api_error(error, call.params) from error

    async def on_compiler(self, lease: Lease, work: Callable[[], T]) -> T:
        """What work returns, made on threads of their own: a schema that is slow to compile holds up neither the event
        loop nor the threads that other requests need, and of one key there is only one at a time."""
        turn = lease.compiling
        await turn.acquire()

        def ended(future: asyncio.Future[T]) -> None:
            turn.release()  # not before the thread is free, also when the client has left
            if not future.cancelled():
                future.exception()  # seen

        future = asyncio.get_running_loop().run_in_executor(self._compilers, work)
        future.add_done_callback(ended)
        return await asyncio.shield(future)

    async def events(
        self, prompt: Prompt, spec: Any, call: Call, *, is_stream: bool
    ) -> AsyncGenerator[ShownEvent, None]:
        """The deltas of all samples, then the Result. Closing the iterator cancels the request."""
        if self.may_retry or not (is_stream or self._is_watched):
            result = await self._llm.generate(
                prompt, spec, params=call.options.params, cache_salt=call.options.cache_salt
            )
            for index, sample in enumerate((result, *result.alternatives)):
                yield DeltaEvent(sample.text, index)
            yield FinalEvent(result)
            return
        async with AsyncStream[Any](self.runtime, prompt, spec, call.options) as events:
            async for event in events:
                if not isinstance(event, SnapshotEvent):
                    yield event

    def close(self) -> None:
        self._compilers.shutdown(wait=False, cancel_futures=True)


async def merged(sources: list[AsyncGenerator[ShownEvent, None]]) -> AsyncGenerator[tuple[int, ShownEvent], None]:
    """Events of several answers as they come, with the number of their source. The first error ends all."""
    if len(sources) == 1:
        async with contextlib.aclosing(sources[0]) as only:
            async for each in only:
                yield 0, each
        return
    ready: asyncio.Queue[tuple[int, ShownEvent | None]] = asyncio.Queue()

    async def read(number: int, source: AsyncGenerator[ShownEvent, None]) -> None:
        async with contextlib.aclosing(source) as events:
            async for event in events:
                ready.put_nowait((number, event))

    async def read_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for number, source in enumerate(sources):
                    group.create_task(read(number, source))
        finally:
            ready.put_nowait((-1, None))

    task = asyncio.create_task(read_all())
    try:
        while True:
            number, event = await ready.get()
            if event is None:
                break
            yield number, event
        try:
            await task
        except* Exception as failures:
            raise failures.exceptions[0] from None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
