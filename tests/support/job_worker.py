"""A job in a process of its own, to be killed: `python -m tests.support.job_worker fake|default|ray INPUT OUTPUT...`.

It says "begun" when everything is loaded. Each row of the fake takes a fraction of a millisecond. "ray" is the fake on
two workers of a Ray of its own.
"""

from __future__ import annotations

import sys
from typing import Any

from safegen.llm import LLM
from safegen.types import Regex
from tests.support.job_fakes import fake_llm

PROMPT = "Name a number that fits: {text}"
OPTIONS: dict[str, Any] = {"temperature": 1.0, "seed": 11}


def main() -> None:
    kind, given, *outputs = sys.argv[1:]
    delay_s = 0.002 if kind == "ray" else 0.0002
    llm = LLM(max_num_seqs=16) if kind == "default" else fake_llm(delay_s=delay_s, remember=False)
    spec = Regex("[0-9]{2}") if kind == "default" else None
    where: dict[str, Any] = {"engine": "ray", "num_workers": 2} if kind == "ray" else {}
    print("begun", flush=True)
    for output in outputs:
        report = llm.run_job(given, output, spec, prompt=PROMPT, progress="off", **OPTIONS, **where)
        print(report.exit_code, report.rows, report.skipped)


if __name__ == "__main__":
    main()
