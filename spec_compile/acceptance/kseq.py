"""k-SEQ over independent drafts (SpecTr: Sun et al. 2023, arXiv 2310.15141, algorithms 2 and 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from spec_compile.acceptance.base import Accepted, SeveralDraftsRule
from spec_compile.acceptance.walk import Walk

SEARCHES = 2
INTERVALS = 6
POINTS = 16
MARGIN = 1e-5
_TINY = 1e-30


class KSeq(SeveralDraftsRule):
    """Accept candidates in turn with probability min(1, target * scale / draft); exact.

    1 / scale, rho in the paper, lies in [1, candidates]. The smaller it is, the more is accepted,
    as long as the rejected leave a law to draw from; at the smallest such rho at least
    (1 - (1 - 1/K)^K) of what optimal transport could accept is accepted (theorem 2). The search
    for it stays on the valid side, where the rule is exact, and costs less than 1 % of acceptance.
    At every position the candidates are the next tokens of the drafts that are still followed; one
    draft gives `rejection`. Uniforms: K tests for each of k positions, then one draw.
    """

    name = "kseq"
    exact = True

    def accept(
        self, draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, uniforms: Tensor
    ) -> Accepted:
        _, num_drafts, num_steps = draft_tokens.shape
        walk = Walk(draft_tokens, draft_probs, target_probs)
        last_scale = torch.ones_like(uniforms[:, :1])
        for position in range(num_steps):
            draft_law, target_law = walk.laws(position)
            count = walk.num_candidates
            scale = largest_scale(draft_law, target_law, count) if num_drafts > 1 else last_scale
            tokens = draft_tokens[:, :, position]
            tests = uniforms[:, position * num_drafts : (position + 1) * num_drafts]
            passed = tests * draft_law.gather(1, tokens) < scale * target_law.gather(1, tokens)
            last_scale = torch.where(walk.going[:, None], scale, last_scale)
            walk.advance(position, passed)
        draft_law, target_law = walk.last_laws()
        residual = _residual(draft_law, target_law, last_scale, walk.num_candidates)
        return walk.finish(residual, target_law, uniforms[:, -1])


def largest_scale(draft_law: Tensor, target_law: Tensor, count: Tensor) -> Tensor:
    """The largest valid 1 / rho, from below: [B, 1], in [1 / count, 1].

    With mass(s) = sum(min(draft, s * target)), what one test accepts, s is valid where
    s * (1 - (1 - mass)^count) <= mass. As mass is concave, a chord is below it, and s that is valid
    for a chord is valid. So a few sums over the vocabulary serve many points: search the points of
    all chords, then once more between the best and the first end of a chord that is not valid.

    Args:
        draft_law, target_law: [B, V].
        count: [B, 1] int64, candidates of the row.
    """
    exponent = count.to(target_law.dtype)
    low = exponent.reciprocal()
    high = torch.ones_like(low)
    ends, points, chords = _grid(target_law)
    for _ in range(SEARCHES):
        scale = low + (high - low) * ends
        mass = torch.minimum(draft_law[:, None], target_law[:, None] * scale[:, :, None]).sum(-1)
        beyond = torch.where(_is_valid(scale, mass, exponent), 1.0, scale)
        between = low + (high - low) * points
        inside = torch.where(_is_valid(between, mass @ chords, exponent), between, low)
        low, high = inside.amax(dim=1, keepdim=True), beyond.amin(dim=1, keepdim=True)
    return low


def _grid(like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Places in [0, 1] of the chords' ends [E] and of all points [N]; masses of ends to points."""
    ends = torch.arange(INTERVALS + 1, dtype=like.dtype, device=like.device) / INTERVALS
    size = INTERVALS * POINTS
    points = torch.arange(size + 1, dtype=like.dtype, device=like.device) / size
    chords = (1 - (points[None, :] - ends[:, None]).abs() * INTERVALS).relu()
    return ends, points, chords


def _is_valid(scale: Tensor, mass: Tensor, exponent: Tensor) -> Tensor:
    """Whether what is accepted leaves a law, by a margin that rounding does not eat up."""
    accepted = 1 - (1 - mass).relu() ** exponent
    return scale * accepted <= mass * (1 - MARGIN)


def _residual(draft_law: Tensor, target_law: Tensor, scale: Tensor, count: Tensor) -> Tensor:
    """What the target has left when all candidates were rejected: weights [B, V]."""
    taken = torch.minimum(draft_law, target_law * scale)
    mass = taken.sum(dim=-1, keepdim=True)
    tests = (1 - (1 - mass).relu() ** count.to(mass.dtype)) / mass.clamp(min=_TINY)
    return (target_law - taken * tests).relu()
