"""A stream that is redacted while it is shown: no piece ever holds a part of what is taken out."""

import re

from safegen import LLM, Custom, DeltaEvent, FinalEvent, GuardView, Match


def numbers(view: GuardView) -> list[Match]:
    """Runs of digits, of at most 20: longer ones are found in pieces."""
    return [Match(m.start(), m.end(), "number") for m in re.finditer(r"\d{1,20}", view.text)]


def main() -> None:
    guard = Custom(numbers, name="numbers", on_fail="redact", stages=["output"], inline=True)
    shown = ""
    with LLM() as llm, llm.stream("Count from 1 to 10 in digits.", guards=guard, max_tokens=60) as events:
        for event in events:
            match event:
                case DeltaEvent(text=text):
                    print(repr(text))
                    shown += text
                case FinalEvent(result=result):
                    same = shown == result.text
    num_digits = sum(char.isdigit() for char in shown)
    print(f"replaced: {'[NUMBER]' in shown}, digits shown: {num_digits}, same as the result: {same}")


if __name__ == "__main__":
    main()
