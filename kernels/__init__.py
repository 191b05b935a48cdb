"""Tensor operations behind one protocol (`safegen.kernels.api.Ops`)."""
