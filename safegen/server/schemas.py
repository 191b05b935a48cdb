"""The bodies of requests, as OpenAI's API names them, with what is ours marked as such.

Every model forbids what it does not know, so that an unknown parameter is refused by name. Values are checked for shape
here; what a value means, and whether it can be served, is for `translate` and the SDK.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag

ToolName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Identifier = Annotated[str, StringConstraints(max_length=512)]
TokenBias = Annotated[float, Field(ge=-100, le=100)]
TokenKey = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")]
Metadata = Annotated[
    dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
    Field(max_length=16),
]


class Body(BaseModel):
    """Strict: "1" is no number, and 1 is no text."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


# --- messages ---------------------------------------------------------------------------------------------------------


class TextPart(Body):
    type: Literal["text"]
    text: str


class RefusalPart(Body):
    type: Literal["refusal"]
    refusal: str


Parts = Annotated[list[TextPart], Field(min_length=1, max_length=256)]
AssistantPart = Annotated[TextPart | RefusalPart, Discriminator("type")]
AssistantParts = Annotated[list[AssistantPart], Field(min_length=1, max_length=256)]


class SystemMessage(Body):
    role: Literal["system", "developer"]
    content: str | Parts
    name: Identifier | None = None


class UserMessage(Body):
    role: Literal["user"]
    content: str | Parts
    name: Identifier | None = None


class CalledFunction(Body):
    name: Identifier
    arguments: str


class CalledTool(Body):
    id: Identifier
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(Body):
    """annotations, audio and function_call are what answers of others carry along; they must be empty."""

    role: Literal["assistant"]
    content: str | AssistantParts | None = None
    refusal: str | None = None
    name: Identifier | None = None
    tool_calls: Annotated[list[CalledTool], Field(max_length=256)] | None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None


class ToolMessage(Body):
    role: Literal["tool"]
    content: str | Parts
    tool_call_id: Identifier


def _role(message: Any) -> str:
    role = message.get("role") if isinstance(message, dict) else getattr(message, "role", None)
    return "system" if role == "developer" else str(role)


Message = Annotated[
    Annotated[SystemMessage, Tag("system")]
    | Annotated[UserMessage, Tag("user")]
    | Annotated[AssistantMessage, Tag("assistant")]
    | Annotated[ToolMessage, Tag("tool")],
    Discriminator(
        _role,
        custom_error_type="invalid_role",
        custom_error_message="the role is system, developer, user, assistant or tool",
    ),
]

# --- output types -----------------------------------------------------------------------------------------------------


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class NamedSchema(Body):
    """strict is true in effect, whatever it says: the answer is held to the schema."""

    name: ToolName
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: NamedSchema


class RegexFormat(Body):
    """An extension: the whole answer matches the pattern (ECMA-262)."""

    type: Literal["regex"]
    pattern: str


class GrammarFormat(Body):
    """An extension: the whole answer derives from the rule `start` of a grammar in Lark syntax."""

    type: Literal["grammar"]
    grammar: str
    start: str = "start"


class ChoiceFormat(Body):
    """An extension: the answer is one of these texts."""

    type: Literal["choice"]
    choices: Annotated[list[Annotated[str, StringConstraints(min_length=1)]], Field(min_length=1, max_length=4096)]


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | GrammarFormat | ChoiceFormat,
    Discriminator("type"),
]

# --- tools ------------------------------------------------------------------------------------------------------------


class Function(Body):
    """strict is true in effect, whatever it says: arguments are held to the schema."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Body):
    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    name: str


class NamedToolChoice(Body):
    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice

# --- requests ---------------------------------------------------------------------------------------------------------


class StreamOptions(Body):
    """include_obfuscation is taken and does nothing: nothing is added to chunks."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Sampled(Body):
    """What chat and plain completions share. top_k, min_p, min_tokens, repetition_penalty and deadline_s are
    extensions. user, metadata and safety_identifier are taken and not looked at."""

    model: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[TokenKey, TokenBias] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    response_format: ResponseFormat | None = None
    user: Identifier | None = None
    metadata: Metadata | None = None
    safety_identifier: Identifier | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    deadline_s: Annotated[float, Field(ge=0.001, le=86400)] | None = None


class ChatRequest(Sampled):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[FunctionTool], Field(min_length=1)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None


class CompletionRequest(Sampled):
    """The body of /v1/completions. response_format is an extension here."""

    prompt: str | Annotated[list[str], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: None = None


class BatchRequest(Body):
    """The body of /v1/batches."""

    input_file_id: Identifier
    endpoint: Literal["/v1/chat/completions", "/v1/completions"]
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
