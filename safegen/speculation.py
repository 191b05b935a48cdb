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

DRAFTERS = ("forced", "ngram")  # in the order in which they are asked


@dataclass(frozen=True, slots=True)
class Speculation:
    """drafters: any of "forced" (what the output type forces) and "ngram" (what followed the same tokens before);
    they are asked in this order. draft_model: not supported in this version. share_outputs: let "ngram" look in earlier
    answers of the same output type too; how long an answer takes then tells something of the others.

    Raises RequestError for anything else.
    """

    drafters: tuple[str, ...] = DRAFTERS
    draft_model: str | os.PathLike[str] | None = None
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
        if self.draft_model is not None:
            raise RequestError(
                f"draft_model={self.draft_model!r} is not supported in this version; leave it out",
                field="speculation",
                value=self.draft_model,
            )
        if not isinstance(self.share_outputs, bool):
            raise RequestError(
                f"share_outputs must be True or False, got {self.share_outputs!r}",
                field="speculation",
                value=self.share_outputs,
            )


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
