"""k-SEQ over independent drafts (SpecTr: Sun et al. 2023, arXiv 2310.15141, algorithms 2 and 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from spec_compile.acceptance.base import Accepted, SeveralDraftsRule, has_mass
from spec_compile.acceptance.walk import Walk, first_or
from spec_compile.sampling import sample

BISECTIONS = 24


class KSeq(SeveralDraftsRule):
    """Accept candidates in turn with probability min(1, target / (rho * draft)); exact.

    rho in [1, candidates] is the smallest for which the rejected still leave a law to draw from;
    with it at least (1 - (1 - 1/K)^K) of what optimal transport could accept is accepted
    (theorem 2). It is found by bisection and taken from the upper end, which is always valid.
    At every position the candidates are the next tokens of the drafts that are still followed;
    one draft gives `rejection`. Uniforms: K tests for each of k positions, then k + 1 draws.
    """

    name = "kseq"
    exact = True

    def accept(
        self, draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, uniforms: Tensor
    ) -> Accepted:
        _, num_drafts, num_steps = draft_tokens.shape
        num_tests = num_drafts * num_steps
        draws = uniforms[:, num_tests:]
        walk = Walk(draft_tokens, draft_probs, target_probs)
        for position in range(num_steps):
            draft_law, target_law = walk.laws(position)
            count = walk.alive.long().sum(dim=1, keepdim=True)
            rho = division_factor(draft_law, target_law, count, num_drafts)
            tokens = draft_tokens[:, :, position]
            chance = rho * draft_law.gather(1, tokens)
            tests = uniforms[:, position * num_drafts : (position + 1) * num_drafts]
            passed = tests * chance < target_law.gather(1, tokens)
            residual = _residual(draft_law, target_law, rho, count, num_drafts)
            drawn = sample(residual, draws[:, position])
            walk.advance(position, first_or(walk.alive & passed, tokens, drawn))
        return walk.finish(draws[:, num_steps])


def division_factor(
    draft_law: Tensor, target_law: Tensor, count: Tensor, num_drafts: int
) -> Tensor:
    """The smallest valid rho, from above: [B, 1].

    Args:
        draft_law, target_law: [B, V].
        count: [B, 1] int64, candidates of the row, 1 to num_drafts.
        num_drafts: K.
    """
    low = torch.ones_like(target_law[:, :1])
    high = low * count
    for _ in range(BISECTIONS if num_drafts > 1 else 0):
        middle = (low + high) / 2
        mass = torch.minimum(draft_law, target_law / middle).sum(dim=-1, keepdim=True)
        valid = _tries(mass, count, num_drafts) <= middle
        low, high = torch.where(valid, low, middle), torch.where(valid, middle, high)
    return high


def _residual(
    draft_law: Tensor, target_law: Tensor, rho: Tensor, count: Tensor, num_drafts: int
) -> Tensor:
    """What the target has left when all candidates were rejected: weights [B, V]."""
    accepted = torch.minimum(draft_law, target_law / rho)
    tries = _tries(accepted.sum(dim=-1, keepdim=True), count, num_drafts)
    left = (target_law - accepted * tries).relu()
    return torch.where(has_mass(left), left, target_law)


def _tries(mass: Tensor, count: Tensor, num_drafts: int) -> Tensor:
    """Expected number of candidates looked at, of `count`, if each is accepted with `mass`."""
    total, missed = torch.zeros_like(mass), torch.ones_like(mass)
    for index in range(num_drafts):
        total = total + missed * (count > index).to(mass.dtype)
        missed = missed * (1 - mass)
    return total
