"""Sample and compare: the draft stands while the target draws the same tokens itself."""

from __future__ import annotations

import torch
from torch import Tensor

from spec_compile.acceptance.base import Drafting, Rule, count_accepted, emit
from spec_compile.sampling import sample


class Match(Rule):
    """Accept while the draft token is the one that the target draws at its place; exact.

    Needs no law of the draft, so it serves any drafter: a token is accepted with its target
    probability, which for one proposal chosen without chance is what `rejection` does too. One
    uniform per position draws the target's token there, after the last draft token as well.
    """

    name = "match"
    exact = True
    drafting = Drafting.GREEDY

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        uniforms: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """See `Rule`; `draft_probs` is ignored."""
        if uniforms is None:
            raise TypeError("the match rule needs uniforms")
        num_positions = draft_tokens.shape[-1] + 1
        drawn = [sample(target_probs[:, i], uniforms[:, i]) for i in range(num_positions)]
        own = torch.stack(drawn, dim=1)
        num_accepted = count_accepted(draft_tokens == own[:, :-1])
        return emit(draft_tokens, num_accepted, own.gather(1, num_accepted[:, None])[:, 0])
