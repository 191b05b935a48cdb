"""Extract people from five short texts into a pydantic model.

Every answer is held to the model's JSON Schema while it is decoded, then validated independently: `unwrap()` gives a
`Person` or raises. One worked example shows the small default model what is wanted.
"""

from pydantic import BaseModel, Field

from safegen import LLM


class Person(BaseModel):
    name: str = Field(min_length=1, max_length=40, description="full name")
    age: int = Field(ge=0, le=130, description="age in years")
    city: str = Field(min_length=1, max_length=40, description="where the person lives")


TEXTS = [
    "Maria Lopez, 34, Lisbon",
    "My name is John Smith. I am 28 years old and I live in Berlin.",
    "Aiko Tanaka is a 45-year-old nurse from Osaka.",
    "At 61, Peter Novak still runs his bakery in Prague.",
    "Say hello to Fatima Hassan (19), a student in Cairo!",
]
EXAMPLE = [
    {"role": "user", "content": "Omar Khan, a driver from Delhi, turned 52 last week."},
    {"role": "assistant", "content": '{"name":"Omar Khan","age":52,"city":"Delhi"}'},
]


def main() -> None:
    with LLM() as llm:
        results = llm.batch([[*EXAMPLE, {"role": "user", "content": text}] for text in TEXTS], Person)
    for result in results:
        print(repr(result.unwrap()))
    print(f"{sum(result.status == 'ok' for result in results)} of {len(results)} valid")


if __name__ == "__main__":
    main()
