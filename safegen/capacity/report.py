"""A plan as text and as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from safegen.capacity.planning import Plan, Point


def to_dict(plan: Plan) -> dict[str, Any]:
    return {**dataclasses.asdict(plan), "fits": plan.fits}


def table(plan: Plan) -> str:
    return "\n".join([*_facts(plan), "", *_points(plan), "", *_verdict(plan)])


def _facts(plan: Plan) -> Iterator[str]:
    device, target = plan.device, plan.target
    kinds = ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in plan.weight_kinds.items() if share >= 0.01)
    origin = "measured now, on a slice of this model" if device.measured else "published figures"
    yield f"model           {plan.model}: {plan.parameters / 1e6:,.0f} M parameters"
    yield (
        f"device          {device.name}: {device.read_bytes_per_s / 1e9:,.1f} GB/s, "
        f"{device.products_per_s / 1e12:,.2f} T/s, {device.usable_memory_bytes / 1e9:,.1f} GB to use ({origin})"
    )
    yield f"weights         {_bytes(plan.weight_bytes)} ({kinds})"
    a_block = f"{plan.block_bytes:,} a block of {plan.block_size}"
    yield f"kv cache        {plan.kv_bytes_per_token:,} bytes a token, {a_block}"
    yield f"                {plan.num_blocks:,} blocks, {_bytes(plan.kv_cache_bytes)}"
    yield (
        f"a request       {target.prompt_tokens} + {target.output_tokens} tokens, at most {target.longest_tokens}: "
        f"{plan.blocks_per_request} blocks; {plan.max_concurrency} at once"
    )
    yield f"roofline batch  {plan.roofline_batch} rows"


def _points(plan: Plan) -> Iterator[str]:
    with_cost = plan.target.cost_per_hour is not None
    heads = ["in flight", "tokens/s", "requests/s", "TTFT ms", "TPOT ms", "bound by"]
    yield "".join(f"{head:>12}" for head in heads) + (f"{'per M tokens':>14}" if with_cost else "")
    for point in plan.points:
        yield _row(point, with_cost) + (
            "  <-" if point == plan.chosen else "" if point.meets else "  misses the target"
        )


def _row(point: Point, with_cost: bool) -> str:
    cells = [f"{point.concurrency:12d}", f"{point.tokens_per_s:12,.0f}", f"{point.requests_per_s:12,.2f}"]
    cells += [
        f"{point.ttft_ms:12,.0f}",
        f"{point.tpot_ms:12,.1f}",
        f"{point.bound:>12}",
    ]
    if with_cost:
        cells.append(f"{point.cost_per_million_tokens:14,.3f}")
    return "".join(cells)


def _verdict(plan: Plan) -> Iterator[str]:
    for problem in plan.problems:
        yield f"problem         {problem}"
    if plan.chosen is not None:
        settings = ", ".join(f"{name}={value!r}" for name, value in plan.settings.items())
        yield f"settings        LLM(..., {settings})"
    yield f"limit           {plan.limit}"
    yield f"knob            {plan.knob}"
    yield "fits            " + ("yes" if plan.fits else "no")


def _bytes(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 10**9 else f"{count / 1e6:,.0f} MB"


__all__ = ["table", "to_dict"]
