"""Twins of the GPU's mask, draw and verification: the law of `engine/logits.py` in float64, a row after the other.

Written to be read. Each function has the signature of the one in `kernels.triton`; where that one draws with fp32
weights, these are exact.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from safegen.kernels.api import RowSettings

_WORD = 2**64 - 1
_TINY = 1.1754943508222875e-38  # weights below the smallest normal fp32 count as nothing


def philox_uniform(seed: int, index: int, position: int, attempt: int) -> float:
    """Upper 53 bits of the first word of Philox4x64-10 with counter (position, index, attempt, 0), key (seed, 0)."""
    c0, c1, c2, c3, k0, k1 = position & _WORD, index & _WORD, attempt & _WORD, 0, seed & _WORD, 0
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (second >> 64) ^ c1 ^ k0, second & _WORD, (first >> 64) ^ c3 ^ k1, first & _WORD
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & _WORD, (k1 + 0xBB67AE8584CAA73B) & _WORD
    return (c0 >> 11) * 2.0**-53


def legal_ids(words: Tensor, mask_row: int, vocab_size: int) -> Tensor:
    """bool [vocab_size]: what the mask allows; mask_row -1 allows all."""
    if mask_row < 0:
        return torch.ones(vocab_size, dtype=torch.bool, device=words.device)
    shift = torch.arange(32, dtype=torch.int32, device=words.device)
    return ((words[mask_row].unsqueeze(-1) >> shift) & 1).flatten()[:vocab_size] == 1


def apply_mask(logits: Tensor, words: Tensor, mask_rows: Tensor, vocab_size: int) -> None:
    """logits: [rows, >= vocab_size], changed in place: forbidden ids and those past the vocabulary become -infinity."""
    for row, mask_row in enumerate(mask_rows.tolist()):
        logits[row, :vocab_size].masked_fill_(~legal_ids(words, mask_row, vocab_size), -math.inf)
    logits[:, vocab_size:] = -math.inf


def law(logits: Tensor, legal: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor | int:
    """logits: [vocab]; legal: bool [vocab] -> probabilities, float64 [vocab], or a fault (1, 2, 3)."""
    ids = legal.nonzero().flatten()
    probs = torch.zeros(len(legal), dtype=torch.float64, device=logits.device)
    if len(ids) < 2:
        probs[ids] = 1.0
        return probs if len(ids) else 1
    scores = logits[ids].double()
    best = scores.max()
    if scores.isnan().any() or best == math.inf:
        return 3
    if best == -math.inf:
        return 2
    if temperature == 0.0:
        probs[ids[scores == best][0]] = 1.0
        return probs
    order = torch.argsort(scores, descending=True, stable=True)  # equal scores stay in order of id
    if 0 < top_k < len(ids):
        order = order[:top_k]
    weights = ((scores[order] - best) / temperature).exp()
    if top_p < 1.0:
        size = int((weights.cumsum(0) < top_p * weights.sum()).sum()) + 1
        order, weights = order[:size], weights[:size]
    weights = torch.where(weights >= max(min_p, _TINY), weights, 0.0)
    probs[ids[order]] = weights / weights.sum()
    return probs


def draw(probs: Tensor, uniform: float) -> int:
    """The first id whose cumulative probability exceeds `uniform` of the whole; the last possible one else."""
    above = (probs.cumsum(0) > uniform * probs.sum()) & (probs > 0)
    return int(above.nonzero()[0]) if above.any() else int(probs.nonzero()[-1])


def sample(
    logits: Tensor,
    words: Tensor,
    mask_rows: Tensor,
    settings: RowSettings,
    vocab_size: int,
    *,
    with_probs: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """-> token ids int32 [rows], faults int32 [rows], and with_probs: the law, fp32 [rows, vocab_size]."""
    rows = len(logits)
    tokens, faults = torch.zeros((2, rows), dtype=torch.int32)
    probs = torch.zeros((rows, vocab_size), dtype=torch.float64)
    for row in range(rows):
        legal = legal_ids(words, int(mask_rows[row]), vocab_size)
        found = law(
            logits[row, :vocab_size].float(), legal, float(settings.temperature[row]), int(settings.top_k[row]),
            float(settings.top_p[row]), float(settings.min_p[row]),
        )  # fmt: skip
        if isinstance(found, int):
            faults[row] = found
            continue
        probs[row] = found
        counter = (int(each[row]) for each in (settings.seed, settings.index, settings.position, settings.attempt))
        tokens[row] = draw(found, philox_uniform(*counter))
    return tokens, faults, probs.float() if with_probs else None


def verify(
    drawn: Tensor, drafts: Tensor, query_start: Tensor, probs: Tensor, draft_probs: Tensor, is_sampled: Tensor,
    coin: Tensor, uniform: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `kernels.triton.verify.verify`: the rule of `engine/speculate/verify.py`."""
    starts = query_start.tolist()
    output, counts = torch.zeros_like(drawn), torch.zeros(len(starts) - 1, dtype=torch.int32)
    for sequence, (first, end) in enumerate(zip(starts, starts[1:])):
        row = first
        while row < end:
            token = int(drawn[row])
            is_draft = row + 1 < end
            if is_draft and is_sampled[row]:
                token, draft = int(drafts[row]), int(drafts[row])
                if not float(coin[row]) * float(draft_probs[row, draft]) < float(probs[row, draft]):
                    rest = (probs[row].double() - draft_probs[row].double()).clamp_min(0.0)
                    token = draw(rest if rest.sum() > 0 else probs[row].double(), float(uniform[row]))
            output[row] = token
            row += 1
            if is_draft and token != int(drafts[row - 1]):
                break
        counts[sequence] = row - first
    return output, counts


__all__ = ["apply_mask", "draw", "law", "legal_ids", "philox_uniform", "sample", "verify"]
