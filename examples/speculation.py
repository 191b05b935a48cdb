"""The same answer from fewer forwards: speculation guesses ahead, the model verifies."""

from pydantic import BaseModel, Field

from safegen import LLM, Speculation


class Person(BaseModel):
    name: str = Field(max_length=40)
    birthplace: str = Field(max_length=40)
    profession: str = Field(max_length=40)
    employer: str = Field(max_length=40)


TEXTS = [
    "Maria Lopez from Porto is a marine biologist at the Lisbon Oceanarium.",
    "John Smith, a carpenter born in Leeds, works for Woodworks of Yorkshire.",
    "Aiko Tanaka, born in Osaka, is a graphic designer at Studio Kumo.",
]

num_same = 0
with LLM(speculation=Speculation(drafters=("forced", "ngram"), share_outputs=True)) as llm:
    for text in TEXTS:
        plain = llm.generate(text, Person, max_tokens=96, speculation=False)
        drafted = llm.generate(text, Person, max_tokens=96)
        num_same += drafted.text == plain.text  # always: it is the same law, drawn with the same numbers
        usage = drafted.usage
        print(drafted.value)
        print(f"  {usage.completion_tokens} tokens, {plain.usage.forwards} forwards without, {usage.forwards} with")
        for name, counts in usage.by_drafter.items():
            print(f"  {name}: {counts.accepted} of {counts.drafted} guesses accepted")
print(f"{num_same} of {len(TEXTS)} answers the same")
