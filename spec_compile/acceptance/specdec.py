"""Spec-Verification (SpecDec: Xia et al. 2023, arXiv 2203.16487, section 3.2)."""

from __future__ import annotations

import math

from torch import Tensor

from spec_compile.acceptance.base import (
    Drafting,
    Rule,
    count_accepted,
    emit,
    require_single_draft,
    take_tokens,
)
from spec_compile.config import SPECDEC_BETA, SPECDEC_TAU
from spec_compile.errors import ConfigError
from spec_compile.sampling import argmax


class SpecDec(Rule):
    """Accept a draft token that is nearly the target's best; approximate unless beta is 1.

    A token is accepted if it is the target's best one, or if fewer than `beta` tokens have a larger
    logit and the largest is at most `tau` above its own; a difference of logits is one of
    log-probabilities. At the first that is not, the target's best token follows. With beta 1 the
    output is token for token the target's greedy one, the lowest id among equals, as by `greedy`.

    `target_probs` holds raw logits. Takes no draft probabilities and no uniforms; a draft token of
    -1 proposes nothing.

    Args:
        beta: among how many of the target's best tokens a draft token has to be.
        tau: how much less log-probability than the best it may have.

    Raises:
        ConfigError: beta below 1, or a tau that is negative or not finite.
    """

    name = "specdec"
    drafting = Drafting.GREEDY
    samples = False
    symbolic_length = True

    def __init__(self, beta: int = SPECDEC_BETA, tau: float = SPECDEC_TAU) -> None:
        if beta < 1 or tau < 0 or not math.isfinite(tau):
            raise ConfigError(f"specdec needs beta >= 1 and a finite tau >= 0, not {beta}, {tau}")
        self.beta, self.tau, self.exact = beta, tau, beta == 1

    def uniforms_shape(self, num_drafts: int, num_speculative_tokens: int) -> tuple[int, ...]:
        """No randomness: (0,)."""
        require_single_draft(self.name, num_drafts)
        return (0,)

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        uniforms: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """See `Rule`; `draft_probs` and `uniforms` are ignored."""
        logits = target_probs.float()
        best = argmax(logits)
        accepted = draft_tokens == best[:, :-1]
        # One that equals the best is not the best: only beta above 1 lets it pass.
        if self.beta > 1:
            accepted = accepted | self._is_near(draft_tokens, best[:, :-1], logits)
        num_accepted = count_accepted(accepted)
        following = best.gather(1, num_accepted[:, None])[:, 0]
        return emit(draft_tokens, num_accepted, following)

    def _is_near(self, draft_tokens: Tensor, best: Tensor, logits: Tensor) -> Tensor:
        """Which tokens [B, k] are among the `beta` best, and at most `tau` below the best."""
        own = take_tokens(logits, draft_tokens.clamp(min=0))
        gap = take_tokens(logits, best) - own
        larger = (logits[:, : draft_tokens.shape[-1]] > own[..., None]).long().sum(dim=-1)
        return (draft_tokens >= 0) & (larger < self.beta) & (gap <= self.tau)
