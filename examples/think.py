"""Free reasoning first, a strict answer after it, in one request; the reasoning is capped."""

from typing import Literal

from pydantic import BaseModel, Field

from safegen import LLM, Think


class Verdict(BaseModel):
    answer: Literal["yes", "no", "unclear"]
    confidence: int = Field(ge=0, le=100)


def main() -> None:
    question = "A bat and a ball cost 11 euros together. The bat costs 10 euros. Does the ball cost 1 euro?"
    with LLM() as llm:
        result = llm.generate(question, Think(Verdict, max_tokens=60), max_tokens=120)
    print("thought: ", " ".join((result.thinking or "").split()))
    print("answered:", result.unwrap())


if __name__ == "__main__":
    main()
