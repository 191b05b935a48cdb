"""`safegen serve`: the command around the server. Exit codes: 0 an orderly end, 2 a mistake in the call."""

from __future__ import annotations

import argparse
import asyncio
import logging
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
    _add_ray(parser)
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


def _add_ray(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ray", action="store_true", help="replicas on a Ray cluster, one of this machine by default")
    parser.add_argument("--replicas", type=int, metavar="N", help="so many, always (2)")
    parser.add_argument("--min-replicas", type=int, metavar="N", help="at least so many; with --max-replicas")
    parser.add_argument("--max-replicas", type=int, metavar="N", help="at most so many, by the requests in work")
    parser.add_argument("--target-requests", type=float, default=16.0, metavar="X", help="in work, of a replica (16)")
    parser.add_argument("--upscale-delay", type=float, default=30.0, metavar="S", help="of more replicas (30)")
    parser.add_argument("--downscale-delay", type=float, default=600.0, metavar="S", help="of fewer replicas (600)")
    parser.add_argument("--cpus-per-replica", type=float, metavar="X", help="by default the cluster's, shared out")
    parser.add_argument("--gpus-per-replica", type=float, default=0.0, metavar="X", help="(0)")
    parser.add_argument(
        "--ray-address", metavar="ADDRESS", help="a running cluster: deploy there, or update, and leave"
    )


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
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    recipe = _recipe(arguments, settings)
    if arguments.ray:
        from safegen.server.on_ray.deploy import RayOptions, serve_on_ray

        return serve_on_ray(recipe, settings, RayOptions.of(arguments))
    return _run(arguments, settings, recipe)


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


def _recipe(arguments: argparse.Namespace, settings: Any) -> Any:
    from safegen.guards.guards import Guards, parsed_config
    from safegen.limits import Limits
    from safegen.server.recipe import ModelRecipe

    guards, audit_key = None, _audit_key()
    if arguments.guards is not None:
        Guards.from_yaml(arguments.guards, audit_key=audit_key)  # names the file in what it raises
        guards = parsed_config(Path(arguments.guards).read_text(encoding="utf-8"))
    options = {
        "kernels": arguments.kernels, "quantization": arguments.quantization,
        "kv_cache_memory": arguments.kv_cache_memory, "max_num_seqs": arguments.max_num_seqs,
        "speculation": False if arguments.no_speculation else "auto",
    }  # fmt: skip
    limits = Limits(
        max_queue=settings.max_pending + 2 * arguments.max_num_seqs,
        max_schema_bytes=arguments.max_schema_bytes,
        compile_deadline_s=arguments.compile_deadline,
    )
    return ModelRecipe(arguments.model, options, limits, guards, audit_key)


def _run(arguments: argparse.Namespace, settings: Any, recipe: Any) -> int:
    from safegen.server.app import create_app
    from safegen.server.serving import listen, make_server, serve

    listening = listen(arguments.host, arguments.port, settings.write_timeout_s)
    with listening, recipe.make() as llm:
        app = create_app(llm, settings)
        host, port = listening.getsockname()[:2]
        announce(settings, host, port)
        asyncio.run(serve(make_server(app, settings), listening))
    return 0


def announce(settings: Any, host: str, port: int) -> None:
    print(f"safegen: {settings.model_names[0]} at http://{host}:{port}/v1", file=sys.stderr, flush=True)
    if settings.playground:
        print(f"safegen: playground at http://{host}:{port}/", file=sys.stderr, flush=True)
