"""The playground in a browser: by keyboard alone, on a phone, in both schemes, and under a model that writes markup."""

from __future__ import annotations

import json
from typing import Any

import pytest

from safegen.guards import Guards
from safegen.server.auth import ApiKey, key_digest
from tests.server.clients import settled
from tests.server.harness import KEY, Live, live, slow_runtime
from tests.support.browser import Browser
from tests.support.guards import Ssn
from tests.support.sdk_fakes import ScriptedBackend, make_runtime

HOSTILE = "<img src=x onerror=alert(1)><script>document.title='owned'</script>&lt;b&gt;"
READY = "document.getElementById('connection').dataset.state === 'good'"
ENDED = "document.getElementById('output').getAttribute('aria-busy') === 'false'"
SMALL = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}

# Texts whose contrast with what is behind them is too small (WCAG AA); what is disabled is exempt.
CONTRAST = """(() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = (rgb) => {
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const node of document.querySelectorAll("body *")) {
    const hasText = [...node.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
    const isField = node.matches("input, select, textarea");
    const isExempt = node.closest(":disabled, [aria-disabled=true], script, style");
    if ((!hasText && !isField) || !node.checkVisibility() || isExempt) continue;
    const a = light(parse(getComputedStyle(node).color));
    const b = light(ground(node));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(`${node.outerHTML.slice(0, 80)}: ${ratio.toFixed(2)}`);
  }
  return low;
})()"""

UNNAMED = """[...document.querySelectorAll('input, select, textarea, button')]
  .filter((each) => !(each.labels && each.labels.length) && !each.textContent.trim())
  .map((each) => each.outerHTML.slice(0, 80))"""


def text_of(browser: Browser, element: str) -> str:
    return str(browser.evaluate(f"document.getElementById({element!r}).textContent"))


def joined(browser: Browser, selector: str) -> str:
    return str(browser.evaluate(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent).join('')"))


def fill(browser: Browser, element: str, text: str) -> None:
    """Into a field, as a reader would."""
    browser.evaluate(
        f"(() => {{ const e = document.getElementById({element!r});"
        "for (const each of document.querySelectorAll('details')) each.open = true; e.focus(); e.select(); })()"
    )
    browser.type_text(text)


def choose(browser: Browser, kind: str) -> None:
    browser.evaluate(f"document.querySelector('#kinds input[value={kind}]').click()")


def opened(browser: Browser, server: Live, **look: Any) -> None:
    browser.open(f"{server.url}/", **look)
    browser.wait_for(READY)


def run(browser: Browser, *, until: str = ENDED) -> None:
    browser.evaluate("document.getElementById('run').click()")
    browser.wait_for(f"({until}) && !document.getElementById('run').hasAttribute('aria-disabled')")


def nothing_came_in(browser: Browser, server: Live, *failed: str) -> None:
    """No complaint but of answers that are errors, no request elsewhere, no element that was not the page's own."""
    assert [each for each in browser.console if not any(text in each for text in failed)] == []
    assert all(url.startswith((server.url, "data:")) for url in browser.requests)
    assert browser.evaluate("[document.images.length, document.scripts.length, document.title]") == [
        0, 1, "safegen playground",
    ]  # fmt: skip


def test_a_run_by_keyboard_alone(browser: Browser) -> None:
    with live(make_runtime()) as server:
        opened(browser, server)
        seen: list[str] = []
        for _ in range(14):
            browser.press_tab()
            seen.append(browser.evaluate("document.activeElement.id || document.activeElement.value"))
            outlined = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            assert outlined or seen[-1] == "json_schema", "where the focus is can be seen; of a kind, by its label"
            if seen[-1] == "json_schema":  # the first of the kinds; arrows move among them
                browser.press("ArrowRight")
                assert browser.evaluate("document.activeElement.value") == "regex"
            if seen[-1] == "source":
                browser.press("a", ctrl=True)
                browser.type_text("(ab|cd)-[0-9]{3}")
            if seen[-1] == "prompt":
                break
        assert seen[-3:] == ["json_schema", "source", "prompt"], seen
        browser.press("Enter", ctrl=True)
        browser.wait_for("document.getElementById('status').dataset.state === 'good'")
        answer = text_of(browser, "output")
        assert len(answer) == 6 and answer[2] == "-" and browser.evaluate("document.activeElement.id") == "prompt"
        assert joined(browser, "#output .forced") in ("b-", "d-")
        assert text_of(browser, "status").startswith("Valid · 6 tokens")
        reached: list[str] = []
        for _ in range(12):
            browser.press_tab()
            reached.append(browser.evaluate("document.activeElement.id || document.activeElement.localName"))
        assert [each for each in reached if each in ("summary", "run", "copy")] == ["summary", "run", "copy"]
        nothing_came_in(browser, server)


def test_escape_cancels_and_the_engine_stops(browser: Browser) -> None:
    with live(slow_runtime(0.01)) as server:
        opened(browser, server)
        choose(browser, "text")
        fill(browser, "max-tokens", "1500")
        fill(browser, "prompt", "go on")
        browser.press("Enter", ctrl=True)
        browser.wait_for("document.querySelectorAll('#output .t').length > 3")
        assert browser.evaluate("document.getElementById('output').getAttribute('aria-busy')") == "true"
        assert browser.evaluate("document.getElementById('cancel').hidden") is False
        browser.press("Escape")
        browser.wait_for(ENDED)
        assert text_of(browser, "status").startswith("Cancelled after")
        assert settled(server)
        nothing_came_in(browser, server)


def test_markup_of_the_model_and_of_the_schema_is_text(browser: Browser) -> None:
    schema = {"type": "object", "properties": {HOSTILE: {"enum": [HOSTILE]}}, "required": [HOSTILE],
              "additionalProperties": False}  # fmt: skip
    with live(make_runtime(ScriptedBackend(HOSTILE))) as server:
        opened(browser, server)
        choose(browser, "text")
        run(browser)
        assert text_of(browser, "output") == HOSTILE
        choose(browser, "json_schema")
        fill(browser, "source", json.dumps(schema))
        run(browser)
        assert json.loads(text_of(browser, "output")) == {HOSTILE: HOSTILE}
        fill(browser, "text", json.dumps({HOSTILE: "no"}))
        browser.press("Enter", ctrl=True)
        browser.wait_for("document.querySelector('#why .verdict')")
        assert HOSTILE in text_of(browser, "why")
        wrong = {"type": "object", "properties": {HOSTILE: {"type": "<b>string</b>"}}}
        fill(browser, "source", json.dumps(wrong))
        run(browser, until="!document.getElementById('failure').hidden")
        assert "onerror=alert(1)" in text_of(browser, "failure")
        nothing_came_in(browser, server, "status of 400")


def test_errors_show_the_place_and_lead_to_it(browser: Browser) -> None:
    def selected() -> str:
        return str(
            browser.evaluate("(() => { const e = document.activeElement;"
                             "return e.value.slice(e.selectionStart, e.selectionEnd); })()")
        )  # fmt: skip

    with live(make_runtime()) as server:
        opened(browser, server)
        wrong = {**SMALL, "properties": {"ok": {"type": "boolean"}, "n~/": {"type": "integer", "minimum": "x"}}}
        fill(browser, "source", json.dumps(wrong, indent=2))
        run(browser, until="!document.getElementById('failure').hidden")
        assert "#/properties/n~0~1" in text_of(browser, "failure")
        browser.evaluate("document.querySelector('#failure .link').click()")
        assert selected() == '"minimum"'
        fill(browser, "source", '{"type": }')
        browser.evaluate("document.getElementById('run').click()")
        assert text_of(browser, "source-error") == "The schema is not JSON: line 1, column 10" and selected() == "}"
        assert browser.evaluate("document.getElementById('failure').hidden"), "an old failure is no longer shown"
        choose(browser, "grammar")
        fill(browser, "source", 'start: "a" | other\n')
        run(browser, until="!document.getElementById('failure').hidden")
        browser.evaluate("document.querySelector('#failure .link').click()")
        assert "line 1, column 14" in text_of(browser, "failure") and selected() == "o"
        fill(browser, "temperature", "9")
        browser.evaluate("document.getElementById('run').click()")
        assert "Temperature" in text_of(browser, "failure")
        assert browser.evaluate("document.activeElement.id") == "temperature"
        nothing_came_in(browser, server, "status of 400")


def test_numbers_of_a_schema_reach_the_server_as_they_were_typed(browser: Browser) -> None:
    with live(make_runtime()) as server:
        opened(browser, server)
        fill(browser, "source", '{"enum": [12345678901234567890123, 1.10]}')
        run(browser)
        assert text_of(browser, "output") in ("12345678901234567890123", "1.10", "1.1")
        fill(browser, "text", "12345678901234567890123")
        browser.evaluate("document.getElementById('explain').click()")
        browser.wait_for("document.querySelector('#why .verdict.good')")


def test_a_key_is_asked_for_and_kept_in_memory_alone(browser: Browser) -> None:
    with live(make_runtime(), keys=(ApiKey("one", key_digest(KEY)),)) as server:
        browser.open(f"{server.url}/")
        browser.wait_for("document.activeElement.id === 'key'")
        assert text_of(browser, "connection") == "asks for an API key"
        browser.type_text("not the key at all")
        browser.press("Enter")
        browser.wait_for("document.getElementById('connection').textContent === 'the key is not valid'")
        fill(browser, "key", KEY)
        browser.press("Enter")
        browser.wait_for(READY)
        assert browser.evaluate("document.getElementById('key-row').hidden")
        choose(browser, "choice")
        run(browser)
        assert text_of(browser, "output") in ("positive", "negative", "mixed")
        assert browser.evaluate("[localStorage.length, sessionStorage.length, document.cookie, location.search]") == [
            0, 0, "", "",
        ]  # fmt: skip
        assert not any(KEY in url for url in browser.requests)
        nothing_came_in(browser, server, "status of 401")
        browser.open(f"{server.url}/")
        browser.wait_for("document.activeElement.id === 'key'")
        assert browser.evaluate("document.getElementById('key').value") == ""


@pytest.mark.parametrize("on_fail", ["redact", "block"])
def test_what_guards_hide_never_enters_the_page(browser: Browser, on_fail: Any) -> None:
    script = "her number is 123-45-6789, she says"
    with live(make_runtime(ScriptedBackend(script), guards=Guards([Ssn(on_fail=on_fail)]))) as server:
        opened(browser, server)
        choose(browser, "text")
        browser.evaluate(
            "window.seen = []; new MutationObserver(() => window.seen.push(document.body.textContent))"
            ".observe(document.body, { childList: true, subtree: true, characterData: true })"
        )
        run(browser)
        assert browser.evaluate("window.seen.length") > 0
        assert not browser.evaluate("window.seen.some((text) => text.includes('is 1') || text.includes('6789,'))")
        assert on_fail in text_of(browser, "guard-list") and "ssn" in text_of(browser, "guard-list")
        untold = joined(browser, "#output .untold")
        if on_fail == "redact":
            assert untold.endswith("[SSN], she says") and text_of(browser, "status").startswith("Complete")
        else:
            assert text_of(browser, "output") == "her number is " and "guard" in text_of(browser, "status")
        nothing_came_in(browser, server)


def test_the_page_fits_every_window_and_can_be_read_in_both_schemes(browser: Browser) -> None:
    with live(make_runtime(guards=Guards([Ssn(on_fail="redact")]))) as server:
        for width, scheme in ((320, "light"), (375, "dark"), (800, "light"), (1280, "dark"), (1600, "light")):
            browser.look(width=width)
            opened(browser, server, width=width, scheme=scheme)
            for kind in ("tools", "json_schema"):
                choose(browser, kind)
                run(browser)
                browser.evaluate("document.getElementById('explain').click()")
                browser.wait_for("document.querySelector('#why .verdict')")
                assert browser.evaluate("document.documentElement.scrollWidth") <= width
                assert browser.evaluate(CONTRAST) == []
            assert browser.evaluate(UNNAMED) == []
        assert browser.evaluate("document.querySelectorAll('#timings dd').length") >= 5
        nothing_came_in(browser, server)


def test_indentation_is_shown_and_is_no_part_of_the_answer(browser: Browser) -> None:
    with live(make_runtime()) as server:
        opened(browser, server)
        fill(browser, "source", json.dumps(SMALL))
        run(browser)
        shown = text_of(browser, "output")
        assert shown in ('{\n  "ok": true\n}', '{\n  "ok": false\n}')
        browser.evaluate("document.getElementById('use-answer').click()")
        assert browser.evaluate("document.getElementById('text').value") == shown.replace("\n", "").replace(" ", "")
        browser.evaluate("document.getElementById('format').click()")
        assert text_of(browser, "output") == shown.replace("\n", "").replace(" ", "")
