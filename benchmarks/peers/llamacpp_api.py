"""llama.cpp at its lowest level: one model, one context, batches of several sequences, greedy sampling, grammars.

Made for speed: token arrays are written through numpy views, the most likely token is taken by numpy straight from the
logits, and a grammar is asked about that one token first (as llama.cpp's own tools do); only when it says no is it
applied to the whole vocabulary. Bindings: llama-cpp-python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp.llama_grammar import json_schema_to_gbnf
from numpy.typing import NDArray

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
_CONTEXT_GRANULARITY = 256


@llama_cpp.llama_log_callback
def _silent(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    """llama.cpp's own log would end up between the figures."""


llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))


def requantize(source: Path, destination: Path) -> None:
    """Write a model again as Q4_0, the format that llama.cpp repacks for its fastest path."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    params.allow_requantize = True
    failed = llama_cpp.llama_model_quantize(str(source).encode(), str(destination).encode(), ctypes.byref(params))
    if failed:
        raise RuntimeError(f"llama_model_quantize gave {failed} for {source}")


class Model:
    """Weights, loaded once."""

    def __init__(self, path: str) -> None:
        llama_cpp.llama_backend_init()
        self.handle: Any = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.handle:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.vocab: Any = llama_cpp.llama_model_get_vocab(self.handle)
        self.vocab_size = int(llama_cpp.llama_vocab_n_tokens(self.vocab))

    @property
    def kv_bytes_a_token(self) -> int:
        """Keys and values in fp16."""
        head_dim = llama_cpp.llama_model_n_embd(self.handle) // llama_cpp.llama_model_n_head(self.handle)
        num_heads = llama_cpp.llama_model_n_head_kv(self.handle)
        return int(2 * 2 * llama_cpp.llama_model_n_layer(self.handle) * num_heads * head_dim)

    def free(self) -> None:
        llama_cpp.llama_model_free(self.handle)

    def is_end(self, token: int) -> bool:
        return bool(llama_cpp.llama_vocab_is_eog(self.vocab, token))


def text_of(model: Model, tokens: Sequence[int]) -> str:
    """Their text, special tokens left out; bytes that are no UTF-8 are replaced."""
    parts, buffer = [], ctypes.create_string_buffer(256)
    for token in tokens:
        count = llama_cpp.llama_token_to_piece(model.vocab, token, buffer, len(buffer), 0, False)
        parts.append(buffer.raw[: max(0, count)])
    return b"".join(parts).decode(errors="replace")


class Context:
    """KV cache and batch of some sequences.

    num_tokens: what one sequence may come to hold, each in a stream of its own (the faster way where sequences share
    nothing); shared: what all of them may come to hold together.
    """

    def __init__(
        self, model: Model, num_sequences: int, num_tokens: int, *, shared: bool, threads: int, flash: bool
    ) -> None:
        rounded = num_tokens // _CONTEXT_GRANULARITY * _CONTEXT_GRANULARITY
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max = rounded if shared else rounded * num_sequences, num_sequences
        params.n_batch, params.n_ubatch = 1024, 512
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = int(flash)
        params.kv_unified = shared
        params.no_perf = True
        self._model = model
        self._handle: Any = llama_cpp.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise RuntimeError(f"llama.cpp makes no context of {num_sequences} sequences and {rounded} tokens")
        self._batch: Any = llama_cpp.llama_batch_init(params.n_batch, 0, 1)
        self._token, self._position, self._wanted = (
            np.ctypeslib.as_array(pointer, (params.n_batch,))
            for pointer in (self._batch.token, self._batch.pos, self._batch.logits)
        )
        for place in range(params.n_batch):
            self._batch.n_seq_id[place] = 1

    def free(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._handle)

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._handle), True)

    def compute(
        self, tokens: Sequence[int], positions: Sequence[int], sequences: Sequence[int], wanted: Sequence[int]
    ) -> NDArray[np.float32]:
        """Logits [len(wanted), vocabulary], valid until the next call. wanted: places in `tokens`, ascending."""
        count = len(tokens)
        self._batch.n_tokens = count
        self._token[:count], self._position[:count], self._wanted[:count] = tokens, positions, 0
        self._wanted[list(wanted)] = 1
        seq_id = self._batch.seq_id
        for place, sequence in enumerate(sequences):
            seq_id[place][0] = sequence
        failed = llama_cpp.llama_decode(self._handle, self._batch)
        if failed:
            raise RuntimeError(f"llama_decode gave {failed} for {count} tokens")
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._handle), (len(wanted), self._model.vocab_size))


class Grammar:
    """A JSON schema as llama.cpp holds it, for one sequence."""

    def __init__(self, model: Model, schema_text: str) -> None:
        self._model = model
        text = json_schema_to_gbnf(schema_text)
        self._sampler: Any = llama_cpp.llama_sampler_init_grammar(model.vocab, text.encode(), b"root")
        if not self._sampler:
            raise RuntimeError("llama.cpp refuses the grammar of its own converter")
        self._one = (llama_cpp.llama_token_data * 1)()
        self._every = np.zeros(model.vocab_size, dtype=_CANDIDATE)
        self._every["id"] = np.arange(model.vocab_size)

    def free(self) -> None:
        llama_cpp.llama_sampler_free(self._sampler)

    def take(self, logits: NDArray[np.float32]) -> int:
        """The most likely legal token, which is then accepted."""
        token = int(logits.argmax())
        self._one[0].id, self._one[0].logit, self._one[0].p = token, 1.0, 0.0
        self._apply(self._one, 1)
        if self._one[0].logit == -np.inf:
            self._every["logit"] = logits
            pointer = self._every.ctypes.data_as(llama_cpp.llama_token_data_p)
            self._apply(pointer, len(self._every))
            token = int(self._every["logit"].argmax())
        llama_cpp.llama_sampler_accept(self._sampler, token)
        return token

    def _apply(self, candidates: Any, count: int) -> None:
        pointer = ctypes.cast(candidates, llama_cpp.llama_token_data_p)
        array = llama_cpp.llama_token_data_array(pointer, count, -1, False)
        llama_cpp.llama_sampler_apply(self._sampler, ctypes.byref(array))
