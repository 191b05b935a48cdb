"""What the output of a benchmark keeps of one schema: refusals with their reason, wrong tests, times, slow masks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.common.vocabularies import BenchVocabulary
from benchmarks.common.walks import SchemaResult, Task

SLOW_MASK_US = 200.0


def wrong_tests(task: Task, result: SchemaResult) -> tuple[list[int], list[int]]:
    """(indexes of invalid texts accepted, of valid texts rejected)."""
    pairs = [(i, valid, text.accepted) for i, ((valid, _), text) in enumerate(zip(task.tests, result.texts))]
    accepted = [i for i, valid, was_accepted in pairs if was_accepted and not valid]
    return accepted, [i for i, valid, was_accepted in pairs if valid and not was_accepted]


def row_of(task: Task, results: Mapping[str, SchemaResult | None], vocabulary: BenchVocabulary) -> dict[str, object]:
    """What the JSON file keeps of one schema: refusals with reason, wrong tests, times, and where slow masks stand."""
    row: dict[str, object] = {"name": task.name}
    for engine, result in results.items():
        if result is None:
            continue
        if result.refused is not None:
            row[engine] = {"refused": result.refused[:300], "pointer": result.pointer, "keyword": result.keyword}
            continue
        over, under = wrong_tests(task, result)
        entry: dict[str, object] = {"compile_ms": round(result.compile_ms, 4)}
        masks = [us for text in result.texts for us in text.mask_us]
        if masks:
            entry |= {"masks": len(masks), "mask_us_mean": round(statistics.fmean(masks), 3)}
        entry |= {"wrong_accept": over} if over else {}
        entry |= {"wrong_reject": [_where(task, result, i, vocabulary) for i in under]} if under else {}
        errors = sorted({text.error for text in result.texts if text.error})
        entry |= {"errors": errors} if errors else {}
        slow = _slow_masks(task, result, vocabulary)
        row[engine] = entry | ({"slow_masks": slow} if slow else {})
    return row


def _where(task: Task, result: SchemaResult, index: int, vocabulary: BenchVocabulary) -> dict[str, object]:
    position = len(result.texts[index].mask_us) - 1
    return {"test": index, **_place(task.tests[index][1], position, vocabulary)}


def _place(ids: Sequence[int], position: int, vocabulary: BenchVocabulary) -> dict[str, object]:
    """The text around a token: its end before it, and the token itself (empty for the stop id)."""
    spelled = [vocabulary.token_bytes[i] or b"" for i in ids]
    before = b"".join(spelled[:position])[-60:].decode(errors="replace")
    return {
        "position": position,
        "before": before,
        "token": b"".join(spelled[position : position + 1]).decode("latin-1"),
    }


def _slow_masks(task: Task, result: SchemaResult, vocabulary: BenchVocabulary) -> list[dict[str, object]]:
    """The three slowest masks of a schema beyond SLOW_MASK_US."""
    slow = sorted(
        ((us, test, at) for test, text in enumerate(result.texts) for at, us in enumerate(text.mask_us)), reverse=True
    )
    return [
        {"us": round(us, 1), "test": test, **_place(task.tests[test][1], at, vocabulary)}
        for us, test, at in slow[:3]
        if us > SLOW_MASK_US
    ]
