"""Random ECMA-262 patterns and texts for differential tests, and node.js as the oracle where it is installed."""

from __future__ import annotations

import json
import random
import shutil
import subprocess

ALPHABET = "ab01_ -é\nÀ\u2028😀"
ATOMS = ["a", "b", "0", "_", "-", "é", "😀", ".", "ab", " ", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", r"\n"]
CLASSES = ["[ab]", "[^a]", "[a-z]", r"[\d_]", r"[^\w]", "[0-9a]", "[-a]", r"[\]-a]", "[é-ü]", "[]", "[^]"]
UNICODE_ATOMS = [
    r"\p{L}",
    r"\P{Lu}",
    r"\p{Nd}",
    r"[\p{Ll}0]",
    r"\u{1F600}",
    r"\u0061",
    r"\uD83D\uDE00",
    r"\x62",
    r"\cJ",
]
COUNTS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,}", "{1,3}?", "{0}"]


def random_pattern(rng: random.Random, depth: int, *, atoms: list[str], looks: list[str], anchors: list[str]) -> str:
    """A pattern of the grammar spanned by the given pieces."""

    def recurse() -> str:
        return random_pattern(rng, depth - 1, atoms=atoms, looks=looks, anchors=anchors)

    kind = rng.random()
    if depth == 0 or kind < 0.25:
        return rng.choice(atoms)
    if kind < 0.35 and anchors:
        return rng.choice(anchors)
    if kind < 0.5:
        return recurse() + recurse()
    if kind < 0.62:
        return f"(?:{recurse()}|{recurse()})"
    if kind < 0.7:
        return f"({recurse()})"
    if kind < 0.78 and looks:
        return rng.choice(looks) + recurse() + ")"
    return f"(?:{recurse()}){rng.choice(COUNTS)}"


def random_text(rng: random.Random, alphabet: str = ALPHABET) -> str:
    return "".join(rng.choice(alphabet) for _ in range(rng.randrange(8)))


def node_available() -> bool:
    return shutil.which("node") is not None


_PROGRAM = """
const rows = JSON.parse(require("fs").readFileSync(0));
console.log(JSON.stringify(rows.map(([pattern, flags, texts]) => {
  let regex;
  try { regex = new RegExp(pattern, flags); } catch (error) { return null; }
  return texts.map(text => regex.test(text));
})));
"""


def node_search(rows: list[tuple[str, str, list[str]]]) -> list[list[bool] | None]:
    """For each (pattern, flags, texts) the verdicts of node.js, None where the pattern is a syntax error."""
    done = subprocess.run(
        ["node", "-e", _PROGRAM], input=json.dumps(rows), capture_output=True, text=True, check=True, timeout=120
    )
    verdicts: list[list[bool] | None] = json.loads(done.stdout)
    return verdicts
