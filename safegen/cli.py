"""The command line: `safegen generate`, `check`, `plan`, `bench`, `serve`, `gateway`,
`models`, `job`.

Exit codes: 0 done; 1 the answer is not "ok", a checked type is refused, a plan cannot be had or a promise not held; 2 a
mistake in the call (message on stderr, never a traceback); 3 rows of a job are not "ok"; 130 interrupted. The answer
goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safegen.capacity.command import add_plan
from safegen.errors import RequestError, SafegenError
from safegen.gateway.command import add_gateway
from safegen.jobs.command import add_job
from safegen.load.command import add_bench
from safegen.server.command import add_serve
from safegen.types import Choice, JsonSchema, Regex

OK, NOT_OK, USER_MISTAKE, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = _parser()
    try:
        parsed = parser.parse_args(arguments)
    except SystemExit as ended:  # argparse has printed the usage or the help
        return ended.code if isinstance(ended.code, int) else USER_MISTAKE
    try:
        code: int = parsed.command(parsed)
        return code
    except SafegenError as error:
        print(f"safegen: {type(error).__name__}: {error}", file=sys.stderr)
        return USER_MISTAKE
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="safegen", description="Guaranteed answers from a model in this process.")
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_generate(commands.add_parser("generate", help="answer one prompt"))
    _add_check(commands.add_parser("check", help="show how an output type is handled; no model is needed"))
    add_plan(commands.add_parser("plan", help="what a model needs on a device, and what it gives there"))
    add_bench(commands.add_parser("bench", help="put a model under load, and hold it to a promise"))
    add_serve(commands.add_parser("serve", help="serve a model over HTTP, in the shapes of OpenAI's API"))
    add_gateway(commands.add_parser("gateway", help="one address before several upstreams"))
    _add_models(commands.add_parser("models", help="list local models, or pull one"))
    add_job(commands, _add_type_options, _spec)
    return parser


def _add_type_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    group = parser.add_mutually_exclusive_group(required=required)
    group.add_argument("--schema", metavar="FILE", help="JSON Schema file ('-' is stdin)")
    group.add_argument("--regex", metavar="PATTERN", help="the whole answer matches this pattern")
    group.add_argument("--choice", metavar="LABEL", nargs="+", help="the answer is one of these")


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", help="the prompt ('-' is stdin)")
    _add_type_options(parser, required=False)
    parser.add_argument("--model", help="GGUF file, model folder or cached hub id; default: the installed model")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--kernels", default="auto", choices=["auto", "cpu", "reference", "triton"])
    parser.add_argument("--no-show-schema", action="store_true", help="do not tell the model the type")
    parser.add_argument("--json", action="store_true", help="print status, value and usage as one JSON object")
    parser.set_defaults(command=_generate)


def _add_check(parser: argparse.ArgumentParser) -> None:
    _add_type_options(parser, required=True)
    parser.add_argument("--text", help="also say whether exactly this text would be accepted")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(command=_check)


def _add_models(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="action")
    actions.add_parser("list", help="models found on this machine").set_defaults(command=_list_models)
    pull = actions.add_parser("pull", help="download a model from the Hugging Face hub (uses the network)")
    pull.add_argument("id", help="hub id, such as owner/name")
    pull.set_defaults(command=_pull_model)


def _generate(arguments: argparse.Namespace) -> int:
    from safegen.llm import LLM

    names = ("max_tokens", "temperature", "top_p", "seed")
    sampling = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if arguments.prompt == "-" and arguments.schema == "-":
        raise RequestError("the prompt and the schema cannot both be read from stdin", field="prompt", value="-")
    spec = _spec(arguments)
    text = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    prompt: Any = text
    if arguments.system is not None:
        prompt = [{"role": "system", "content": arguments.system}, {"role": "user", "content": text}]
    with LLM(arguments.model, kernels=arguments.kernels) as llm:
        result = llm.generate(prompt, spec, show_schema=not arguments.no_show_schema, **sampling)
    if arguments.json:
        print(json.dumps(_as_json(result), ensure_ascii=False))
    else:
        print(result.text)
        if result.status != "ok":
            print(f"safegen: status {result.status}: {result.error}", file=sys.stderr)
    return OK if result.status == "ok" else NOT_OK


def _as_json(result: Any) -> dict[str, Any]:
    return {
        "status": result.status,
        "value": result.value,
        "text": result.text,
        "finish_reason": result.finish_reason,
        "prompt_tokens": result.usage.prompt_tokens,
        "completion_tokens": result.usage.completion_tokens,
        "error": None if result.error is None else str(result.error),
    }


def _check(arguments: argparse.Namespace) -> int:
    from safegen.checking import check, matches

    spec = _spec(arguments)
    findings = check(spec)
    refused = any(finding.handling == "refused" for finding in findings)
    accepted = None if arguments.text is None or refused else matches(spec, arguments.text)
    if arguments.json:
        rows = [
            {"pointer": each.pointer, "keyword": each.keyword, "handling": each.handling, "note": each.note}
            for each in findings
        ]
        print(json.dumps({"served": not refused, "findings": rows, "accepts": accepted}, ensure_ascii=False))
    else:
        for each in findings:
            print(f"{each.handling:8}  #{each.pointer}  {each.keyword}  {each.note}".rstrip())
        print("refused" if refused else "served")
        if accepted is not None:
            print("accepts the text" if accepted else "does not accept the text")
    return NOT_OK if refused or accepted is False else OK


def _list_models(arguments: argparse.Namespace) -> int:
    from safegen.engine.locate import list_local_models

    for model in list_local_models():
        print(f"{model.name}  {model.kind}  {model.num_bytes / 1e6:,.0f} MB  {model.path}")
    return OK


def _pull_model(arguments: argparse.Namespace) -> int:
    from safegen.engine.locate import pull_model

    print(f"downloading {arguments.id} from the Hugging Face hub", file=sys.stderr)
    print(pull_model(arguments.id))
    return OK


def _spec(arguments: argparse.Namespace) -> Any:
    if arguments.schema is not None:
        return JsonSchema(_read(arguments.schema))
    if arguments.regex is not None:
        return Regex(arguments.regex)
    if arguments.choice is not None:
        return Choice(arguments.choice)
    return None


def _read(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {error}", field="--schema", value=path) from error


if __name__ == "__main__":
    sys.exit(main())
