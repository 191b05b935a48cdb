"""A digest that tells models apart: of what their files hold, and of how they are computed.

Small files count as a whole; of weights, whose files are large, the size and pieces spread over the file. Where a model
lies, and what its files are called, does not count.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_WHOLE_BYTES = 4 << 20
_NUM_PIECES, _PIECE_BYTES = 64, 1 << 14
_SUFFIXES = (".gguf", ".safetensors", ".json", ".jinja", ".model")


def model_fingerprint(path: Path, *computed: object) -> str:
    """path: a GGUF file or a model folder. computed: settings that change what comes out, such as the kernels."""
    digest = hashlib.blake2b(repr(computed).encode(), digest_size=16)
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
    for file in files:
        _add(digest, file)
    return digest.hexdigest()


def _add(digest: hashlib.blake2b, path: Path) -> None:
    with path.open("rb") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        digest.update(f"{path.suffix} {num_bytes} ".encode())
        if num_bytes <= _WHOLE_BYTES:
            digest.update(file.read())
            return
        for piece in range(_NUM_PIECES):
            file.seek((num_bytes - _PIECE_BYTES) * piece // (_NUM_PIECES - 1))
            digest.update(file.read(_PIECE_BYTES))
