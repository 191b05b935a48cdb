"""From a checked request to a call of the SDK: prompt, output type, sampling parameters. Nothing here waits.

What OpenAI's API has defaults for, has them here too (temperature 1, 16 tokens of a plain completion). A combination
that cannot be served is refused by the name of a parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from safegen.errors import GrammarError, RequestError, SafegenError, SchemaError
from safegen.grammars.tool_formats import TOOL_FORMATS, ToolFormat
from safegen.prompt import Prompt, RawPrompt
from safegen.runtime import CallOptions
from safegen.sampling import merge_sampling
from safegen.server.errors import ApiError, Params, api_error
from safegen.server.messages import sdk_messages
from safegen.server.schemas import (
    ChatRequest,
    ChoiceFormat,
    CompletionRequest,
    GrammarFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedToolChoice,
    RegexFormat,
    Sampled,
)
from safegen.server.settings import ServerSettings
from safegen.tools import Tools
from safegen.types import Choice, Grammar, JsonSchema, Regex

_COMPLETION_TOKENS = 16
_SAME_NAMES = (
    "top_p", "n", "presence_penalty", "frequency_penalty", "seed", "stop", "top_k", "min_p", "min_tokens",
    "repetition_penalty",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """One request as calls of the SDK, one a prompt. params: what the request calls prompt and type. tool_form: how
    its tool calls are written, None where there are none."""

    prompts: tuple[Prompt, ...]
    spec: Any
    options: CallOptions
    params: Params
    tool_form: ToolFormat | None
    n: int
    is_stream: bool
    wants_usage: bool
    deadline_s: float


def chat_call(body: ChatRequest, settings: ServerSettings, cache_salt: str | None) -> Call:
    """Raises ApiError 400 or 404."""
    form = TOOL_FORMATS[settings.tool_format]
    if len(body.messages) > settings.max_messages:
        raise _refused("messages", f"a request has at most {settings.max_messages:,} messages")
    sampling = _sampling(body)
    limit = _chat_limit(body)
    if limit is not None:
        sampling["max_tokens"] = limit
    if body.top_logprobs is not None and not body.logprobs:
        raise _refused("top_logprobs", "top_logprobs needs logprobs to be true")
    if body.logprobs:
        sampling["logprobs"] = body.top_logprobs or 0
    spec, spec_param = _chat_spec(body, settings)
    names = Params("messages", spec_param)
    tool_form = form if isinstance(spec, Tools) else None
    return _call(body, (sdk_messages(body.messages, form),), spec, names, sampling, settings, cache_salt, tool_form)


def completion_call(body: CompletionRequest, settings: ServerSettings, cache_salt: str | None) -> Call:
    """Raises ApiError 400 or 404."""
    prompts = (body.prompt,) if isinstance(body.prompt, str) else tuple(body.prompt)
    sampling = _sampling(body)
    sampling["max_tokens"] = _COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    if body.logprobs is not None:
        sampling["logprobs"] = body.logprobs
    spec = _typed(body)
    raw = tuple(RawPrompt(prompt) for prompt in prompts)
    return _call(body, raw, spec, Params("prompt", _SPEC_PARAM), sampling, settings, cache_salt, None)


_SPEC_PARAM = "response_format"


def _call(
    body: Sampled,
    prompts: tuple[Prompt, ...],
    spec: Any,
    names: Params,
    sampling: Mapping[str, Any],
    settings: ServerSettings,
    cache_salt: str | None,
    tool_form: ToolFormat | None,
) -> Call:
    if body.model not in settings.model_names:
        known = ", ".join(settings.model_names)
        raise ApiError(
            404, f"there is no model {body.model!r:.80}; it is {known}", param="model", code="model_not_found"
        )
    n = body.n or 1
    if n * len(prompts) > settings.max_choices:
        raise _refused("n", f"a request has at most {settings.max_choices} choices, this one {n * len(prompts)}")
    if body.stream_options is not None and not body.stream:
        raise _refused("stream_options", "stream_options needs stream to be true")
    try:
        params = merge_sampling(None, sampling)
    except RequestError as error:
        raise api_error(error) from error
    return Call(
        prompts=prompts,
        spec=spec,
        options=CallOptions(params=params, cache_salt=cache_salt),
        params=names,
        tool_form=tool_form,
        n=n,
        is_stream=bool(body.stream),
        wants_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
        deadline_s=min(body.deadline_s or settings.request_timeout_s, settings.request_timeout_s),
    )


def _sampling(body: Sampled) -> dict[str, Any]:
    named = {name: getattr(body, name) for name in _SAME_NAMES}
    sampling = {name: value for name, value in named.items() if value is not None}
    sampling["temperature"] = 1.0 if body.temperature is None else body.temperature
    if body.logit_bias:
        sampling["logit_bias"] = {int(token): bias for token, bias in body.logit_bias.items()}
    return sampling


def _chat_limit(body: ChatRequest) -> int | None:
    new, old = body.max_completion_tokens, body.max_tokens
    if new is not None and old is not None and new != old:
        raise _refused("max_tokens", "max_tokens is the old name of max_completion_tokens; pass one of them")
    return old if new is None else new


# --- output types -----------------------------------------------------------------------------------------------------


def _chat_spec(body: ChatRequest, settings: ServerSettings) -> tuple[Any, str]:
    """The output type, and the field that it stands in."""
    if body.tools is None:
        for name in ("tool_choice", "parallel_tool_calls"):
            if getattr(body, name) is not None and getattr(body, name) != "none":
                raise _refused(name, f"{name} needs tools")
        return _typed(body), _SPEC_PARAM
    if len(body.tools) > settings.max_tools:
        raise _refused("tools", f"a request has at most {settings.max_tools} tools")
    if body.tool_choice == "none":
        return _typed(body), _SPEC_PARAM
    if _typed(body) is not None:
        raise _refused(_SPEC_PARAM, "response_format cannot be used together with tools that may be called")
    try:
        return _tools(body, settings), "tools"
    except SafegenError as error:
        raise api_error(error, Params(spec="tools")) from error


def _tools(body: ChatRequest, settings: ServerSettings) -> Tools:
    given = [tool.function.model_dump(exclude_none=True, exclude={"strict"}) for tool in body.tools or ()]
    options: dict[str, Any] = {"format": settings.tool_format}
    if isinstance(body.tool_choice, NamedToolChoice):
        wanted = body.tool_choice.function.name
        given = [tool for tool in given if tool["name"] == wanted]
        if not given:
            raise _refused("tool_choice", f"tool_choice names {wanted!r:.80}, which is none of the tools")
        options |= {"allow_text": False, "min_calls": 1, "max_calls": 1}
    elif body.tool_choice == "required":
        options |= {"allow_text": False, "min_calls": 1}
    if body.parallel_tool_calls is False:
        options["max_calls"] = 1
    return Tools(given, **options)


def _typed(body: Sampled) -> Any:
    """The output type of response_format; None is free text. Raises ApiError."""
    given = body.response_format
    try:
        if isinstance(given, JsonSchemaFormat):
            return JsonSchema(given.json_schema.schema_)
        if isinstance(given, JsonObjectFormat):
            return JsonSchema({"type": "object"})
        if isinstance(given, RegexFormat):
            return Regex(given.pattern)
        if isinstance(given, GrammarFormat):
            return Grammar(given.grammar, given.start)
        if isinstance(given, ChoiceFormat):
            return Choice(given.choices)
    except (SchemaError, GrammarError) as error:
        raise api_error(error, Params(spec=_SPEC_PARAM)) from error
    return None


def _refused(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_value")
