"""Attacks on the prompt: heuristics over decoded layers and windows, and optionally a local classifier.

Hits of phrases (see `phrases`) are counted within windows of `WINDOW` octets, each phrase once; a window
whose weights reach `threshold` is a finding. Every layer (see `layers`) is judged by itself.

What it cannot promise: an attack in other words passes. The heuristics catch known kinds in whatever spelling; a
classifier knows more kinds, and is fooled in its own ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from safegen.errors import RequestError
from safegen.guards.base import Guard, GuardView, Match, Stage
from safegen.guards.injection.layers import Layer, layers
from safegen.guards.injection.phrases import DIRECT, INDIRECT, THRESHOLD, Phrase
from safegen.guards.reading import read

if TYPE_CHECKING:
    from safegen.guards.classifier import Classifier

WINDOW = 1200


class Hit(NamedTuple):
    start: int
    end: int
    phrase: int
    rule: str
    weight: float


class PromptInjection(Guard):
    """Orders that a prompt smuggles in. Runs on input; by default on the messages of users and tools.

    threshold: the weight that a window must reach; lower finds more and errs more. indirect: whether
    wishes about the answer count: "tool" (default) in messages of tools only, True everywhere, False nowhere.
    classifier: path of a local sequence-classification model that is asked too; see Classifier for labels and
    classifier_threshold.
    """

    version = "1"
    default_stages: ClassVar[tuple[Stage, ...]] = ("input",)

    def __init__(
        self,
        *,
        threshold: float = THRESHOLD,
        indirect: bool | str = "tool",
        classifier: str | None = None,
        labels: Sequence[str] | None = None,
        classifier_threshold: float = 0.5,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 < threshold <= 3:
            raise RequestError(
                f"PromptInjection: threshold={threshold!r}; it is a number above 0, at most 3",
                field="threshold",
                value=threshold,
            )
        if indirect not in (True, False, "tool"):
            raise RequestError(
                f"PromptInjection: indirect={indirect!r}; it is 'tool', True or False", field="indirect", value=indirect
            )
        self.threshold, self.indirect = threshold, indirect
        self.classifier, self.labels, self.classifier_threshold = classifier, labels, classifier_threshold
        self._model: Classifier | None = None
        if classifier is not None:
            from safegen.guards.classifier import Classifier

            self._model = Classifier(path=classifier, labels=labels, threshold=classifier_threshold)

    def find(self, view: GuardView) -> list[Match]:
        reading = read(view.text)
        phrases = DIRECT + INDIRECT if self._minds_wishes(view) else DIRECT
        found = {
            Match(reading.start(start), max(reading.start(start) + 1, reading.end(end)), rule, min(1.0, weight / 2))
            for layer in layers(reading.octets)
            for start, end, rule, weight in self._judge(layer, phrases)
        }
        return sorted(found) + ([] if self._model is None else self._model.find(view))

    def _minds_wishes(self, view: GuardView) -> bool:
        return self.indirect is True or (self.indirect == "tool" and view.role == "tool")

    def _judge(self, layer: Layer, phrases: Sequence[Phrase]) -> Iterator[tuple[int, int, str, float]]:
        hits = apart(sorted(_hits(layer.octets, phrases)))
        for first, last, weight in clusters(hits, self.threshold):
            heaviest = max(hits[first : last + 1], key=lambda hit: hit.weight)
            end = max(hit.end for hit in hits[first : last + 1])
            name = heaviest.rule if layer.name == "plain" else f"{heaviest.rule}_in_{layer.name}"
            yield *layer.span(hits[first].start, end), name, weight


def _hits(octets: bytes, phrases: Sequence[Phrase]) -> Iterator[Hit]:
    for number, (rule, weight, pattern) in enumerate(phrases):
        for match in pattern.finditer(octets):
            yield Hit(match.start(), match.end(), number, rule, weight)


def apart(hits: Sequence[Hit]) -> list[Hit]:
    """Of hits that overlap the heaviest: what is said once counts once. hits: by start."""
    kept: list[Hit] = []
    for hit in hits:
        if kept and hit.start < kept[-1].end:
            if hit.weight > kept[-1].weight:
                kept[-1] = hit
        else:
            kept.append(hit)
    return kept


def clusters(hits: Sequence[Hit], threshold: float) -> Iterator[tuple[int, int, float]]:
    """(first, last, weight) of runs of hits whose phrases reach the threshold within a window; runs do not overlap."""
    counts: dict[int, int] = {}
    weight, first, done = 0.0, 0, 0
    run: tuple[int, int, float] | None = None
    for last, hit in enumerate(hits):
        counts[hit.phrase] = counts.get(hit.phrase, 0) + 1
        weight += hit.weight if counts[hit.phrase] == 1 else 0.0
        while hits[first].start < hit.start - WINDOW:
            counts[hits[first].phrase] -= 1
            weight -= hits[first].weight if counts[hits[first].phrase] == 0 else 0.0
            first += 1
        if weight < threshold - 1e-9:
            continue
        if run is not None and first <= run[1]:
            run = (run[0], last, max(run[2], weight))
        else:
            if run is not None:
                yield run
            run = (max(first, done), last, weight)
        done = last + 1
    if run is not None:
        yield run
