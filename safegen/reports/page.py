"""The page around a report's numbers and charts: one HTML file that needs nothing else.

It runs no script and its policy forbids to load anything, so it is as safe to open as to mail. It reads in the order
in which it is written; every chart has its numbers in a table that opens beneath it, and what is wider than a phone
scrolls within itself and can be reached by the keyboard. The style is `page.css`, in light and dark, and for paper.

Arguments called `html` or `cells` are markup already; all others are text and are escaped here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

Scope = Literal["output", "run"]
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_SCOPES = {"output": "the whole output", "run": "this run alone"}


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that is looked for first. name: of the figure in the markup. note: what it counts, in small print."""

    name: str
    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """is_number: right-aligned. css_class: of its cells."""

    title: str
    is_number: bool = False
    css_class: str = ""


def page(title: str, kind: str, heading_html: str, state: str, verdict_html: str, body_html: str) -> str:
    """title: of the window. kind: stands small above the heading. state: "good", "bad" or "open", of the verdict."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{title}</title>\n<style>\n{_style()}</style>\n</head>\n<body>\n<main>\n<header>\n"
        f'<p class="kind">{escape(kind)}</p>\n<h1>{heading_html}</h1>\n'
        f'<p class="verdict {state}" data-state="{state}"><span>{verdict_html}</span></p>\n</header>\n'
        f"{body_html}\n</main>\n</body>\n</html>\n"
    )


def section(name: str, heading: str, html: str, scope: Scope | None = None, intro_html: str = "") -> str:
    """scope: what its numbers are of."""
    told = "" if scope is None else f' <span class="scope {scope}">{_SCOPES[scope]}</span>'
    intro = f'<p class="intro">{intro_html}</p>\n' if intro_html else ""
    return (
        f'<section aria-labelledby="{name}">\n<h2 id="{name}"><span>{escape(heading)}</span>{told}</h2>\n'
        f"{intro}{html}\n</section>"
    )


def figures(given: Sequence[Figure]) -> str:
    """Tiles in a row, as many as fit."""
    tiles = "\n".join(
        f'<div><dt>{escape(each.label)}</dt><dd data-figure="{each.name}">{escape(each.value)}</dd>'
        + (f'<dd class="note">{escape(each.note)}</dd>' if each.note else "")
        + "</div>"
        for each in given
    )
    return f'<dl class="figures">\n{tiles}\n</dl>'


def facts(given: Sequence[tuple[str, str]]) -> str:
    """Names and values (markup) in small print."""
    rows = "\n".join(f"<div><dt>{escape(name)}</dt><dd>{html}</dd></div>" for name, html in given)
    return f'<dl class="facts">\n{rows}\n</dl>'


def charts(given: Sequence[str]) -> str:
    """Side by side where there is room."""
    return '<div class="charts">\n' + "\n".join(given) + "\n</div>"


def chart(
    name: str,
    title: str,
    unit: str,
    drawing_html: str,
    *,
    columns: Sequence[Column],
    cells: Sequence[Sequence[str]],
    legend_html: str = "",
    below_html: str = "",
    x_title: str = "",
) -> str:
    """A drawing with its title, its unit, and its numbers in a table that opens beneath. below_html: what is worth
    reading off."""
    axis = f'<p class="x-title" aria-hidden="true">{escape(x_title)}</p>' if x_title else ""
    below = f'<p class="below">{below_html}</p>\n' if below_html else ""
    return (
        f'<figure class="chart" id="chart-{name}">\n<figcaption><b>{escape(title)}</b> <span>{escape(unit)}</span>'
        f'</figcaption>\n{legend_html}<div class="frame">{drawing_html}</div>\n{axis}{below}'
        f"<details><summary>Numbers<span> of “{escape(title)}”</span></summary>\n"
        f"{table(title, columns, cells, is_plain=True)}\n</details>\n</figure>"
    )


def table(
    caption: str, columns: Sequence[Column], cells: Sequence[Sequence[str]], *, is_plain: bool = False, name: str = ""
) -> str:
    """A table that scrolls in itself if it must. The first cell of a row names it. is_plain: small."""
    heads = "".join(f'<th scope="col"{_class(column)}>{escape(column.title)}</th>' for column in columns)
    rows = "\n".join(
        "<tr>"
        + "".join(
            f"<{'th scope=' + chr(34) + 'row' + chr(34) if place == 0 else 'td'}{_class(column)}>{cell}"
            f"</{'th' if place == 0 else 'td'}>"
            for place, (column, cell) in enumerate(zip(columns, row))
        )
        + "</tr>"
        for row in cells
    )
    kind = "scroll plain" if is_plain else "scroll"
    named = f' id="{name}"' if name else ""
    return (
        f'<div class="{kind}" role="region" aria-label="{escape(caption)}" tabindex="0"><table{named}>'
        f"<caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def _class(column: Column) -> str:
    names = " ".join(name for name in ("number" if column.is_number else "", column.css_class) if name)
    return f' class="{names}"' if names else ""


@functools.cache
def _style() -> str:
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8")
