"""`speculation=`: who guesses the next tokens of an answer, so that one forward can yield several of them.

A guess never changes what an answer may be, nor how likely it is; see docs/speculation.md. "auto" is
`Speculation()`, False is none. A call may leave out drafters of its LLM, not add any.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from safegen.errors import RequestError

if TYPE_CHECKING:
    from safegen.engine.speculate.base import Drafter
    from safegen.engine.tokenizer import Tokenizer

DRAFTERS = ("forced", "ngram", "model", "self")  # in the order in which they are asked


@dataclass(frozen=True, slots=True)
class Speculation:
    """drafters: any of "forced" (what the output type forces), "ngram" (what followed the same tokens before), "model"
    (what `draft_model` says) and "self" (what the model's own first layers say); they are asked in this order.

    draft_model: for an LLM, a smaller model to load beside it, named as the model itself is; it must have the same
    vocabulary, and takes part of `kv_cache_memory` for as many cache blocks. It adds "model" to the drafters.
    self_draft: for an LLM, let it draft with its own first layers; how many is measured on load. It adds "self". Both
    are left out by themselves wherever they cost more time than they save. share_outputs: let "ngram" look in earlier
    answers of the same output type too; how long an answer takes then tells something of the others.

    Raises RequestError for anything else.
    """

    drafters: tuple[str, ...] = ("forced", "ngram")
    draft_model: str | os.PathLike[str] | None = None
    self_draft: bool = False
    share_outputs: bool = False

    def __post_init__(self) -> None:
        given: object = self.drafters
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise RequestError(f"drafters takes a list of names, got {given!r}", field="speculation", value=given)
        object.__setattr__(self, "drafters", tuple(given))
        for name in self.drafters:
            if name not in DRAFTERS:
                known = ", ".join(map(repr, DRAFTERS))
                raise RequestError(
                    f"there is no drafter {name!r}; choose from {known}", field="speculation", value=name
                )
        if self.draft_model is not None and not isinstance(self.draft_model, str | os.PathLike):
            raise RequestError(
                f"draft_model takes a path or a hub id, got {self.draft_model!r}",
                field="speculation",
                value=self.draft_model,
            )
        for field in ("self_draft", "share_outputs"):
            if not isinstance(getattr(self, field), bool):
                raise RequestError(
                    f"{field} must be True or False, got {getattr(self, field)!r}",
                    field="speculation",
                    value=getattr(self, field),
                )
        implied = {"model": self.draft_model is not None, "self": self.self_draft}
        named = {*self.drafters, *(name for name, is_implied in implied.items() if is_implied)}
        object.__setattr__(self, "drafters", tuple(name for name in DRAFTERS if name in named))


OFF = Speculation(drafters=())


def resolve(value: object) -> Speculation:
    """What the argument of an LLM means. Raises RequestError."""
    if value is False:
        return OFF
    if isinstance(value, str) and value == "auto":
        return Speculation()
    if isinstance(value, Speculation):
        return value
    raise RequestError(
        f"speculation={value!r} is unknown; choose 'auto', False or a Speculation", field="speculation", value=value
    )


def resolve_load(value: object) -> Speculation:
    """What the argument of an LLM means, everything that it needs included. Raises RequestError."""
    found = resolve("auto" if value is None else value)
    for name, is_there, fix in (
        ("model", found.draft_model is not None, "draft_model=..."),
        ("self", found.self_draft, "self_draft=True"),
    ):
        if name in found.drafters and not is_there:
            raise RequestError(f"drafter {name!r} needs {fix}", field="speculation", value=value)
    return found


def resolve_call(value: object, of_llm: Speculation) -> Speculation:
    """What the argument of a call means: None and "auto" are what the LLM does. Raises RequestError, also for a
    drafter that the LLM does not have."""
    if value is None or (isinstance(value, str) and value == "auto"):
        return of_llm
    found = resolve(value)
    missing = [name for name in found.drafters if name not in of_llm.drafters]
    if missing:
        raise RequestError(
            f"drafter {missing[0]!r} is not loaded: this LLM has {list(of_llm.drafters)}. "
            f"Fix: name it in LLM(speculation=Speculation(...)).",
            field="speculation",
            value=value,
        )
    if found.draft_model not in (None, of_llm.draft_model):
        raise RequestError(
            f"draft_model={found.draft_model!r} is not the one of this LLM ({of_llm.draft_model!r}): a call can only "
            f"choose among what is loaded. Fix: drafters=('model',).",
            field="speculation",
            value=value,
        )
    return found


def make_drafters(speculation: Speculation, tokenizer: Tokenizer) -> list[Drafter]:
    """The drafters of an engine, in the order in which they are asked."""
    from safegen.engine.speculate.forced import ForcedDrafter
    from safegen.engine.speculate.ngram import NgramDrafter

    made: list[Drafter] = []
    if "forced" in speculation.drafters:
        made.append(ForcedDrafter(tokenizer.encode_continuation, tokenizer.token_bytes))
    if "ngram" in speculation.drafters:
        made.append(NgramDrafter(tokenizer.token_bytes))
    if "forced" in speculation.drafters and len(made) > 1:
        made.append(made[0])  # what is forced after what was guessed
    return made
