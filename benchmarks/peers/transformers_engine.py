"""transformers' own `generate` on the dequantized weights, constrained by xgrammar's logits processor.

The weights come from the same GGUF file, dequantized and saved once as a folder of safetensors. It has no way into a
running `generate`, so there is no time to first token under load; a request waits for the whole batch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import version
from benchmarks.common.cpu_workload import Prompt, Workload
from benchmarks.peers.base import CpuEngine, Generated, usable_cpus


class _FirstToken:
    """A logits processor that notes when it is first called: the prompts are computed."""

    def __init__(self) -> None:
        self.at_s: float | None = None

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if self.at_s is None:
            self.at_s = time.perf_counter()
        return scores


class TransformersEngine:
    """setting: the type of the weights, "float32" or "bfloat16"."""

    def __init__(self, model: str, workload: Workload) -> None:
        self._folder, self._workload = Path(model), workload
        self._compiled: Any = None

    def settings(self) -> list[str]:
        return ["float32", "bfloat16"]

    def versions(self) -> dict[str, Any]:
        import torch

        named = {name: version(name) for name in ("transformers", "torch", "xgrammar")}
        return {**named, "threads": torch.get_num_threads()}

    def imports(self) -> None:
        import transformers.models.llama.modeling_llama  # noqa: F401
        import xgrammar.contrib.hf  # noqa: F401

    def load(self, setting: str, kv_bytes: int | None) -> None:
        import torch
        import transformers

        torch.set_num_threads(usable_cpus())
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(self._folder, dtype=getattr(torch, setting))
        self._model = loaded.eval()

    def close(self) -> None:
        del self._model

    def prefill(self) -> float:
        import torch

        ids = torch.tensor([self._workload.prefill.ids])
        with torch.inference_mode():
            start = time.perf_counter()
            self._model(ids, logits_to_keep=1).logits.argmax()
            return time.perf_counter() - start

    def decode(self, num_sequences: int) -> Generated:
        count = self._workload.steps + 1
        prompts = self._workload.decode[:num_sequences]
        outputs, seconds = self._generate(prompts, [], min_new_tokens=count, max_new_tokens=count)
        return Generated(sum(len(output) for output in outputs) - num_sequences, seconds)

    def json(self, num_sequences: int) -> Generated:
        from xgrammar.contrib.hf import LogitsProcessor

        prompts = self._workload.json[:num_sequences]
        processor = LogitsProcessor(self._grammar())
        outputs, seconds = self._generate(prompts, [processor], max_new_tokens=self._workload.json_max_tokens)
        num_tokens = sum(len(output) for output in outputs) - num_sequences
        return Generated(num_tokens, seconds, sum(self._is_json(output) for output in outputs))

    def _generate(
        self, prompts: Sequence[Prompt], processors: list[Any], **lengths: int
    ) -> tuple[list[list[int]], float]:
        """Output tokens up to the stop id, and the seconds after the first tokens."""
        import torch

        width, stop_ids = max(len(prompt.ids) for prompt in prompts), self._workload.stop_ids
        padding = [width - len(prompt.ids) for prompt in prompts]
        ids = torch.tensor([[stop_ids[0]] * pad + prompt.ids for pad, prompt in zip(padding, prompts)])
        mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding])
        clock = _FirstToken()
        with torch.inference_mode():
            rows: Any = self._model.generate(
                ids, attention_mask=mask, do_sample=False, logits_processor=[clock, *processors],
                eos_token_id=stop_ids, pad_token_id=stop_ids[0], **lengths,
            )  # fmt: skip
        seconds = time.perf_counter() - (clock.at_s or 0.0)
        outputs = [row[width:].tolist() for row in rows]
        ends = [next((i for i, token in enumerate(output) if token in stop_ids), len(output)) for output in outputs]
        return [output[:end] for output, end in zip(outputs, ends)], seconds

    def _grammar(self) -> Any:
        if self._compiled is None:
            import xgrammar

            tokens = [bytes.fromhex(entry) for entry in self._workload.token_hex]
            info = xgrammar.TokenizerInfo(tokens, stop_token_ids=self._workload.stop_ids)
            compiler = xgrammar.GrammarCompiler(info)
            self._compiled = compiler.compile_json_schema(json.dumps(self._workload.schema), any_whitespace=False)
        return self._compiled

    def _is_json(self, output: Sequence[int]) -> bool:
        try:
            json.loads(b"".join(bytes.fromhex(self._workload.token_hex[token]) for token in output))
        except ValueError:
            return False
        return True

    def ttft(self) -> None:
        return None

    def logits(self, setting: str) -> Iterator[NDArray[np.float32]]:
        import torch

        self.load(setting, None)
        for window in self._workload.windows:
            with torch.inference_mode():
                yield self._model(torch.tensor([window])).logits[0].float().numpy()


def prepare(source: str, destination: str) -> None:
    """Dequantize a GGUF file of the Llama family into a folder of fp32 safetensors."""
    import transformers
    from safetensors.torch import save_file

    from safegen.engine.models import llama
    from safegen.engine.models.loader import read_config
    from tests.support.dequantized import dequantized, sizes

    path, folder = Path(source), Path(destination)
    config = read_config(path)
    rope = {"rope_type": "default", "rope_theta": config.rope.theta}
    hf_config = transformers.LlamaConfig(**sizes(config), rope_parameters=rope, architectures=["LlamaForCausalLM"])
    folder.mkdir()
    hf_config.save_pretrained(folder)
    state = {name: tensor.contiguous() for name, tensor in dequantized(path, llama.FAMILY, config).items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def make_engine(model: str, workload: Workload) -> CpuEngine:
    return TransformersEngine(model, workload)
