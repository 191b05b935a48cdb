"""Whether two models speak in the same tokens, without which one cannot draft for the other."""

from __future__ import annotations

from collections.abc import Sequence as Ids

from safegen.errors import ModelLoadError


def check_same_vocabulary(
    target: Ids[bytes | None], draft: Ids[bytes | None], target_path: str, draft_path: str
) -> None:
    """target, draft: bytes of every token id, None for those that stand for no text. Raises ModelLoadError, which names
    both models and the first id that differs."""
    if list(target) == list(draft):
        return
    place = next((at for at, pair in enumerate(zip(target, draft)) if pair[0] != pair[1]), min(len(target), len(draft)))
    raise ModelLoadError(
        f"the draft model's vocabulary is not that of {target_path}: token id {place} is {_spelled(draft, place)}, "
        f"there it is {_spelled(target, place)}",
        path=draft_path,
        hint="choose a draft model of the same family, whose tokenizer is the same",
    )


def _spelled(token_bytes: Ids[bytes | None], place: int) -> str:
    if place >= len(token_bytes):
        return f"not there (it has {len(token_bytes)} ids)"
    text = token_bytes[place]
    return "a control token" if text is None else repr(text)
