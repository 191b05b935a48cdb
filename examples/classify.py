"""Classify texts, with the exact probability of each label (summed over all ways to spell it in tokens)."""

from safegen import LLM, Choice

TEXTS = [
    "I love this phone, the battery lasts for days!",
    "The parcel came broken and nobody answers my mails.",
    "The shop opens at nine.",
]
SENTIMENT = Choice(["positive", "negative", "neutral"], probabilities=True)


def main() -> None:
    with LLM() as llm:
        for text in TEXTS:
            result = llm.generate(f"What is the sentiment of this text? {text}", SENTIMENT)
            assert result.choices is not None
            shares = ", ".join(f"{label} {share:.3f}" for label, share in result.choices.items())
            print(f"{result.unwrap():8}  ({shares})  {text}")


if __name__ == "__main__":
    main()
