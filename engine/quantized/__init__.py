"""Readers of quantized safetensors checkpoints (AWQ, GPTQ, FP8, compressed-tensors), all into one form of `Weight`."""
