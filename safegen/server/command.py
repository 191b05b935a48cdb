"""`safegen serve`: the command around the server. Exit codes: 0 an orderly end, 2 a mistake in the call."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from safegen.errors import RequestError

AUDIT_KEY_VARIABLE = "SAFEGEN_AUDIT_KEY"
_INSTALL = "pip install 'safegen[server]'"


def add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="as for generate")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (127.0.0.1: this machine alone)")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (8000)")
    parser.add_argument("--model-name", action="append", metavar="NAME", help="what requests call it; may be repeated")
    parser.add_argument("--data-dir", metavar="FOLDER", help="where files and batches are kept; none: no batches")
    parser.add_argument("--no-playground", action="store_true", help="no page at /")
    parser.add_argument("--guards", metavar="FILE", help="guards of every request, as YAML or JSON; SAFEGEN_AUDIT_KEY")
    _add_access(parser)
    _add_limits(parser)
    _add_engine(parser)
    parser.set_defaults(command=_serve)


def _add_access(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--api-keys", metavar="FILE", help="API keys and their limits, as YAML or JSON")
    parser.add_argument("--allow-anonymous", action="store_true", help="other machines may call without a key")
    parser.add_argument("--cors-origin", action="append", metavar="URL", help="pages that may call from a browser")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-pending", type=int, default=256, help="sequences in work or waiting (256)")
    parser.add_argument("--max-body-bytes", type=int, default=1 << 20, help="of a JSON body (1,048,576)")
    parser.add_argument("--max-file-bytes", type=int, default=64 << 20, help="of an uploaded file (67,108,864)")
    parser.add_argument("--max-schema-bytes", type=int, default=1 << 18, help="of a JSON Schema (262,144)")
    parser.add_argument("--compile-deadline", type=float, default=4.0, metavar="S", help="of an output type (4)")
    parser.add_argument("--request-timeout", type=float, default=600.0, metavar="S", help="of an answer (600)")
    parser.add_argument("--write-timeout", type=float, default=30.0, metavar="S", help="of a client that reads (30)")
    parser.add_argument("--drain-timeout", type=float, default=30.0, metavar="S", help="after SIGTERM (30)")


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-num-seqs", type=int, default=64, help="sequences computed at once")
    parser.add_argument("--kv-cache-memory", type=int, help="bytes")
    parser.add_argument("--kernels", default="auto", choices=["auto", "cpu", "reference", "triton"])
    parser.add_argument("--quantization", choices=["int8", "int4"])
    parser.add_argument("--no-speculation", action="store_true")
    parser.add_argument("--tool-format", default="hermes", choices=["hermes", "mistral", "llama", "phi"])


def _serve(arguments: argparse.Namespace) -> int:
    try:
        import fastapi as _fastapi  # noqa: F401
        import python_multipart as _multipart  # noqa: F401
        import uvicorn as _uvicorn  # noqa: F401
        import yaml as _yaml  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        raise RequestError(f"the server needs {error.name}: {_INSTALL}", field="serve") from error
    from safegen.server.settings import check_exposure

    settings = _settings(arguments)
    check_exposure(arguments.host, settings, allow_anonymous=arguments.allow_anonymous)
    return _run(arguments, settings)


def _audit_key() -> bytes | None:
    given = os.environ.get(AUDIT_KEY_VARIABLE)
    return None if given is None else given.encode()


def _settings(arguments: argparse.Namespace) -> Any:
    from safegen.server.auth import load_keys
    from safegen.server.settings import ServerSettings, default_model_name

    return ServerSettings(
        model_names=tuple(arguments.model_name or [default_model_name(arguments.model)]),
        keys=load_keys(arguments.api_keys),
        data_dir=None if arguments.data_dir is None else Path(arguments.data_dir),
        max_pending=arguments.max_pending,
        max_body_bytes=arguments.max_body_bytes,
        max_file_bytes=arguments.max_file_bytes,
        request_timeout_s=arguments.request_timeout,
        write_timeout_s=arguments.write_timeout,
        drain_timeout_s=arguments.drain_timeout,
        cors_origins=tuple(arguments.cors_origin or ()),
        tool_format=arguments.tool_format,
        playground=not arguments.no_playground,
    )


def _run(arguments: argparse.Namespace, settings: Any) -> int:
    import asyncio
    import logging

    from safegen.guards.guards import Guards
    from safegen.limits import Limits
    from safegen.llm import LLM
    from safegen.server.app import create_app
    from safegen.server.serving import listen, make_server, serve

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    guards: Any = () if arguments.guards is None else Guards.from_yaml(arguments.guards, audit_key=_audit_key())
    limits = Limits(
        max_queue=settings.max_pending + 2 * arguments.max_num_seqs,
        max_schema_bytes=arguments.max_schema_bytes,
        compile_deadline_s=arguments.compile_deadline,
    )
    listening = listen(arguments.host, arguments.port, settings.write_timeout_s)
    with listening, LLM(
        arguments.model, kernels=arguments.kernels, quantization=arguments.quantization,
        kv_cache_memory=arguments.kv_cache_memory, max_num_seqs=arguments.max_num_seqs, guards=guards, limits=limits,
        speculation=False if arguments.no_speculation else "auto",
    ) as llm:  # fmt: skip
        app = create_app(llm, settings)
        host, port = listening.getsockname()[:2]
        print(f"safegen: {settings.model_names[0]} at http://{host}:{port}/v1", file=sys.stderr, flush=True)
        if settings.playground:
            print(f"safegen: playground at http://{host}:{port}/", file=sys.stderr, flush=True)
        asyncio.run(serve(make_server(app, settings), listening))
    return 0
