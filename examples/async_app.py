"""Fifty concurrent calls in one event loop; the engine computes them together."""

import asyncio
from typing import Literal

from pydantic import BaseModel, Field

from safegen import AsyncLLM


class Ticket(BaseModel):
    product: str = Field(max_length=20)
    urgency: Literal["low", "normal", "high"]


PRODUCTS = ["laptop", "phone", "printer", "router", "camera", "monitor", "keyboard", "tablet", "speaker", "charger"]
PROBLEMS = ["is on fire", "is a bit slow", "does not start", "has a scratch", "lost all my data"]


async def main() -> None:
    prompts = [f"My {product} {problem}. Make a support ticket." for product in PRODUCTS for problem in PROBLEMS]
    async with AsyncLLM() as llm:
        results = await asyncio.gather(*(llm.generate(prompt, Ticket, max_tokens=48) for prompt in prompts))
    for result in results[:5]:
        print(result.value)
    print(f"{sum(result.status == 'ok' for result in results)} of {len(results)} valid")


if __name__ == "__main__":
    asyncio.run(main())
