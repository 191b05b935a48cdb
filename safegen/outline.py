"""A model without its weights: what a call is checked with, and nothing that could answer it.

It is what drives a job whose rows are answered by other processes (`safegen.jobs.on_ray`): the tokenizer, the sizes and
the fingerprint come from the files, as for a loaded model; memory for weights and a KV cache is not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from safegen.engine.request import Event, Request
from safegen.engine.stats import EngineStats
from safegen.errors import RequestError
from safegen.loading import LoadOptions, engine_config, fingerprint_of, located, model_name, reloader, speculation_of
from safegen.runtime import Runtime


class NoEngine:
    """`EngineLike` that refuses."""

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        raise RequestError(
            "this LLM was made without weights, to run jobs with engine='ray'; for answers of its own write LLM(...)",
            field="engine",
        )

    def cancel(self, request_id: str) -> None:
        """There is nothing to cancel."""

    def close(self, *, drain: bool = False, timeout_s: float | None = 30.0) -> None:
        """There is nothing to give back."""

    def stats(self) -> EngineStats:
        return EngineStats(*(0,) * 13)


def load_outline(options: LoadOptions) -> Runtime:
    """Raises what `load_runtime` raises, as far as files and options are looked at."""
    from safegen.engine.models.loader import read_config
    from safegen.engine.tokenizer import Tokenizer

    config = engine_config(options)
    path: Path = located(options)
    model = read_config(path)
    return Runtime(
        NoEngine(),
        Tokenizer.load(path, model_vocab_size=model.vocab_size),
        options.limits,
        max_context=model.max_position,
        max_num_seqs=config.max_num_seqs,
        speculation=speculation_of(options),
        guards=options.guards,
        fingerprint=fingerprint_of(options, path),
        model_name=model_name(options, path),
        reload=reloader(options),
    )
