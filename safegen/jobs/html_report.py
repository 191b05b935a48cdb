"""A job as a page: what its output holds, how this run went, and what failed. See `safegen.reports` for the parts.

Counts of statuses and failures are of the whole output, also of what earlier runs wrote; times, rates, charts and the
slowest rows are of this run, and each heading says which. No content is on it: no prompt, no answer, and no message of
a row's error, which may quote either; a row is told by its id and its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from safegen.jobs.about import About, State
from safegen.jobs.details import MAX_REASONS, NUM_EXAMPLES, NUM_SLOWEST, Failures, JobDetails, Reason, SlowRow
from safegen.jobs.report import JobReport
from safegen.jobs.tally import Tally
from safegen.reports.charts import Part, share_chart
from safegen.reports.hostile import isolated, plain
from safegen.reports.measured import latency_chart, length_chart, rate_charts
from safegen.reports.page import Column, Figure, charts, facts, figures, page, section, table
from safegen.reports.scales import clock, milliseconds, percent
from safegen.reports.streaming import LOG_ERROR, MAX_LENGTHS
from safegen.reports.versions import versions

STATUSES = ("ok", "truncated", "blocked", "refused", "invalid", "error")
_UNLIKE = "other"  # a status that is none of ours, from a file that somebody has edited


def job_page(about: About, state: State, report: JobReport, tally: Tally, details: JobDetails) -> str:
    name = Path(about.output).name
    body = [
        _output_section(report, tally),
        _failures_section(report, details),
        _run_section(report, tally, details),
        _charts_section(report, details),
        _slowest_section(details),
        _about_section(about, report),
    ]
    return page(
        f"{plain(name)} – safegen job", "safegen job", isolated(name, "name"), _mood(state, report),
        _verdict(about, state, report), "\n".join(part for part in body if part),
    )  # fmt: skip


# --- how it ended -----------------------------------------------------------------------------------------------------


def _mood(state: State, report: JobReport) -> str:
    if state.name == "running":
        return "open"
    return "good" if state.name == "done" and not report.num_failed else "bad"


def _rows(count: int) -> str:
    return "no rows" if not count else "1 row" if count == 1 else f"{count:,} rows"


def _verdict(about: About, state: State, report: JobReport) -> str:
    held, failed = sum(report.statuses.values()), report.num_failed
    counts = f"The output holds {_rows(held)}" + (", all ok." if held else ".")
    if failed:
        counts = f"The output holds {_rows(held)}; {failed:,} of them {'is' if failed == 1 else 'are'} not ok."
    again = "Run the same job again: it goes on where it stopped."
    if state.name == "done":
        code = "" if not failed else f" (exit code {report.exit_code})"
        return f"<b>Done{code}.</b> {counts}"
    if state.name == "running":
        written = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        killed = f"If no process does it any more, it was killed. {again}"
        return f"<b>Running</b> when this page was written, at {written}. {counts} {killed}"
    if state.name == "interrupted":
        return f"<b>Interrupted</b> ({plain(state.error)}). {counts} {again}"
    message = f": {isolated(state.message, 'message')}" if state.message else "."
    return f"<b>Failed</b> with {plain(state.error)}{message} {counts} What was written is kept. {again}"


# --- the whole output -------------------------------------------------------------------------------------------------


def _known(statuses: Mapping[str, int]) -> dict[str, int]:
    """In our order, with zero for what there is none of; all that are none of ours as one."""
    found = {status: statuses.get(status, 0) for status in STATUSES}
    others = sum(count for status, count in statuses.items() if status not in STATUSES)
    return found | ({_UNLIKE: others} if others else {})


def _output_section(report: JobReport, tally: Tally) -> str:
    counts, now = _known(report.statuses), _known(tally.now)
    whole = sum(counts.values())
    shown = {status: count for status, count in counts.items() if count or status == "ok"}
    told = ", ".join(f"{count:,} {status}" for status, count in shown.items())
    parts = [
        Part(count, status, f"{status}: {count:,} rows, {percent(count / whole)}")
        for status, count in shown.items()
        if count
    ]
    drawing = share_chart(parts, f"Rows of the output by status: {told}.") if whole else ""
    columns = [Column("Status"), Column("Rows", True), Column("Share", True), Column("Of this run", True)]
    cells = [
        [
            f'<span class="status {status}">{status}</span>',
            f'<span data-status="{status}">{count:,}</span>',
            percent(count / whole) if whole else "–",
            f"{now.get(status, 0):,}",
        ]
        for status, count in shown.items()
    ]
    cells.append(["all", f"{whole:,}", "", f"{report.rows:,}"])
    return section(
        "statuses",
        "Rows by status",
        f'<div class="card">{drawing}{table("Rows by status", columns, cells)}</div>',
        "output",
    )


def _failures_section(report: JobReport, details: JobDetails) -> str:
    if not details.failures:
        return ""
    cells = [
        [_reason_cell(reason, failures), f"{failures.in_output:,}", f"{failures.in_run:,}"]
        for reason, failures in details.by_reason()
    ]
    columns = [
        Column("Reason, and some of its rows", css_class="reason-cell"),
        Column("Rows", True),
        Column("Of this run", True),
    ]
    intro = (
        f"By status, class of error and what it names; up to {NUM_EXAMPLES} ids each. The messages are in the output, "
        "since they may quote a row."
    )
    if len(details.failures) > MAX_REASONS:
        intro += f" Beyond the first {MAX_REASONS} reasons all count as one."
    drawn = f'<div class="card">{table("Reasons of failure", columns, cells, name="failures")}</div>'
    return section("reasons", "Why rows failed", drawn, "output", intro)


def _reason_cell(reason: Reason, failures: Failures) -> str:
    parts = "".join(f" · {name} {isolated(value, 'name')}" for name, value in reason.parts)
    ids = "".join(f"<li>{isolated(each)}</li>" for each in failures.examples)
    return (
        f'<span class="reason">{isolated(reason.error, "name")}</span> <span class="sub">'
        f'{_status(reason.status)}{parts}</span><ul class="examples">{ids}</ul>'
    )


# --- this run ---------------------------------------------------------------------------------------------------------


def _run_section(report: JobReport, tally: Tally, details: JobDetails) -> str:
    given = [
        Figure("rows", "Rows", f"{report.rows:,}", f"{report.skipped:,} were done before"),
        Figure("seconds", "Time", clock(report.seconds)),
        Figure("rows_per_s", "Rows a second", f"{report.rows_per_s:,.1f}"),
        Figure("tokens_per_s", "Tokens a second", f"{report.tokens_per_s:,.1f}", "of answers"),
        Figure("completion_tokens", "Answer tokens", f"{report.completion_tokens:,}"),
        Figure("prompt_tokens", "Prompt tokens", f"{report.prompt_tokens:,}"),
        Figure("cache_hit_rate", "Prefix cache", f"{report.cache_hit_rate:.1%}", "of the prompts’ tokens"),
    ]
    if details.latencies.count:
        p50, p99 = (milliseconds(details.latencies.quantile(share) or 0.0) for share in (0.5, 0.99))
        given.insert(2, Figure("latency", "Latency of a row", p50, f"median; p99 {p99}"))
    if tally.drafted_tokens:
        rate = f"{tally.accepted_tokens / tally.drafted_tokens:.1%}"
        given.append(Figure("acceptance", "Speculation", rate, f"of {tally.drafted_tokens:,} drafted tokens accepted"))
    intro = (
        "" if report.rows else "This run had nothing to do: every row of its input was done before, or there was none."
    )
    return section("run", "Throughput", figures(given), "run", intro)


def _charts_section(report: JobReport, details: JobDetails) -> str:
    if not report.rows:
        return ""
    num_pieces = min(72, max(6, report.rows // 8))
    drawn = []
    if details.latencies.count:
        drawn += [latency_chart(details.latencies), length_chart(details.lengths)]
    drawn += rate_charts(details.timeline, report.seconds, num_pieces, report.rows_per_s, report.tokens_per_s)
    intro = ""
    if details.num_not_computed:
        intro = (
            f"{_rows(details.num_not_computed)} refused or blocked before anything was computed: no latency and no "
            "answer to count."
        )
    return section("distributions", "Latency, length and rate", charts(drawn), "run", intro)


def _slowest_section(details: JobDetails) -> str:
    slowest = details.slowest()
    if not slowest:
        return ""
    columns = [Column("Row", css_class="key-cell"), Column("Latency", True), Column("Tokens", True)]
    cells = [[_slow_cell(row), milliseconds(row.total_ms), f"{row.completion_tokens:,}"] for row in slowest]
    intro = "From submission to the end, waiting included."
    if len(slowest) == NUM_SLOWEST:
        intro = f"The {NUM_SLOWEST} that took longest from submission to the end, waiting included."
    drawn = f'<div class="card">{table("The slowest rows", columns, cells, name="slowest")}</div>'
    return section("slow", "The slowest rows", drawn, "run", intro)


def _slow_cell(row: SlowRow) -> str:
    return (
        f'{isolated(row.id)}<span class="sub">{_status(row.status)} · row {row.number:,} '
        f"<code>{plain(row.key)}</code></span>"
    )


def _status(status: str) -> str:
    """With the sign of its colour."""
    return f'<span class="status {status if status in STATUSES else _UNLIKE}">{plain(status)}</span>'


# --- the job ----------------------------------------------------------------------------------------------------------


def _about_section(about: About, report: JobReport) -> str:
    ended = datetime.fromtimestamp(about.begun.timestamp() + report.seconds, UTC)
    given = [
        ("Output", isolated(about.output)),
        ("Input", f"{isolated(about.source)} <small>({plain(about.source_format)})</small>"),
        (
            "Model",
            isolated(about.model or "not named", "name")
            + f'<span class="sub"><code>{plain(about.fingerprint)}</code></span>',
        ),
        ("Output type", plain(about.type_kind)),
        ("Settings", ", ".join(f"{plain(name)} {isolated(value, 'name')}" for name, value in about.settings)),
        ("Digest of all settings", f"<code>{plain(about.digest)}</code>"),
        ("Begun", _moment(about.begun)),
        ("Ended, or seen last", _moment(ended)),
        *((name, plain(value)) for name, value in versions()),
    ]
    notes = [
        f"Settings in full, the prompt included, are in {isolated(about.header)} with the output.",
        "Latency is the time from a row’s submission to its end. Its median and other quantiles are taken of a "
        f"histogram that is counted row by row, with {100 * LOG_ERROR:.1f} % between its edges: the largest value of "
        "the cell in which the rank lies, so never too low and at most that much too high. Lengths are counted one by "
        f"one, so theirs are exact up to {MAX_LENGTHS:,} different lengths. Largest and mean are exact.",
        "Rates over time count a row when it is written, with all its tokens.",
    ]
    if about.num_configs > 1:
        notes.insert(0, f"The output holds rows of up to {about.num_configs} configurations (on_change=keep).")
    listed = "".join(f"<li>{note}</li>" for note in notes)
    return section("about", "The job", f'<div class="card">{facts(given)}</div><ul class="notes">{listed}</ul>')


def _moment(moment: datetime) -> str:
    return f'<time datetime="{moment.isoformat(timespec="seconds")}">{moment:%Y-%m-%d %H:%M:%S} UTC</time>'
