"""From the constructor's options to a ready `Runtime`: check, find the model, load it, start the engine.

torch is imported here, on the first LLM, and nowhere earlier.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from safegen.draft_models import DraftModels
from safegen.errors import RequestError
from safegen.limits import Limits
from safegen.model_fingerprint import model_fingerprint
from safegen.runtime import Runtime
from safegen.sampling import check_options
from safegen.speculation import OFF, Speculation, make_drafters, resolve_load

if TYPE_CHECKING:
    from safegen.engine.backend import Backend
    from safegen.engine.config import EngineConfig
    from safegen.engine.gpu.runner import GpuRunner
    from safegen.engine.parallel.gpu import ParallelGpuRunner
    from safegen.engine.parallel.runner import ParallelRunner
    from safegen.engine.runner import ModelRunner
    from safegen.engine.speculate.base import Drafter
    from safegen.engine.tokenizer import Tokenizer

Kernels = Literal["auto", "cpu", "reference", "triton"]
Device = Literal["auto", "cpu", "cuda"]
KvCacheDtype = Literal["auto", "float16", "float32", "int8"]
Quantization = Literal["int8", "int4"]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The arguments of `LLM(...)`, checked at construction; RequestError names the field and the choices."""

    model: str | os.PathLike[str] | None = None
    kernels: Kernels = "auto"
    device: Device = "auto"
    quantization: Quantization | None = None
    kv_cache_memory: int | None = None
    kv_cache_dtype: KvCacheDtype = "auto"
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    speculation: Any = "auto"
    guards: Any = ()
    deterministic: bool = False
    limits: Limits = field(default_factory=Limits)
    gpu_memory_utilization: float = 0.9
    tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        if self.model is not None and not isinstance(self.model, str | os.PathLike):
            raise RequestError(
                f"model is a path, a hub id or None, got {type(self.model).__name__}", field="model", value=self.model
            )
        self._one_of("kernels", get_args(Kernels))
        self._one_of("device", get_args(Device))
        self._check_device()
        self._check_ranks()
        self._one_of("quantization", (None, *get_args(Quantization)))
        if self.quantization is not None and self.kernels == "reference":
            raise RequestError(
                f"quantization={self.quantization!r} needs kernels='cpu'; the reference computes in fp32",
                field="quantization",
                value=self.quantization,
            )
        self._one_of("kv_cache_dtype", get_args(KvCacheDtype))
        self._one_of("deterministic", (True, False))
        if not isinstance(self.limits, Limits):
            raise RequestError("limits takes a safegen.Limits", field="limits", value=self.limits)
        check_options(self.guards, self.speculation)
        self._check_drafts(resolve_load(self.speculation))

    @property
    def is_on_gpu(self) -> bool:
        return self.kernels == "triton" or self.device == "cuda"

    def _check_device(self) -> None:
        if self.device == "cuda" and self.kernels not in ("auto", "triton"):
            raise RequestError(
                f"kernels={self.kernels!r} run on the CPU; device='cuda' needs 'triton' (or 'auto')",
                field="kernels",
                value=self.kernels,
            )
        if self.device == "cpu" and self.kernels == "triton":
            raise RequestError("kernels='triton' run on device='cuda'", field="device", value=self.device)

    def _check_ranks(self) -> None:
        size = self.tensor_parallel_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise RequestError(
                f"tensor_parallel_size={size!r} must be a positive integer", field="tensor_parallel_size", value=size
            )

    def _check_drafts(self, speculation: Speculation) -> None:
        models = [name for name in ("model", "self") if name in speculation.drafters]
        if models and self.is_on_gpu:
            raise RequestError(
                f"the drafter {models[0]!r} is not served on device='cuda'; choose among 'forced' and 'ngram'",
                field="speculation",
                value=self.speculation,
            )

    def _one_of(self, name: str, choices: tuple[object, ...]) -> None:
        value = getattr(self, name)
        if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
            listed = ", ".join(repr(choice) for choice in choices)
            raise RequestError(
                f"{name}={value!r} is not supported in this version; choose {listed}", field=name, value=value
            )


def load_runtime(options: LoadOptions) -> Runtime:
    """Load the model and start its engine. Raises ModelLoadError, CapacityError or RequestError."""
    from safegen.engine.runner import ModelRunner

    config = engine_config(options)
    path = located(options)
    runner: ModelRunner | GpuRunner
    if options.tensor_parallel_size > 1:
        spread = _spread(options, config, path)
        try:
            return _runtime(options, config, path, spread, on_end=spread.close)
        except BaseException:
            spread.close()
            raise
    if options.is_on_gpu:
        from safegen.engine.gpu.loading import load_gpu_runner

        runner = load_gpu_runner(path, config, options.quantization, deterministic=options.deterministic)
    else:
        runner = ModelRunner.load(path, kernels_of(options), config.kv_cache_dtype, options.quantization)
    return _runtime(options, config, path, runner)


def _spread(options: LoadOptions, config: EngineConfig, path: Path) -> ParallelRunner | ParallelGpuRunner:
    size = options.tensor_parallel_size
    if options.is_on_gpu:
        from safegen.engine.parallel.gpu import ParallelGpuRunner

        return ParallelGpuRunner.spread(path, config, options.quantization, size, deterministic=options.deterministic)
    from safegen.engine.parallel.runner import ParallelRunner

    return ParallelRunner.spread(path, kernels_of(options), config.kv_cache_dtype, options.quantization, size)


def _runtime(
    options: LoadOptions,
    config: EngineConfig,
    path: Path,
    runner: ModelRunner | GpuRunner,
    on_end: Callable[[], None] | None = None,
) -> Runtime:
    """The engine over a loaded model. on_end: called when the engine's thread ends."""
    from safegen.engine.engine import Engine
    from safegen.engine.runner import ModelRunner
    from safegen.engine.speculate.speculator import Speculator
    from safegen.engine.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(path, model_vocab_size=runner.vocab_size)
    speculation = speculation_of(options)
    backend: Backend = runner
    model_drafters: list[Drafter] = []
    if isinstance(runner, ModelRunner):
        backend, model_drafters = _draft_models(options, config, path, runner, tokenizer).make(speculation)
    speculator = Speculator([*make_drafters(speculation, tokenizer), *model_drafters])
    engine = Engine(backend, tokenizer.token_bytes, config, speculator, on_end)
    return Runtime(
        engine,
        tokenizer,
        options.limits,
        max_context=runner.max_context,
        max_num_seqs=options.max_num_seqs,
        speculation=speculation,
        guards=options.guards,
        fingerprint=fingerprint_of(options, path),
        model_name=model_name(options, path),
        reload=reloader(options),
        runs_tables=options.is_on_gpu,
    )


def _draft_models(
    options: LoadOptions, config: EngineConfig, path: Path, runner: ModelRunner, tokenizer: Tokenizer
) -> DraftModels:
    return DraftModels(
        path,
        runner,
        tokenizer,
        kernels=kernels_of(options),
        kv_cache_dtype=config.kv_cache_dtype,
        quantization=options.quantization,
        enable_prefix_caching=config.enable_prefix_caching,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )


def speculation_of(options: LoadOptions) -> Speculation:
    """On a GPU "auto" is none: forwards are launched before the tokens that a drafter would look at are known."""
    if options.is_on_gpu and options.speculation in ("auto", None):
        return OFF
    return resolve_load(options.speculation)


def engine_config(options: LoadOptions) -> EngineConfig:
    """Raises RequestError for an option out of range."""
    from safegen.engine.config import EngineConfig

    return EngineConfig(
        kv_cache_memory=options.kv_cache_memory,
        kv_cache_dtype=options.kv_cache_dtype,
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        enable_prefix_caching=options.enable_prefix_caching,
        max_queue=options.limits.max_queue,
        max_retracts=options.limits.max_retracts,
        gpu_memory_utilization=options.gpu_memory_utilization,
    )


def located(options: LoadOptions) -> Path:
    """Where the model lies. Raises ModelLoadError."""
    from safegen.engine.locate import locate_model

    return Path(locate_model(None if options.model is None else os.fspath(options.model)))


def fingerprint_of(options: LoadOptions, path: Path) -> str:
    """path: of the model."""
    ranks = (options.tensor_parallel_size,) if options.tensor_parallel_size > 1 else ()  # they round differently
    return model_fingerprint(path, kernels_of(options), options.kv_cache_dtype, options.quantization, *ranks)


def kernels_of(options: LoadOptions) -> Literal["cpu", "reference", "triton"]:
    if options.is_on_gpu:
        return "triton"
    return "cpu" if options.kernels == "auto" else options.kernels


def model_name(options: LoadOptions, path: Path) -> str:
    """A hub id as it was given; of a path its last part."""
    given = options.model
    return path.name if given is None or os.path.exists(given) else os.fspath(given)


def reloader(options: LoadOptions) -> Callable[[], Runtime]:
    """What loads the same model again, in another process of this machine or of one with the same files: models that
    are files are named by their whole paths, whatever the folder or the environment there."""
    from safegen.engine.locate import MODEL_VARIABLE

    speculation = options.speculation
    if isinstance(speculation, Speculation) and speculation.draft_model is not None:
        speculation = replace(speculation, draft_model=_portable(speculation.draft_model))
    model = options.model if options.model is not None else os.environ.get(MODEL_VARIABLE) or None
    return partial(
        load_runtime,
        replace(options, model=None if model is None else _portable(model), speculation=speculation),
    )


def _portable(model: str | os.PathLike[str]) -> str:
    """A path as a whole one; the id of a model stays what it is."""
    path = Path(model).expanduser()
    return os.path.abspath(path) if path.exists() else os.fspath(model)
