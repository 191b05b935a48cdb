"""Files of the default model with changed bytes, or cut: each loads and answers, or is a ModelLoadError.

In a process of its own, since what must not happen is a crash. Most changes hit the header and the metadata, where each
byte means something; changed weights can only change the logits.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import os, random, shutil, sys
from safegen import LLM
from safegen.engine.locate import locate_model
from safegen.errors import ModelLoadError

path, rng = sys.argv[1], random.Random(int(sys.argv[2]))
shutil.copy(locate_model(), path)
size, end_of_metadata = os.path.getsize(path), 1_785_000
outcomes = {"refused": 0, "loaded": 0}

def judge():
    try:
        with LLM(path, kv_cache_memory=20_000_000) as llm:
            statuses = {llm.generate("hi", spec, max_tokens=2).status for spec in (None, bool)}
        assert statuses <= {"ok", "truncated", "error"}, statuses
        outcomes["loaded"] += 1
    except ModelLoadError as error:
        assert str(error).startswith(path), error
        outcomes["refused"] += 1

for number in range(int(sys.argv[3])):
    low, high = rng.choice([(0, 1500), (0, 1500), (0, end_of_metadata), (end_of_metadata - 20_000, size)])
    changed = []
    with open(path, "r+b") as file:
        for _ in range(rng.choice([1, 1, 4])):
            place = rng.randrange(low, high)
            file.seek(place)
            changed.append((place, file.read(1)))
            file.seek(place)
            file.write(rng.choice([bytes([changed[-1][1][0] ^ 1 << rng.randrange(8)]), b"\\xff", b"\\0"]))
    judge()
    with open(path, "r+b") as file:
        for place, byte in reversed(changed):
            file.seek(place)
            file.write(byte)
for cut in (90_000_000, 1_900_000, 1_700_000, 900, 23, 3, 0):
    os.truncate(path, cut)
    judge()
print(outcomes["refused"], outcomes["loaded"])
"""


def test_no_damage_to_a_model_file_crashes_or_escapes_the_error_tree(tmp_path: Path, full: bool) -> None:
    num_changes = 600 if full else 40
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    ended = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "damaged.gguf"), "11", str(num_changes)],
        capture_output=True, text=True, env=environment, timeout=550,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    refused, loaded = (int(count) for count in ended.stdout.split())
    assert refused + loaded == num_changes + 7
    assert refused > num_changes // 3 and loaded > 2
