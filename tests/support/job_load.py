"""Many short rows through a job whose model costs nothing: `python -m tests.support.job_load NUM_ROWS`.

Prints one JSON object: `rows` in the output, `us_per_row` of CPU time of all threads, `growth_mib` of the peak memory.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.abuse_runner import peak_memory
from tests.support.job_fakes import fake_llm


def measure(num_rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        given, output = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        with given.open("w") as file:
            file.writelines(f'{{"id": {number}, "text": "a short row {number}"}}\n' for number in range(num_rows))
        llm = fake_llm(remember=False)
        llm.run_job(["warm up"], Path(folder) / "warm.jsonl", prompt="Say {text}", progress="off")
        peak_kib, cpu_s = peak_memory(), time.process_time()
        report = llm.run_job(given, output, prompt="Say {text}", progress="off")
        cpu_s = time.process_time() - cpu_s
        assert report.statuses == {"ok": num_rows}
        with output.open("rb") as lines:
            written = sum(1 for _ in lines)
        return {
            "rows": written,
            "us_per_row": cpu_s / num_rows * 1e6,
            "growth_mib": (peak_memory() - peak_kib) / 1024,
        }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
