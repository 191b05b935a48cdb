from __future__ import annotations

import math
from typing import Any

import pytest

from safegen.engine.request import SamplingParams
from safegen.errors import RequestError
from safegen.sampling import check_options, merge_sampling


def test_named_options_win_over_params() -> None:
    merged = merge_sampling(SamplingParams(temperature=0.5, seed=3), {"temperature": 0.9})
    assert (merged.temperature, merged.seed) == (0.9, 3)


def test_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RequestError, match="did you mean 'temperature'") as caught:
        merge_sampling(None, {"temprature": 1.0})
    assert caught.value.field == "temprature"


@pytest.mark.parametrize("name", ["output_type", "response_format", "schema", "regex"])
def test_another_name_for_the_type_is_answered_with_the_argument_to_use(name: str) -> None:
    with pytest.raises(RequestError, match="the output type is the second argument"):
        merge_sampling(None, {name: int})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", math.nan),
        ("temperature", -1.0),
        ("temperature", "hot"),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("top_p", 0.0),
        ("n", 0),
        ("stop", [""]),
        ("seed", "x"),
    ],
)
def test_value_out_of_range_names_its_field(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        merge_sampling(None, {name: value})
    assert caught.value.field == name


@pytest.mark.parametrize(("name", "value"), [("stop", 5), ("stop_ids", 5), ("logit_bias", 5)])
def test_value_of_the_wrong_kind_is_a_request_error(name: str, value: Any) -> None:
    with pytest.raises(RequestError):
        merge_sampling(None, {name: value})


@pytest.mark.parametrize("params", [{"temperature": 1.0}, 5])
def test_params_of_the_wrong_type_are_refused(params: Any) -> None:
    with pytest.raises(RequestError) as caught:
        merge_sampling(params, {})
    assert caught.value.field == "params"


@pytest.mark.parametrize("guards", [None, (), []])
@pytest.mark.parametrize("speculation", [None, False, "auto"])
def test_what_is_supported_passes(guards: Any, speculation: Any) -> None:
    check_options(guards, speculation)


@pytest.mark.parametrize(
    ("guards", "speculation", "field"),
    [([object()], None, "guards"), ((), "ngram", "speculation"), ((), True, "speculation")],
)
def test_what_is_not_supported_yet_is_refused_by_name(guards: Any, speculation: Any, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_options(guards, speculation)
    assert caught.value.field == field
