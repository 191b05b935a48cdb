"""`load_test` and `safegen bench`: what is sent when, what is said of the answers, and how a promise is judged."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from safegen.cli import NOT_OK, OK, USER_MISTAKE, main
from safegen.errors import RequestError
from safegen.llm import LLM
from safegen.load.testing import LoadPoint, LoadReport, load_test
from safegen.load.trace import Arrival, Served, Slo, fixed_trace, steady_tokens_per_s
from safegen.load.workload import made_up, read_prompts
from safegen.types import Choice
from tests.support.browser import Browser
from tests.support.sdk_fakes import make_llm


def served(first_s: float, last_s: float, tokens: int = 11, *, sent_s: float = 0.0, ok: bool = True) -> Served:
    return Served(Arrival(sent_s, 0), sent_s, first_s, last_s, tokens, ok)


def test_fixed_arrivals_are_evenly_apart() -> None:
    trace = fixed_trace(4.0, 9, 5, seed=1)
    assert [arrival.at_s for arrival in trace] == [number / 4 for number in range(9)]
    assert {arrival.place for arrival in trace} <= set(range(5)) and trace == fixed_trace(4.0, 9, 5, seed=1)


def test_a_promise_is_held_at_its_percentile() -> None:
    answers = [served(0.1, 1.1) for _ in range(98)] + [served(0.9, 1.1), served(0.1, 9.1)]
    assert Slo(0.5, 0.2, share=0.98).misses(answers) == []
    assert Slo(0.5, 0.2, share=1.0).misses(answers) == [
        "p100 of TTFT is 900 ms, promised are 500 ms", "p100 of TPOT is 900 ms, promised are 200 ms",
    ]  # fmt: skip
    assert Slo(0.5, None, share=1.0).misses(answers[:98]) == []
    failed = [*answers[:98], served(0.1, 1.1, ok=False), served(0.1, 1.1, ok=False)]
    assert Slo(share=0.98).misses(failed) == []
    assert Slo(share=0.99).misses(failed) == ["2 of 100 requests were not answered as they should"]


def test_steady_rate_leaves_out_how_a_loop_begins_and_ends() -> None:
    answers = [
        served(1.0, 3.0, 20, sent_s=0.0),
        served(2.0, 4.0, 20, sent_s=0.0),  # from here on two are in flight
        served(3.0, 5.0, 20, sent_s=3.0),
        served(4.0, 9.0, 50, sent_s=4.0),  # until here
    ]
    assert steady_tokens_per_s(answers, 2) == pytest.approx((10 + 20 + 10) / 2)
    assert steady_tokens_per_s(answers[:2], 2) is None
    assert served(1.0, 1.0, 1).tokens_within(0.0, 2.0) == 1.0
    assert Served(Arrival(0, 0), 0, None, 1.0, 3, True).tokens_within(0.0, 2.0) == 0.0


def test_made_up_prompts_have_the_length_asked_for_and_share_nothing() -> None:
    def count(text: str) -> int:
        return 30 + len(text.split())

    workload = made_up(50, 130, 40, count, spread=0.5, seed=3)
    assert {count(asked.prompt) for asked in workload} == {130}
    assert len({asked.prompt for asked in workload}) == 50
    lengths = [asked.max_tokens for asked in workload]
    assert min(lengths) >= 20 and max(lengths) <= 60 and len(set(lengths)) > 10  # type: ignore[type-var]
    assert all(asked.options == {"min_tokens": asked.max_tokens} for asked in workload)
    assert workload == made_up(50, 130, 40, count, spread=0.5, seed=3) != made_up(50, 130, 40, count, seed=4)
    assert {asked.max_tokens for asked in made_up(9, 130, 40, count, spread=0.0)} == {40}


@pytest.fixture(scope="module")
def llm() -> Any:
    with make_llm() as made:
        yield made


def test_a_closed_loop_keeps_so_many_in_flight_and_asks_each_prompt_once(llm: LLM) -> None:
    before = llm.stats()
    said: list[str] = []
    report = load_test(llm, concurrency=[1, 4], num_requests=8, prompt_tokens=60, output_tokens=6, progress=said.append)
    assert [point.name for point in report.points] == ["1 in flight", "4 in flight"]
    assert [point.num_requests for point in report.points] == [8, 12]
    assert said == ["8 requests, 1 in flight", "12 requests, 4 in flight"]
    figures = report.points[1].figures
    assert figures["prompt_tokens"] == pytest.approx(60, rel=0.2)
    assert 3 <= figures["output_tokens"] <= 9 and figures["ok_pct"] == 100 == figures["goodput_pct"]
    assert figures["steady_tokens_per_s"] > 0 and figures["client_late_ms"] == pytest.approx(0, abs=50)
    after = llm.stats()
    assert sum(after.requests.values()) - sum(before.requests.values()) == 2 + 8 + 12
    assert after.cached_tokens == before.cached_tokens, "made-up prompts find nothing in the cache"
    assert report.ok


def test_rates_are_kept_by_the_seed_and_a_promise_that_fails_is_named(llm: LLM) -> None:
    report = load_test(
        llm, rates=[200.0, 400.0], arrivals="fixed", num_requests=10, prompt_tokens=60, output_tokens=6,
        slo=Slo(ttft_s=1e-6),
    )  # fmt: skip
    assert [point.name for point in report.points] == ["200/s", "400/s"]
    assert not report.ok and all("p99 of TTFT" in point.misses[0] for point in report.points)
    assert all(point.figures["goodput_pct"] == 0 for point in report.points)
    assert "does not hold" in report.table() and "misses: p99 of TTFT" in report.table()


def test_own_prompts_and_types_are_asked_as_they_are(llm: LLM) -> None:
    report = load_test(
        llm, concurrency=[2], num_requests=6, prompts=["a", ("b", Choice(["pos", "neg"])), "c"], output_tokens=5
    )
    assert report.points[0].figures["ok_pct"] == 100
    refused = load_test(llm, concurrency=[1], num_requests=3, prompts=["x" * 5000], output_tokens=5)
    assert refused.points[0].figures["ok_pct"] == 0 and not refused.ok


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "rates"),
        ({"rates": [0.0]}, "rates"),
        ({"concurrency": [1.5]}, "concurrency"),
        ({"concurrency": [1], "num_requests": 0}, "num_requests"),
        ({"concurrency": [1], "spread": 1.0}, "spread"),
        ({"rates": [1.0], "arrivals": "bursts"}, "arrivals"),
        ({"concurrency": [1], "prompts": []}, "prompts"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(llm: LLM, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        load_test(llm, **arguments)
    assert caught.value.field == field


def test_in_an_event_loop_it_is_refused_and_runs_in_a_thread(llm: LLM) -> None:
    async def use() -> LoadReport:
        with pytest.raises(RequestError, match="to_thread"):
            load_test(llm, concurrency=[1])
        return await asyncio.to_thread(load_test, llm, concurrency=[1], num_requests=2, output_tokens=3)

    assert asyncio.run(use()).points[0].num_requests == 3


def a_report() -> LoadReport:
    figures = {"ttft_ms.p50": 10.0, "ttft_ms.p99": 30.0, "tpot_ms.p50": 5.0, "tokens_per_s": 99.0, "ok_pct": 100.0}
    points = [
        LoadPoint(1.0, None, 10, figures), LoadPoint(2.5, None, 10, figures, ("p99 of <TTFT>",)),
        LoadPoint(None, 8, 10, {"ttft_ms.p50": 1.0}),
    ]  # fmt: skip
    return LoadReport(tuple(points), Slo(0.02), "poisson", 7)


def test_the_page_stands_alone_and_holds_every_point() -> None:
    page = a_report().to_html()
    assert not re.search(r"(src|href)=|https?://|@import|url\(", page)
    drawn = re.findall(r'<svg class="plot".*?\n</svg>', page, flags=re.DOTALL)
    assert len(drawn) == 12
    assert page.split('id="points"')[1].split("</table>")[0].count("<tr>") == 1 + 3
    assert "p99 of &lt;TTFT&gt;" in page and "<TTFT>" not in page
    for drawing in drawn:
        ElementTree.fromstring(drawing)


def test_the_page_in_a_browser_tells_every_load_and_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    a_report().save_html(str(tmp_path / "load.html"))
    for width in (320, 375, 1280):
        browser.open(tmp_path / "load.html", width=width, scheme="dark" if width == 375 else "light")
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.console == [] and browser.requests == [(tmp_path / "load.html").as_uri()]
    rows = browser.evaluate(
        "[...document.querySelectorAll('#points tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    assert [row[:3] for row in rows] == [
        ["1/s", "kept", "10"],
        ["2.5/s", "missed", "10"],
        ["8 in flight", "kept", "10"],
    ]
    assert rows[0][3] == "10.0" and rows[0][5] == "30.0" and rows[2][4] == "–"
    assert "does not hold at every load: p99 of TTFT within 20 ms. It holds at 1/s, 8 in flight." in browser.evaluate(
        "document.querySelector('.verdict').textContent"
    )
    bounds = browser.evaluate("[...document.querySelectorAll('#chart-0-0 .bound')].length")
    named = browser.evaluate("[...document.querySelectorAll('#chart-0-0 text.mark')].map(e => e.textContent)")
    assert bounds == 1 and named == ["promised for 99 %: 20 ms"]
    alts = browser.evaluate("[...document.querySelectorAll('svg.plot')].map(e => e.getAttribute('aria-label'))")
    assert alts[0] == (
        "Time to the first text (TTFT), ms, against requests a second: p50 from 10 at 1 to 10 at 2.5, p99 from 30 at 1 "
        "to 30 at 2.5; promised for 99 %: 20 ms."
    )


def test_a_plot_is_a_page_or_needs_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plot.html"
    a_report().save_plot(str(path))
    assert path.read_text() == a_report().to_html()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(RequestError, match="pip install"):
        a_report().save_plot(str(tmp_path / "plot.png"))
    with pytest.raises(RequestError, match="no such folder"):
        a_report().save_plot(str(tmp_path / "nowhere" / "plot.html"))
    for wrong in ("plot.gif", "plot"):
        with pytest.raises(RequestError, match=r"--plot takes a \.html, \.png or \.svg file"):
            a_report().save_plot(wrong)
    with pytest.raises(RequestError, match=r"--html takes a \.html file"):
        a_report().save_html(str(tmp_path / "page.png"))
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(RequestError, match="it is no file"):
        a_report().save_html(str(tmp_path / "folder.html"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder.html", "plot.html"], "nothing is half-written"


def test_a_png_is_drawn_with_matplotlib(tmp_path: Path) -> None:
    a_report().save_plot(str(tmp_path / "plot.png"))
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_prompts_are_read_line_by_line_and_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"a"\n\n{"prompt": "b", "id": 3}\n[{"role": "user", "content": "c"}]\n')
    assert read_prompts(str(path)) == ["a", "b", [{"role": "user", "content": "c"}]]
    path.write_text('"a"\n{"text": "b"}\n')
    with pytest.raises(RequestError, match="line 2"):
        read_prompts(str(path))
    with pytest.raises(RequestError, match="cannot be read"):
        read_prompts(str(tmp_path / "none"))


def test_the_command_runs_the_default_model_and_tells_by_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.html"
    short = ["--requests", "3", "--prompt-tokens", "48", "--output-tokens", "4", "--max-num-seqs", "4"]
    plot = tmp_path / "load.html"
    assert main(["bench", "--concurrency", "1,2", *short, "--json", "--plot", str(plot), "--html", str(page)]) == OK
    told = json.loads(capsys.readouterr().out)
    assert [point["concurrency"] for point in told["points"]] == [1, 2] and told["ok"] is True
    assert told["points"][0]["figures"]["ok_pct"] == 100
    assert "<svg" in plot.read_text() and page.read_text() == plot.read_text()
    assert told["model"].endswith(".gguf") and told["measured_at"].endswith("UTC") and told["model"] in page.read_text()
    monkeypatch.setattr("safegen.llm.LLM", lambda model, **options: make_llm())
    assert main(["bench", "--rates", "50", *short, "--ttft-ms", "0.001", "--arrivals", "fixed"]) == NOT_OK
    assert "p99 of TTFT" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rates", "x"],
        ["--percentile", "0"],
        ["--plot", "a.gif"],
        ["--html", "a.png"],
        ["--html", "/proc/a.html"],
        ["--input", "none.jsonl"],
        ["--schema", "none"],
    ],
)
def test_a_mistake_in_the_call_is_told_before_a_model_is_loaded(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_model(*arguments: object, **options: object) -> None:
        raise AssertionError("the model was loaded first")

    monkeypatch.setattr("safegen.llm.LLM.__init__", no_model)
    assert main(["bench", *arguments]) == USER_MISTAKE
    assert "Traceback" not in capsys.readouterr().err
