"""The first tokens of several drafts, drawn as the acceptance rule needs them."""

from __future__ import annotations

import torch
from torch import Tensor

from spec_compile.acceptance import Drafting
from spec_compile.sampling import argmax, sample


def first_tokens(drafting: Drafting, law: Tensor, logits: Tensor, uniforms: Tensor) -> Tensor:
    """First token of each of K drafts: [B, K] int64.

    Args:
        drafting: `Rule.drafting` of the rule.
        law: [B, V], the draft's law.
        logits: [B, V] that the law was made of; they rank the tokens that the law leaves out.
        uniforms: [B, K] in [0, 1).
    """
    return _DRAWS[drafting](law, logits, uniforms)


def _independent(law: Tensor, logits: Tensor, uniforms: Tensor) -> Tensor:
    del logits
    drawn = [sample(law, uniforms[:, draft]) for draft in range(uniforms.shape[1])]
    return torch.stack(drawn, dim=1)


def _without_replacement(law: Tensor, logits: Tensor, uniforms: Tensor) -> Tensor:
    """Each from what the ones before it left."""
    drawn: list[Tensor] = []
    for draft in range(uniforms.shape[1]):
        drawn.append(_draw(law, logits, uniforms[:, draft]))
        law = law.scatter(1, drawn[-1][:, None], 0.0)
        logits = logits.scatter(1, drawn[-1][:, None], float("-inf"))
    return torch.stack(drawn, dim=1)


def _top_and_one(law: Tensor, logits: Tensor, uniforms: Tensor) -> Tensor:
    """The K - 1 best tokens, and one drawn from the others."""
    best: list[Tensor] = []
    for _ in range(uniforms.shape[1] - 1):
        best.append(argmax(logits))
        law = law.scatter(1, best[-1][:, None], 0.0)
        logits = logits.scatter(1, best[-1][:, None], float("-inf"))
    return torch.stack([*best, _draw(law, logits, uniforms[:, -1])], dim=1)


def _draw(law: Tensor, logits: Tensor, uniforms: Tensor) -> Tensor:
    """A token of `law` [B, V], or the best of `logits` in a row where no mass is left."""
    return torch.where(law.amax(dim=-1) > 0, sample(law, uniforms), argmax(logits))


_DRAWS = {
    Drafting.SAMPLED: _independent,
    Drafting.WITHOUT_REPLACEMENT: _without_replacement,
    Drafting.TOP_AND_ONE: _top_and_one,
}
