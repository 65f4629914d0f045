"""What the kernels compute, as tensor functions: the definition, and the path without Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from spec_compile.acceptance import RULES
from spec_compile.acceptance.base import take_tokens
from spec_compile.sampling import Sampling, process_logits


def accept_rejection(
    logits: Tensor,
    draft_tokens: Tensor,
    draft_probs: Tensor,
    sampling: Sampling,
    uniforms: Tensor,
) -> tuple[Tensor, Tensor]:
    """Sampling transforms, the rejection rule, and 0 emitted tokens where a number is missing.

    Args:
        logits: [B, k + 1, V], any float type.
        draft_tokens: [B, k] int64.
        draft_probs: [B, k, V] float32.
        sampling: options per row.
        uniforms: [B, k + 1] float32 in [0, 1).

    Returns:
        output_tokens [B, k + 1] int64 with -1 in the unused tail, and num_emitted [B] int64, 0 in
        a row whose logits hold NaN or +inf, or whose draft tokens had such a probability.
    """
    target_probs = process_logits(logits, sampling)
    tokens, emitted = RULES["rejection"](draft_tokens, draft_probs, target_probs, uniforms)
    is_number = _are_numbers(logits)
    if draft_tokens.shape[1]:
        drawn = take_tokens(draft_probs, draft_tokens)
        is_number = is_number & (drawn.sum(dim=-1) < torch.inf)
    return tokens, torch.where(is_number, emitted, 0)


def accept_greedy(logits: Tensor, draft_tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The greedy rule, and 0 emitted tokens where a logit is NaN or +inf; shapes as above."""
    tokens, emitted = RULES["greedy"](draft_tokens, None, logits, None)
    return tokens, torch.where(_are_numbers(logits), emitted, 0)


def temperature_only(temperature: Tensor) -> Sampling:
    """Sampling options [B] that leave every token in: no top-k, top-p or min-p."""
    return Sampling(
        temperature,
        torch.zeros_like(temperature, dtype=torch.int64),
        torch.ones_like(temperature),
        torch.zeros_like(temperature),
    )


def _are_numbers(logits: Tensor) -> Tensor:
    """False in a row [B] with NaN, which compares false, or +inf, which is not below itself."""
    return (logits < torch.inf).all(dim=2).all(dim=1)
