"""`safegen gateway`: the command around the gateway. Exit codes: 0 an orderly end, 2 a mistake in the call."""

from __future__ import annotations

import argparse
import sys

from safegen.errors import RequestError

_INSTALL = "pip install 'safegen[server]'"


def add_gateway(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="upstreams and settings, as YAML or JSON")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (127.0.0.1: this machine alone)")
    parser.add_argument("--port", type=int, default=8080, help="0 takes a free one (8080)")
    parser.add_argument("--api-keys", metavar="FILE", help="API keys and their limits, as YAML or JSON")
    parser.add_argument("--allow-anonymous", action="store_true", help="other machines may call without a key")
    parser.set_defaults(command=_gateway)


def _gateway(arguments: argparse.Namespace) -> int:
    try:
        import fastapi as _fastapi  # noqa: F401
        import httpx2 as _httpx2  # noqa: F401
        import uvicorn as _uvicorn  # noqa: F401
        import yaml as _yaml  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        raise RequestError(f"the gateway needs {error.name}: {_INSTALL}", field="gateway") from error
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    import asyncio
    import logging

    from safegen.gateway.app import create_gateway
    from safegen.gateway.config import load_config
    from safegen.server.auth import load_keys
    from safegen.server.serving import listen, make_server, serve
    from safegen.server.settings import check_exposure

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    app = create_gateway(load_config(arguments.config), load_keys(arguments.api_keys))
    settings = app.state.server.settings
    check_exposure(arguments.host, settings, allow_anonymous=arguments.allow_anonymous)
    with listen(arguments.host, arguments.port, settings.write_timeout_s) as listening:
        host, port = listening.getsockname()[:2]
        models = ", ".join(settings.model_names)
        print(f"safegen: {models} at http://{host}:{port}/v1", file=sys.stderr, flush=True)
        asyncio.run(serve(make_server(app, settings), listening))
    return 0
