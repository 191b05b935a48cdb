"""A job in a process of its own, to be killed: `python -m tests.support.job_worker fake|default INPUT OUTPUT...`.

It says "begun" when everything is loaded. Each row of the fake takes a fraction of a millisecond.
"""

from __future__ import annotations

import sys

from safegen.llm import LLM
from safegen.types import Regex
from tests.support.job_fakes import fake_llm

PROMPT = "Name a number that fits: {text}"


def main() -> None:
    kind, given, *outputs = sys.argv[1:]
    llm = fake_llm(delay_s=0.0002, remember=False) if kind == "fake" else LLM(max_num_seqs=16)
    spec = None if kind == "fake" else Regex("[0-9]{2}")
    print("begun", flush=True)
    for output in outputs:
        report = llm.run_job(given, output, spec, prompt=PROMPT, temperature=1.0, seed=11, progress="off")
        print(report.exit_code, report.rows, report.skipped)


if __name__ == "__main__":
    main()
