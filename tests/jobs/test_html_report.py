"""The page of a job, in a browser: its numbers are the summary's, it asks for nothing, and it fits every screen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from safegen.jobs.report import JobReport
from safegen.llm import LLM
from tests.support.browser import Browser
from tests.support.report_jobs import SECRET, VariedRuntime, varied_rows

CHARTS = ["chart-latency", "chart-length", "chart-rows-rate", "chart-tokens-rate"]


def varied_job(folder: Path, rows: Any, **options: Any) -> tuple[JobReport, Path]:
    page = folder / "report.html"
    llm = LLM.from_runtime(VariedRuntime())
    options = {"prompt": "{text}", "progress": "off", "report": page, **options}
    return llm.run_job(rows, folder / "out.jsonl", **options), page


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[JobReport, Path]:
    """Two runs: 300 rows before, 600 now."""
    folder = tmp_path_factory.mktemp("report")
    varied_job(folder, varied_rows(300))
    return varied_job(folder, varied_rows(900))


def texts(browser: Browser, selector: str) -> list[str]:
    found: list[str] = browser.evaluate(f"[...document.querySelectorAll({selector!r})].map(e => e.textContent)")
    return found


def figure(browser: Browser, name: str) -> str:
    (text,) = texts(browser, f'[data-figure="{name}"]')
    return text


def test_its_numbers_are_those_of_the_summary(browser: Browser, done: tuple[JobReport, Path]) -> None:
    report, page = done
    browser.open(page)
    summary = dict(report.lines())
    counted = browser.evaluate(
        "Object.fromEntries([...document.querySelectorAll('[data-status]')]"
        ".map(e => [e.dataset.status, e.textContent]))"
    )
    assert {status: int(text.replace(",", "")) for status, text in counted.items()} == report.statuses
    assert sum(report.statuses.values()) == 900 and report.rows == 600 and report.skipped == 300
    assert figure(browser, "rows") == "600" and "300 were done before" in texts(browser, ".figures .note")[0]
    assert f"{figure(browser, 'rows_per_s')} rows/s, {figure(browser, 'tokens_per_s')} tokens/s" == summary["rate"]
    assert (
        f"{figure(browser, 'prompt_tokens')} of prompts, {figure(browser, 'completion_tokens')} of answers"
        == summary["tokens"]
    )
    assert summary["prefix cache"].startswith(figure(browser, "cache_hit_rate"))
    assert re.fullmatch(r"6\d\.\d%", figure(browser, "acceptance"))
    failures = texts(browser, "#failures tbody tr td:nth-of-type(1)")
    assert sum(int(text) for text in failures) == report.num_failed
    assert sum(int(text) for text in texts(browser, "#failures tbody tr td:nth-of-type(2)")) == sum(
        report.errors.values()
    )


def test_each_chart_is_there_and_says_in_words_and_numbers_what_it_shows(
    browser: Browser, done: tuple[JobReport, Path]
) -> None:
    report, page = done
    browser.open(page)
    shown = browser.evaluate(
        "[...document.querySelectorAll('figure.chart')].map(e => [e.id, e.querySelector('svg.plot')])"
        ".map(([id, e]) => [id, e.getAttribute('role'), e.getAttribute('aria-label'), e.getBoundingClientRect()"
        ".height])"
    )
    assert [name for name, *_ in shown] == CHARTS
    for _, role, alt, height in shown:
        assert role == "img" and len(alt) > 40 and height > 150
    (intro,) = texts(browser, "#distributions ~ .intro")
    num_computed = report.rows - int(intro.split()[0])
    for name in CHARTS[:2]:
        counts = [int(text.replace(",", "")) for text in texts(browser, f"#{name} tbody td:last-child")]
        assert sum(counts) == num_computed < report.rows
    assert texts(browser, "svg.shares")
    assert "Rows of the output by status: " in browser.evaluate("document.querySelector('svg.shares').ariaLabel")
    assert len(texts(browser, "#slowest tbody tr")) == 20


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 375, 768, 1280])
def test_it_fits_every_screen_asks_for_nothing_and_complains_of_nothing(
    browser: Browser, done: tuple[JobReport, Path], width: int, scheme: Any
) -> None:
    browser.open(done[1], width=width, scheme=scheme)
    assert browser.evaluate("window.innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    beyond = browser.evaluate(
        "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll') && !e.closest('svg'))"
        f".filter(e => e.getBoundingClientRect().right > {width} + 0.5).map(e => e.outerHTML.slice(0, 80))"
    )
    assert beyond == []
    assert browser.requests == [done[1].as_uri()]
    assert browser.console == []
    dark = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", dark))) < 150) == (scheme == "dark")


def test_labels_of_charts_do_not_run_into_each_other(browser: Browser, done: tuple[JobReport, Path]) -> None:
    for width in (375, 1280):
        browser.open(done[1], width=width)
        boxes = browser.evaluate(
            "[...document.querySelectorAll('svg.plot')].map(svg => [...svg.querySelectorAll('text')]"
            ".map(e => e.getBoundingClientRect()).filter(b => b.width).map(b => [b.left, b.right, b.top, b.bottom]))"
        )
        assert len(boxes) == 4 and all(len(each) > 5 for each in boxes)
        for chart in boxes:
            for place, one in enumerate(chart):
                assert one[0] >= 0 and one[1] <= width
                for other in chart[place + 1 :]:
                    apart = one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] + 1 or other[3] <= one[2] + 1
                    assert apart, (width, one, other)


def test_what_scrolls_or_opens_is_reached_by_the_keyboard(browser: Browser, done: tuple[JobReport, Path]) -> None:
    browser.open(done[1], width=375)
    wanted = browser.evaluate("document.querySelectorAll('summary, section > .card > .scroll, .card > .scroll').length")
    reached = set()
    for _ in range(wanted + 3):
        browser.press_tab()
        reached.add(
            browser.evaluate(
                "(e => e.tagName == 'SUMMARY' ? 'summary ' + e.textContent : e.getAttribute('aria-label') || e.tagName)"
                "(document.activeElement)"
            )
        )
    assert {f"summary Numbers of “{title}”" for title in ("Latency", "Length of answers", "Rows a second")} < reached
    assert {"Rows by status", "Reasons of failure", "The slowest rows"} < reached


def test_without_scripts_it_is_the_same_and_on_paper_it_is_light(
    browser: Browser, done: tuple[JobReport, Path]
) -> None:
    browser.open(done[1])
    inline = browser.evaluate(
        "[...document.querySelectorAll('*')].filter(e => e.tagName == 'SCRIPT' || e.hasAttribute('src') || "
        "e.hasAttribute('href') || [...e.attributes].some(a => a.name.startsWith('on'))).length"
    )
    assert inline == 0
    browser.look(width=800, scheme="dark", media="print")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate("getComputedStyle(document.querySelector('details')).display") == "none"
    browser.look(width=1280)


def test_hostile_ids_are_text(browser: Browser, done: tuple[JobReport, Path]) -> None:
    browser.open(done[1])
    ids = texts(browser, "bdi.id")
    assert {
        "<script>alert(document.title)</script>", '"><img src=x onerror=console.log(1)>', "'; DROP TABLE rows; --",
        "\\u202egpj.elif", "שורה 7", "x" * 160, "\\u2066\\u200f\\x00", "a\\x0ab\\x09c", "\\ud800", "empty",
    } <= set(ids)  # fmt: skip
    assert browser.evaluate("document.querySelectorAll('script, img, iframe, link, object, embed').length") == 0
    content = done[1].read_text()
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200e\u200f\u0000]", content)
    assert max(len(each) for each in ids) < 200
    heights = browser.evaluate("[...document.querySelectorAll('bdi.id')].map(e => e.getBoundingClientRect().height)")
    assert max(heights) < 200


def test_no_content_of_a_row_is_on_it(done: tuple[JobReport, Path]) -> None:
    content = done[1].read_text()
    output = (done[1].parent / "out.jsonl").read_text()
    assert SECRET in output
    for piece in (SECRET, "the row", "says so"):
        assert piece not in content
    assert "minimum" in content and "email" in content and "max_tokens" in content, "what names our own things is told"


def test_a_job_without_rows_has_a_page_too(browser: Browser, tmp_path: Path) -> None:
    _, page = varied_job(tmp_path, [])
    browser.open(page, width=375)
    assert "The output holds no rows." in texts(browser, ".verdict")[0]
    assert figure(browser, "rows") == "0" and texts(browser, "figure.chart") == []
    assert browser.console == [] and browser.evaluate("document.documentElement.scrollWidth") <= 375


def test_one_row_and_rows_that_were_never_computed_have_a_page_too(browser: Browser, tmp_path: Path) -> None:
    _, page = varied_job(tmp_path, [{"id": "a", "text": "one"}])
    browser.open(page)
    assert texts(browser, "#slowest tbody tr") and len(texts(browser, "figure.chart")) == 4
    (tmp_path / "second").mkdir()
    report, page = varied_job(tmp_path / "second", [{"id": "b", "text": "@schema"}])
    browser.open(page)
    assert report.statuses == {"refused": 1} and len(texts(browser, "figure.chart")) == 2
    assert "refused or blocked before anything was computed" in browser.evaluate("document.body.textContent")
    assert browser.console == []
