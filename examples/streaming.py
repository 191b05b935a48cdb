"""Show an answer while it is made: text pieces, and the value so far in closed nodes only."""

from pydantic import BaseModel, Field

from safegen import LLM, DeltaEvent, FinalEvent, SnapshotEvent


class Recipe(BaseModel):
    title: str = Field(max_length=60)
    minutes: int = Field(ge=1, le=240)
    ingredients: list[str] = Field(min_length=2, max_length=4)


def main() -> None:
    with LLM() as llm, llm.stream("A quick tomato soup.", Recipe, max_tokens=160) as events:
        for event in events:
            match event:
                case DeltaEvent(text=text):
                    print(f"text      {text!r}")
                case SnapshotEvent(value=value):
                    print(f"so far    {value}")
                case FinalEvent(result=result):
                    print(f"{result.status:9} {result.value!r}")


if __name__ == "__main__":
    main()
