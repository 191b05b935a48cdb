"""The arithmetic by hand: step costs by the roofline, what follows for users, and the batch at the roofline."""

from __future__ import annotations

import pytest

from safegen.capacity.devices import PUBLISHED, Device
from safegen.capacity.serving import Traffic, roofline_batch, serve
from safegen.capacity.steps import Load, MeasuredSteps, RooflineSteps, StepCost
from safegen.engine.slice_times import SliceTimes
from tests.capacity.models import tiny_size


class Affine:
    """A step of n rows takes base + each * n seconds."""

    def __init__(self, base: float, each: float, pair: float = 0.0) -> None:
        self.base, self.each, self.pair = base, each, pair

    def cost(self, load: Load) -> StepCost:
        total = self.base + self.each * load.rows + self.pair * load.prompt_pairs
        return StepCost(total, self.base, 0.0, self.each * load.rows)


def test_roofline_is_the_longer_of_reading_and_multiplying() -> None:
    size = tiny_size()
    device = Device("d", 1e6, 1e6, 10**9, attained_bandwidth=0.5, attained_products=0.25, step_overhead_s=0.01)
    steps = RooflineSteps(device, size, kv_bytes_per_token=100)
    one = steps.cost(Load(rows=1, sampled=1, context_tokens=40))
    assert one.weights_s == (size.layer_bytes + size.head_bytes) / 5e5
    assert one.context_s == 40 * 100 / 5e5
    attention = 4 * size.config.num_layers * size.config.num_heads * size.config.head_dim * 40
    assert one.compute_s == (2 * (size.layer_parameters + size.head_parameters) + attention) / 2.5e5
    assert one.total_s == max(one.weights_s + one.context_s, one.compute_s) + 0.01
    unsampled = steps.cost(Load(rows=1, sampled=0))
    assert unsampled.weights_s == size.layer_bytes / 5e5 and unsampled.context_s == 0.0


@pytest.mark.parametrize(
    ("cost", "bound"),
    [
        (StepCost(1.0, 0.5, 0.3, 0.9), "products"),
        (StepCost(1.0, 0.5, 0.3, 0.7), "weights"),
        (StepCost(1.0, 0.2, 0.3, 0.4), "cache"),
    ],
)
def test_the_bound_is_what_takes_longest(cost: StepCost, bound: str) -> None:
    assert cost.bound == bound


def test_measured_times_lie_on_lines_between_the_measurements() -> None:
    times = SliceTimes({1: 1.0, 4: 2.0, 8: 6.0}, {1: 0.5, 8: 1.2}, context_token_s=0.01, prompt_pair_s=0.001)
    steps = MeasuredSteps(times)

    def total(rows: float, sampled: float = 0.0, **more: float) -> float:
        return steps.cost(Load(rows, sampled, **more)).total_s - steps.cost(Load(0, 0)).total_s

    assert total(1) == 1.0 and total(0.5) == 1.0, "a step reads the weights once, however few its rows"
    assert total(2.5) == pytest.approx(1.5) and total(6) == pytest.approx(4.0)
    assert total(16) == pytest.approx(12.0), "beyond the most, in proportion"
    assert total(1, context_tokens=10, prompt_pairs=20) == pytest.approx(1.0 + 0.1 + 0.02)
    cost = steps.cost(Load(8, 8))
    assert (cost.weights_s, cost.compute_s) == (1.5, pytest.approx(6.0 + 1.2))


def test_one_request_alone_computes_its_prompt_and_then_its_tokens() -> None:
    served = serve(Affine(1.0, 0.1), Traffic(10, 10, 5), concurrency=1, max_num_batched_tokens=100)
    seconds = 4 * 1.1 + 1 * (1.0 + 0.1 * 11)  # one of its five steps computes the prompt as well
    assert served.tokens_per_s == pytest.approx(5 / seconds)
    assert served.tpot_s == pytest.approx(1.1), "the first token comes with the prompt"
    assert served.requests_per_s == pytest.approx(1 / seconds)
    assert served.ttft_s == pytest.approx(1.0 + 0.1 * 11)


def test_many_requests_share_steps_and_prompts_come_spread_over_them() -> None:
    served = serve(Affine(1.0, 0.1), Traffic(10, 10, 20), concurrency=4, max_num_batched_tokens=100)
    plain, mixed = 1.0 + 0.4, 1.0 + 0.1 * 14
    seconds = 16 * plain + 4 * mixed
    assert served.tokens_per_s == pytest.approx(80 / seconds)
    assert served.tpot_s == pytest.approx((seconds - mixed) / 19), "the other three's prompts lie between its tokens"
    assert served.ttft_s == pytest.approx(plain / 2 + mixed * (1 + 4 * mixed / seconds / 2))


def test_a_long_prompt_is_cut_to_the_budget_of_a_step() -> None:
    served = serve(Affine(1.0, 0.1), Traffic(300, 300, 1000), concurrency=4, max_num_batched_tokens=104)
    plain, mixed = 1.4, 1.0 + 0.1 * 104  # three chunks of 100 beside 4 decoded rows
    seconds = (1000 - 12) * plain + 12 * mixed
    assert served.tokens_per_s == pytest.approx(4000 / seconds)


def test_cached_prompt_tokens_cost_no_products_and_drafts_fewer_steps() -> None:
    whole = serve(Affine(0.1, 0.1), Traffic(100, 100, 50), 4, 2048)
    cached = serve(Affine(0.1, 0.1), Traffic(10, 100, 50), 4, 2048)
    drafted = serve(Affine(1.0, 0.0), Traffic(1, 1, 50, tokens_per_forward=2.0), 4, 2048)
    assert cached.ttft_s < whole.ttft_s / 4 and cached.tokens_per_s > 2 * whole.tokens_per_s
    assert drafted.tokens_per_s == pytest.approx(2 * serve(Affine(1.0, 0.0), Traffic(1, 1, 50), 4, 2048).tokens_per_s)


def test_pairs_of_a_prompt_count_half_its_square_and_all_of_what_was_cached() -> None:
    served = serve(Affine(0.0, 0.0, pair=1.0), Traffic(10, 10, 1), 1, 100)
    assert served.ttft_s == 50.0
    later = serve(Affine(0.0, 0.0, pair=1.0), Traffic(4, 10, 1), 1, 100)
    assert later.ttft_s == 4 * 10 - 8.0  # the last 4 of 10: each looks at the 6 before them, and at half of the 4


def test_batch_at_the_roofline_is_where_products_take_as_long_as_reading() -> None:
    assert roofline_batch(Affine(1.0, 0.1)) == 10
    assert roofline_batch(Affine(1.0, 2.0)) == 1
    assert roofline_batch(Affine(1.0, 0.0), most=64) == 64


def test_published_figures_are_those_of_the_data_sheets() -> None:
    told = {name: (each.read_bytes_per_s, each.products_per_s, each.memory_bytes) for name, each in PUBLISHED.items()}
    assert told == {
        "a100": (2039e9, 312e12, 80e9),
        "h100": (3350e9, 989e12, 80e9),
        "h200": (4800e9, 989e12, 141e9),
        "l4": (300e9, 121e12, 24e9),
        "rtx4090": (1008e9, 165.2e12, 24e9),
    }
    assert not any(device.measured for device in PUBLISHED.values())
