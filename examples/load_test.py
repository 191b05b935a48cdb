"""Plan for a load, put a model under it, and hold it to a promise."""

from safegen import LLM, Slo, load_test, plan

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 16

made = plan(prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS, concurrency=4)
print(made.table())

promise = Slo(ttft_s=30.0, tpot_s=5.0)  # for the 99th percentile; generous, so that it is kept on a busy laptop
with LLM(speculation=False, max_num_seqs=8) as llm:
    report = load_test(
        llm,
        rates=[2.0],  # a Poisson process: requests come when they come
        concurrency=[4],  # a closed loop: the next one when one has ended
        num_requests=8,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        slo=promise,
    )
    print(report.table())
    stats, ttft_ms = llm.stats(), llm.stats().first_token_ms
    print(f"{stats.requests['truncated']} answers, {stats.output_tokens} tokens, TTFT p99 {ttft_ms.p99:.0f} ms")

in_flight = report.points[-1]
print(f"4 in flight: {in_flight.figures['steady_tokens_per_s']:.0f} tokens/s, planned {made.chosen.tokens_per_s:.0f}")
print(f"promise kept: {report.ok}")
