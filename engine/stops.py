"""Stop strings, found on output bytes as they come.

The rule is that of a reader who takes the output byte by byte and stops at the first byte that completes a stop
string; of several completed there, the longest counts. So the verdict does not depend on how the text was cut into
tokens, and a match is found in the step in which it occurs, however many tokens it spans. Stop strings completed within
the first min_tokens - 1 tokens are passed over, as in vLLM; the text before a match may then still be shorter than
min_tokens tokens, because a match may start in an earlier token than it ends in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """stop: the string that matched. start_byte: where it starts in the output, which is where the answer ends."""

    stop: str
    start_byte: int


class StopMatcher:
    """Searches the output of one sequence. Keeps only the bytes that a match could still begin in."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._patterns = [(stop, stop.encode("utf-8", "surrogatepass")) for stop in stops]
        self._keep_bytes = max((len(pattern) for _, pattern in self._patterns), default=1) - 1
        self._tail = b""
        self.num_bytes = 0

    def feed(self, new_bytes: bytes, *, honoured: bool = True) -> StopMatch | None:
        """Append a token's bytes; the first match that ends among them. honoured False: matches are passed over."""
        if not self._patterns:
            self.num_bytes += len(new_bytes)
            return None
        window_start = self.num_bytes - len(self._tail)
        window = self._tail + new_bytes
        self.num_bytes += len(new_bytes)
        match = self._first_match(window) if honoured else None
        self._tail = window[max(0, len(window) - self._keep_bytes) :]
        return None if match is None else StopMatch(match[2], window_start + match[1])

    def rewind(self, output: bytes) -> None:
        """Go back to where `output`, a beginning of what was fed, is all there is. Matches in it were passed over."""
        self.num_bytes = len(output)
        self._tail = output[max(0, len(output) - self._keep_bytes) :]

    def _first_match(self, window: bytes) -> tuple[int, int, str] | None:
        """(end, start, stop) of the match that ends first, the longest of those."""
        first: tuple[int, int, str] | None = None
        for stop, pattern in self._patterns:
            start = window.find(pattern, max(0, len(self._tail) - len(pattern) + 1))
            if start >= 0 and (first is None or (start + len(pattern), start) < first[:2]):
                first = (start + len(pattern), start, stop)
        return first
