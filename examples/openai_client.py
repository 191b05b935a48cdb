"""The official openai client against `safegen serve`: text, a stream, a pydantic model, and a tool call.

Needs the extras: pip install 'safegen[server]' openai
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Literal

from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=130)


class Weather(BaseModel):
    """Look up the weather of a city."""

    city: Literal["Lisbon", "Porto", "Faro"]


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A server of the default model on a free port of this machine, ended in good order."""
    command = [sys.executable, "-m", "safegen.cli", "serve", "--port", "0", "--model-name", "small"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    lines = iter(process.stderr)
    try:
        line = next(line for line in lines if " at http" in line)
        next(line for line in lines if "startup complete" in line)
        yield line.split(" at ")[1].strip()
    finally:
        process.terminate()
        process.communicate()


def main() -> None:
    with server() as url, OpenAI(base_url=url, api_key="none is needed on this machine") as client:
        greeting = [{"role": "user", "content": "Say hello in five words."}]
        answer = client.chat.completions.create(model="small", messages=greeting, max_tokens=12, temperature=0)
        print(answer.choices[0].message.content)

        stream = client.chat.completions.create(
            model="small", messages=greeting, max_tokens=12, temperature=0, stream=True
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        print("the stream is the same:", text == answer.choices[0].message.content)

        about = [{"role": "user", "content": "Maria Lopez is 34 years old. Who is that?"}]
        parsed = client.chat.completions.parse(model="small", messages=about, response_format=Person, temperature=0)
        print(repr(parsed.choices[0].message.parsed))

        called = client.chat.completions.parse(
            model="small",
            messages=[{"role": "user", "content": "What is the weather in Porto?"}],
            tools=[pydantic_function_tool(Weather)],
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0,
        )
        call = called.choices[0].message.tool_calls[0].function
        print(call.name, call.parsed_arguments)

        typed = isinstance(parsed.choices[0].message.parsed, Person), isinstance(call.parsed_arguments, Weather)
        print(f"{sum(typed)} of 2 typed answers are of their type")


if __name__ == "__main__":
    main()
