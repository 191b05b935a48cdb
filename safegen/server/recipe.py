"""How a server's model is made, as data: it may be made in another process, on another machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from safegen.limits import Limits
from safegen.llm import LLM


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """options: of `LLM`. guards: a configuration as `Guards.from_dict` takes it, None for none; audit_key: of their
    records."""

    model: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    guards: Any = None
    audit_key: bytes | None = field(default=None, repr=False)

    def make(self) -> LLM:
        """Raises what `LLM` and `Guards.from_dict` raise."""
        from safegen.guards.guards import Guards

        guards: Any = () if self.guards is None else Guards.from_dict(self.guards, audit_key=self.audit_key)
        return LLM(self.model, guards=guards, limits=self.limits, **self.options)
