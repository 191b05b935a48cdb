"""`safegen job INPUT OUTPUT`: a batch job from the command line.

Exit codes: 0 every row is ok; 3 the job is done and some rows are not ok; 2 a mistake, or an input or output that
cannot be used; 130 interrupted. Running the same line again goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safegen.errors import RequestError
from safegen.jobs.sources import FORMATS

_SAMPLING = ("max_tokens", "temperature", "top_p", "seed")


def add_job(commands: Any, add_type_options: Callable[..., None], spec_of: Callable[[argparse.Namespace], Any]) -> None:
    """commands: of the parser. add_type_options, spec_of: how every command names an output type."""
    parser = commands.add_parser("job", help="answer every row of a file, resumably")
    parser.add_argument("input", help=".jsonl, .csv, .tsv (each also .gz), .parquet, or a folder of .parquet files")
    parser.add_argument("output", help=".jsonl (one file) or .parquet (a folder of part files)")
    add_type_options(parser, required=False)
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEMPLATE", help="such as 'Summarise: {text}'; {text} is a column")
    prompt.add_argument("--prompt-file", metavar="FILE", help="the template is in this file")
    parser.add_argument("--system", metavar="TEMPLATE", help="system message; may name columns too")
    parser.add_argument("--model", help="GGUF file, model folder or cached hub id; default: the installed model")
    parser.add_argument("--kernels", default="auto", choices=["auto", "cpu", "reference", "triton"])
    parser.add_argument("--max-num-seqs", type=int, default=64, help="sequences computed at once")
    _add_rows(parser)
    _add_sampling(parser)
    _add_workers(parser)
    parser.set_defaults(command=lambda arguments: _job(arguments, spec_of(arguments)))


def _add_rows(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=FORMATS, help="of the input; 'openai' is OpenAI's batch file format")
    parser.add_argument("--schema-column", metavar="NAME", help="the column with a row's own JSON Schema")
    parser.add_argument("--id-column", metavar="NAME", help="default: id or custom_id, else the row's key")
    parser.add_argument("--guards", metavar="FILE", help="guards as YAML or JSON")
    parser.add_argument("--ordered", action="store_true", help="write records in the input's order")
    parser.add_argument("--window", type=int, metavar="ROWS", help="rows in flight; default: twice --max-num-seqs")
    parser.add_argument("--max-row-bytes", type=int, default=1 << 20, help="longer rows are error rows")
    parser.add_argument("--retry-failed", action="store_true", help="answer the rows anew that are not ok")
    parser.add_argument("--no-resume", action="store_true", help="refuse an output that exists")
    parser.add_argument(
        "--on-change", default="refuse", choices=["refuse", "keep", "restart"],
        help="when the output was begun with another type, prompt, model or setting",
    )  # fmt: skip
    parser.add_argument("--version-name", metavar="TEXT", help="part of every row's key; change it to answer anew")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--seed", type=int, help="of the job; each row draws with a seed of its own")
    parser.add_argument("--no-show-schema", action="store_true", help="do not tell the model the type")
    parser.add_argument("--progress", default="auto", choices=["auto", "bar", "lines", "off"])
    parser.add_argument("--report", metavar="FILE", help="write a page on how the job went (.html)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON on stdout")


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", default="local", choices=["local", "ray"], help="who answers the rows")
    parser.add_argument("--num-workers", type=int, metavar="N", help="with --engine ray: processes that load the model")
    parser.add_argument("--ray-address", metavar="ADDRESS", help="of the Ray cluster; default: one on this machine")


def _job(arguments: argparse.Namespace, spec: Any) -> int:
    from safegen.llm import LLM

    sampling = {name: getattr(arguments, name) for name in _SAMPLING if getattr(arguments, name) is not None}
    prompt, guards = _prompt(arguments), _guards(arguments)
    make = LLM.without_weights if arguments.engine == "ray" else LLM  # the workers load the model, not this process
    with make(arguments.model, kernels=arguments.kernels, max_num_seqs=arguments.max_num_seqs) as llm:
        report = llm.run_job(
            arguments.input,
            arguments.output,
            spec,
            prompt=prompt,
            guards=guards,
            format=arguments.format,
            schema_column=arguments.schema_column,
            id_column=arguments.id_column,
            show_schema=not arguments.no_show_schema,
            ordered=arguments.ordered,
            window=arguments.window,
            max_row_bytes=arguments.max_row_bytes,
            retry_failed=arguments.retry_failed,
            resume=not arguments.no_resume,
            on_change=arguments.on_change,
            version=arguments.version_name,
            progress=arguments.progress,
            report=arguments.report,
            engine=arguments.engine,
            num_workers=arguments.num_workers,
            ray_address=arguments.ray_address,
            **sampling,
        )
    if arguments.report is not None and arguments.progress != "off":
        print(f"page: {arguments.report}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(report.to_dict()))
    return report.exit_code


def _prompt(arguments: argparse.Namespace) -> Any:
    template = arguments.prompt
    if arguments.prompt_file is not None:
        try:
            template = Path(arguments.prompt_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"{arguments.prompt_file} cannot be read: {error}", field="--prompt-file") from error
    if arguments.system is None:
        return template
    if template is None:
        raise RequestError("--system needs --prompt or --prompt-file", field="--system", value=arguments.system)
    return [{"role": "system", "content": arguments.system}, {"role": "user", "content": template}]


def _guards(arguments: argparse.Namespace) -> Any:
    if arguments.guards is None:
        return None
    from safegen.guards.guards import Guards

    return Guards.from_yaml(arguments.guards)
