"""Sizing before running: `plan` computes what a model needs on a device, and what it will give."""
