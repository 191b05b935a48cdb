"""Output types on a device: small ones run as tables there, to the answers that masks give."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from safegen import LLM, Choice, JsonSchema, Never, Regex, RequestError, Speculation
from safegen.loading import LoadOptions, kernels_of, speculation_of
from tests.support.fake_device_backend import FakeDeviceBackend
from tests.support.sdk_fakes import MAX_CONTEXT, TOKEN_BYTES, make_llm

FLAT = JsonSchema(
    {"type": "object", "properties": {"ok": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
     "required": ["ok", "size"], "additionalProperties": False}
)  # fmt: skip
OPTIONS = {"temperature": 1.0, "max_tokens": 60}


def on_device() -> tuple[FakeDeviceBackend, LLM]:
    backend = FakeDeviceBackend(vocab_size=len(TOKEN_BYTES), max_context=MAX_CONTEXT)
    return backend, make_llm(backend, runs_tables=True)


@pytest.mark.parametrize(
    "spec",
    [Choice(["yes", "no", "perhaps"]), Regex(r"\d{4}-\d{2}"), Regex("a(bc)*"), Regex("x", fsm=True), FLAT,
     Literal["red", "green"], bool],
    ids=["choice", "regex", "endless regex", "regex with its own table", "flat schema", "literal", "bool"],
)  # fmt: skip
def test_small_types_run_as_tables_to_the_answers_that_masks_give(spec: Any) -> None:
    backend, llm = on_device()
    with llm, make_llm() as masked:
        for seed in range(4):
            ours = llm.generate("Say it.", spec, seed=seed, **OPTIONS)
            theirs = masked.generate("Say it.", spec, seed=seed, **OPTIONS)
            assert (ours.status, ours.text) == (theirs.status, theirs.text)
    assert backend.num_tabled_rows > 0


@pytest.mark.parametrize(
    "spec", [str, JsonSchema({"type": "array", "items": {"type": "number"}}), Regex("(?=a)a[^b]*")]
)
def test_larger_types_are_masked_by_the_host(spec: Any) -> None:
    backend, llm = on_device()
    with llm, make_llm() as masked:
        ours = llm.generate("Say it.", spec, seed=3, **OPTIONS)
        theirs = masked.generate("Say it.", spec, seed=3, **OPTIONS)
    assert (ours.status, ours.text) == (theirs.status, theirs.text)
    if spec is not str:
        assert backend.num_tabled_rows == 0


def test_what_a_guard_forbids_is_forbidden_in_the_table_too() -> None:
    backend, llm = on_device()
    spec = Choice(["yes", "no", "never"])
    with llm:
        for seed in range(12):
            result = llm.generate("Say it.", spec, seed=seed, guards=[Never(phrases=["no"])], **OPTIONS)
            assert result.value in ("yes", "never")
    assert backend.num_tabled_rows > 0


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"kernels": "cpu", "device": "cuda"}, "kernels"),
        ({"kernels": "triton", "device": "cpu"}, "device"),
        ({"device": "cuda", "speculation": Speculation(self_draft=True)}, "speculation"),
    ],
)
def test_options_that_do_not_go_together_are_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        LoadOptions(**options)
    assert caught.value.field == field


def test_a_gpu_computes_with_triton_and_without_drafts_unless_told() -> None:
    assert kernels_of(LoadOptions(device="cuda")) == kernels_of(LoadOptions(kernels="triton")) == "triton"
    assert kernels_of(LoadOptions()) == "cpu"
    assert speculation_of(LoadOptions(device="cuda")).drafters == ()
    assert speculation_of(LoadOptions(device="cuda", speculation=Speculation())).drafters == ("forced", "ngram")
    assert speculation_of(LoadOptions()).drafters == ("forced", "ngram")


def test_without_a_gpu_the_device_is_refused_with_the_fix() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RequestError, match="use kernels='cpu'") as caught:
        LLM(device="cuda")
    assert caught.value.field == "device"
