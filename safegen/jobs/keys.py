"""Who a row is, and which seed it draws with.

The key of a row is a digest of its content, of the job's configuration (output type, prompt, model, parameters,
guards, job seed) and of its occurrence: which of several equal rows it is, in input order. So equal rows stay rows, a
row that was moved in the input is the same, and one whose answer could differ is another. Seeds come from the job's
seed and the key: a row draws the same alone, in company, and after a crash.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from safegen.jobs.rows import DIGEST_BYTES

_SEED_BITS = 63


def config_digest(description: Mapping[str, Any]) -> str:
    """Hex digest of all that decides a row's answer, beside the row."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(
        text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES, person=b"config"
    ).hexdigest()


def row_key(config: str, row_digest: bytes, occurrence: int) -> str:
    """config: of `config_digest`. occurrence: how many rows with this digest came before it."""
    content = bytes.fromhex(config) + row_digest + occurrence.to_bytes(8, "little")
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES, person=b"key").hexdigest()


def row_seed(job_seed: int, key: str) -> int:
    """A seed that `SamplingParams` takes."""
    content = job_seed.to_bytes(16, "little", signed=True) + bytes.fromhex(key)
    digest = hashlib.blake2b(content, digest_size=8, person=b"seed").digest()
    return int.from_bytes(digest, "little") >> (64 - _SEED_BITS)


def describe_function(function: Callable[..., Any]) -> dict[str, Any]:
    """A function as far as its identity can be told: its name, and its source or, of a lambda (whose source is that of
    the statement it stands in) and where there is none, its code. What it closes over is not seen."""
    inner = function.func if isinstance(function, functools.partial) else function
    name = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"
    arguments = repr((function.args, function.keywords)) if isinstance(function, functools.partial) else ""
    code = getattr(inner, "__code__", None)
    body = "" if code is None else f"{code.co_code.hex()} {code.co_names} {_constants(code)}"
    if getattr(inner, "__name__", "") != "<lambda>":
        with contextlib.suppress(OSError, TypeError):
            body = inspect.getsource(inner)
    return {"function": name, "body": body, "arguments": arguments}


def _constants(code: Any) -> list[str]:
    """Constants without addresses: nested functions by their code."""
    return [
        f"{each.co_code.hex()} {_constants(each)}" if inspect.iscode(each) else repr(each) for each in code.co_consts
    ]
