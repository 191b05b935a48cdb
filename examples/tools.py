"""Tool calls: the model picks a tool and writes its arguments, valid against the tool's own schema; then we run it.

A pydantic model, a typed function and a plain JSON Schema serve as tools, side by side.
"""

from typing import Annotated

from pydantic import BaseModel, Field

from safegen import LLM, ToolCall, Tools


class GetWeather(BaseModel):
    """Get the weather of a city."""

    city: str = Field(max_length=20)
    days: int = Field(ge=1, le=7)


def add(a: Annotated[int, Field(ge=0, le=999)], b: Annotated[int, Field(ge=0, le=999)]) -> int:
    """Add two whole numbers."""
    return a + b


LAMP = {
    "name": "SwitchLamp",
    "description": "Switch the lamp in a room.",
    "parameters": {
        "type": "object",
        "properties": {"room": {"enum": ["kitchen", "bedroom"]}, "on": {"type": "boolean"}},
        "required": ["room", "on"],
        "additionalProperties": False,
    },
}
REQUESTS = [
    "Get the weather of the city Lisbon for 3 days.",
    "Add 17 and 25.",
    "Switch the lamp in the kitchen on.",
]


def run(call: ToolCall) -> str:
    match call.arguments:
        case GetWeather(city=city, days=days):
            return f"sunny in {city} for {days} days"
        case {"a": a, "b": b}:
            return str(add(a, b))
        case {"room": room, "on": on}:
            return f"the lamp in the {room} is {'on' if on else 'off'}"
    raise AssertionError(call)


def main() -> None:
    tools = Tools([GetWeather, add, LAMP], allow_text=False, max_calls=1)
    num_run = 0
    with LLM() as llm:
        for request in REQUESTS:
            (call,) = llm.generate(request, tools, max_tokens=96).unwrap().calls
            print(f"{request:47} {call.name}({call.raw}) -> {run(call)}")
            num_run += 1
    print(f"{num_run} of {len(REQUESTS)} calls ran")


if __name__ == "__main__":
    main()
