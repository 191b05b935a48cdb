"""transformers on the same random model: `generate`, and its continuous batching. Prints one JSON object.

python -m benchmarks.peers.gpu_transformers --model llama-3-8b --batches 1,64
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.common.gpu_decode import OUTPUT_TOKENS, PROMPT_TOKENS
from benchmarks.common.gpu_models import CONFIGS


def random_peer(name: str) -> Any:
    import transformers

    config = CONFIGS[name]
    classes = {"llama": "Llama", "qwen3": "Qwen3"}
    prefix = classes[config.architecture]
    settings = getattr(transformers, f"{prefix}Config")(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers, num_attention_heads=config.num_heads, head_dim=config.head_dim,
        num_key_value_heads=config.num_kv_heads, max_position_embeddings=config.max_position,
        tie_word_embeddings=config.tie_embeddings, eos_token_id=None, pad_token_id=0, dtype="bfloat16",
    )  # fmt: skip
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        return getattr(transformers, f"{prefix}ForCausalLM")(settings).eval()


def _timed(work: Any) -> float:
    torch.cuda.synchronize()
    started_s = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started_s


def generate_rate(model: Any, batch: int) -> float:
    """Tokens a second after the first token of each sequence."""
    ids = torch.randint(1, 1000, (batch, PROMPT_TOKENS), device="cuda")

    def run(count: int) -> Any:
        return model.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False)

    run(2)
    one, all_of_them = _timed(lambda: run(1)), _timed(lambda: run(OUTPUT_TOKENS))
    return batch * (OUTPUT_TOKENS - 1) / max(all_of_them - one, 1e-9)


def continuous_rate(model: Any, batch: int) -> float:
    """Tokens a second of `generate_batch`, prompts included: it hands out no first tokens."""
    import transformers

    settings = transformers.GenerationConfig(
        max_new_tokens=OUTPUT_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    prompts = torch.randint(1, 1000, (batch, PROMPT_TOKENS)).tolist()
    model.generate_batch(prompts[:1], generation_config=settings)
    seconds = _timed(lambda: model.generate_batch(prompts, generation_config=settings))
    return batch * OUTPUT_TOKENS / seconds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--batches", default="1,8,64,256")
    options = parser.parse_args(arguments)
    model = random_peer(options.model)
    found: dict[str, float] = {}
    missing: dict[str, str] = {}
    with torch.inference_mode():
        for batch in (int(each) for each in options.batches.split(",")):
            for name, rate in (("generate", generate_rate), ("continuous", continuous_rate)):
                try:
                    found[f"b{batch}.{name}"] = rate(model, batch)
                except Exception as error:  # a peer that fails is named, and the others go on
                    missing[f"b{batch}.{name}"] = f"{type(error).__name__}: {error!s:.200}"
    print(json.dumps({**found, "missing": missing}))


if __name__ == "__main__":
    main()
