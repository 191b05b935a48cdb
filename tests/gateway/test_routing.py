"""Which upstream: the one that the beginning of a prompt favours, unless it is much busier; else the least busy one."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from safegen.gateway.calls import Call, read_call
from safegen.gateway.config import Circuit, HealthChecks, Queue, Routing, UpstreamConfig
from safegen.gateway.router import Router, preference
from safegen.gateway.upstream import Place, Upstream
from safegen.server.errors import ApiError

SYSTEM = {"role": "system", "content": "You are terse."}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def affinity(body: dict[str, Any], prefix_characters: int = 2048) -> bytes | None:
    raw = json.dumps({"model": "m", **body}).encode()
    names = frozenset({"m", "other"})
    return read_call("/x", raw, model_names=names, prefix_characters=prefix_characters).affinity


def upstream(name: str, models: tuple[str, ...] = ("m",), most: int = 64, **circuit: Any) -> Upstream:
    config = UpstreamConfig(name=name, url=f"http://{name}/v1", models=models, max_concurrent=most)
    nobody = httpx2.MockTransport(lambda request: httpx2.Response(500))
    made = Upstream(config, Circuit(**circuit), HealthChecks(down_after=1), environment={}, transport=nobody)
    made.checked(True)
    return made


def router(*upstreams: Upstream, spill_after: int = 4, **queue: Any) -> Router:
    return Router(upstreams, Routing(spill_after=spill_after), Queue(**queue))


def call(beginning: str | None = None, model: str = "m") -> Call:
    return Call("/x", model, False, b"", None if beginning is None else beginning.encode().ljust(16)[:16])


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 20))


def placed(chosen: Router, wanted: Call, avoid: tuple[Upstream, ...] = ()) -> Place:
    found = chosen.try_place(wanted, avoid)
    assert found is not None
    return found


def test_all_turns_of_a_conversation_begin_alike() -> None:
    first = affinity({"messages": [SYSTEM, user("hi")]})
    assert first is not None and len(first) == 16
    turns = [SYSTEM, user("hi"), {"role": "assistant", "content": "hello"}, user("more")]
    assert affinity({"messages": turns}) == first
    assert affinity({"messages": turns, "temperature": 1, "stream": True}) == first
    assert affinity({"messages": [SYSTEM, user("hi there")]}) != first
    assert affinity({"messages": [user("You are terse."), user("hi")]}) != first
    assert affinity({"messages": [SYSTEM, user("hi")], "model": "other"}) != first


def test_a_long_beginning_is_cut_so_that_what_follows_may_differ() -> None:
    system = {"role": "system", "content": "x" * 500}
    one, two = ({"messages": [system, user(text)]} for text in ("a", "b"))
    assert affinity(one, 400) == affinity(two, 400)
    assert affinity(one, 2048) != affinity(two, 2048)
    assert affinity(one, 0) is None


@pytest.mark.parametrize(
    "body",
    [{}, {"messages": []}, {"messages": 7}, {"messages": [7]}, {"prompt": ""}, {"prompt": None}, {"input": "x"}],
)
def test_what_has_no_beginning_favours_nobody(body: dict[str, Any]) -> None:
    assert affinity(body) is None


@pytest.mark.parametrize("prompt", ["text", ["text", "other"], [1, 2, 3], [[1, 2], [3]]])
def test_prompts_of_every_kind_have_a_beginning(prompt: Any) -> None:
    assert affinity({"prompt": prompt}) is not None
    if prompt == ["text", "other"]:
        assert affinity({"prompt": prompt}) == affinity({"prompt": "text"})
    assert affinity({"messages": [user("x") | {"content": [{"type": "text", "text": "x"}]}]}) is not None


def test_a_beginning_stays_where_it_is_when_others_come_and_go() -> None:
    four = [upstream(name) for name in "abcd"]
    beginnings = [str(number).encode().ljust(16) for number in range(400)]
    favoured = {each: preference(each, four)[0] for each in beginnings}
    counts = Counter(each.name for each in favoured.values())
    assert set(counts) == set("abcd") and min(counts.values()) > 60
    three = four[:3]
    for each in beginnings:
        assert favoured[each] is four[3] or preference(each, three)[0] is favoured[each]
        assert preference(each, list(reversed(four)))[0] is favoured[each]


def test_the_favoured_one_is_taken_until_it_is_much_busier() -> None:
    two = [upstream("a"), upstream("b")]
    chosen = router(*two, spill_after=3)
    held = [placed(chosen, call("x")) for _ in range(4)]
    assert len({place.upstream for place in held}) == 1
    assert placed(chosen, call("x")).upstream is not held[0].upstream  # four more than the other
    assert placed(chosen, call("x")).upstream is held[0].upstream  # three more
    assert chosen.by_affinity == {"favoured": 5, "spilled": 1}


def test_without_a_beginning_the_least_busy_is_taken_in_turn() -> None:
    three = [upstream(name) for name in "abc"]
    chosen = router(*three)
    held = [placed(chosen, call()) for _ in range(9)]
    assert Counter(place.upstream.name for place in held) == {"a": 3, "b": 3, "c": 3}
    for place in held[:4]:
        place.close()
    for _ in range(4):
        placed(chosen, call())
    assert {each.outstanding for each in three} == {3}


def test_a_place_is_given_back_once() -> None:
    one = upstream("a")
    place = placed(router(one), call())
    assert one.outstanding == 1
    place.close()
    place.close()
    assert one.outstanding == 0 and one.counts == {"cancelled": 1}


def test_upstreams_that_are_down_open_full_or_tried_are_left_out() -> None:
    four = [upstream(name, most=2) for name in "abc"] + [upstream("d", failures=1)]
    chosen = router(*four)
    four[0].checked(False)
    tried = placed(chosen, call(), avoid=tuple(four[:3]))
    assert tried.upstream is four[3]
    tried.failed()
    tried.close()
    assert four[3].breaker.state == "open"
    held = [placed(chosen, call()) for _ in range(4)]
    assert Counter(place.upstream.name for place in held) == {"b": 2, "c": 2}
    assert chosen.try_place(call()) is None
    held[0].close()
    assert chosen.try_place(call(), (held[0].upstream,)) is None


def test_who_waits_is_served_in_order_and_retries_first() -> None:
    one = upstream("a", most=1)
    chosen, order = router(one), list[str]()

    async def ask(name: str, avoid: tuple[Upstream, ...] = ()) -> None:
        place = await chosen.place(call(), avoid)
        order.append(name)
        await asyncio.sleep(0)
        place.close()

    async def body() -> None:
        held = await chosen.place(call())
        tasks = []
        for name in ("first", "second", "third"):
            tasks.append(asyncio.create_task(ask(name)))
            await asyncio.sleep(0)
        tasks.append(asyncio.create_task(ask("retry", (one,))))
        await asyncio.sleep(0)
        assert chosen.num_waiting == {"m": 4}
        held.close()
        await asyncio.gather(*tasks)
        assert order == ["retry", "first", "second", "third"]
        assert one.outstanding == 0 and chosen.num_waiting == {"m": 0}

    run(body)


def test_models_that_share_an_upstream_share_it_by_time() -> None:
    """One model's line does not hold up another's."""
    one, other = upstream("a", ("m", "n"), most=1), upstream("b", ("n",), most=1)
    chosen, order = router(one, other), list[str]()

    async def ask(model: str) -> None:
        place = await chosen.place(call(model=model))
        order.append(model)
        await asyncio.sleep(0)
        place.close()

    async def body() -> None:
        held = [await chosen.place(call(model="m")), await chosen.place(call(model="n"))]
        tasks = []
        for model in "mnmn":
            tasks.append(asyncio.create_task(ask(model)))
            await asyncio.sleep(0.001)
        held[0].close()
        await asyncio.gather(*tasks)
        assert order == ["m", "n", "m", "n"]
        held[1].close()

    run(body)


def test_a_line_is_bounded_in_length_and_time() -> None:
    one = upstream("a", most=1)
    chosen = router(one, max_waiting=1, wait_s=0.05)

    async def body() -> None:
        held = await chosen.place(call())
        waiting = asyncio.create_task(chosen.place(call()))
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as full:
            await chosen.place(call())
        assert (full.value.status, full.value.code) == (429, "server_overloaded")
        assert "Retry-After" in full.value.headers
        with pytest.raises(ApiError) as late:
            await waiting
        assert late.value.status == 429 and chosen.num_waiting == {"m": 0}
        one.checked(False)
        with pytest.raises(ApiError) as down:
            await chosen.place(call())
        assert (down.value.status, down.value.code) == (503, "no_upstream")
        held.close()

    run(body)


def test_a_place_that_is_granted_to_one_who_has_just_left_is_given_back() -> None:
    one = upstream("a", most=1)
    chosen = router(one)

    async def body() -> None:
        held = await chosen.place(call())
        waiting = asyncio.create_task(chosen.place(call()))
        await asyncio.sleep(0)
        held.close()  # grants
        assert one.outstanding == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert one.outstanding == 0
        (await chosen.place(call())).close()

    run(body)


def test_an_upstream_that_comes_up_takes_who_waits_and_forgets_its_failures() -> None:
    one = upstream("a", failures=1, open_s=30.0)
    chosen = router(one)

    async def body() -> None:
        failed = await chosen.place(call())
        failed.failed()
        failed.close()
        one.checked(False)
        waiting = asyncio.create_task(chosen.place(call()))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        one.checked(True)
        (await asyncio.wait_for(waiting, 1)).close()
        assert one.breaker.state == "closed"

    run(body)


def test_a_half_open_circuit_takes_one_and_then_all_who_wait() -> None:
    one = upstream("a", failures=1, open_s=0.05)
    chosen = router(one)

    async def body() -> None:
        failed = await chosen.place(call())
        failed.failed()
        failed.close()
        waiting = [asyncio.create_task(chosen.place(call())) for _ in range(3)]
        done, _ = await asyncio.wait(waiting, timeout=2, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.02)
        assert [task.done() for task in waiting] == [True, False, False] and len(done) == 1
        probe = waiting[0].result()
        probe.succeeded()
        for place in await asyncio.gather(*waiting):
            place.close()
        assert one.outstanding == 0

    run(body)
