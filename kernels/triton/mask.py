"""Closes what a packed mask forbids, in place: the logits of forbidden ids become -infinity.

Bit i % 32 of word i // 32 says whether id i is legal, as in `grammars.constraint.MaskRows`. Ids past the vocabulary,
which a padded head gives logits for, are closed in every row, restricted or not. Logits are never read, only written
where they close: a row with few forbidden ids costs its words.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from safegen.kernels.triton.runtime import contiguous_rows

_WORDS = 64  # of a program: 2,048 ids


@triton.jit
def apply_mask_kernel(
    logits, words, mask_rows, vocab_size, width, logits_stride, words_stride, num_words, WORDS: tl.constexpr
):
    """Grid: rows, tiles of WORDS words. A row without a mask (-1) keeps all ids of the vocabulary."""
    row = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    mask_row = tl.load(mask_rows + row).to(tl.int64)
    num_packed = tl.where(mask_row >= 0, num_words, 0)
    packed = tl.load(words + mask_row * words_stride + word, mask=word < num_packed, other=-1)
    bit = tl.arange(0, 32)
    ids = word[:, None] * 32 + bit[None, :]
    closed = (((packed[:, None] >> bit[None, :]) & 1) == 0) | (ids >= vocab_size)
    nothing = tl.full([WORDS, 32], float("-inf"), tl.float32).to(logits.dtype.element_ty)
    tl.store(logits + row * logits_stride + ids, nothing, mask=closed & (ids < width))


def apply_mask(logits: Tensor, words: Tensor, mask_rows: Tensor, vocab_size: int) -> None:
    """logits: [rows, >= vocab_size] fp32, fp16 or bf16, changed in place. words: [mask rows, ceil(vocab_size / 32)]
    int32. mask_rows: [rows] int32, the mask of each row; -1 for a row that none restricts."""
    contiguous_rows(logits, "logits"), contiguous_rows(words, "words")
    rows, width = logits.shape
    num_words = (vocab_size + 31) // 32
    if vocab_size > width or (words.numel() and words.shape[1] != num_words):
        raise ValueError(
            f"words: {vocab_size} ids need {num_words} words and logits as wide, got {words.shape[1]}, {width}"
        )
    if rows:
        apply_mask_kernel[(rows, triton.cdiv(width, 32 * _WORDS))](
            logits, words, mask_rows, vocab_size, width, logits.stride(0), words.stride(0), num_words,
            WORDS=_WORDS, num_warps=4,
        )  # fmt: skip


__all__ = ["apply_mask"]
