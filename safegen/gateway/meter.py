"""A gateway's counts as metrics. Labels are names of the configuration, never a client's text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from safegen.gateway.budget import RetryBudget
from safegen.gateway.dispatch import Dispatch
from safegen.gateway.router import Router
from safegen.gateway.upstream import Upstream
from safegen.observe.openmetrics import Family, counters, gauge

_STATES = ("closed", "open", "half_open")


def gateway_families(
    upstreams: Sequence[Upstream], router: Router, dispatch: Dispatch, budget: RetryBudget
) -> Iterator[Family]:
    lives = {each.name: int(each.is_up) for each in upstreams}
    yield _gauges("upstream_up", "Whether an upstream lives.", "upstream", lives)
    outstanding = {each.name: each.outstanding for each in upstreams}
    yield _gauges("upstream_outstanding", "Requests that an upstream has in work.", "upstream", outstanding)
    circuits = [
        ("", {"upstream": each.name, "state": state}, float(each.breaker.state == state))
        for each in upstreams
        for state in _STATES
    ]
    yield Family("gateway_upstream_circuit", "gauge", "The state of an upstream's circuit.", circuits)
    attempts = [
        ("_total", {"upstream": each.name, "outcome": outcome}, float(each.counts[outcome]))
        for each in upstreams
        for outcome in ("ok", "failed", "busy", "cancelled")
    ]
    yield Family("gateway_attempts", "counter", "Tries by upstream and outcome.", attempts)
    yield _gauges("requests_waiting", "Requests that wait for an upstream.", "model", router.num_waiting)
    routed = {where: router.by_affinity[where] for where in ("favoured", "spilled")}
    yield counters("gateway_routed", "Tries by where the beginning of a prompt sent them.", "where", routed)
    further = {kind: dispatch.counts[kind] for kind in ("retry", "hedge")}
    yield counters("gateway_further_attempts", "Tries beyond the first.", "kind", further)
    won = {"won": dispatch.counts["hedge_won"], "lost": dispatch.counts["hedge"] - dispatch.counts["hedge_won"]}
    yield counters("gateway_hedges", "Hedges by outcome.", "outcome", won)
    text = "Further tries that the retry budget had no room for."
    yield Family("gateway_attempts_refused", "counter", text, [("_total", {}, float(budget.num_refused))])
    yield gauge("gateway_retry_tokens", "Further tries that may be made at once.", budget.tokens)


def _gauges(name: str, text: str, label: str, values: dict[str, int]) -> Family:
    return Family(f"gateway_{name}", "gauge", text, [("", {label: key}, float(value)) for key, value in values.items()])
