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
    uniform per position draws the target's token there, after the last draft token as well. A
    draft token of -1 is never accepted.
    """

    name = "match"
    exact = True
    drafting = Drafting.GREEDY
    symbolic_length = True

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
        batch, num_positions, vocab_size = target_probs.shape
        # Not a slice, whose strides would tie a symbolic length to the width of `uniforms`.
        draws = uniforms.index_select(1, torch.arange(num_positions, device=uniforms.device))
        own = sample(target_probs.reshape(-1, vocab_size), draws.reshape(-1))
        own = own.reshape(batch, num_positions)
        num_accepted = count_accepted(draft_tokens == own[:, :-1])
        return emit(draft_tokens, num_accepted, own.gather(1, num_accepted[:, None])[:, 0])
