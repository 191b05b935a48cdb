"""A call with guards: its prompt is checked, then the answer, which is asked for again where a guard wants that.

The same steps for plain, batched and streamed calls; a stream cannot take back what it has shown, so a guard that
wants a retry blocks there. A call without guards never comes here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Generator, Sequence
from typing import Any

from safegen.errors import InvalidOutput
from safegen.grammars.constraint import Constraint
from safegen.grammars.vocabulary import Vocabulary
from safegen.guards.base import GuardView
from safegen.guards.declared import names_of_schema
from safegen.guards.guards import Guards, as_guards
from safegen.guards.redact import RedactingConstraint
from safegen.guards.running import Entry, Finding
from safegen.guards.session import GuardSession
from safegen.guards.stream import AnswerShape, Claims
from safegen.guards.value_track import Redaction
from safegen.output_type import OutputType
from safegen.prompt import Message, Prompt, RawPrompt, chat_messages
from safegen.result import Result, failed
from safegen.run import EndedRun, Run
from safegen.runtime import CallOptions, Job, Runtime

_NAMES_OF_CALLS = ("calls", "text", "name", "arguments")
_HINT_ROLES = ("user", "tool", "system")


def guards_of(own: Guards | None, given: Any) -> Guards:
    """The guards of a call: the LLM's own and behind them the call's, which cannot take any away (`Guards.plus`)."""
    if own is None:
        return as_guards(given)
    return own.plus(as_guards(given))


def guarded_work(
    runtime: Runtime, prompt: Prompt, spec: Any, options: CallOptions, guards: Guards
) -> Generator[tuple[Run, ...], None, Result[Any]]:
    """The call as a generator of runs, as `Runtime.work`."""
    session = GuardSession(guards, runtime.new_id())
    try:
        return (yield from _work(runtime, prompt, spec, options, session))
    finally:
        session.leave()  # where a call is given up or its type refused, what was decided is recorded all the same


def _work(
    runtime: Runtime, prompt: Prompt, spec: Any, options: CallOptions, session: GuardSession
) -> Generator[tuple[Run, ...], None, Result[Any]]:
    guards = session.guards
    messages, blocked = session.check_input(chat_messages(prompt, None))
    if blocked is not None:
        return session.conclude(failed("blocked", blocked))
    job = runtime.prepare(_as_given(prompt, messages), spec, options)
    session.expect(declared_names(job.output_type))
    if job.output_type.probabilities:
        from safegen.choices import choice_work

        result = yield from choice_work(runtime, job)
        return session.conclude(check_result(session, job.output_type, result))
    for attempt in range(guards.max_retries + 1):
        run = start(runtime, job, session)
        yield (run,)
        if run.retry_hint is None or attempt == guards.max_retries:
            break
        messages = with_hint(messages, run.retry_hint)
        job = runtime.prepare(_as_given(prompt, messages), spec, options)
    return session.conclude(run.result)


def guarded_stream(runtime: Runtime, prompt: Prompt, spec: Any, options: CallOptions, guards: Guards) -> Run:
    """The run behind a stream, whose Result it concludes by itself; one that has ended where the prompt is stopped."""
    session = GuardSession(guards, runtime.new_id())
    messages, blocked = session.check_input(chat_messages(prompt, None))
    if blocked is not None:
        return EndedRun(session.conclude(failed("blocked", blocked)))
    try:
        job = runtime.prepare_stream(_as_given(prompt, messages), spec, options)
        session.expect(declared_names(job.output_type))
        return start(runtime, job, session, streams=True)
    except BaseException:
        session.leave()
        raise


def start(runtime: Runtime, job: Job, session: GuardSession, *, streams: bool = False) -> Run:
    """The run of a job under guards, not yet submitted."""
    if not session.has_output:
        return runtime.start(job, snapshots=streams, session=session if streams else None)
    shape, claims, wrap = shape_of(job.output_type), None, None
    if session.redacting and shape.kind != "text":
        claims = Claims()
        wrap = _redaction(session, shape, claims, job.output_type.schema_text)
    samples = [session.output(shape, number, claims) for number in range(job.params.n)]
    session_of_run = session if streams else None
    return runtime.start(job, snapshots=streams, guards=samples, session=session_of_run, wrap=wrap)


def _redaction(
    session: GuardSession, shape: AnswerShape, claims: Claims, schema_text: str | None
) -> Callable[[Constraint, Vocabulary], Constraint]:
    def look(entries: Sequence[Entry], view: GuardView) -> list[Finding]:
        return session.look_for(0, entries, view)

    def wrap(constraint: Constraint, vocabulary: Vocabulary) -> Constraint:
        settings = Redaction(session.redacting, shape, look, vocabulary, claims, schema_text)
        return RedactingConstraint(constraint, settings)

    return wrap


def shape_of(output_type: OutputType[Any]) -> AnswerShape:
    """Where the decoded texts of an answer stand. Grammars, patterns and labels are texts as a whole."""
    think = None if output_type.think is None else (output_type.think.start, output_type.think.end)
    if output_type.answer_kind == "tools":
        return AnswerShape("tools", think, output_type.tool_format)
    return AnswerShape("json" if output_type.answer_kind == "json" else "text", think)


def declared_names(output_type: OutputType[Any]) -> frozenset[str]:
    """Names in paths that are the caller's: those of the schema, or of the tools and their wire format."""
    form, tools = output_type.tool_format, output_type.template_tools
    if form is None or tools is None:
        return frozenset() if output_type.schema_text is None else names_of_schema(output_type.schema_text)
    schemas = (json.dumps(tool, sort_keys=True) for tool in tools.tools)
    return frozenset(_NAMES_OF_CALLS).union(*map(names_of_schema, schemas))


def check_result(session: GuardSession, output_type: OutputType[Any], result: Result[Any]) -> Result[Any]:
    """An answer that was made without a stream of text, such as the best label of a Choice."""
    if result.status != "ok" or not session.has_output:
        return result
    guard = session.output(shape_of(output_type), 0)
    text = guard.feed(result.text) + guard.finish()
    blocked = guard.blocked()
    kept = dataclasses.replace(result, choices=None, logprobs=None)
    if blocked is None and guard.changed:
        try:
            return dataclasses.replace(kept, text=text, value=output_type.read(text))
        except InvalidOutput:
            blocked = guard.blame()
    if blocked is not None:
        return dataclasses.replace(kept, text="", value=None, status="blocked", error=blocked)
    return result


def with_hint(messages: list[Message], hint: str) -> list[Message]:
    """The messages with a hint at the end of the last one that is not the assistant's: templates want turns."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place]["role"] in _HINT_ROLES:
            told = {**messages[place], "content": f"{messages[place]['content']}\n\n{hint}"}
            return [*messages[:place], told, *messages[place + 1 :]]
    return [*messages, {"role": "user", "content": hint}]


def _as_given(prompt: Prompt, messages: list[Message]) -> Prompt:
    """A string stays a string: models without a chat template take it as it is."""
    if isinstance(prompt, RawPrompt):
        return RawPrompt(messages[0]["content"])
    return messages[0]["content"] if isinstance(prompt, str) else messages
