"""Recursive rejection sampling: each candidate is tested against what the ones before it left.

With replacement: SpecInfer (Miao et al. 2023, arXiv 2305.09781, algorithm 2). Without: Sequoia
(Chen et al. 2024, arXiv 2402.12374, section 3.2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from spec_compile.acceptance.base import Accepted, Drafting, SeveralDraftsRule, has_mass
from spec_compile.acceptance.chain import accept_chain, num_chain_uniforms
from spec_compile.acceptance.walk import Walk, first_or
from spec_compile.sampling import sample

_TINY = 1e-30


class Recursive(SeveralDraftsRule):
    """Test independent drafts in turn against the residual of the one before; exact.

    The residual of a rejected candidate is max(0, residual - draft), normalised, and begins as the
    target. All of them are max(0, target - times * draft) up to a factor, `times` growing from 0 by
    the mass of the residual, so one number is all that is kept of each. At every position the
    candidates are the next tokens of the drafts still followed; one draft gives `rejection`.
    Uniforms: K tests for each of k positions, then one draw.
    """

    name = "recursive"
    exact = True

    def accept(
        self, draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, uniforms: Tensor
    ) -> Accepted:
        _, num_drafts, num_steps = draft_tokens.shape
        walk = Walk(draft_tokens, draft_probs, target_probs)
        last_times = torch.zeros_like(uniforms[:, :1])
        for position in range(num_steps):
            tests = uniforms[:, position * num_drafts : (position + 1) * num_drafts]
            tokens = draft_tokens[:, :, position]
            passed, times = _test_in_turn(walk.laws(position), tokens, walk.alive, tests)
            last_times = torch.where(walk.going[:, None], times, last_times)
            walk.advance(position, passed)
        draft_law, target_law = walk.last_laws()
        residual = (target_law - draft_law * last_times).relu()
        return walk.finish(residual, target_law, uniforms[:, -1])


def _test_in_turn(
    laws: tuple[Tensor, Tensor], tokens: Tensor, alive: Tensor, tests: Tensor
) -> tuple[Tensor, Tensor]:
    """Which of the tokens [B, K] pass, and `times` [B, 1] once all that are alive were rejected."""
    draft_law, target_law = laws
    drafted, wanted = draft_law.gather(1, tokens), target_law.gather(1, tokens)
    times = torch.zeros_like(tests[:, :1])
    mass = torch.ones_like(times)
    passed = []
    for index in range(tokens.shape[1]):
        if index:
            mass = (target_law - draft_law * times).relu().sum(dim=-1, keepdim=True)
        one = slice(index, index + 1)
        passed.append((times + tests[:, one] * mass) * drafted[:, one] < wanted[:, one])
        times = times + mass * alive[:, one].to(mass.dtype)
    return torch.cat(passed, dim=1), times


class RecursiveWithoutReplacement(SeveralDraftsRule):
    """Drafts with different first tokens, tested in turn; the rest is one chain; exact.

    First tokens are drawn one after the other, each from the draft's law without those before it,
    and tested against that law; a candidate drawn from nothing counts as certain. Robust at low
    temperature, where independent drafts repeat each other. The rest of the draft that stays is
    judged by `block`. Uniforms: K tests, one draw, then those of the chain.
    """

    name = "recursive_wor"
    exact = True
    drafting = Drafting.WITHOUT_REPLACEMENT

    def uniforms_shape(self, num_drafts: int, num_speculative_tokens: int) -> tuple[int, ...]:
        """K tests and a draw for the first position, then the chain's: (K + k + 1,)."""
        return (num_drafts + 1 + num_chain_uniforms(num_speculative_tokens),)

    def accept(
        self, draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, uniforms: Tensor
    ) -> Accepted:
        num_drafts = draft_tokens.shape[1]
        law, residual = draft_probs[:, 0, 0], target_probs[:, 0, 0]
        first = draft_tokens[:, :, 0]
        passed = []
        for draft in range(num_drafts):
            token = first[:, draft, None]
            law = _certain_where_empty(law, token)
            chance = uniforms[:, draft] * law.gather(1, token)[:, 0]
            passed.append(chance < residual.gather(1, token)[:, 0])
            residual = left_over(residual, law)
            law = law.scatter(1, token, 0.0)
            law = law / law.sum(dim=-1, keepdim=True).clamp(min=_TINY)
        drawn = sample(residual, uniforms[:, num_drafts])
        chosen = first_or(torch.stack(passed, dim=1), first, drawn)
        drafts = (draft_tokens, draft_probs, target_probs)
        return accept_chain(*drafts, chosen, uniforms[:, num_drafts + 1 :])


def left_over(residual: Tensor, law: Tensor) -> Tensor:
    """max(0, residual - law), normalised; `residual` itself where nothing is left: [B, V]."""
    left = (residual - law).relu()
    left = torch.where(has_mass(left), left, residual)
    return left / left.sum(dim=-1, keepdim=True).clamp(min=_TINY)


def _certain_where_empty(law: Tensor, token: Tensor) -> Tensor:
    """`law` [B, V], one-hot at token [B, 1] in rows that have no mass."""
    empty = (law.amax(dim=-1, keepdim=True) <= 0).to(law.dtype)
    return law.scatter_add(1, token, empty)
