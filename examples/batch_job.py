"""A batch job: a file of support mails, each read into a typed ticket, exactly once, however often the job is run."""

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


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, LLM() as llm:
        given, output = Path(folder) / "mails.jsonl", Path(folder) / "tickets.jsonl"
        lines = [json.dumps({"id": number, "mail": MAILS[number % 3]}) for number in range(11)]
        given.write_text("\n".join([*lines[:5], '{"id": 99, "mail": broken', *lines[5:]]) + "\n")

        report = llm.run_job(given, output, Ticket, prompt=PROMPT, max_tokens=80)
        for line in output.read_text().splitlines()[:3]:
            record = json.loads(line)
            print(record["id"], record["status"], record["value"])
        print(f"{report.rows} rows in {report.seconds:.1f} s")

        again = llm.run_job(given, output, Ticket, prompt=PROMPT, max_tokens=80, progress="off")
        ok, refused = again.statuses["ok"], again.statuses["refused"]
        print(f"{ok + refused} rows: {ok} ok, {refused} refused; run again, it asked {again.rows} of them")


if __name__ == "__main__":
    main()
