"""What LLM and AsyncLLM share: one loaded model with its engine, and every rule about a call.

`prepare` checks a call and turns it into a `Job`; `work` is the job as a generator that yields the runs it wants done
and returns the Result, so that plain, batched and async callers differ only in how they wait (`safegen.drive`).
Thread-safe: a Runtime's own state is the engine (locked inside), the type cache (locked) and the vocabularies (made
under a lock). An engine that nobody refers to any more stops by itself, and so does one at the interpreter's end.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from safegen.device_tables import DeviceTables
from safegen.engine.request import Event, Request, SamplingParams
from safegen.errors import (
    CapacityError,
    EngineClosed,
    GrammarError,
    RequestError,
    SchemaError,
)
from safegen.grammars.constraint import Constraint
from safegen.limits import Limits
from safegen.observe.meter import RequestMeter
from safegen.output_type import OutputType, TypeCache
from safegen.prompt import Prompt, RawPrompt, chat_messages, plain_text, takes_tools
from safegen.result import Result, failed
from safegen.run import Run
from safegen.sampling import check_options, has_guards, merge_sampling
from safegen.speculation import OFF, Speculation, resolve_call

if TYPE_CHECKING:
    from safegen.engine.stats import EngineStats
    from safegen.grammars.disk_cache import DiskCache
    from safegen.grammars.vocabulary import Vocabulary
    from safegen.guards.guards import Guards
    from safegen.guards.sample import SampleGuard
    from safegen.guards.session import GuardSession

_log = logging.getLogger(__name__)
_SPACE_TOKENS = 8  # that a template may put after a start marker

Work = Generator[tuple[Run, ...], None, Result[Any]]


class EngineLike(Protocol):
    """The engine as seen from here. Events come on the engine's thread; it stops when nobody refers to it."""

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None: ...
    def cancel(self, request_id: str) -> None: ...
    def close(self, *, drain: bool = False, timeout_s: float | None = 30.0) -> None: ...
    def stats(self) -> EngineStats: ...


class TokenizerLike(Protocol):
    """The tokenizer as seen from here."""

    @property
    def token_bytes(self) -> Sequence[bytes | None]: ...
    @property
    def stop_ids(self) -> frozenset[int]: ...
    @property
    def chat_template(self) -> str | None: ...
    def encode(self, text: str) -> list[int]: ...
    @property
    def control_tokens(self) -> Mapping[str, int]: ...
    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **template_arguments: Any) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The keyword arguments of one call, as they were given. token_origins: the deltas of its stream have spans."""

    params: SamplingParams | None = None
    guards: Any = None
    speculation: Any = None
    show_schema: bool = True
    cache_salt: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    token_origins: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """A checked call. stop_ids: the one shared stop set, the caller's included. speculation: what the call allows."""

    prompt_ids: tuple[int, ...]
    output_type: OutputType[Any]
    params: SamplingParams
    stop_ids: frozenset[int]
    cache_salt: str | None
    speculation: Speculation = OFF
    token_origins: bool = False


def disk_cache(limits: Limits) -> DiskCache | None:
    """The cache in the directory that SAFEGEN_CACHE_DIR names; without it nothing is kept on disk. Raises RequestError
    when the directory cannot be used safely."""
    directory = os.environ.get("SAFEGEN_CACHE_DIR")
    if not directory:
        return None
    import safegen
    from safegen.grammars.disk_cache import DiskCache

    return DiskCache(directory, max_bytes=limits.disk_cache_bytes, version=safegen.__version__)


class Runtime:
    """A model, ready to answer. max_context: tokens of prompt and answer together. max_num_seqs: sequences the engine
    runs at once; sizes the window of a batch. speculation: what the engine's drafters are. guards: of every call.
    fingerprint: tells models apart whose answers may differ. model_name: for people; no folders of this machine.
    reload: makes the same runtime in another process, where that is known; it can be pickled if the guards can.
    runs_tables: the engine's device runs small types as tables."""

    def __init__(
        self,
        engine: EngineLike,
        tokenizer: TokenizerLike,
        limits: Limits,
        *,
        max_context: int,
        max_num_seqs: int,
        speculation: Speculation = OFF,
        guards: Any = (),
        fingerprint: str = "",
        model_name: str = "",
        reload: Callable[[], Runtime] | None = None,
        runs_tables: bool = False,
    ) -> None:
        self.limits = limits
        self.model_name = model_name
        self.fingerprint = fingerprint
        self.reload = reload
        self._guards: Guards | None = None
        if has_guards(guards):
            from safegen.guards.guards import as_guards

            self._guards = as_guards(guards)
        self.max_context = max_context
        self.max_num_seqs = max_num_seqs
        self.token_bytes = tokenizer.token_bytes
        self._speculation = speculation
        self._engine = engine
        self._tokenizer = tokenizer
        self._types = TypeCache(limits)
        self._disk_cache = disk_cache(limits)
        self._tables = DeviceTables(limits, self._disk_cache) if runs_tables else None
        self._vocabularies: dict[tuple[frozenset[int], frozenset[tuple[int, bytes]]], Vocabulary] = {}
        self._vocabulary_lock = threading.Lock()
        self._request_prefix = uuid.uuid4().hex[:8]
        self._numbers = itertools.count()
        self._closed = False
        self.meter = RequestMeter()

    # --- calls --------------------------------------------------------------------------------------------------------

    def prepare(self, prompt: Prompt, spec: Any, options: CallOptions) -> Job:
        """Check a call at the door. Raises RequestError, SchemaError, GrammarError or EngineClosed."""
        self.check_open()
        check_options(options.guards, options.speculation)
        speculation = resolve_call(options.speculation, self._speculation)
        params = merge_sampling(options.params, options.sampling)
        if options.cache_salt is not None and not isinstance(options.cache_salt, str):
            raise RequestError("cache_salt is a string or None", field="cache_salt", value=options.cache_salt)
        output_type = self.compile(spec, options.guards)
        if params.stop and output_type.kind != "text":
            raise RequestError(
                "stop strings cannot be used together with an output type: the type says where the answer ends; "
                "leave stop out",
                field="stop",
                value=params.stop,
            )
        prompt_ids = self._encode(prompt, output_type if options.show_schema else None)
        stop_ids = self._tokenizer.stop_ids.union(params.stop_ids)
        if max(stop_ids, default=0) >= len(self.token_bytes):
            raise RequestError(
                f"stop_ids holds {max(stop_ids)}; this model's ids are 0 .. {len(self.token_bytes) - 1}",
                field="stop_ids",
                value=max(stop_ids),
            )
        return Job(prompt_ids, output_type, params, stop_ids, options.cache_salt, speculation, options.token_origins)

    def prepare_stream(self, prompt: Prompt, spec: Any, options: CallOptions) -> Job:
        """As `prepare`, for a stream."""
        job = self.prepare(prompt, spec, options)
        if job.output_type.probabilities:
            raise RequestError("a stream has no label probabilities; use generate", field="type")
        return job

    def guards(self, given: Any) -> Guards | None:
        """The guards of a call; None where there are none. Raises RequestError."""
        if not has_guards(given):
            return self._guards
        from safegen.guarded import guards_of

        return guards_of(self._guards, given)

    def stream(self, prompt: Prompt, spec: Any, options: CallOptions) -> Run:
        """The run behind a stream; raises what `prepare` raises."""
        try:
            run = self._stream(prompt, spec, options)
        except Exception as error:
            self.meter.raised(error)
            raise
        run.when_ended(self.meter.answered)
        return run

    def _stream(self, prompt: Prompt, spec: Any, options: CallOptions) -> Run:
        guards = self.guards(options.guards)
        if guards is None:
            return self.start(self.prepare_stream(prompt, spec, options), snapshots=True)
        from safegen.guarded import guarded_stream

        self.check_open()
        return guarded_stream(self, prompt, spec, options, guards)

    def work(self, prompt: Prompt, spec: Any, options: CallOptions) -> Work:
        """The call as a generator of runs; raises what `prepare` raises, at the first step."""
        try:
            result = yield from self._work(prompt, spec, options)
        except (Exception, GeneratorExit) as error:
            self.meter.raised(error)
            raise
        self.meter.answered(result)
        return result

    def _work(self, prompt: Prompt, spec: Any, options: CallOptions) -> Work:
        guards = self.guards(options.guards)
        if guards is not None:
            from safegen.guarded import guarded_work

            self.check_open()
            return (yield from guarded_work(self, prompt, spec, options, guards))
        job = self.prepare(prompt, spec, options)
        if job.output_type.probabilities:
            from safegen.choices import choice_work

            return (yield from choice_work(self, job))
        run = self.start(job)
        yield (run,)
        return run.result

    def row(self, row: Any, spec: Any, options: CallOptions) -> Work:
        """One row of a batch: a prompt, or a (prompt, type) pair. Never raises; what is wrong is in the Result."""
        try:
            prompt, row_spec = row if isinstance(row, tuple) and len(row) == 2 else (row, spec)
            return (yield from self.work(prompt, row_spec, options))
        except (RequestError, SchemaError, GrammarError, CapacityError) as error:
            return failed("refused", error)
        except EngineClosed as error:
            return failed("cancelled", error, "cancelled")
        except Exception as error:
            return failed("error", error, "error")

    def start(
        self,
        job: Job,
        *,
        snapshots: bool = False,
        guards: Sequence[SampleGuard] = (),
        session: GuardSession | None = None,
        wrap: Callable[[Constraint, Vocabulary], Constraint] | None = None,
    ) -> Run:
        """The run of a job, not yet submitted. wrap: what guards make of its constraint."""
        constraint = self.constraint(job.output_type, job.stop_ids, job.prompt_ids)
        if constraint is not None and wrap is not None:
            constraint = wrap(constraint, self._vocabulary(job.stop_ids, self._spoken(job.output_type, job.stop_ids)))
        request = Request(
            self.new_id(),
            job.prompt_ids,
            job.params,
            job.stop_ids,
            constraint,
            job.cache_salt,
            frozenset(job.speculation.drafters),
            type_key=None if job.output_type.program is None else id(job.output_type.program),
            shares_output=job.speculation.share_outputs,
            wants_origins=job.token_origins,
        )
        spoken = self._spoken(job.output_type, job.stop_ids)
        token_bytes = self._vocabulary(job.stop_ids, spoken).token_bytes if spoken else self.token_bytes
        return Run(request, job.output_type, token_bytes, snapshots=snapshots, guards=guards, session=session)

    # --- parts --------------------------------------------------------------------------------------------------------

    def compile(self, spec: Any, guards: Any = None) -> OutputType[Any]:
        """guards: of the call that it is for, besides those of the LLM; the type is held to what they forbid."""
        held = self.guards(guards)
        return self._types.get(spec, None if held is None else held.bans())

    def constraint(
        self, output_type: OutputType[Any], stop_ids: frozenset[int], prompt_ids: Sequence[int] = ()
    ) -> Constraint | None:
        """Fresh constraint state of an output type over this model's vocabulary. prompt_ids: what it comes after."""
        if output_type.program is None:
            return None
        vocabulary = self._vocabulary(stop_ids, self._spoken(output_type, stop_ids))
        cache_bytes = self.limits.cache_bytes
        if output_type.fsm is not None:
            return output_type.fsm.constraint(vocabulary, self._disk_cache)
        if self._tables is not None:
            tabled = self._tables.constraint(output_type, vocabulary)
            if tabled is not None:
                return tabled
        if output_type.text_program is not None:
            from safegen.grammars.ban_product import BanProduct

            return BanProduct(output_type.program, output_type.text_program, vocabulary, cache_bytes=cache_bytes)
        if output_type.think is None:
            from safegen.grammars.matcher import NativeConstraint

            return NativeConstraint(output_type.program, vocabulary, cache_bytes=cache_bytes)
        from safegen.grammars.think import ThinkConstraint

        think, texts = output_type.think, vocabulary.token_bytes
        before = b"".join(texts[token] or b"" for token in prompt_ids[-len(think.start) - _SPACE_TOKENS :])
        begun = before.rstrip().endswith(think.start.encode())
        return ThinkConstraint(think.program, vocabulary, begun=begun, cache_bytes=cache_bytes)

    def count_tokens(self, prompt: Prompt) -> int:
        """How long a prompt is for the model, its chat template included. Raises RequestError for one that is not."""
        return len(self._encode(prompt, None))

    def new_id(self) -> str:
        return f"{self._request_prefix}-{next(self._numbers)}"

    def _spoken(self, output_type: OutputType[Any], stop_ids: frozenset[int]) -> frozenset[tuple[int, bytes]]:
        """Control tokens that stand in the markers of a type: in its answers they count as their text."""
        if not output_type.markers:
            return frozenset()
        return frozenset(
            (token, content.encode())
            for content, token in self._tokenizer.control_tokens.items()
            if any(content in marker for marker in output_type.markers)
            and token not in stop_ids
            and self.token_bytes[token] is None
        )

    def _vocabulary(self, stop_ids: frozenset[int], spoken: frozenset[tuple[int, bytes]]) -> Vocabulary:
        from safegen.grammars.vocabulary import Vocabulary

        key = (stop_ids, spoken)
        with self._vocabulary_lock:
            if key not in self._vocabularies:
                if len(self._vocabularies) > 8:  # callers' own stop sets; the model's own is made again at need
                    self._vocabularies.clear()
                texts = {token: text for token, text in enumerate(self.token_bytes) if token not in stop_ids}
                texts.update(spoken)
                listed = [texts.get(token) for token in range(len(self.token_bytes))]
                self._vocabularies[key] = Vocabulary(listed, stop_ids)
            return self._vocabularies[key]

    def _encode(self, prompt: Prompt, told: OutputType[Any] | None) -> tuple[int, ...]:
        """told: the type that the model is told about."""
        template, shown = self._tokenizer.chat_template, None if told is None else told.shown
        arguments: dict[str, Any] = {}
        tools = None if told is None else told.template_tools
        if tools is not None and template is not None and takes_tools(template, tools.marker):
            shown, arguments = tools.shown, {"tools": list(tools.tools)}
        messages = chat_messages(prompt, shown)
        if isinstance(prompt, RawPrompt):
            ids = self._tokenizer.encode(prompt)
        elif template is None and isinstance(prompt, str):
            ids = self._tokenizer.encode(plain_text(messages) if shown else prompt)
        else:
            ids = self._tokenizer.encode_chat(messages, **arguments)
        if len(ids) >= self.max_context:
            raise RequestError(
                f"the prompt has {len(ids):,} tokens, the context holds {self.max_context:,} with the answer; "
                "shorten the prompt",
                field="prompt",
                value=len(ids),
            )
        return tuple(ids)

    # --- engine -------------------------------------------------------------------------------------------------------

    def submit(self, run: Run, on_event: Callable[[Event], None]) -> None:
        """Hand a run to the engine. Raises CapacityError, RequestError or EngineClosed."""
        self.check_open()
        request = run.request
        self._engine.submit(request, on_event)
        _log.debug(
            "request %s submitted: %d prompt tokens, n=%d, max_tokens=%s, %s",
            request.request_id, len(request.prompt_ids), request.params.n, request.params.max_tokens,
            "constrained" if request.constraint is not None else "free text",
        )  # fmt: skip

    def submit_stream(self, run: Run, on_event: Callable[[Event], None]) -> None:
        """`submit`, for a run that no work stands behind: what is refused here is counted here."""
        try:
            self.submit(run, on_event)
        except Exception as error:
            run.when_ended(None)
            self.meter.raised(error)
            raise

    def cancel(self, run: Run) -> None:
        self._engine.cancel(run.request.request_id)
        _log.debug("request %s is to be cancelled", run.request.request_id)

    def abandon(self, run: Run) -> None:
        """As `cancel`, for a stream whose Result nobody will see."""
        self.cancel(run)
        if run.when_ended(None):
            self.meter.ended("cancelled")

    def engine_stats(self) -> EngineStats:
        return self._engine.stats()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        if self._closed:
            raise EngineClosed("this LLM was closed; make a new one")

    def close(self, *, drain: bool = False, timeout_s: float | None = 30.0) -> None:
        """End it. Requests in flight end as "cancelled" (drain: are finished first). Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            self._engine.close(drain=drain, timeout_s=timeout_s)
