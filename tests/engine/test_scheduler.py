"""The scheduler: order of service, budget, admission, preemption, and no starvation under sustained load."""

from __future__ import annotations

from collections.abc import Sequence as Ids

from hypothesis import given, settings
from hypothesis import strategies as st

from safegen.engine.block_pool import BlockPool
from safegen.engine.config import EngineConfig
from safegen.engine.logits import LogitsPipeline, RowBuffers
from safegen.engine.request import Request, SamplingParams
from safegen.engine.scheduler import Scheduler
from safegen.engine.sequence import RequestContext, Sequence
from safegen.engine.step import StepPlan, build_batch


def make(
    num_blocks: int = 32, *, block_size: int = 4, seqs: int = 4, budget: int = 16, caching: bool = True
) -> Scheduler:
    config = EngineConfig(block_size=block_size, max_num_seqs=seqs, max_num_batched_tokens=budget)
    return Scheduler(BlockPool(num_blocks, block_size, enable_prefix_caching=caching), config)


def sequence(arrival: int, prompt: Ids[int], max_tokens: int = 50, n: int = 1) -> Sequence:
    params = SamplingParams(max_tokens=max_tokens, n=n)
    request = Request(f"r{arrival}", tuple(prompt), params, frozenset())
    pipeline = LogitsPipeline(params, request.prompt_ids, frozenset(), RowBuffers(1000))
    context = RequestContext(request, arrival, 0.0, 0, max_tokens, pipeline, max_retracts=64)
    return Sequence(context, 0, tuple(range(n)))


def spans(plan: StepPlan) -> list[tuple[int, int, int]]:
    """(arrival, start, tokens) of each span."""
    return [(span.sequence.context.arrival, span.start, span.num_tokens) for span in plan.spans]


def advance(scheduler: Scheduler, plan: StepPlan) -> None:
    """What the core does after a forward: one token for each sampled sequence, the end at max_tokens."""
    for span in plan.spans:
        scheduler.computed(span)
        if span.start + span.num_tokens == span.sequence.num_tokens:
            span.sequence.commit((900 + span.sequence.num_output_tokens,))
            if span.sequence.num_tokens_left == 0:
                scheduler.discard(span.sequence)
    scheduler.pool.check_invariants([one.block_table for one in scheduler.sequences()])


def test_prompts_are_chunked_to_the_budget_and_running_ones_go_first() -> None:
    scheduler = make(budget=10)
    for arrival, length in enumerate((6, 9, 5)):
        scheduler.add(sequence(arrival, range(arrival * 100, arrival * 100 + length)))
    first = scheduler.plan(0)
    assert spans(first) == [(0, 0, 6), (1, 0, 4)]
    assert [span.num_sampled for span in first.spans] == [1, 0]
    advance(scheduler, first)
    second = scheduler.plan(1)
    assert spans(second) == [(0, 6, 1), (1, 4, 5), (2, 0, 4)]
    assert [span.num_sampled for span in second.spans] == [1, 1, 0]


def test_a_long_prompt_in_chunks_leaves_each_running_sequence_its_token() -> None:
    scheduler = make(num_blocks=64, budget=5, seqs=4)
    scheduler.add(sequence(1, range(3)))
    advance(scheduler, scheduler.plan(0))
    long = sequence(0, range(200, 260))  # earlier in rank, as after a preemption
    scheduler.add(long)
    advance(scheduler, scheduler.plan(1))
    for step in range(2, 12):
        plan = scheduler.plan(step)
        assert spans(plan)[0][2] == 4 and spans(plan)[1] == (1, 3 + step - 1, 1)
        advance(scheduler, plan)


def test_admission_takes_no_overtaking() -> None:
    scheduler = make(num_blocks=8)
    scheduler.add(sequence(0, range(16)))
    scheduler.add(sequence(1, range(100, 124)))
    scheduler.add(sequence(2, range(200, 204)))
    advance(scheduler, scheduler.plan(0))
    advance(scheduler, scheduler.plan(1))
    assert [one.context.arrival for one in scheduler.running] == [0]
    assert [one.context.arrival for one in scheduler.waiting] == [1, 2]


def test_newest_is_preempted_keeps_its_tokens_and_does_not_come_back_in_that_step() -> None:
    scheduler = make(num_blocks=6, caching=False, budget=32)
    old, new, later = sequence(0, range(7)), sequence(1, range(100, 108)), sequence(2, range(200, 202))
    scheduler.add(old)
    scheduler.add(new)
    step = 0
    while scheduler.pool.num_free:
        advance(scheduler, scheduler.plan(step))
        step += 1
    assert scheduler.num_preemptions == 0
    scheduler.add(later)
    plan = scheduler.plan(step)
    while not plan.num_preempted:
        advance(scheduler, plan)
        step += 1
        output = new.token_ids(8, new.num_tokens)
        plan = scheduler.plan(step)
    assert (plan.num_preempted, spans(plan)[0][0], len(plan.spans)) == (1, 0, 1)
    assert [one.context.arrival for one in scheduler.waiting] == [1, 2]
    assert new.token_ids(8, new.num_tokens) == output and len(output) >= 4
    assert (len(new.block_table), new.num_computed_tokens) == (0, 0)


def test_preempted_sequence_comes_back_out_of_the_prefix_cache() -> None:
    scheduler = make(num_blocks=8)
    one = sequence(0, range(12))
    scheduler.add(one)
    advance(scheduler, scheduler.plan(0))
    scheduler._preempt(one)
    assert spans(scheduler.plan(1)) == [(0, 12, 1)]
    assert scheduler.num_prefix_hit_tokens == 12


def test_shared_prompt_is_computed_once_but_for_the_last_token() -> None:
    scheduler = make()
    scheduler.add(sequence(0, range(8), max_tokens=1))
    advance(scheduler, scheduler.plan(0))
    scheduler.add(sequence(1, range(8)))
    scheduler.add(sequence(2, range(9)))
    assert spans(scheduler.plan(1)) == [(1, 4, 4), (2, 8, 1)]


def test_forks_share_blocks_and_copy_on_the_first_write() -> None:
    scheduler = make()
    lead = sequence(0, range(6), n=3)
    scheduler.add(lead)
    plan = scheduler.plan(0)
    scheduler.computed(plan.spans[0])
    twins = [scheduler.fork(lead, index) for index in (1, 2)]
    assert twins[0].block_table == lead.block_table
    for one in (lead, *twins):
        one.commit((900,))
    shared = lead.block_table[1]
    plan = scheduler.plan(1)
    assert [source for source, _ in plan.copies] == [shared, shared]
    assert twins[1].block_table[1] == shared
    tables = [one.block_table for one in (lead, *twins)]
    assert len({table[0] for table in tables}) == 1 and len({table[1] for table in tables}) == 3
    scheduler.pool.check_invariants(tables)
    batch = build_batch(plan, 4)
    assert batch.slot.tolist() == [table[1] * 4 + 2 for table in tables]


def test_forks_at_a_block_boundary_need_no_copy() -> None:
    scheduler = make()
    lead = sequence(0, range(8), n=2)
    scheduler.add(lead)
    scheduler.computed(scheduler.plan(0).spans[0])
    twin = scheduler.fork(lead, 1)
    for one in (lead, twin):
        one.commit((900,))
    assert scheduler.plan(1).copies == ()
    assert lead.block_table[:2] == twin.block_table[:2] and lead.block_table[2] != twin.block_table[2]


def test_batch_lays_out_chunks_and_decodes_together() -> None:
    scheduler = make(budget=10)
    scheduler.add(sequence(0, range(6)))
    advance(scheduler, scheduler.plan(0))
    scheduler.add(sequence(1, range(100, 120)))
    batch = build_batch(scheduler.plan(1), 4)
    assert batch.ids.tolist() == [900, *range(100, 109)]
    assert batch.position.tolist() == [6, *range(9)]
    assert batch.query_start.tolist() == [0, 1, 10]
    assert batch.context_len.tolist() == [7, 9]
    assert batch.sampled_rows.tolist() == [0]
    tables = [one.block_table for one in scheduler.running]
    assert batch.slot.tolist() == [tables[0][1] * 4 + 2, *(tables[1][p // 4] * 4 + p % 4 for p in range(9))]
    assert batch.block_table[1].tolist() == tables[1][:3].tolist()


def test_sustained_load_serves_everybody_in_order() -> None:
    scheduler = make(num_blocks=12, seqs=3, budget=6)
    arrivals, finished = 0, []
    for step in range(400):
        if step < 300:
            length = 30 if arrivals % 7 == 3 else 4  # now and then one that needs most of the pool
            scheduler.add(sequence(arrivals, range(arrivals * 1000, arrivals * 1000 + length), max_tokens=6))
            arrivals += 1
        before = list(scheduler.sequences())
        advance(scheduler, scheduler.plan(step))
        finished += [one.context.arrival for one in before if one.num_tokens_left == 0]
    assert len(finished) > 40
    assert sorted(finished) == list(range(len(finished))), "somebody was overtaken for good"
    assert all(abs(place - arrival) < 3 for place, arrival in enumerate(finished))


@settings(max_examples=50, deadline=None)
@given(
    prompts=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=12),
    block_size=st.integers(1, 5),
    seqs=st.integers(1, 5),
    extra_budget=st.integers(0, 9),
    extra_blocks=st.integers(0, 9),
    caching=st.booleans(),
)
def test_every_mix_ends_within_its_work_and_leaves_an_empty_pool(
    prompts: list[tuple[int, int]], block_size: int, seqs: int, extra_budget: int, extra_blocks: int, caching: bool
) -> None:
    num_blocks = max(-(-(length + tokens + 1) // block_size) for length, tokens in prompts) + extra_blocks
    scheduler = make(num_blocks, block_size=block_size, seqs=seqs, budget=seqs + extra_budget, caching=caching)
    for arrival, (length, max_tokens) in enumerate(prompts):
        scheduler.add(sequence(arrival, [arrival % 3] * length, max_tokens))
    for step in range(2000):
        if not scheduler.running and not scheduler.waiting:
            break
        plan = scheduler.plan(step)
        assert plan.spans, "no progress"
        assert sum(span.num_tokens for span in plan.spans) <= seqs + extra_budget
        assert all(span.num_tokens > 0 for span in plan.spans)
        assert plan.num_preempted or {id(s.sequence) for s in plan.spans} == {id(s) for s in scheduler.running}
        advance(scheduler, plan)
    assert not scheduler.running and not scheduler.waiting
    assert scheduler.pool.num_free == num_blocks
