"""`LLM.run_job`: check, lock, resume, run, report. The order matters: nothing is touched before all is checked.

What a job's output depends on is described as data (`_describe`) and kept beside the output, so that a later run with
anything else is refused. See `safegen.jobs` for the parts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from safegen.drive import Stop
from safegen.engine.request import SamplingParams
from safegen.errors import JobOutputError, RequestError
from safegen.jobs.about import about_job
from safegen.jobs.flow import Flow
from safegen.jobs.header import Config, check_unchanged, read_header, write_header
from safegen.jobs.index import RowIndex
from safegen.jobs.lock import OutputLock
from safegen.jobs.options import JobOptions, check_params, described_params
from safegen.jobs.outputs import Output, OutputPaths, output_paths
from safegen.jobs.pending import PendingRows
from safegen.jobs.progress import make_progress
from safegen.jobs.prompts import describe_prompt
from safegen.jobs.recipe import Recipe
from safegen.jobs.records import record_of
from safegen.jobs.report import JobReport, report_of
from safegen.jobs.report_file import check_report, reported
from safegen.jobs.sources import Source, open_source
from safegen.jobs.tally import Tally
from safegen.jobs.writing import RecordWriter
from safegen.runtime import CallOptions, Runtime
from safegen.sampling import has_guards, merge_sampling

_WINDOW_PER_SEQUENCE = 2  # as `LLM.batch`
_ORDER_WINDOWS = 4  # rows that may wait for their turn, in windows


class Rows(Protocol):
    """Who brings the rows to their records."""

    def to_end(self, stop: Stop | None = None) -> None: ...


Begin = Callable[[PendingRows, RecordWriter, int], Rows]  # the window last


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
    job_seed = 0 if params.seed is None else params.seed
    source = open_source(given, options.format, options.max_row_bytes)
    try:
        recipe = Recipe(
            spec, options.prompt, options.type_of, options.schema_column, options.id_column, params, call, job_seed,
            is_openai=source.format == "openai",
        )  # fmt: skip
        begin = _local(runtime, recipe, options) if options.engine == "local" else _on_ray(runtime, recipe, options)
        config = Config(
            {
                "type": recipe.types(runtime).describe(spec),
                "prompt": describe_prompt(options.prompt),
                "format": "openai" if recipe.is_openai else "rows",
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
        return _run(runtime, begin, source, paths, config, options, page, stop)
    finally:
        source.close()


def _local(runtime: Runtime, recipe: Recipe, options: JobOptions) -> Begin:
    planner = options.planner or recipe.planner(runtime)
    record = record_of if options.planner is None else options.planner.record
    return lambda pending, writer, window: Flow(runtime, pending, planner, writer, window=window, record_of=record)


def _on_ray(runtime: Runtime, recipe: Recipe, options: JobOptions) -> Begin:
    recipe.planner(runtime)  # what is wrong with it is told here, not by a worker
    from safegen.jobs.on_ray.cluster import import_ray

    import_ray()
    from safegen.jobs.on_ray.flow import RayFlow
    from safegen.jobs.on_ray.shipment import pack

    package = pack(runtime, recipe)
    workers, address = options.num_workers or 1, options.ray_address
    return lambda pending, writer, window: RayFlow(
        package, pending, writer, window=window, num_workers=workers, address=address
    )


def _run(
    runtime: Runtime,
    begin: Begin,
    source: Source,
    paths: OutputPaths,
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
            window = options.window or _WINDOW_PER_SEQUENCE * runtime.max_num_seqs * (options.num_workers or 1)
            writer = RecordWriter(output, tally, (_ORDER_WINDOWS - 1) * window if options.ordered else None)
            flow = begin(PendingRows(source, index, tally, configs), writer, window)
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
