"""A batch job on two processes: Ray Data hands the rows out, each worker holds the model, this process alone writes.

The same call on a cluster: `ray_address="auto"` on one of its machines, and as many workers as there are machines.
Needs `pip install 'safegen[ray]'`.
"""

import json
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from safegen import LLM


class Ticket(BaseModel):
    customer: str = Field(max_length=24)
    topic: Literal["delivery", "payment", "product"]
    urgent: bool


MAILS = [
    "Maria Lopez writes: my parcel has not come yet, and I leave tomorrow!",
    "Ken Adams writes: I was charged twice for one order.",
    "Aiko Tanaka writes: does the kettle come in red?",
]
PROMPT = "Read this mail into a ticket.\n\n{mail}"


def answers(output: Path) -> dict[str, object]:
    """What each row came to, by its key."""
    records = [json.loads(line) for line in output.read_text().splitlines()]
    return {record["key"]: (record["status"], record["value"]) for record in records}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        given, on_ray, alone = (Path(folder) / name for name in ("mails.jsonl", "ray.jsonl", "alone.jsonl"))
        given.write_text("".join(json.dumps({"id": number, "mail": MAILS[number % 3]}) + "\n" for number in range(12)))

        # Without weights: this process only reads and writes, so the model is in memory twice and not three times.
        with LLM.without_weights(max_num_seqs=4) as llm:
            report = llm.run_job(
                given, on_ray, Ticket, prompt=PROMPT, max_tokens=80, engine="ray", num_workers=2, progress="off"
            )
        print(f"{report.rows} rows on two workers in {report.seconds:.1f} s")

        with LLM(max_num_seqs=4) as llm:
            llm.run_job(given, alone, Ticket, prompt=PROMPT, max_tokens=80, progress="off")
        ok = report.statuses["ok"]
        print(f"{ok} of {report.rows} ok, the same as in one process: {answers(on_ray) == answers(alone)}")


if __name__ == "__main__":
    main()
