"""`LLM.run_job`: check, lock, resume, run, report. The order matters: nothing is touched before all is checked.

What a job's output depends on is described as data (`_describe`) and kept beside the output, so that a later run with
anything else is refused. See `safegen.jobs` for the parts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safegen.drive import Stop
from safegen.engine.request import SamplingParams
from safegen.errors import JobOutputError, RequestError
from safegen.jobs.about import about_job
from safegen.jobs.flow import Flow
from safegen.jobs.header import Config, check_unchanged, read_header, write_header
from safegen.jobs.index import RowIndex
from safegen.jobs.lock import OutputLock
from safegen.jobs.options import JobOptions, check_params, described_params
from safegen.jobs.output_types import RowTypes
from safegen.jobs.outputs import Output, OutputPaths, output_paths
from safegen.jobs.plan import Planner
from safegen.jobs.progress import make_progress
from safegen.jobs.prompts import describe_prompt
from safegen.jobs.report import JobReport, report_of
from safegen.jobs.report_file import check_report, reported
from safegen.jobs.sources import Source, open_source
from safegen.jobs.tally import Tally
from safegen.runtime import CallOptions, Runtime
from safegen.sampling import has_guards, merge_sampling

_WINDOW_PER_SEQUENCE = 2  # as `LLM.batch`


def run_job(
    runtime: Runtime, given: Any, output: Any, spec: Any, options: JobOptions, stop: Stop | None = None
) -> JobReport:
    """See `LLM.run_job`."""
    paths = output_paths(output)
    params = merge_sampling(options.call.params, options.call.sampling)
    check_params(params)
    call = _call_of_rows(options.call)
    compiled = runtime.compile(spec)
    runtime.prepare("x", compiled, CallOptions(params, None, call.speculation, call.show_schema, call.cache_salt))
    types = RowTypes(compiled, options.schema_column, options.type_of)
    job_seed = 0 if params.seed is None else params.seed
    source = open_source(given, options.format, options.max_row_bytes)
    try:
        is_openai = source.format == "openai"
        planner = Planner(
            types, options.prompt, params, call,
            job_seed=job_seed, id_column=options.id_column, is_openai=is_openai,
        )  # fmt: skip
        config = Config(
            {
                "type": types.describe(spec),
                "prompt": describe_prompt(options.prompt),
                "format": "openai" if is_openai else "rows",
                "model": runtime.fingerprint,
                "params": described_params(params),
                "seed": job_seed,
                "guards": _guards_config(runtime, call),
                "show_schema": call.show_schema,
                "version": options.version,
            }
        )
        _check_places(given, paths)
        page = check_report(options.report, source.name, paths)
        return _run(runtime, source, paths, planner, config, options, page, stop)
    finally:
        source.close()


def _run(
    runtime: Runtime,
    source: Source,
    paths: OutputPaths,
    planner: Planner,
    config: Config,
    options: JobOptions,
    page: Path | None,
    stop: Stop | None,
) -> JobReport:
    paths.prepare()
    with OutputLock(paths.lock), contextlib.closing(RowIndex()) as index:
        configs = _settled_configs(paths, config, options)
        tally = Tally(total=source.total, position=source.position)
        about = about_job(runtime, source, paths, config, len(configs))
        with reported(page, tally, about), _opened(paths.make(options.rows_per_part), index, tally, options) as output:
            window = options.window or _WINDOW_PER_SEQUENCE * runtime.max_num_seqs
            flow = Flow(
                runtime, source, planner, index, output, tally,
                configs=configs, window=window, ordered=options.ordered,
            )  # fmt: skip
            with make_progress(options.progress, tally) as progress:
                flow.to_end(stop)
                output.finish()
                tally.end()
                report = report_of(tally, str(paths.path))
            progress.summary(report)
    return report


@contextlib.contextmanager
def _opened(output: Output, index: RowIndex, tally: Tally, options: JobOptions) -> Iterator[Output]:
    """The output with what is done in the index, repaired, ready to be appended to; whole lines at the end."""
    has_failed = False
    for record in output.records():
        if options.retry_failed and record["status"] != "ok":
            has_failed = True
        elif index.add_done(record["key"]):
            tally.add_before(record)
    if has_failed:
        output.rewrite(lambda record: record["status"] == "ok")
    output.open()
    try:
        yield output
    except BaseException:
        with contextlib.suppress(JobOutputError):  # the first error is the one to tell
            output.close()
        raise
    output.close()


def _settled_configs(paths: OutputPaths, config: Config, options: JobOptions) -> list[str]:
    """Digests under which rows of this output may be done, the job's own first; the header says so too."""
    paths.check_ours()
    if not options.resume and paths.exists():
        raise JobOutputError(
            "it exists, and resume=False begins a new one", path=str(paths.path), hint="name another, or remove it"
        )
    known = read_header(paths.header)
    if options.on_change == "refuse":
        check_unchanged(paths.path, known, config)
    is_known = any(each["digest"] == config.digest for each in known)
    if known and not is_known and options.on_change == "restart":
        paths.remove()
        known = []
    if not is_known:
        known = [*known, {"digest": config.digest, "description": config.description}]
        write_header(paths.header, known)
    return [config.digest, *(each["digest"] for each in known if each["digest"] != config.digest)]


def _call_of_rows(call: CallOptions) -> CallOptions:
    """Guards made once, for every row."""
    guards = call.guards
    if has_guards(guards):
        from safegen.guards.guards import as_guards

        guards = as_guards(guards)
    return CallOptions(SamplingParams(), guards, call.speculation, call.show_schema, call.cache_salt)


def _guards_config(runtime: Runtime, call: CallOptions) -> str | None:
    guards = runtime.guards(call.guards)
    return None if guards is None else guards.config


def _check_places(given: Any, paths: OutputPaths) -> None:
    if isinstance(given, str | os.PathLike) and Path(given).resolve() == paths.path.resolve():
        raise RequestError("input and output are the same", field="output", value=str(paths.path))
