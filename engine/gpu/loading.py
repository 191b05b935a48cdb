"""From a path to a `GpuRunner` on the current CUDA device."""

from __future__ import annotations

from pathlib import Path

from safegen.engine import kv_cache
from safegen.engine.config import EngineConfig
from safegen.engine.gpu.device import CudaDevice
from safegen.engine.gpu.runner import GpuRunner
from safegen.engine.models.base import Model
from safegen.engine.models.layers import Decoder
from safegen.engine.models.loader import load_model
from safegen.errors import ModelLoadError, RequestError
from safegen.kernels.api import DeviceOps, Quantization


def load_gpu_runner(
    path: str | Path, config: EngineConfig, quantization: Quantization | None = None, *, deterministic: bool = False
) -> GpuRunner:
    """A model file or folder on the Triton kernels. Raises ModelLoadError; RequestError without a CUDA device or
    without triton, and names the fix."""
    kernels = gpu_kernels(quantization, deterministic)
    model = as_decoder(load_model(path, kernels, device="cuda"), path)
    kv_dtype = kv_cache.resolve_dtype(config.kv_cache_dtype, kernels.name)
    return GpuRunner(
        model,
        kernels,
        CudaDevice(),  # after the load: it waits for what the load has started
        kv_dtype,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_context=config.max_context,
    )


def as_decoder(model: Model, path: str | Path) -> Decoder:
    """Raises ModelLoadError for a model that is none."""
    if not isinstance(model, Decoder):
        raise ModelLoadError(f"{type(model).__name__} is not served on a GPU", path=str(path), hint="use kernels='cpu'")
    return model


def gpu_kernels(quantization: Quantization | None, deterministic: bool) -> DeviceOps:
    """Those of the current CUDA device. Raises RequestError as `load_gpu_runner`."""
    try:
        from safegen.kernels.triton.ops import TritonOps

        return TritonOps(quantization, device="cuda", deterministic=deterministic)
    except (ImportError, ValueError) as exc:
        fix = "pip install 'safegen[gpu]'" if isinstance(exc, ImportError) else "use kernels='cpu', device='cpu'"
        raise RequestError(f"device='cuda' cannot be used: {exc}. Fix: {fix}.", field="device", value="cuda") from exc


__all__ = ["as_decoder", "gpu_kernels", "load_gpu_runner"]
