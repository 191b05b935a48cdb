"""safegen behind HTTP for `benchmarks/serve.py`: `safegen serve`'s own application, uvicorn settings and sockets, on
one loaded model, and the same requests put to that model inside the process.

    python benchmarks/peers/safegen_server.py TASK.json

TASK: model, model_name, max_num_seqs, enable_prefix_caching. The first line that it prints is `{"port": ...}`. For each
line of its input, a list of request bodies, it streams all of them at once through `AsyncLLM` in the server's own event
loop, parsed and translated as the server does it, and answers with a line `{"seconds": ..., "tokens": [...]}`. It ends
when its input does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from safegen import LLM
from safegen.async_llm import AsyncLLM
from safegen.events import FinalEvent
from safegen.server.app import create_app
from safegen.server.bodies import validated
from safegen.server.schemas import ChatRequest
from safegen.server.serving import listen, make_server, serve
from safegen.server.settings import ServerSettings
from safegen.server.translate import chat_call


async def stream(llm: AsyncLLM, body: dict[str, Any], settings: ServerSettings) -> int:
    """The number of tokens of one answer, whose events are taken as they come."""
    call = chat_call(validated(ChatRequest, body), settings, None)
    async with llm.stream(call.prompts[0], call.spec, params=call.options.params) as events:
        async for event in events:
            if isinstance(event, FinalEvent):
                return event.result.usage.completion_tokens
    raise RuntimeError("the stream ended without a result")


async def answer_lines(llm: AsyncLLM, settings: ServerSettings) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        bodies = json.loads(line)
        start_s = time.perf_counter()
        tokens = await asyncio.gather(*(stream(llm, body, settings) for body in bodies))
        told = {"seconds": time.perf_counter() - start_s, "tokens": tokens}
        print(json.dumps(told), flush=True)


async def run(llm: LLM, task: dict[str, Any]) -> None:
    settings = ServerSettings(model_names=(task["model_name"],))
    listening = listen("127.0.0.1", 0, settings.write_timeout_s)
    server = make_server(create_app(llm, settings), settings)
    serving = asyncio.create_task(serve(server, listening))
    while not server.started:
        await asyncio.sleep(0.01)
    print(json.dumps({"port": listening.getsockname()[1]}), flush=True)
    await answer_lines(AsyncLLM.from_runtime(llm._runtime), settings)
    server.drain()
    await serving


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    with LLM(
        task["model"], max_num_seqs=task["max_num_seqs"], enable_prefix_caching=task["enable_prefix_caching"]
    ) as llm:
        asyncio.run(run(llm, task))


if __name__ == "__main__":
    main()
