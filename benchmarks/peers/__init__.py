"""The engines that benchmarks compare, each behind one small face and in a process (and an interpreter) of its own.

`worker.py` runs one task: it reads a JSON file, drives one engine and writes a JSON file. An engine's module may import
what its own interpreter has, and of this repository only `benchmarks.common` modules that need the standard library and
numpy alone.
"""
