"""Pages that tell how work went: one HTML file each, which opens anywhere and asks nothing of anybody.

- `streaming` counts without end in bounded memory; `scales` finds round numbers and writes them.
- `hostile` makes text that others wrote harmless; `charts` draws SVG; `page` puts a page around it.

A page holds its style and its drawings itself, runs no script, and forbids by its own policy that anything is loaded.
What a job's page and a load test's page say is in `safegen.jobs.html_report` and `safegen.load.html_report`.
"""
