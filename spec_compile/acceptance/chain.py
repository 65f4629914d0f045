"""After the first position: at most one draft is followed, and the rest of it is a single draft."""

from __future__ import annotations

import torch
from torch import Tensor

from spec_compile.acceptance.base import Accepted, take_draft
from spec_compile.acceptance.block import Block

_RULE = Block()


def num_chain_uniforms(num_speculative_tokens: int) -> int:
    """Uniforms that `accept_chain` takes for drafts of this length: k."""
    return _RULE.uniforms_shape(1, num_speculative_tokens - 1)[0]


def accept_chain(
    draft_tokens: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    chosen: Tensor,
    uniforms: Tensor,
) -> Accepted:
    """Follow the first draft that begins with `chosen` [B], if there is one, by block verification.

    Args:
        draft_tokens: [B, K, k] int64.
        draft_probs: [B, K, k, V].
        target_probs: [B, K, k + 1, V].
        chosen: [B] int64, the token of the first position.
        uniforms: [B, num_chain_uniforms].
    """
    begins = draft_tokens[:, :, 0] == chosen[:, None]
    survivor = begins.int().argmax(dim=1)
    output, emitted = _RULE(
        take_draft(draft_tokens, survivor)[:, 1:],
        take_draft(draft_probs, survivor)[:, 1:],
        take_draft(target_probs, survivor)[:, 1:],
        uniforms,
    )
    followed = begins.any(dim=1)
    rest = torch.where(followed[:, None], output, -1)
    count = 1 + emitted * followed.long()
    return Accepted(torch.cat([chosen[:, None], rest], dim=1), count, survivor)
