"""Drafts that fan out from the best first tokens (greedy draft sampling: Hu et al. 2025).

Source: arXiv 2502.18779, section 5; for K = 2 it accepts what SpecHub (arXiv 2411.05289) does.
"""

from __future__ import annotations

from torch import Tensor

from spec_compile.acceptance.base import Accepted, Drafting, SeveralDraftsRule, has_mass
from spec_compile.acceptance.chain import accept_chain, num_chain_uniforms
from spec_compile.acceptance.recursive import left_over
from spec_compile.errors import ConfigError
from spec_compile.sampling import sample


class Fanout(SeveralDraftsRule):
    """K drafts with different first tokens: the K - 1 best, and one drawn from the others; exact.

    The first position is one step of `rejection` whose proposal is that drawn token; its answer
    counts as accepted too where it is one of the best. That reaches the optimum of transport for
    these candidates. The draft that begins with the answer is then judged by `block`. Uniforms: a
    test and a draw, then those of the chain.
    """

    name = "fanout"
    exact = True
    drafting = Drafting.TOP_AND_ONE

    def uniforms_shape(self, num_drafts: int, num_speculative_tokens: int) -> tuple[int, ...]:
        """A test and a draw for the first position, then the chain's: (k + 2,)."""
        del num_drafts
        return (2 + num_chain_uniforms(num_speculative_tokens),)

    def accept(
        self, draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, uniforms: Tensor
    ) -> Accepted:
        first, target_law = draft_tokens[:, :, 0], target_probs[:, 0, 0]
        proposed = first[:, -1:]
        law = _law_of_the_others(draft_probs[:, 0, 0], first)
        chance = uniforms[:, 0] * law.gather(1, proposed)[:, 0]
        accepted = chance < target_law.gather(1, proposed)[:, 0]
        drawn = sample(left_over(target_law, law), uniforms[:, 1])
        chosen = proposed[:, 0] * accepted.long() + drawn * (~accepted).long()
        drafts = (draft_tokens, draft_probs, target_probs)
        return accept_chain(*drafts, chosen, uniforms[:, 2:])


class TopKPlusOne(Fanout):
    """`fanout` for drafts of one token: the optimum of transport for these candidates; exact."""

    name = "topk_plus_one"

    def uniforms_shape(self, num_drafts: int, num_speculative_tokens: int) -> tuple[int, ...]:
        """A test and two draws: (3,)."""
        if num_speculative_tokens > 1:
            raise ConfigError(
                f"acceptance={self.name!r} takes drafts of one token, not of "
                f"{num_speculative_tokens}; for longer ones there is 'fanout'"
            )
        return super().uniforms_shape(num_drafts, num_speculative_tokens)


def _law_of_the_others(law: Tensor, first: Tensor) -> Tensor:
    """`law` [B, V] without the first K - 1 of [B, K]; one-hot at the last if nothing is left."""
    best = first[:, :-1]
    if best.shape[1]:
        law = law.scatter(1, best, 0.0)
    empty = ~has_mass(law)
    law = law.scatter_add(1, first[:, -1:], empty.to(law.dtype))
    return law / law.sum(dim=-1, keepdim=True)
