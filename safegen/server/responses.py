"""The documents that answers are, for the OpenAPI description. `shapes` makes what is sent; tests hold it to these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorFields(Document):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorDocument(Document):
    error: ErrorFields


class Function(Document):
    name: str
    arguments: str


class ToolCallDocument(Document):
    id: str
    type: Literal["function"]
    function: Function


class MessageDocument(Document):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: list[ToolCallDocument] | None = None


class TopToken(Document):
    token: str
    logprob: float
    bytes: list[int]


class TokenEntry(TopToken):
    raw_logprob: float
    top_logprobs: list[TopToken]


class ChatLogprobs(Document):
    content: list[TokenEntry]
    refusal: None


class TextLogprobs(Document):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class ChatChoice(Document):
    index: int
    message: MessageDocument
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]


class TextChoice(Document):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length", "content_filter"]


class PromptDetails(Document):
    cached_tokens: int


class CompletionDetails(Document):
    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class UsageDocument(Document):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Completion(Document):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: UsageDocument


class ChatCompletion(Completion):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class TextCompletion(Completion):
    object: Literal["text_completion"]
    choices: list[TextChoice]


class ModelDocument(Document):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Document):
    object: Literal["list"]
    data: list[ModelDocument]


class Health(Document):
    status: Literal["ok"]


class FileDocument(Document):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]


class FileList(Document):
    object: Literal["list"]
    data: list[FileDocument]
    has_more: bool
    first_id: str | None
    last_id: str | None


class FileDeleted(Document):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchCounts(Document):
    total: int
    completed: int
    failed: int


class BatchError(Document):
    code: str
    message: str
    line: int | None
    param: str | None


class BatchErrors(Document):
    object: Literal["list"]
    data: list[BatchError]


class BatchDocument(Document):
    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Literal["validating", "failed", "in_progress", "finalizing", "completed", "cancelling", "cancelled"]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    expires_at: int | None
    expired_at: int | None
    request_counts: BatchCounts
    metadata: dict[str, Any] | None


class BatchList(Document):
    object: Literal["list"]
    data: list[BatchDocument]
    has_more: bool
    first_id: str | None
    last_id: str | None
