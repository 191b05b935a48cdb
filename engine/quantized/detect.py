"""Which quantized layout a Hugging Face folder has: by `quantization_config` in its config.json.

Older checkpoints keep the settings in a file of their own, quantize_config.json (GPTQ) or quant_config.json (AWQ), or
under `compression_config`. A method or setting that no reader knows is refused by its name and value: what it stands
for cannot be guessed from tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safegen.engine.models.config import Fields
from safegen.engine.models.hf_config import read_json
from safegen.engine.quantized.awq import awq_format
from safegen.engine.quantized.base import QuantizedFormat
from safegen.engine.quantized.compressed_tensors import compressed_format
from safegen.engine.quantized.fp8 import fp8_format
from safegen.engine.quantized.gptq import gptq_format

_METHODS: Mapping[str, Callable[[Fields], QuantizedFormat]] = {
    "awq": awq_format,
    "compressed-tensors": compressed_format,
    "fp8": fp8_format,
    "gptq": gptq_format,
}
_OLD_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
_SECTIONS = {"quantization_config": None, "compression_config": "compressed-tensors"}


def find_format(fields: Fields) -> QuantizedFormat | None:
    """fields: of config.json. None for a checkpoint of plain floats. Raises ModelLoadError."""
    text = fields.section("text_config")
    for section, default in _SECTIONS.items():
        for holder in filter(None, (fields, text)):
            values = holder.section(section)
            if values is not None:
                return _format(values.values, fields.path, f"{section}.", default)
    for name, method in _OLD_FILES.items():
        path = Path(fields.path).parent / name
        if path.exists():
            return _format(read_json(path), str(path), "", method)
    return None


def _format(values: Mapping[str, Any], path: str, prefix: str, default: str | None) -> QuantizedFormat:
    named = Fields({prefix + key: value for key, value in values.items()}, path, prefix)
    method = named.text("quant_method", default)
    if method not in _METHODS:
        named.fail(
            "quant_method", f"is {method!r}; served are {', '.join(sorted(_METHODS))}",
            "use a checkpoint of one of these, GGUF, or the float model with quantization='int8' or 'int4'",
        )  # fmt: skip
    return _METHODS[method](named)


__all__ = ["find_format"]
