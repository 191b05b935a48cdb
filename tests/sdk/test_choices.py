"""Label probabilities against brute force: every tokenization of every label, summed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import numpy as np
import pytest

from safegen.async_llm import AsyncLLM
from safegen.errors import CapacityError, RequestError
from safegen.limits import Limits
from safegen.types import Choice
from tests.support.fake_backend import prefix_logits
from tests.support.sdk_fakes import STOP, TOKEN_BYTES, ByteTokenizer, make_llm, make_runtime

PROMPT = "pick one"


def brute_force(labels: Sequence[str]) -> dict[str, float]:
    """Walk every token path of every label under the masked law, with the fake model's own oracle for logits."""
    messages = [{"role": "user", "content": PROMPT}]
    prompt_ids = ByteTokenizer().encode_chat(messages)
    encoded = {label.encode() for label in labels}
    mass = dict.fromkeys(encoded, 0.0)

    def walk(text: bytes, ids: list[int], probability: float) -> None:
        legal = [
            token
            for token, piece in enumerate(TOKEN_BYTES)
            if (token == STOP and text in encoded)
            or (piece and any(label.startswith(text + piece) for label in encoded))
        ]
        logits = prefix_logits(prompt_ids + ids, len(TOKEN_BYTES)).astype(np.float64)[legal]
        law = np.exp(logits - logits.max())
        for token, share in zip(legal, law / law.sum()):
            if token == STOP:
                mass[text] += probability * share
            else:
                walk(text + (TOKEN_BYTES[token] or b""), [*ids, token], probability * share)

    walk(b"", [], 1.0)
    return {label.decode(): value for label, value in mass.items()}


@pytest.mark.parametrize(
    "labels",
    [
        ["yes", "no"],
        ["positive", "negative", "neutral"],
        ["ab", "abc", "abcd", "x"],
        ["a", "ab", "abc"],
        ["é", "€€", "€"],
        ["only"],
        ["true", "tru", "t", "false"],
    ],
)
def test_probabilities_equal_the_sum_over_all_tokenizations(labels: list[str]) -> None:
    with make_llm() as llm:
        result = llm.generate(PROMPT, Choice(labels, probabilities=True), show_schema=False)
    expected = brute_force(labels)
    assert result.choices is not None
    assert list(result.choices) == labels
    for label in labels:
        assert result.choices[label] == pytest.approx(expected[label], abs=1e-6)
    assert math.fsum(result.choices.values()) == pytest.approx(1.0)
    assert result.status == "ok"
    assert result.value == result.text == max(labels, key=lambda label: expected[label])


def test_sampled_value_comes_with_the_same_probabilities() -> None:
    choice = Choice(["ab", "abc", "x"], probabilities=True)
    with make_llm() as llm:
        greedy = llm.generate(PROMPT, choice)
        sampled = llm.generate(PROMPT, choice, temperature=0.7, seed=1, max_tokens=8)
        batched = llm.batch([(PROMPT, choice), ("", choice)])
    assert sampled.choices == greedy.choices == batched[0].choices
    assert sampled.value in choice.labels
    assert batched[1].status == "refused"


def test_awaited_call_gives_the_same_probabilities() -> None:
    choice = Choice(["ab", "abc", "x"], probabilities=True)
    with make_llm() as llm:
        expected = llm.generate(PROMPT, choice).choices

    async def main() -> None:
        async with AsyncLLM.from_runtime(make_runtime()) as llm:
            assert (await llm.generate(PROMPT, choice)).choices == expected

    asyncio.run(main())


def test_logit_bias_moves_the_law_and_other_sampling_options_do_not() -> None:
    choice = Choice(["yes", "no"], probabilities=True)
    with make_llm() as llm:
        plain = llm.generate(PROMPT, choice).choices
        pushed = llm.generate(PROMPT, choice, logit_bias={ord("y"): 5.0}).choices
        warm = llm.generate(PROMPT, choice, top_k=1, temperature=2.0, seed=1).choices
    assert plain is not None and pushed is not None
    assert pushed["yes"] > plain["yes"]
    assert warm == plain


def test_labels_that_differ_too_late_are_a_capacity_error() -> None:
    labels = ["ab" * 12 + end for end in "xy"]
    with make_llm(limits=Limits(max_choice_nodes=50)) as llm, pytest.raises(CapacityError, match="max_choice_nodes"):
        llm.generate(PROMPT, Choice(labels, probabilities=True))


def test_stream_refuses_probabilities() -> None:
    with make_llm() as llm, pytest.raises(RequestError):
        llm.stream(PROMPT, Choice(["a"], probabilities=True))
